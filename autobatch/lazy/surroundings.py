"""What surrounds a recorded call beside its operands: how NumPy handles floating-point errors there, and warnings.

A launch happens later and elsewhere, so a call that was recorded inside of `np.errstate` carries its handling along.
Filters of `warnings.catch_warnings` are the whole process's: what is caught there cannot be launched elsewhere.
"""

from typing import Any

from autobatch.core.floating import handling
from autobatch.core.silence import users_filters
from autobatch.errors import NeedsLoop

__all__ = ["catches_warnings", "handling"]


def catches_warnings(before: Any) -> NeedsLoop | None:
    """Why a call cannot be recorded here, if the filters that were in force `before` have been replaced."""
    filters = users_filters()
    if filters is before or (filters and filters[0][0] == "ignore"):
        return None
    return NeedsLoop("an example catches warnings, which a batched call gives elsewhere")
