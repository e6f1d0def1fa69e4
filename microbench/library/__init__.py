"""microbench as a Python library: what `import microbench` gives, and what the command shares with it."""
