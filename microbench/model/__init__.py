"""A step of work predicted: its description, the fitted constants, the model and the forecast."""
