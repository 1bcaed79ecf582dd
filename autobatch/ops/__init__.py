"""Declarations of all ops: rules shared by kinds of ops, NumPy's functions by concept, and neural networks."""
