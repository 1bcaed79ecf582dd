"""The user's functions, read with the types of their arguments and written as text for Numba."""
