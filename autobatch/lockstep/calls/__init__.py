"""Calls in converted code: of converted functions, of builtins and NumPy, and of code that is not converted."""
