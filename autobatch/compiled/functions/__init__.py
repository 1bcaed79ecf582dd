"""The functions that compiled code may call: how each is read, or what is read in its place."""
