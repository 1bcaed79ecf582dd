"""Kernels that compiled functions of users call: arithmetic that reports errors, array functions, the gradient tape."""
