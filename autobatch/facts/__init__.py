"""What NumPy and Python do, once: calls, methods, types, operators, and the syntax that uses them."""
