"""The decorator's passes over the syntax tree: calls, reads, writes and loops become calls of the lock-step runtime."""
