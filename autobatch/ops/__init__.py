"""Every op, declared once: the rules that kinds of ops share, NumPy's functions by concept, neural networks."""
