"""Reports drawn in a terminal with rich."""
