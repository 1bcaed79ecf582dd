"""Blocks: straight-line runs of array expressions, traced once for one example and run for many as one call."""
