"""Other libraries' arrays in and out: torch and JAX, imported only where a user has them."""
