"""Every module that declares ops or functions, imported so that the tables are complete."""

from autobatch.ops import (
    composite_layout,
    composite_linalg,
    composite_math,
    composite_repeat,
    composite_sets,
    composite_statistics,
    contractions,
    creation,
    einsum,
    elementwise,
    factorisations,
    fourier,
    indexing,
    joining,
    reductions,
    scans,
    selecting,
    shaping,
    shaping_reshape,
    statistics,
    table_rest,
)
from autobatch.ops.rules import grouping

__all__ = ["MODULES"]

MODULES = (
    grouping,
    composite_layout,
    composite_linalg,
    composite_math,
    composite_repeat,
    composite_sets,
    composite_statistics,
    contractions,
    creation,
    einsum,
    elementwise,
    factorisations,
    fourier,
    grouping,
    indexing,
    joining,
    reductions,
    scans,
    selecting,
    shaping,
    shaping_reshape,
    statistics,
    table_rest,
)
