"""What batching rules share: sizes, padding, kinds of ops, gathers of rows, views, the way to NumPy's functions."""
