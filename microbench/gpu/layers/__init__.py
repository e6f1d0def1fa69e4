"""Python layers, one file each: how a library launches one kernel."""
