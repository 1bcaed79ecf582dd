"""Reverse mode: a tape of ops, and the walk back along it."""
