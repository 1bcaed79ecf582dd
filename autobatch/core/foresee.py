"""What is known of a value before it exists, and how the result of an op is foreseen."""

import marshal
import threading
from collections.abc import Sequence
from typing import Any

import numpy as np

from autobatch.core.layout import bends
from autobatch.core.op import Op
from autobatch.core.silence import silence

__all__ = ["WEAK", "Aval", "Weak", "aval_of", "foresee", "freeze", "frozen", "laid"]

_MARSHALLED = frozenset((int, float, complex, bool, str, type(None)))


class Aval:
    """The shape and dtype of an array. Interned: two values alike in both have the same `Aval`.

    Attributes:
        scalar: a 0-d value that NumPy gives as a scalar (`np.float64`), not as a 0-d array.
        shared: the value is one object for all examples; such an `Aval` is made for that object alone.
        ragged: the first length was left out (shape[0] is -1).
        crooked: its axes may lie in other than C order (`core.layout`).
        key: what `foresee` may remember it by.
        nbytes: the size of one value.
    """

    __slots__ = ("_text", "crooked", "dtype", "key", "nbytes", "ndim", "scalar", "shape", "shared", "weak")

    def __init__(
        self, shape: tuple[int, ...], dtype: np.dtype, scalar: bool, shared: bool = False, crooked: bool = False
    ) -> None:
        self.shape = shape
        self.ndim = len(shape)
        self.dtype = dtype
        self.scalar = scalar
        self.shared = shared
        self.crooked = crooked
        count = 1
        for n in shape:
            count *= n
        self.nbytes = count * dtype.itemsize
        self.key: Any = self
        self.weak: type | None = None
        self._text = ""

    def dummy(self, regular: bool = False) -> Any:
        """A value of this kind that takes no memory: zeros for ids, ones elsewhere.

        Args:
            regular: square matrices become the identity, of which there is an inverse.
        """
        if self.weak is not None:
            return WEAK[self.weak].dummy()
        one = self.dtype.type(1 if self.dtype.kind in "fc" else 0)
        if self.scalar:
            return one
        if regular and self.ndim > 1 and self.shape[-1] == self.shape[-2] and self.dtype.kind in "fc":
            return np.broadcast_to(np.eye(self.shape[-1], dtype=self.dtype), self.shape)
        return np.broadcast_to(np.asarray(one, self.dtype), self.shape)

    def __repr__(self) -> str:
        if not self._text:  # NumPy takes its time over the name of a dtype
            known = self.key if type(self.key) is Aval else self
            text = f"{self.dtype.name}{list(self.shape)}" if known is self else repr(known)
            self._text = text + ("s" if self.shared else "")
        return self._text


class Weak:
    """The place of a Python number in a signature: its type counts in NumPy's promotion, its value does not."""

    __slots__ = ("key", "kind")
    shared = True
    scalar = True
    crooked = False
    nbytes = 0

    def __init__(self, kind: type) -> None:
        self.kind = kind
        self.key = self

    def dummy(self, regular: bool = False) -> Any:
        return 0 if self.kind is int else self.kind(1)

    def __repr__(self) -> str:
        return self.kind.__name__


WEAK: dict[type, Weak] = {kind: Weak(kind) for kind in (int, float, bool, complex)}
_LIMIT = 1 << 14  # remembered kinds and results; beyond it the memory starts afresh
_avals: dict[tuple[Any, ...], Aval] = {}
_foreseen: dict[tuple[Any, ...], Any] = {}
_lock = threading.Lock()


def aval_of(shape: tuple[int, ...], dtype: np.dtype, scalar: bool = False, crooked: bool = False) -> Aval:
    """The interned `Aval` of a shape and dtype."""
    key = (shape, dtype, scalar, crooked)
    found = _avals.get(key)
    if found is None:
        with _lock:
            if len(_avals) > _LIMIT:
                _avals.clear()
                _foreseen.clear()
            found = _avals.setdefault(key, Aval(shape, dtype, scalar, crooked=crooked))
    return found


def laid(aval: Aval, crooked: bool) -> Aval:
    """The `Aval` of an array of the same shape and dtype that is crooked, or is not."""
    if aval.crooked is crooked or aval.shared:
        return aval
    return aval_of(aval.shape, aval.dtype, aval.scalar, crooked)


def freeze(value: Any) -> Any:
    """A hashable stand-in for a static attribute that tells apart what `==` does not: 1, 1.0 and True; 0.0 and -0.0."""
    kind = type(value)
    if kind is int or kind is str or value is None:
        return value
    if kind is tuple:
        return (tuple, *map(freeze, value))
    if kind is slice:
        return (slice, freeze(value.start), freeze(value.stop), freeze(value.step))
    if kind is bool:
        return (bool, value)
    if kind is float or kind is complex or isinstance(value, np.inexact):
        return (kind, repr(value))
    hash(value)
    return (kind, value)


def foresee(op: Op, params: dict[str, Any], token: Any, avals: Sequence[Any]) -> Aval | None:
    """The `Aval` of the result, from one run on dummy values; None if it cannot be known without the real ones.

    A run that fails is not an error yet: the caller then runs the op on real values, which raises NumPy's own error.
    """
    key = (op, token, *[aval.key for aval in avals])
    if key in _foreseen:
        return _foreseen[key]
    out = None
    for dummies in ([aval.dummy() for aval in avals], [aval.dummy(regular=True) for aval in avals]):
        try:
            with silence():
                result = op.impl(*dummies, **params)
        except Exception:  # whatever it is, the run on real values decides
            continue
        out = _aval_of_result(result)
        if out is not None and bends(op, params, any(aval.crooked for aval in avals), sum(n != 1 for n in out.shape)):
            out = laid(out, True)
        break
    if len(_foreseen) > _LIMIT:
        _foreseen.clear()
    _foreseen[key] = out
    return out


def _aval_of_result(result: Any) -> Aval | None:
    if isinstance(result, np.generic):
        return aval_of((), result.dtype, True)
    if type(result) is np.ndarray and result.dtype.kind in "biufc":
        return aval_of(result.shape, result.dtype)
    return None


def frozen(params: dict[str, Any]) -> Any:
    """A hashable form of attributes that tells 1, 1.0 and True apart."""
    items = tuple(params.items())
    for value in params.values():
        kind = type(value)
        if kind not in _MARSHALLED and (kind is not tuple or any(type(part) not in _MARSHALLED for part in value)):
            return freeze(items)
    return marshal.dumps(items, 2)  # the quickest; version 2 writes equal values alike
