"""The Python layers. One file per library says how the library launches a kernel."""
