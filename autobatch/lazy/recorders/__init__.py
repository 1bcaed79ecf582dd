"""Generates one recorder for a whole function of an example, including its recursion and helpers."""
