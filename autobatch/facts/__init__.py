"""Facts about NumPy and Python, each stated once: calls, methods, types, operators, and the syntax that uses them."""
