"""Benchmarks for workers under test: well-behaved ones, and one that misbehaves in every way there is."""
