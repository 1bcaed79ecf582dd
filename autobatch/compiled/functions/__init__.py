"""The functions that compiled code may call: for each a handler, or Python source that is read in its place."""
