"""Abstract values (`Aval`): shape and dtype of operands and results, found without dispatch or reading data."""

import functools
import marshal
import operator
import threading
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from autobatch.core.current_region import current_region
from autobatch.core.diagnostics import silence
from autobatch.core.op import Op, is_boxed
from autobatch.core.pytree import leaves_of_kind
from autobatch.errors import DTypeError, NeedsLoop, Unsupported, UnsupportedError


def shape_of(x: Any) -> Any:
    """The shape of an array of any interpreter, or of a Python scalar or sequence.

    `np.shape` is itself overridable, so it must not be used inside rules and vjps.
    """
    shape = getattr(x, "shape", None)
    return np.asarray(x).shape if shape is None else shape


def ndim_of(x: object) -> int:
    """The number of dimensions; like `shape_of`, without dispatch."""
    ndim = getattr(x, "ndim", None)
    return np.asarray(x).ndim if ndim is None else ndim


def dtype_of(x: Any) -> np.dtype:
    """The dtype; for a Python scalar, NumPy's default for it."""
    dtype = getattr(x, "dtype", None)
    return np.asarray(x).dtype if dtype is None else dtype


def type_of(x: object, *more: object) -> Any:
    """Like `type(x)`, but for a library array the class of the NumPy value that it stands for."""
    return x.__class__ if is_boxed(x) and not more else type(x, *more)


def is_non_c_order(value: Any) -> bool:
    """True if the axes of this array (plain or the library's) may lie in other than C order.

    >>> x = np.zeros((3, 4))
    >>> [is_non_c_order(y) for y in (x, x[:, ::2], x.T, x.T[:1])]
    [False, False, True, False]
    """
    if type(value) is not np.ndarray:
        return getattr(value, "_ab_non_c_order", False)
    if value.ndim < 2 or value.flags.c_contiguous:
        return False
    steps = [abs(step) for step, size in zip(value.strides, value.shape, strict=True) if step and size > 1]
    return any(steps[i] < steps[i + 1] for i in range(len(steps) - 1))


def may_leave_c_order(op: Op, params: dict[str, Any], non_c_order: bool, rank: int) -> bool:
    """True if a call's result of this rank may lie in other than C order, given whether an operand does."""
    return rank >= 2 and (non_c_order if op.layout is None else op.layout(params, non_c_order, rank))


SHORTEST = 2  # of the lengths that an `Affine` stands for: NumPy broadcasts length 1, and warns for length 0
EXAMPLES = "B"  # the name of the number of examples, which is larger than any size of an example


