"""Requests run together as they come: in one process, and over HTTP."""
