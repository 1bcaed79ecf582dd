"""NumPy's functions for arrays of ours, by concept; `function_table` decides about every function of NumPy's."""
