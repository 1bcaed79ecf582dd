"""Every op, declared once: implementation, batching rule and vjp; and the table that decides about NumPy's functions."""
