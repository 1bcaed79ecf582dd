"""Numba loops on plain arrays. They trust their input: every check stands in the caller."""
