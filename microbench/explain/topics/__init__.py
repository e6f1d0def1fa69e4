"""Short texts on one topic each; every number in them comes from the run."""
