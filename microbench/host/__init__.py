"""The CPU side of this machine: compiled loops, affinity, memory and facts."""
