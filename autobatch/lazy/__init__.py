"""Tracing: arrays whose ops are recorded, grouped across examples by signature, and launched together."""
