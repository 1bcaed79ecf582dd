"""Compiled gradients: the text of a compiled function with a tape beside it, and the loop that walks it back."""
