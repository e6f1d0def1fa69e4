"""Figures of one or several runs as SVG."""
