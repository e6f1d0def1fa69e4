"""Facts that the machine reports: NVML, PCI, counters and topology."""
