"""When two outcomes are the same: exact types, and bits but where sums may be taken in another order."""

import dataclasses
from typing import Any

import numpy as np

from autobatch.compiled.compiled_map import prepared, wait_for


def wait_until_compiled(function: Any, columns: Any, shared: dict[str, Any], arguments_of: Any = None) -> None:
    """Wait until `compiled_map` with the same arguments can run; Unsupported if it never can."""
    wait_for(prepared(function, columns, shared, arguments_of)[1])


def outcome(call: Any) -> Any:
    """What a call returns, or the exception that it raises."""
    try:
        return call()
    except Exception as error:
        return error


def same(a: Any, b: Any) -> bool:
    """Whether two outcomes are equal in type, structure and value."""
    if type(a) is not type(b):
        return False
    if isinstance(a, RecursionError):
        return True  # at which operation the stack ends depends on who called
    if isinstance(a, BaseException):
        return str(a) == str(b)
    if isinstance(a, np.ndarray):
        if (a.dtype, a.shape) != (b.dtype, b.shape):
            return False
        if a.dtype.kind == "f" and (np.signbit(a) != np.signbit(b))[a == 0].any():
            return False
        return bool(np.allclose(a, b, rtol=1e-6 if a.dtype == np.float32 else 1e-12, equal_nan=True))
    if isinstance(a, float | np.floating):
        if a == 0 and np.signbit(a) != np.signbit(b):
            return False
        return (
            a == b or (a != a and b != b) or bool(np.isclose(a, b, rtol=1e-6 if a.dtype == np.float32 else 1e-13))
            if isinstance(a, np.generic)
            else a == b or (a != a and b != b)
        )
    if isinstance(a, list | tuple):
        return len(a) == len(b) and all(map(same, a, b))
    if isinstance(a, dict):
        return list(a) == list(b) and all(same(a[key], b[key]) for key in a)
    if dataclasses.is_dataclass(a):
        return all(same(getattr(a, field.name), getattr(b, field.name)) for field in dataclasses.fields(a))
    return bool(a == b)
