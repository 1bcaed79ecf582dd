"""Functions of Python's library, written as plain Python that is compiled like a helper of the user's.

Each does what CPython's does, for arguments of a few types. Where one raises an exception, the example runs in Python,
unless the user's function catches the exception.
"""

import bisect
import functools
import itertools
import math
import operator
from collections.abc import Callable
from typing import Any

import numpy as np

from autobatch.compiled.translation.calls import CALLS, ITERATORS, METHODS, implements
from autobatch.compiled.translation.exact_types import Array, Counts, Deque, List, Set, Text, Tuple
from autobatch.ops.rules.dispatch import leave_to_python, source


def method(owner: type, name: str) -> Callable[[Any], Any]:
    """Register the decorated function to be read for calls of a method."""
    return implements((owner, name), into=METHODS)


CALLS[leave_to_python] = lambda reader, node: reader.stop()


# --- Python's


@source()
def bisected(a, x, lo=0, hi=None, right=False):
    if lo < 0:
        raise ValueError
    low, high = lo, len(a) if hi is None else hi
    while low < high:
        middle = (low + high) // 2
        if not x < a[middle] if right else a[middle] < x:
            low = middle + 1
        else:
            high = middle
    return low


source(bisect.bisect_left)(lambda a, x, lo=0, hi=None: bisected(a, x, lo, hi))
source(bisect.bisect_right, bisect.bisect)(lambda a, x, lo=0, hi=None: bisected(a, x, lo, hi, True))
source(bisect.insort, bisect.insort_right)(lambda a, x: a.insert(bisected(a, x, right=True), x))
source(divmod)(lambda a, b: (a // b, a % b))
source(pow)(lambda base, exp: base**exp)
source(math.prod)(lambda values, start=1: functools.reduce(operator.mul, values, start))


@method(List, "index")
def index(items, value):
    for k in range(len(items)):
        if items[k] == value:
            return k
    raise ValueError


@method(List, "remove")
def remove(items, value):
    items.pop(index(items, value))


METHODS[Tuple, "index"] = METHODS[List, "index"]


@method(Set, "remove")
def remove_from_set(items, value):
    if value not in items:
        raise KeyError
    items.discard(value)


method(List, "copy")(lambda items: list(items))
method(Deque, "popleft")(lambda items: items.pop(0))
method(Deque, "appendleft")(lambda items, value: items.insert(0, value))


@method(Counts, "most_common")
def most_common(counts, n=None):
    pairs = sorted(counts.items(), key=lambda pair: pair[1], reverse=True)
    return pairs if n is None else pairs[: max(n, 0)]


# --- iterators


@implements(itertools.combinations, into=ITERATORS)
def combinations(iterable, r=None):
    if r != 2:
        leave_to_python()
    pool = list(iterable)
    return [(pool[i], pool[j]) for i in range(len(pool)) for j in range(i + 1, len(pool))]


implements(itertools.product, into=ITERATORS)(lambda a, b: [(x, y) for x in a for y in b])
implements(itertools.chain, into=ITERATORS)(lambda a, b: [*a, *b])


@implements(itertools.pairwise, into=ITERATORS)
def pairwise(items):
    pool = list(items)
    return [(pool[i], pool[i + 1]) for i in range(len(pool) - 1)]


@implements(itertools.accumulate, into=ITERATORS)
def accumulate(items):
    out: list = []
    for item in items:
        out.append(out[-1] + item if out else item)
    return out


# --- strings


@method(Text, "find")
def find(s, part, start=0):
    if start < 0:
        start = max(0, start + len(s))
    for i in range(start, len(s) - len(part) + 1):
        if s[i : i + len(part)] == part:
            return i
    return -1


# --- arrays


method(Array, "flatten")(lambda a: a.copy().reshape(-1))
implements(np.ravel)(lambda a: np.asarray(a).reshape(-1))
method(Array, "item")(lambda a: a.flatten()[0].item() if a.size == 1 else leave_to_python())


# --- NumPy's, with gradients


@source(np.take, of=(1, 2))
def _taken_of_one(a, indices, axis=None):
    places = np.add(indices, 0)  # bools are numbers here
    if axis is None:
        return a.reshape(-1)[places]
    return a[places] if axis in (0, -np.ndim(a)) else np.moveaxis(a, axis, 1)[:, places]


@source(np.repeat, of=(1, 2))
def _repeated_of_one(a, repeats, axis=None):
    x = a.reshape(-1) if axis is None else np.moveaxis(a, axis, 0)
    counts = np.broadcast_to(repeats, (len(x),))
    if (counts < 0).any():
        raise ValueError
    out = x[np.array([k for k in range(len(x)) for _ in range(counts[k])])]
    return out if axis is None else np.moveaxis(out, 0, axis).copy()


@source(np.pad, of=(1, 2))
def _padded_of_one(array, pad_width, mode="constant", constant_values=0):
    if mode != "constant":
        leave_to_python()
    if isinstance(pad_width, int):
        pad_width = (pad_width, pad_width)
    if len(pad_width) != 2 and (len(pad_width) != 1 or isinstance(pad_width[0], int)):
        leave_to_python()
    if isinstance(pad_width[0], int):
        pad_width = (pad_width, pad_width)
    elif np.ndim(array) == 1 and len(pad_width) == 2:
        raise ValueError
    (above, below), (left, right) = pad_width[0], pad_width[-1]
    if min(above, below, left, right) < 0:
        raise ValueError
    x = array if np.ndim(array) == 2 else array[:, None]
    if np.ndim(array) == 1:
        left, right = 0, 0
    out = np.full((above + len(x) + below, left + x.shape[1] + right), constant_values, array.dtype)
    out[above : above + len(x), left : left + x.shape[1]] = x
    return out if np.ndim(array) == 2 else out.reshape(-1)


@source(np.diag, of=(1,))
def _on_diagonal_of_one(v):
    out = np.zeros((len(v), len(v)), v.dtype)
    for i in range(len(v)):
        out[i, i] = v[i]
    return out


@source(np.fill_diagonal, of=(2,))
def _filled_diagonal(a, val):
    for i in range(min(a.shape)):
        a[i, i] = val
