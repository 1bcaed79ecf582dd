"""Bridges to the arrays of other libraries: torch and JAX, each imported only if the user has it."""
