"""Blocks: straight-line runs of array expressions: found in syntax, traced to programs, compiled, launched."""
