"""The pictures and table order of each suite."""
