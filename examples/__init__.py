"""Models of one function each, trained on real input: the functions of Python's own standard library."""
