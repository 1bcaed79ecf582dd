"""Compare two results leaf by leaf: value, dtype, shape, structure and the kind of scalar.

Floats may differ by the order of additions, so they are compared within a tolerance of the dtype; all else must be
equal. A NumPy scalar and a 0-d array of its dtype count as equal, as in NumPy. A Python scalar is different, because
it promotes weakly.
"""

import contextlib
import dataclasses
import random
import types
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

import numpy as np

from autobatch.core.pytree import attributes, children_of, flatten, is_node, step_to

_RTOL = {2: 1e-2, 4: 1e-4, 8: 1e-9, 16: 1e-9}  # by the itemsize of a real number
_SHOWN = 3  # differences in one message
_FLOOR = {2: 1e-3, 4: 1e-6, 8: 1e-13, 16: 1e-13}


@dataclasses.dataclass(frozen=True)
class Difference:
    """One place where two results differ.

    Attributes:
        path: the place, as a Python expression: `result["h"][2]`.
        what: the kind: "structure", "type", "dtype", "shape" or "value".
        expected, actual: descriptions of the reference and of the compared result at this place.
    """

    path: str
    what: str
    expected: str
    actual: str

    def __str__(self) -> str:
        return f"{self.path}: {self.what} is {self.actual}; expected {self.expected}"


def compare(expected: object, actual: object, path: str = "result", precision: int = 16) -> list[Difference]:
    """The leaves in which `actual` differs from `expected`, with the first differing element of each.

    Args:
        expected, actual: arrays, scalars, strings, None, or nested dicts, lists, tuples, named tuples, dataclasses.
        path: the name of the whole result in `Difference.path`.
        precision: the itemsize of the least precise float among the inputs. A wider result may have been computed in
            it and promoted later (`x32 @ y32 / np.sqrt(3)` is float64), so it is compared no more strictly.

    >>> compare({"h": np.array([1.0, 2.0])}, {"h": np.array([1.0, 2.5])})[0].path
    "result['h'][1]"
    >>> compare(1, np.int64(1))[0].what
    'type'
    >>> compare((np.float32(1), None), (np.float32(1), None))
    []
    """
    return list(_differences(expected, actual, path, precision))


def first_of(differences: Sequence[object]) -> list[str]:
    """The lines of a message on the first differences, and on how many more there are."""
    more = [f"    and {len(differences) - _SHOWN} more"] if len(differences) > _SHOWN else []
    return [*(f"    {each}" for each in differences[:_SHOWN]), *more]


def _differences(expected: Any, actual: Any, path: str, precision: int) -> Iterator[Difference]:
    if is_node(expected) or is_node(actual):
        yield from _compare_nodes(expected, actual, path, precision)
    elif _is_array(expected) or _is_array(actual):
        yield from _compare_arrays(expected, actual, path, precision)
    elif type(expected) is not type(actual):
        yield Difference(path, "type", _typed(expected), _typed(actual))
    elif isinstance(expected, type):  # a class, such as np.float32, which has attributes of arrays
        if expected is not actual:
            yield Difference(path, "value", repr(expected), repr(actual))
    elif isinstance(expected, float | complex):
        if not _close(np.asarray(expected), np.asarray(actual), precision).all():
            yield Difference(path, "value", repr(expected), repr(actual))
    elif hasattr(expected, "to_dense"):
        yield from _differences(expected.to_dense(), actual.to_dense(), f"{path}.to_dense()", precision)
    elif hasattr(expected, "__array__"):
        yield from _differences(np.asarray(expected), np.asarray(actual), path, precision)
    elif not _same_object(expected, actual):
        yield Difference(path, "value", repr(expected), repr(actual))


def _compare_nodes(expected: Any, actual: Any, path: str, precision: int) -> Iterator[Difference]:
    if type(expected) is not type(actual):
        yield Difference(path, "structure", _typed(expected), _typed(actual))
        return
    if isinstance(expected, list | tuple) and len(expected) != len(actual):
        yield Difference(
            path, "structure", f"{_name(expected)} of {len(expected)}", f"{_name(actual)} of {len(actual)}"
        )
    elif isinstance(expected, dict) and list(expected) != list(actual):
        yield Difference(path, "structure", f"keys {list(expected)}", f"keys {list(actual)}")
    elif dataclasses.is_dataclass(expected) and set(attributes(expected)) != set(attributes(actual)):
        yield Difference(path, "structure", f"attributes {attributes(expected)}", f"attributes {attributes(actual)}")
    else:
        for key, left, right in zip(*children_of(expected), children_of(actual)[1], strict=True):
            yield from _differences(left, right, path + step_to(type(expected), key), precision)


