"""Python layers: one file a library says how it launches a kernel."""
