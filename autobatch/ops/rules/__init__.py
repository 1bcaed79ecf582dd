"""Code shared by batching rules: sizes, padding, kinds of ops, row gathers, views, dispatch of NumPy functions."""
