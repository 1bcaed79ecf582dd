"""Kernels: Numba-compiled loops on plain arrays. They do not check their input; the callers do."""
