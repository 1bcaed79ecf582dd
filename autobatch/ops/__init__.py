"""Every op, declared once: implementation, batching rule, vjp; and the table that decides about NumPy's functions."""
