"""Two runs compared: which figures changed, and how certain that is."""
