"""Runs that must not warn, since their values are nobody's; and the filters of warnings outside of them.

`warnings.filters` belong to the whole process. So threads are silent one at a time, and a thread that asks whether its
user has replaced the filters waits until no other one is.
"""

import contextlib
import threading
import warnings
from collections.abc import Iterator
from typing import Any

import numpy as np

__all__ = ["silence", "users_filters"]

_silent = threading.RLock()


@contextlib.contextmanager
def silence() -> Iterator[None]:
    """No warning is given in here, of floating-point errors or any other.

    >>> with silence():
    ...     np.mean([])
    np.float64(nan)
    """
    with _silent, warnings.catch_warnings(), np.errstate(all="ignore"):
        warnings.simplefilter("ignore")
        yield


def users_filters() -> Any:
    """`warnings.filters` as the user's code has them."""
    with _silent:
        return warnings.filters
