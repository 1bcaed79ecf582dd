"""NumPy's functions for this library's arrays, by concept; `function_table` has an entry for each NumPy function."""
