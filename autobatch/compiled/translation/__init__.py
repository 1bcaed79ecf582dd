"""Translation of the user's functions: read with the types of their arguments, and written as source text for Numba."""
