"""Models of one function each, trained on real input: the functions of Python's own standard library."""

import os

# Read when NumPy is first imported. The models' products have a few hundred rows and gain nothing from a second thread;
# where other programs keep the cores busy, they lose much.
os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")
