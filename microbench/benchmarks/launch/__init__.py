"""What it costs to submit a kernel."""
