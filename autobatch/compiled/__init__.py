"""The user's function of one example, typed by its examples, compiled by Numba and run over them in one loop."""
