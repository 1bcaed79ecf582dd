"""Every module that declares ops or functions, imported so that the tables are complete."""

from autobatch.ops import (
    contractions,
    creation,
    einsum,
    elementwise,
    grouping,
    indexing,
    joining,
    reductions,
    scans,
    selecting,
    shaping,
    statistics,
)

__all__ = ["MODULES"]

MODULES = (
    contractions,
    creation,
    einsum,
    elementwise,
    grouping,
    indexing,
    joining,
    reductions,
    scans,
    selecting,
    shaping,
    statistics,
)
