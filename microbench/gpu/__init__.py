"""Everything that imports a GPU package: the protocol, the real GPU, the simulated GPU and the Python layers."""
