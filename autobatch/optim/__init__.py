"""Optimisers that update parameters in place, dense leaves whole and tables row by row."""
