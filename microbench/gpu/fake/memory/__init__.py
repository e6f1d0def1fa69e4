"""The simulated GPU's own memory: caches, DRAM, atomic units, copies within it, room for blocks."""
