"""Syntax: what names in a tree mean, which are live and bound where, and how generated code is quoted."""
