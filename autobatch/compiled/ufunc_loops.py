"""The addresses of the inner loops of NumPy's ufuncs, which compiled code calls to get NumPy's results bit for bit."""

import ctypes
import functools
from collections.abc import Sequence
from typing import Any

import numpy as np


class _UFunc(ctypes.Structure):
    """The head of NumPy's `PyUFuncObject`, which is part of its stable ABI."""

    _fields_ = (
        ("object", ctypes.c_byte * object.__basicsize__),
        ("nin", ctypes.c_int),
        ("nout", ctypes.c_int),
        ("nargs", ctypes.c_int),
        ("identity", ctypes.c_int),
        ("functions", ctypes.POINTER(ctypes.c_void_p)),
        ("data", ctypes.POINTER(ctypes.c_void_p)),
        ("ntypes", ctypes.c_int),
    )


@functools.cache
def _loop(ufunc: Any, loop: str) -> tuple[int, int]:
    """The address of an inner loop, and the data pointer that it takes as its last argument."""
    head = _UFunc.from_address(id(ufunc))
    if (head.nin, head.nout, head.ntypes) != (ufunc.nin, ufunc.nout, ufunc.ntypes):
        raise RuntimeError("NumPy's ufuncs are of another form")
    wanted = [np.dtype(char) for char in loop.replace("->", "")]
    for place, name in enumerate(ufunc.types):
        if "O" not in name and [np.dtype(char) for char in name.replace("->", "")] == wanted:
            return head.functions[place] or 0, (head.data[place] or 0) if head.data else 0
    raise RuntimeError(f"{ufunc.__name__} has no loop {loop}")


def table_of(loops: Sequence[tuple[Any, str]]) -> np.ndarray:
    """(2 n,) int64: for each ufunc's loop its address and its data pointer."""
    return np.array([each for ufunc, loop in loops for each in _loop(ufunc, loop)], np.int64)
