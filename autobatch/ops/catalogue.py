"""Every module that declares ops or functions, imported so that the tables are complete."""

from autobatch.ops import (
    composite_lanes,
    composite_layout,
    composite_linalg,
    composite_math,
    composite_repeat,
    composite_sets,
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
    shaping_reshape,
    statistics,
    table_rest,
)

__all__ = ["MODULES"]

MODULES = (
    composite_lanes,
    composite_layout,
    composite_linalg,
    composite_math,
    composite_repeat,
    composite_sets,
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
    shaping_reshape,
    statistics,
    table_rest,
)
