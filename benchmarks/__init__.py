"""Benchmarks: example-level code beside peers that do the same work on the same data, in one run."""
