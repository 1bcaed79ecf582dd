"""The program: a function's source, the scopes and liveness of its names, its effects, and quoting generated code."""
