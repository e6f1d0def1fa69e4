"""Recorded runs: the file format, the store, history, export and redaction."""
