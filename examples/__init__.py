"""Models of one function each, trained on real input: the functions of Python's own standard library."""

import os

# Read when NumPy and Numba are first imported. Arrays of a few hundred rows gain nothing from a second thread, and
# where other programs keep the cores busy, waiting for it costs several times the work.
for _variable in ("OPENBLAS_NUM_THREADS", "OMP_NUM_THREADS", "NUMBA_NUM_THREADS"):
    os.environ.setdefault(_variable, "1")
