"""What the CPU side costs without a GPU."""
