"""Whether two ways computed the same."""

from collections.abc import Iterator
from typing import Any

import numpy as np


def difference(expected: Any, got: Any, tolerance: float) -> str | None:
    """Where two nested results differ by more than `tolerance` times the largest value of an array; None if nowhere.

    Integers and booleans must be equal. NaN equals NaN.

    >>> difference({"a": np.ones(2)}, {"a": np.array([1.0, 1.5])}, 1e-3)
    "['a']: differs by 0.5 where the largest value is 1"
    """
    return next(_differences(expected, got, tolerance, ""), None)


def _differences(expected: Any, got: Any, tolerance: float, path: str) -> Iterator[str]:
    if isinstance(expected, dict):
        if not isinstance(got, dict) or set(expected) != set(got):
            yield f"{path or 'the result'}: {_kind(got)}, expected a dict with the keys {sorted(expected)}"
            return
        for key in expected:
            yield from _differences(expected[key], got[key], tolerance, f"{path}[{key!r}]")
    elif isinstance(expected, list | tuple):
        if not isinstance(got, list | tuple) or len(expected) != len(got):
            yield f"{path or 'the result'}: {_kind(got)}, expected {len(expected)} values"
            return
        for i, (a, b) in enumerate(zip(expected, got, strict=True)):
            yield from _differences(a, b, tolerance, f"{path}[{i}]")
    else:
        yield from _array_differences(np.asarray(expected), np.asarray(got), tolerance, path or "the result")


def _array_differences(expected: np.ndarray, got: np.ndarray, tolerance: float, path: str) -> Iterator[str]:
    if expected.shape != got.shape:
        yield f"{path}: shape {got.shape}, expected {expected.shape}"
    elif expected.dtype.kind in "fc":
        scale = float(np.abs(expected).max(initial=0.0, where=np.isfinite(expected)))
        with np.errstate(invalid="ignore"):
            off = np.atleast_1d(np.abs(got - expected))
        off[np.atleast_1d((got == expected) | (np.isnan(got) & np.isnan(expected)))] = 0
        worst = float(off.max(initial=0.0)) if not np.isnan(off).any() else np.nan
        if not worst <= tolerance * scale:
            yield f"{path}: differs by {worst:.3g} where the largest value is {scale:.3g}"
    elif not np.array_equal(expected, got):
        yield f"{path}: {np.count_nonzero(expected != got)} of {expected.size} values differ"


def _kind(value: Any) -> str:
    if isinstance(value, dict):
        return f"a dict with the keys {sorted(value)}"
    return f"{len(value)} values" if isinstance(value, list | tuple) else type(value).__name__
