"""The host: what this machine is, and compiled loops that run on it."""
