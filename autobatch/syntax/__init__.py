"""Syntax: scopes and liveness of names in trees, finding a function's source, and quoting generated code."""
