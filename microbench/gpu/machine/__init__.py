"""What the machine says about itself: NVML, PCI, counters and topology."""
