"""One generated recorder for a whole function of an example, with its recursion and its helpers."""
