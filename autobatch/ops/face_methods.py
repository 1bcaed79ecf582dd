"""The methods of ndarray, each by the NumPy function of the same meaning."""

from collections.abc import Callable
from typing import Any

import numpy as np

from autobatch.core.aval import dtype_of, ndim_of
from autobatch.ops.indexing import getitem, setitem
from autobatch.ops.rules.aliasing import write
from autobatch.ops.rules.dispatch import FUNCTIONS, refuse
from autobatch.ops.shaping_reshape import flat_view

__all__ = ["ArrayMethods"]


def _given(**options: Any) -> dict[str, Any]:
    """The options that were given: NumPy passes `initial` and `where` on only then."""
    return {name: value for name, value in options.items() if value is not None}


def _of(function: Callable[..., Any]) -> Callable[..., Any]:
    """Ours, without the way through NumPy's dispatch, if the table has it."""
    return FUNCTIONS.get(function, function)


class ArrayMethods:
    """ndarray's methods and attributes, in terms of NumPy's functions."""

    __slots__ = ()

    # reductions

    def sum(self, axis: Any = None, dtype: Any = None, out: Any = None, keepdims: bool = False, **more: Any) -> Any:
        return _of(np.sum)(self, axis=axis, keepdims=keepdims, **_given(dtype=dtype, out=out), **more)

    def prod(self, axis: Any = None, dtype: Any = None, out: Any = None, keepdims: bool = False, **more: Any) -> Any:
        return _of(np.prod)(self, axis=axis, keepdims=keepdims, **_given(dtype=dtype, out=out), **more)

    def mean(self, axis: Any = None, dtype: Any = None, out: Any = None, keepdims: bool = False, **more: Any) -> Any:
        return _of(np.mean)(self, axis=axis, keepdims=keepdims, **_given(dtype=dtype, out=out), **more)

    def max(self, axis: Any = None, out: Any = None, keepdims: bool = False, **more: Any) -> Any:
        return _of(np.max)(self, axis=axis, keepdims=keepdims, **_given(out=out), **more)

    def min(self, axis: Any = None, out: Any = None, keepdims: bool = False, **more: Any) -> Any:
        return _of(np.min)(self, axis=axis, keepdims=keepdims, **_given(out=out), **more)

    def any(self, axis: Any = None, out: Any = None, keepdims: bool = False, **more: Any) -> Any:
        return _of(np.any)(self, axis=axis, keepdims=keepdims, **_given(out=out), **more)

    def all(self, axis: Any = None, out: Any = None, keepdims: bool = False, **more: Any) -> Any:
        return _of(np.all)(self, axis=axis, keepdims=keepdims, **_given(out=out), **more)

    def var(self, axis: Any = None, dtype: Any = None, out: Any = None, ddof: Any = 0, keepdims: bool = False) -> Any:
        return _of(np.var)(self, axis=axis, ddof=ddof, keepdims=keepdims, **_given(dtype=dtype, out=out))

    def std(self, axis: Any = None, dtype: Any = None, out: Any = None, ddof: Any = 0, keepdims: bool = False) -> Any:
        return _of(np.std)(self, axis=axis, ddof=ddof, keepdims=keepdims, **_given(dtype=dtype, out=out))

    def argmax(self, axis: Any = None, out: Any = None, *, keepdims: bool = False) -> Any:
        return _of(np.argmax)(self, axis=axis, **_given(out=out, keepdims=keepdims or None))

    def argmin(self, axis: Any = None, out: Any = None, *, keepdims: bool = False) -> Any:
        return _of(np.argmin)(self, axis=axis, **_given(out=out, keepdims=keepdims or None))

    def cumsum(self, axis: Any = None, dtype: Any = None, out: Any = None) -> Any:
        return _of(np.cumsum)(self, axis=axis, **_given(dtype=dtype, out=out))

    def cumprod(self, axis: Any = None, dtype: Any = None, out: Any = None) -> Any:
        return _of(np.cumprod)(self, axis=axis, **_given(dtype=dtype, out=out))

    def trace(self, offset: int = 0, axis1: int = 0, axis2: int = 1) -> Any:
        return _of(np.trace)(self, offset, axis1, axis2)

    def dot(self, b: Any) -> Any:
        return _of(np.dot)(self, b)

    # order

    def sort(self, axis: int = -1, kind: Any = None, order: Any = None) -> None:
        write(self, _of(np.sort)(self, axis=axis, **_given(kind=kind, order=order)))

    def argsort(self, axis: Any = -1, kind: Any = None, order: Any = None) -> Any:
        return _of(np.argsort)(self, axis=axis, **_given(kind=kind, order=order))

    def partition(self, kth: Any, axis: int = -1) -> None:
        write(self, _of(np.partition)(self, kth, axis=axis))

    def argpartition(self, kth: Any, axis: Any = -1) -> Any:
        return _of(np.argpartition)(self, kth, axis=axis)

    def searchsorted(self, v: Any, side: Any = "left", sorter: Any = None) -> Any:
        return _of(np.searchsorted)(self, v, side, sorter)

    # shapes

    def reshape(self, *shape: Any, order: Any = "C", copy: Any = None) -> Any:
        shape = shape[0] if len(shape) == 1 else shape
        return _of(np.reshape)(self, shape, order=order, copy=copy)

    def ravel(self, order: Any = "C") -> Any:
        return _of(np.ravel)(self, order)

    def flatten(self, order: Any = "C") -> Any:
        return _of(np.reshape)(self, (-1,), order=order, copy=True)

    def transpose(self, *axes: Any) -> Any:
        order: Any = axes
        if len(axes) == 1 and (axes[0] is None or isinstance(axes[0], list | tuple)):
            order = axes[0]
        return _of(np.transpose)(self, order or None)

    def swapaxes(self, axis1: int, axis2: int) -> Any:
        return _of(np.swapaxes)(self, axis1, axis2)

    def squeeze(self, axis: Any = None) -> Any:
        return _of(np.squeeze)(self, axis)

    def repeat(self, repeats: Any, axis: Any = None) -> Any:
        return _of(np.repeat)(self, repeats, axis)

    def diagonal(self, offset: int = 0, axis1: int = 0, axis2: int = 1) -> Any:
        return _of(np.diagonal)(self, offset, axis1, axis2)

    @property
    def T(self) -> Any:  # noqa: N802
        return _of(np.transpose)(self)

    @property
    def mT(self) -> Any:  # noqa: N802
        if ndim_of(self) < 2:
            raise ValueError("matrix transpose with ndim < 2 is undefined")
        return _of(np.swapaxes)(self, -1, -2)

    @property
    def flat(self) -> Any:
        return flat_view(self)

    # selection

    def take(self, indices: Any, axis: Any = None, out: Any = None, mode: Any = "raise") -> Any:
        return _of(np.take)(self, indices, axis=axis, out=out, mode=mode)

    def compress(self, condition: Any, axis: Any = None, out: Any = None) -> Any:
        return _of(np.compress)(condition, self, axis=axis, **_given(out=out))

    def choose(self, choices: Any, out: Any = None, mode: Any = "raise") -> Any:
        return _of(np.choose)(self, choices, out=out, mode=mode)

    def nonzero(self) -> Any:
        return _of(np.nonzero)(self)

    def clip(self, min: Any = None, max: Any = None, out: Any = None) -> Any:
        return _of(np.clip)(self, min, max, **_given(out=out))

    def put(self, indices: Any, values: Any, mode: Any = "raise") -> None:
        _of(np.put)(self, indices, values, mode)

    def fill(self, value: Any) -> None:
        setitem(self, Ellipsis, value)

    # values

    def astype(
        self, dtype: Any, order: Any = "K", casting: str = "unsafe", subok: bool = True, copy: bool = True
    ) -> Any:
        dtype = np.dtype(dtype)
        if dtype == dtype_of(self) and not copy:
            return self if order == "K" else _of(np.asarray)(self, order=order)
        if not np.can_cast(dtype_of(self), dtype, casting):  # type: ignore[arg-type]
            raise TypeError(
                f"Cannot cast array data from {dtype_of(self)!r} to {dtype!r} according to the rule '{casting}'"
            )
        out = _of(np.astype)(self, dtype)
        return out if order == "K" else np.copy(out, order=order)

    def copy(self, order: Any = "C") -> Any:
        return _of(np.copy)(self, order)

    def round(self, decimals: int = 0, out: Any = None) -> Any:
        return _of(np.round)(self, decimals, **_given(out=out))

    def conj(self) -> Any:
        return _of(np.conjugate)(self) if dtype_of(self).kind == "c" else self  # NumPy gives the array itself, too

    conjugate = conj

    @property
    def real(self) -> Any:
        return _of(np.real)(self)

    @property
    def imag(self) -> Any:
        return _of(np.imag)(self)

    @property
    def itemsize(self) -> int:
        return dtype_of(self).itemsize

    @property
    def nbytes(self) -> Any:
        return self.size * self.itemsize  # type: ignore[attr-defined]

    def item(self, *index: Any) -> Any:
        """The one element, or the one at `index`, as a Python scalar."""
        flat = np.asarray(self)
        return flat.item(*index)

    def tolist(self) -> Any:
        return np.asarray(self).tolist()

    def view(self, *args: Any, **kwargs: Any) -> Any:
        if not args and not kwargs:
            return getitem(self, Ellipsis)
        return refuse(_ndarray_view, (self, *args), kwargs, "ndarray.view of another dtype has no batching rule")


def _ndarray_view(x: Any, *args: Any, **kwargs: Any) -> Any:
    return np.asarray(x).view(*args, **kwargs)
