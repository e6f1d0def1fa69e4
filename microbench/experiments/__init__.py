"""What one question needs beyond the driver: its device work, its verification, and what the simulated GPU answers."""
