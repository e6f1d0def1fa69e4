"""Findings: rules that turn the evidence of a run into words."""