class Affine:
    """A size that is no number yet: a sum of multiples of unknown lengths, plus a number.

    It computes and compares as an integer does, of lengths that are at least `SHORTEST`. What depends on the number
    itself raises `Unsupported`.

    Attributes:
        factors: {name of a length: its factor}, no factor is 0; number: what is added.

    >>> n = Affine({"n": 1})
    >>> 2 * n + 3 - n, (4 * n) // n, n > 1, n == n + 1
    (n + 3, 4, True, False)
    """

    __slots__ = ("factors", "number")

    def __init__(self, factors: dict[str, int], number: int = 0) -> None:
        self.factors = factors
        self.number = number

    def at(self, lengths: Mapping[str, Any]) -> Any:
        """The size where the lengths are these: numbers, or arrays of numbers."""
        return sum([lengths[name] * factor for name, factor in self.factors.items()], self.number)

    def __add__(self, other: Any) -> Any:
        if type(other) is not Affine:
            return Affine(self.factors, self.number + as_size(other))
        factors = {
            name: self.factors.get(name, 0) + other.factors.get(name, 0) for name in self.factors | other.factors
        }
        factors = {name: factors[name] for name in sorted(factors) if factors[name]}
        number = self.number + other.number
        return Affine(factors, number) if factors else number

    def __mul__(self, other: Any) -> Any:
        if type(other) is Affine:
            raise Unsupported("a product of unknown sizes")
        factor = as_size(other)
        return Affine({name: own * factor for name, own in self.factors.items()}, self.number * factor) if factor else 0

    def __floordiv__(self, other: Any) -> Any:
        if type(other) is Affine:
            name, factor = next(iter(other.factors.items()))
            quotient = self.factors.get(name, 0) // factor
            if self == other * quotient:
                return quotient
        elif not any(part % other for part in (*self.factors.values(), self.number)):
            return Affine({name: own // other for name, own in self.factors.items()}, self.number // other)
        raise Unsupported("a quotient of unknown sizes")

    def __mod__(self, other: Any) -> Any:
        return self - self // other * other

    def __sub__(self, other: Any) -> Any:
        return self + other * -1

    def __rsub__(self, other: Any) -> Any:
        return self * -1 + other

    __radd__, __rmul__ = __add__, __mul__

    def _is(self, signs: tuple[int, ...], other: Any) -> bool:
        """True if the sign of the difference to another size is one of these, whatever the lengths."""
        rest = self - other
        factors = [] if type(rest) is int else rest.factors.values()
        least = rest if type(rest) is int else rest.at({**dict.fromkeys(rest.factors, SHORTEST), EXAMPLES: 1 << 40})
        sign = (least > 0) - (least < 0)
        above, below = any(factor > 0 for factor in factors), any(factor < 0 for factor in factors)
        answers = {each in signs for each in range(-1 if below else sign, 2 if above else sign + 1)}
        if len(answers) > 1:
            raise Unsupported("a comparison of unknown sizes")
        return answers.pop()

    __lt__ = functools.partialmethod(_is, (-1,))
    __le__ = functools.partialmethod(_is, (-1, 0))
    __gt__ = functools.partialmethod(_is, (1,))
    __ge__ = functools.partialmethod(_is, (1, 0))

    def __eq__(self, other: object) -> bool:
        return type(other) in (int, Affine) and self._is((0,), other)

    def __hash__(self) -> int:
        return hash((*self.factors.items(), self.number))

    def __index__(self, *_: Any) -> int:
        raise Unsupported("the number of an unknown size")

    __int__ = __float__ = __rfloordiv__ = __index__

    def __repr__(self) -> str:
        terms = [name if factor == 1 else f"{factor} * {name}" for name, factor in self.factors.items()]
        return " + ".join([*terms, str(self.number)] if self.number else terms)


def as_size(value: Any) -> Any:
    """An integer of any kind as Python's; an unknown size as it is."""
    return value if type(value) is Affine else operator.index(value)


def sizes_at(value: Any, lengths: Mapping[str, Any]) -> Any:
    """A size, a shape or an attribute of an op where the unknown lengths are these."""
    if type(value) is tuple:
        return tuple([sizes_at(part, lengths) for part in value])
    return value.at(lengths) if type(value) is Affine else value


def unknown_lengths(value: Any) -> set[str]:
    """The names of the lengths that a size, a shape or an attribute of an op depends on."""
    if type(value) is tuple:
        return set().union(*map(unknown_lengths, value))
    return set(value.factors) if type(value) is Affine else set()


_MARSHALLED = frozenset((int, float, complex, bool, str, type(None)))


class Aval:
    """Shape, dtype and layout bits of an array. Interned by `aval_of`: equal ones are the same object.

    Attributes:
        scalar: True for a 0-d value that NumPy gives as a scalar (`np.float64`), not as a 0-d array.
        shared: the value is one object for all examples; such an `Aval` is made for that object alone.
        shape: like an array's, with an `Affine` for an unknown size; the first length is -1 if it is left out
            (`without_length`).
        non_c_order: its axes may lie in other than C order.
        weak: the type of a Python number, which is weak in NumPy's promotion; else None.
        key: the interned `Aval` used as a cache key by `abstract_eval`, also for shared ones.
        nbytes: bytes of one value; where lengths are unknown, as if they were 64.
    """

    __slots__ = ("_text", "dtype", "key", "nbytes", "ndim", "non_c_order", "scalar", "shape", "shared", "weak")

    def __init__(
        self, shape: tuple[int, ...], dtype: np.dtype, scalar: bool, shared: bool = False, non_c_order: bool = False
    ) -> None:
        self.shape = shape
        self.ndim = len(shape)
        self.dtype = dtype
        self.scalar = scalar
        self.shared = shared
        self.non_c_order = non_c_order
        count = 1
        for n in shape:
            count *= n if type(n) is int else sizes_at(n, dict.fromkeys(unknown_lengths(n), 64))
        self.nbytes = count * dtype.itemsize
        self.key: Any = self
        self.weak: type | None = None
        self._text = ""

    @property
    def bits(self) -> tuple[np.dtype, bool, bool]:
        """What `aval_of` is given beside a shape."""
        return self.dtype, self.scalar, self.non_c_order

    def dummy(self, regular: bool = False) -> Any:
        """A value of this shape and dtype that takes no memory: ones for floats and complex, else zeros (valid ids).

        Args:
            regular: make square matrices the identity, so that they are invertible.
        """
        if self.weak is not None:
            return 0 if self.weak is int else self.weak(1)
        one = self.dtype.type(1 if self.dtype.kind in "fc" else 0)
        if self.scalar:
            return one
        if regular and self.ndim > 1 and self.shape[-1] == self.shape[-2] and self.dtype.kind in "fc":
            return np.broadcast_to(np.eye(self.shape[-1], dtype=self.dtype), self.shape)
        return np.broadcast_to(np.asarray(one, self.dtype), self.shape)

    def __repr__(self) -> str:
        if not self._text:  # cached: `dtype.name` is slow
            known = self.key if type(self.key) is Aval else self
            text = f"{self.dtype.name}{list(self.shape)}" if known is self else repr(known)
            self._text = text + ("s" if self.shared else "")
        return self._text


class Weak(Aval):
    """The `Aval` of a Python number operand: its type counts in NumPy's promotion, its value is not part of the key."""

    __slots__ = ("kind",)

    def __init__(self, cls: type) -> None:
        super().__init__((), np.dtype(cls), scalar=True, shared=True)
        self.kind = self.weak = cls
        self._text = cls.__name__


WEAK: dict[type, Weak] = {cls: Weak(cls) for cls in (int, float, bool, complex)}
_LIMIT = 1 << 14  # entries of each cache below; a larger cache is cleared
_avals: dict[tuple[Any, ...], Aval] = {}
_results: dict[tuple[Any, ...], Any] = {}
_lock = threading.Lock()


def aval_of(shape: tuple[Any, ...], dtype: np.dtype, scalar: bool = False, non_c_order: bool = False) -> Aval:
    """The interned `Aval` of a shape and dtype."""
    key = (shape, dtype, scalar, non_c_order)
    if (found := _avals.get(key)) is None:
        with _lock:
            if len(_avals) > _LIMIT:
                _avals.clear()
                _results.clear()
            found = _avals.setdefault(key, Aval(shape, dtype, scalar, non_c_order=non_c_order))
    return found


def with_order(aval: Aval, non_c_order: bool) -> Aval:
    """The same `Aval` with another `non_c_order`; a shared one is not changed."""
    if aval.non_c_order is non_c_order or aval.shared:
        return aval
    return aval_of(aval.shape, aval.dtype, aval.scalar, non_c_order)


def freeze(value: Any) -> Any:
    """A hashable key for an attribute or a shape; distinct for values equal by `==` such as 1, 1.0, True; 0.0, -0.0."""
    cls = type(value)
    if cls is int or cls is str or value is None:
        return value
    if cls is tuple:
        return (tuple, *map(freeze, value))
    if cls is slice:
        return (slice, freeze(value.start), freeze(value.stop), freeze(value.step))
    if cls is bool:
        return (bool, value)
    if cls is float or cls is complex or cls is Affine or isinstance(value, np.inexact):
        return (cls, repr(value))
    hash(value)
    return (cls, value)


def abstract_eval(op: Op, params: dict[str, Any], token: object, avals: Sequence[Any]) -> Aval | None:
    """The `Aval` of an op's result, found by running it on dummy values; None if that fails. Cached.

    A failing run is not an error yet: the caller then runs the op on real values, which raises NumPy's own error.
    """
    key = (op, token, *[aval.key for aval in avals])
    if key in _results:
        return _results[key]
    lengths = unknown_lengths((*[aval.shape for aval in avals], *params.values()))
    out = _of_unknown_sizes(op, params, avals, sorted(lengths)) if lengths else _result_of(op, params, avals)
    if len(_results) > _LIMIT:
        _results.clear()
    _results[key] = out
    return out


def _of_unknown_sizes(op: Op, params: dict[str, Any], avals: Sequence[Any], lengths: Sequence[str]) -> Aval | None:
    """`abstract_eval` of operands with unknown sizes; None if a size of the result is no `Affine`.

    An op is affine if it is where each length is one longer, where all are, and where all are the shortest. The first
    are longer than an index asks for, so that a slice is not cut short in some of them only.
    """
    start = min(max([abs(n) for n in leaves_of_kind(params.get("spec", ()), int)], default=0), 512) + 3
    base = {name: start + 2 * place for place, name in enumerate(lengths)}
    points = [base, *[{**base, name: base[name] + 1} for name in lengths]]
    points += [{name: n + 2 for name, n in base.items()}, dict.fromkeys(lengths, SHORTEST)]
    found = []
    for point in points:
        own = [aval if aval.weak else aval_of(sizes_at(aval.shape, point), *aval.bits) for aval in avals]
        found.append(_result_of(op, {name: sizes_at(value, point) for name, value in params.items()}, own))
    first = found[0]
    if first is None or any(each is None or (each.ndim, each.bits) != (first.ndim, first.bits) for each in found):
        return None
    shape: list[Any] = []
    for column in zip(*[aval.shape for aval in found if aval is not None], strict=True):
        factors = {name: n - column[0] for name, n in zip(lengths, column[1:], strict=False) if n != column[0]}
        size = Affine(factors, column[0] - Affine(factors).at(base)) if factors else column[0]
        if [sizes_at(size, point) for point in points] != list(column):
            return None
        shape.append(size)
    return aval_of(tuple(shape), *first.bits)


def _result_of(op: Op, params: dict[str, Any], avals: Sequence[Any]) -> Aval | None:
    for dummies in ([aval.dummy() for aval in avals], [aval.dummy(regular=True) for aval in avals]):
        try:
            with silence():
                result = op.impl(*dummies, **params)
        except Exception:  # any error: the run on real values decides
            continue
        number = isinstance(result, np.generic)
        if not number and not (type(result) is np.ndarray and result.dtype.kind in "biufc"):
            return None
        out = aval_of(result.shape, result.dtype, number)
        if may_leave_c_order(op, params, any(aval.non_c_order for aval in avals), sum(n != 1 for n in out.shape)):
            out = with_order(out, True)
        return out
    return None


def freeze_params(params: dict[str, Any]) -> Any:
    """A hashable key for an op's params; like `freeze`, 1, 1.0 and True differ."""
    items = tuple(params.items())
    for value in params.values():
        cls = type(value)
        if cls not in _MARSHALLED and (cls is not tuple or any(type(part) not in _MARSHALLED for part in value)):
            return freeze(items)
    return marshal.dumps(items, 2)  # the fastest way; version 2 has no references, so equal values give equal bytes


def known_aval(value: Any) -> Aval:
    """The `Aval` of a computed value."""
    check_plain(value, "an operand of a recorded operation")
    return aval_of(tuple(value.shape), np.dtype(value.dtype), isinstance(value, np.generic), is_non_c_order(value))


def shared_aval(value: object) -> Aval:
    """A new `Aval` for one shared object; signatures that contain it are specific to that object."""
    key = known_aval(value)
    out = Aval(key.shape, key.dtype, key.scalar, shared=True, non_c_order=key.non_c_order)
    out.key = key
    if type(getattr(value, "_ab_value", None)) is float:  # a Python float on a tape stays weak
        out.weak, out.key = float, WEAK[float]
    return out


def without_length(aval: Any) -> Any:
    """The `Aval` of a ragged operand, with first length -1; a shared one is not changed."""
    return aval if aval.shared else aval_of((-1, *aval.shape[1:]), aval.dtype)


# Array subclasses: ops and kernels read only the plain data, so they would lose a mask or a unit.

_PLAIN = frozenset((np.ndarray, np.memmap))


def is_subclass(value: object) -> bool:
    """True for an ndarray subclass such as a masked array, a matrix or one with units; a `memmap` counts as plain.

    >>> is_subclass(np.ma.masked_array([1])), is_subclass(np.zeros(2)), is_subclass(1.0)
    (True, False, False)
    """
    cls = type(value)  # not isinstance: the library's arrays pretend to be ndarrays; padded batch data counts as plain
    return cls not in _PLAIN and issubclass(cls, np.ndarray) and not hasattr(cls, "_ab_plain")


def check_plain(value: Any, what: str) -> None:
    """Check that a value, or anything in its nested lists and tuples, is not an ndarray subclass (see `is_subclass`).

    Raises:
        UnsupportedError: it is one, or an array of h5py's that is empty; `what` is its name in the message.
    """
    cls = type(value)
    if cls is list or cls is tuple:
        if any(issubclass(each, np.ndarray | list | tuple) for each in set(map(type, value)) - set(_PLAIN)):
            for item in value:
                check_plain(item, what)
    elif is_subclass(value):
        plain = "x.filled(value)" if isinstance(value, np.ma.MaskedArray) else "np.asarray(x)"
        raise UnsupportedError(
            f"{what}: a {cls.__module__}.{cls.__qualname__}, read as numbers; expected a plain array: write {plain}"
        )
    elif hasattr(cls, "__array__") and getattr(value, "shape", ()) is None:
        raise UnsupportedError(f"{what}: a {cls.__module__}.{cls.__qualname__} without a shape and data; leave it out")


def is_bfloat16(dtype: np.dtype) -> bool:
    """True for the dtype bfloat16 of `ml_dtypes` (the upper half of a float32), which bags can read."""
    return dtype.isbuiltin == 2 and dtype.name == "bfloat16"


def check_own_dtype(dtype: np.dtype, what: str) -> None:
    """Check that a dtype is NumPy's own and not another package's, such as bfloat16 of `ml_dtypes`.

    Raises:
        DTypeError: it is not; `what` is the array's name in the message.
    """
    if dtype.isbuiltin == 2:
        raise DTypeError(
            f"{what}: of dtype {dtype}, which {dtype.type.__module__} brings; expected a dtype of NumPy's own: write "
            ".astype(np.float32)"
        )


def check_operands(values: Any) -> None:
    """Check that the operands of a batched op are not ndarray subclasses.

    Raises:
        NeedsLoop: one is, in lock-step; the loop keeps its class. UnsupportedError: one is, outside of lock-step.
    """
    for value in values:
        if is_subclass(value):
            if current_region() is not None:
                raise NeedsLoop(f"an operand that is a {type(value).__name__}")
            check_plain(value, "an operand")
