"""Facts about NumPy and Python, each stated once: calls, methods, types and operators."""
