"""Runs a command and records what its Python processes submit to the GPU; the recorder lives in their processes."""
