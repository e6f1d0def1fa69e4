"""Watches a program for as long as it runs: recordings now and then, their metrics, and requests of other processes."""
