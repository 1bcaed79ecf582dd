"""`ufunc.reduce`, `.accumulate` and `.outer` in terms of the functions they equal."""

from typing import Any

import numpy as np

from autobatch.core.aval import ndim_of
from autobatch.ops.rules.dispatch import UFUNCS, UNSUPPORTED, Declined

__all__ = ["call_ufunc"]

_REDUCE = {
    np.add: np.sum,
    np.multiply: np.prod,
    np.maximum: np.max,
    np.minimum: np.min,
    np.logical_and: np.all,
    np.logical_or: np.any,
}
_ACCUMULATE = {np.add: np.cumsum, np.multiply: np.cumprod}
_METHODS: dict[str, dict[Any, Any]] = {"reduce": _REDUCE, "accumulate": _ACCUMULATE}
_NO_OPTION = {"where": True, "casting": "same_kind", "order": "K", "subok": True, "out": None, "dtype": None}


def call_ufunc(ufunc: Any, method: str, inputs: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """What `__array_ufunc__` returns for operands of which some are ours.

    Raises:
        Declined: a method, an option or a ufunc that has no rule.
    """
    if method == "__call__":
        return _call(ufunc, inputs, kwargs)
    if method == "outer":
        a, b = inputs
        if ndim_of(b):
            a = np.expand_dims(a, tuple(range(ndim_of(a), ndim_of(a) + ndim_of(b))))
        return _call(ufunc, (a, b), kwargs)
    function = _METHODS.get(method, {}).get(ufunc)
    if function is None:
        raise Declined(f"np.{ufunc.__name__}.{method} has no batching rule")
    options = {key: value for key, value in kwargs.items() if value is not None or key == "axis"}
    options.setdefault("axis", 0)
    return function(*inputs, **options)


def _call(ufunc: Any, inputs: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    op = UFUNCS.get(ufunc)
    if op is None:
        raise Declined(UNSUPPORTED.get(ufunc, f"np.{ufunc.__name__} has no batching rule"))
    if not kwargs:
        return op(*inputs)
    given = {key: value for key, value in kwargs.items() if not _is_default(key, value)}
    dtype = given.pop("dtype", None)
    if given:
        raise Declined(f"np.{ufunc.__name__}({', '.join(given)}=...) has no batching rule")
    return op(*inputs) if dtype is None else op(*inputs, dtype=np.dtype(dtype))


def _is_default(key: str, value: Any) -> bool:
    if key not in _NO_OPTION:
        return False
    default = _NO_OPTION[key]
    return value is default or (isinstance(value, str) and value == default)