def _compare_arrays(expected: Any, actual: Any, path: str, precision: int) -> Iterator[Difference]:
    if not (_is_array(expected) and _is_array(actual)):
        yield Difference(path, "type", _typed(expected), _typed(actual))
        return
    if expected.dtype != actual.dtype:
        yield Difference(path, "dtype", str(expected.dtype), str(actual.dtype))
    elif expected.shape != actual.shape:
        yield Difference(path, "shape", str(expected.shape), str(actual.shape))
    elif expected.dtype == object:
        for index in np.ndindex(expected.shape):
            yield from _differences(
                np.asarray(expected)[index], np.asarray(actual)[index], f"{path}{list(index)}", precision
            )
    else:
        wrong = ~_close(np.asarray(expected), np.asarray(actual), precision)
        if wrong.any():
            index = tuple(int(i) for i in np.argwhere(wrong)[0])
            where = f"{path}{list(index)}" if index else path
            more = f" (and {count - 1} more of {wrong.size} elements)" if (count := int(wrong.sum())) > 1 else ""
            yield Difference(where, "value", repr(np.asarray(expected)[index]), repr(np.asarray(actual)[index]) + more)


def tolerance(dtype: np.dtype, scale: float, precision: int = 16) -> tuple[float, float]:
    """(relative, absolute) tolerance for sums in this float dtype with another order of additions.

    Args:
        scale: the largest magnitude in the same array; terms that cancelled may have been as large.
        precision: the itemsize of the least precise float among the inputs.
    """
    size = min(_real_bytes(dtype), precision)
    return _RTOL[size], _FLOOR[size] + 0.1 * _RTOL[size] * scale


def _real_bytes(dtype: np.dtype) -> int:
    """The itemsize of a float dtype, or of the real part of a complex one."""
    return dtype.itemsize // (2 if dtype.kind == "c" else 1)


def coarsest(values: Iterable[Any]) -> int:
    """The itemsize of the least precise float among arrays and other values; 16 if there is none.

    >>> coarsest([np.zeros(2), np.float32(1), "a", np.arange(3)])
    4
    """
    dtypes = [dtype for x in values if isinstance(dtype := getattr(x, "dtype", None), np.dtype)]
    return min((_real_bytes(dtype) for dtype in dtypes if dtype.kind in "fc"), default=16)


def _close(expected: np.ndarray, actual: np.ndarray, precision: int) -> np.ndarray:
    """Elementwise: True where two arrays of equal shape and dtype agree within the tolerance; NaN agrees with NaN."""
    same: np.ndarray = np.asarray(expected == actual)
    if expected.dtype.kind in "mM":
        same = same | (np.isnat(expected) & np.isnat(actual))
    if expected.dtype.kind not in "fc" or same.all():  # large tables are mostly compared with themselves
        return same
    wide, others = np.complex128 if expected.dtype.kind == "c" else np.float64, ~same
    left, right = expected[others].astype(wide), actual[others].astype(wide)
    rtol, atol = tolerance(expected.dtype, _scale(expected), precision)
    with np.errstate(invalid="ignore", over="ignore"):
        near = np.abs(left - right) <= atol + rtol * np.abs(left)
    same[others] = np.where(np.isfinite(left) & np.isfinite(right), near, np.isnan(left) & np.isnan(right))
    return same


def _scale(x: np.ndarray) -> float:
    return float(np.max(np.abs(x), initial=0.0, where=np.isfinite(x)))


def largest_error(expected: object, actual: object) -> float:
    """The largest difference of the float leaves of two results, relative to the largest value of the leaf.

    >>> largest_error([np.array([1.0, 10.0])], [np.array([1.0, 11.0])])
    0.1
    """
    worst = 0.0
    for left, right in zip(flatten(expected)[0], flatten(actual)[0], strict=False):
        if hasattr(left, "to_dense"):
            left, right = left.to_dense(), right.to_dense()
        if np.asarray(left).dtype.kind not in "fc" or np.shape(left) != np.shape(right) or np.array_equal(left, right):
            continue
        left, right = np.asarray(left), np.asarray(right)
        others = np.isfinite(left) & np.isfinite(right) & (left != right)
        apart = np.abs(left[others].astype(np.complex128) - right[others])
        worst = max(worst, float(apart.max(initial=0.0)) / max(_scale(left), 1e-300))
    return worst


def _name(x: object) -> str:
    return type(x).__name__


def _is_array(x: object) -> bool:
    return isinstance(x, np.ndarray | np.generic)


def _typed(x: object) -> str:
    if isinstance(x, np.ndarray):
        return f"array of shape {x.shape}, {x.dtype}"
    text = repr(x)
    if len(text) > 60:
        text = text[:57] + "..."
    module = "numpy." if isinstance(x, np.generic) else ""
    return text if x is None or isinstance(x, str) else f"{module}{_name(x)} {text}"


def _same_object(expected: Any, actual: Any) -> bool:
    """True if two objects of one class are equal; compared by their state if the class does not define `==`."""
    if expected is actual:
        return True
    if isinstance(expected, types.FunctionType):
        return bool(expected.__code__ is actual.__code__)
    if type(expected).__eq__ is object.__eq__:
        return not compare(_state(expected), _state(actual))
    return bool(expected == actual)


def _state(value: Any) -> Any:
    """The attributes of an object; of one without, such as a generator or an iterator, what pickle keeps of it."""
    if hasattr(value, "__dict__") and not isinstance(value, random.Random):
        return vars(value)
    with contextlib.suppress(Exception):  # it cannot be pickled, such as a lock
        return value.__reduce_ex__(2)[1:]
    return None
