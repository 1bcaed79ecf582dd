"""The methods of ndarray, each by the NumPy function of the same meaning."""

from typing import Any

import numpy as np

from autobatch.core.aval import dtype_of, ndim_of
from autobatch.ops.indexing import setitem
from autobatch.ops.inplace import write
from autobatch.ops.table import refuse

__all__ = ["ArrayMethods"]


def _given(**options: Any) -> dict[str, Any]:
    """The options that were given: NumPy passes `initial` and `where` on only then."""
    return {name: value for name, value in options.items() if value is not _UNSET and value is not None}


_UNSET = object()


class ArrayMethods:
    """ndarray's methods and attributes, in terms of NumPy's functions."""

    __slots__ = ()

    # reductions

    def sum(self, axis: Any = None, dtype: Any = None, out: Any = None, keepdims: bool = False, **more: Any) -> Any:
        return np.sum(self, axis=axis, keepdims=keepdims, **_given(dtype=dtype, out=out), **more)  # type: ignore[call-overload]

    def prod(self, axis: Any = None, dtype: Any = None, out: Any = None, keepdims: bool = False, **more: Any) -> Any:
        return np.prod(self, axis=axis, keepdims=keepdims, **_given(dtype=dtype, out=out), **more)  # type: ignore[call-overload]

    def mean(self, axis: Any = None, dtype: Any = None, out: Any = None, keepdims: bool = False, **more: Any) -> Any:
        return np.mean(self, axis=axis, keepdims=keepdims, **_given(dtype=dtype, out=out), **more)  # type: ignore[call-overload]

    def max(self, axis: Any = None, out: Any = None, keepdims: bool = False, **more: Any) -> Any:
        return np.max(self, axis=axis, keepdims=keepdims, **_given(out=out), **more)  # type: ignore[call-overload]

    def min(self, axis: Any = None, out: Any = None, keepdims: bool = False, **more: Any) -> Any:
        return np.min(self, axis=axis, keepdims=keepdims, **_given(out=out), **more)  # type: ignore[call-overload]

    def any(self, axis: Any = None, out: Any = None, keepdims: bool = False, **more: Any) -> Any:
        return np.any(self, axis=axis, keepdims=keepdims, **_given(out=out), **more)  # type: ignore[call-overload]

    def all(self, axis: Any = None, out: Any = None, keepdims: bool = False, **more: Any) -> Any:
        return np.all(self, axis=axis, keepdims=keepdims, **_given(out=out), **more)  # type: ignore[call-overload]

    def var(self, axis: Any = None, dtype: Any = None, out: Any = None, ddof: Any = 0, keepdims: bool = False) -> Any:
        return np.var(self, axis=axis, ddof=ddof, keepdims=keepdims, **_given(dtype=dtype, out=out))  # type: ignore[call-overload]

    def std(self, axis: Any = None, dtype: Any = None, out: Any = None, ddof: Any = 0, keepdims: bool = False) -> Any:
        return np.std(self, axis=axis, ddof=ddof, keepdims=keepdims, **_given(dtype=dtype, out=out))  # type: ignore[call-overload]

    def argmax(self, axis: Any = None, out: Any = None, *, keepdims: bool = False) -> Any:
        return np.argmax(self, axis=axis, **_given(out=out, keepdims=keepdims or None))  # type: ignore[call-overload]

    def argmin(self, axis: Any = None, out: Any = None, *, keepdims: bool = False) -> Any:
        return np.argmin(self, axis=axis, **_given(out=out, keepdims=keepdims or None))  # type: ignore[call-overload]

    def cumsum(self, axis: Any = None, dtype: Any = None, out: Any = None) -> Any:
        return np.cumsum(self, axis=axis, **_given(dtype=dtype, out=out))  # type: ignore[call-overload]

    def cumprod(self, axis: Any = None, dtype: Any = None, out: Any = None) -> Any:
        return np.cumprod(self, axis=axis, **_given(dtype=dtype, out=out))  # type: ignore[call-overload]

    def trace(self, offset: int = 0, axis1: int = 0, axis2: int = 1) -> Any:
        return np.trace(self, offset, axis1, axis2)  # type: ignore[call-overload]

    def dot(self, b: Any) -> Any:
        return np.dot(self, b)  # type: ignore[call-overload]

    # order

    def sort(self, axis: int = -1, kind: Any = None, order: Any = None) -> None:
        write(self, np.sort(self, axis=axis, **_given(kind=kind, order=order)))  # type: ignore[call-overload]

    def argsort(self, axis: Any = -1, kind: Any = None, order: Any = None) -> Any:
        return np.argsort(self, axis=axis, **_given(kind=kind, order=order))  # type: ignore[call-overload]

    def partition(self, kth: Any, axis: int = -1) -> None:
        write(self, np.partition(self, kth, axis=axis))  # type: ignore[call-overload]

    def argpartition(self, kth: Any, axis: Any = -1) -> Any:
        return np.argpartition(self, kth, axis=axis)  # type: ignore[call-overload]

    def searchsorted(self, v: Any, side: Any = "left", sorter: Any = None) -> Any:
        return np.searchsorted(self, v, side, sorter)  # type: ignore[call-overload]

    # shapes

    def reshape(self, *shape: Any, order: Any = "C", copy: Any = None) -> Any:
        shape = shape[0] if len(shape) == 1 else shape
        return np.reshape(self, shape, order=order, copy=copy)  # type: ignore[call-overload]

    def ravel(self, order: Any = "C") -> Any:
        return np.ravel(self, order)  # type: ignore[call-overload]

    def flatten(self, order: Any = "C") -> Any:
        return np.reshape(self, (-1,), order=order, copy=True)  # type: ignore[call-overload]

    def transpose(self, *axes: Any) -> Any:
        if len(axes) == 1 and (axes[0] is None or isinstance(axes[0], list | tuple)):
            axes = axes[0]
        return np.transpose(self, axes or None)  # type: ignore[call-overload]

    def swapaxes(self, axis1: int, axis2: int) -> Any:
        return np.swapaxes(self, axis1, axis2)  # type: ignore[call-overload]

    def squeeze(self, axis: Any = None) -> Any:
        return np.squeeze(self, axis)  # type: ignore[call-overload]

    def repeat(self, repeats: Any, axis: Any = None) -> Any:
        return np.repeat(self, repeats, axis)  # type: ignore[call-overload]

    def diagonal(self, offset: int = 0, axis1: int = 0, axis2: int = 1) -> Any:
        return np.diagonal(self, offset, axis1, axis2)  # type: ignore[call-overload]

    @property
    def T(self) -> Any:  # noqa: N802
        return np.transpose(self)  # type: ignore[call-overload]

    @property
    def mT(self) -> Any:  # noqa: N802
        if ndim_of(self) < 2:
            raise ValueError("matrix transpose with ndim < 2 is undefined")
        return np.swapaxes(self, -1, -2)  # type: ignore[call-overload]

    @property
    def flat(self) -> Any:
        return np.reshape(self, (-1,))  # type: ignore[call-overload]

    # selection

    def take(self, indices: Any, axis: Any = None, out: Any = None, mode: Any = "raise") -> Any:
        return np.take(self, indices, axis=axis, out=out, mode=mode)  # type: ignore[call-overload]

    def compress(self, condition: Any, axis: Any = None, out: Any = None) -> Any:
        return np.compress(condition, self, axis=axis, **_given(out=out))  # type: ignore[call-overload]

    def choose(self, choices: Any, out: Any = None, mode: Any = "raise") -> Any:
        return np.choose(self, choices, out=out, mode=mode)  # type: ignore[call-overload]

    def nonzero(self) -> Any:
        return np.nonzero(self)  # type: ignore[call-overload]

    def clip(self, min: Any = None, max: Any = None, out: Any = None) -> Any:
        return np.clip(self, min, max, **_given(out=out))  # type: ignore[call-overload]

    def put(self, indices: Any, values: Any, mode: Any = "raise") -> None:
        np.put(self, indices, values, mode)  # type: ignore[call-overload]

    def fill(self, value: Any) -> None:
        setitem(self, Ellipsis, value)

    # values

    def astype(
        self, dtype: Any, order: Any = "K", casting: str = "unsafe", subok: bool = True, copy: bool = True
    ) -> Any:
        dtype = np.dtype(dtype)
        if dtype == dtype_of(self) and not copy:
            return self
        if not np.can_cast(dtype_of(self), dtype, casting):  # type: ignore[arg-type]
            raise TypeError(
                f"Cannot cast array data from {dtype_of(self)!r} to {dtype!r} according to the rule '{casting}'"
            )
        return np.astype(self, dtype)  # type: ignore[type-var]

    def copy(self, order: Any = "C") -> Any:
        return np.copy(self)  # type: ignore[call-overload]

    def round(self, decimals: int = 0, out: Any = None) -> Any:
        return np.round(self, decimals, **_given(out=out))  # type: ignore[call-overload]

    def conj(self) -> Any:
        return np.conjugate(self)  # type: ignore[call-overload]

    conjugate = conj

    @property
    def real(self) -> Any:
        return np.real(self)  # type: ignore[call-overload]

    @property
    def imag(self) -> Any:
        return np.imag(self)  # type: ignore[call-overload]

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
        return refuse(_ndarray_view, (self, *args), kwargs, "ndarray.view of another dtype has no batching rule")


def _ndarray_view(x: Any, *args: Any, **kwargs: Any) -> Any:
    return np.asarray(x).view(*args, **kwargs)
