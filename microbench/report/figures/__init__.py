"""Figures of one or several runs, drawn with Altair."""
