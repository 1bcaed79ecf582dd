"""The table that decides what each overridable NumPy function does with arrays of ours.

Every ufunc is in `UFUNCS`; every other overridable function is in exactly one of

- `FUNCTIONS`: ours, with NumPy's signature, written in ops;
- `NUMPY_OWN`: NumPy's own Python code works on our arrays unchanged;
- `UNSUPPORTED`: no batching rule, with the reason; a batch runs it as a loop over the examples.
"""

from collections.abc import Callable
from typing import Any

from autobatch.core.op import Op

__all__ = ["FUNCTIONS", "NUMPY_OWN", "UFUNCS", "UNSUPPORTED", "implements", "ufunc_table"]

UFUNCS: dict[Any, Callable[..., Any]] = {}
FUNCTIONS: dict[Callable[..., Any], Callable[..., Any]] = {}
NUMPY_OWN: set[Callable[..., Any]] = set()
UNSUPPORTED: dict[Callable[..., Any], str] = {}


def ufunc_table(*ops: Op) -> dict[Any, Op]:
    """Register ops under the ufuncs that they implement."""
    table: dict[Any, Op] = {op.impl: op for op in ops}
    UFUNCS.update(table)
    return table


def implements(*functions: Callable[..., Any]) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """Register what runs when one of these NumPy functions is called with an array of ours."""

    def register(implementation: Callable[..., Any]) -> Callable[..., Any]:
        for function in functions:
            FUNCTIONS[function] = implementation
        return implementation

    return register
