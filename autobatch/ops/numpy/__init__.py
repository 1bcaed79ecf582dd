"""NumPy's functions for arrays of ours, by concept; `table` decides about every function of NumPy's."""
