"""Gradients of compiled functions: their text with a tape beside it, and the loop that walks the tape back."""
