"""A simulated GPU and host for tests and --device fake; every figure is marked SIMULATED."""
