"""From an operation to samples: timing, sampling, and what the suites measure in common."""
