"""Time series, and loops over numbers."""
