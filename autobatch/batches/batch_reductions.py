"""Reductions over all examples of a batch without padding: `ab.sum`, `ab.mean`, `ab.max`, `ab.min`, `ab.count`.

They are NumPy's own reductions over the concatenated elements of all examples, so that dtype, rounding, warnings and
errors are those of `np.concatenate([x.ravel() for x in examples])`. The elements are gathered by ops, so gradients flow
through.

`x.data.mean()` over a ragged batch counts padding, which is never intended, and its value does not show it. So outside
the library `.data` is a padded array whose reductions warn. The library itself reads the plain array, at no cost
(`MaskedBatch.guard_data`).
"""

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from autobatch.batches.any_batch import FORMS, Batch
from autobatch.core.abstract_eval import shape_of
from autobatch.core.batched import Batched, Lengths, Packed, Size, padding_mask
from autobatch.core.current_region import current_region
from autobatch.core.diagnostics import hiding_frames, warn_user
from autobatch.core.op import Op, is_boxed
from autobatch.errors import UnsupportedError
from autobatch.ops.array_protocols import StandIn
from autobatch.ops.numpy.reductions import REDUCTIONS
from autobatch.ops.numpy.statistics import mean_p
from autobatch.ops.rules.row_gather import rows_p
from autobatch.ops.rules.sizes import reshaped

_NAMES = {op.ufunc: op.name for op in REDUCTIONS.values()}


@hiding_frames
def sum(x: object, by: str = "element") -> Any:  # called as ab.sum
    """The sum of all elements of all examples, as a number; padding is not counted.

    Args:
        x: a batch of any class; or a list of one array or number per example, as `ab.map` returns. A plain array or
            number is one example, so that code for one example may call this too.
        by: "element", or "example": sum each example first, then sum the sums.

    Returns:
        A NumPy scalar of the dtype that `np.sum` gives; on a tape, a recorded scalar that carries the gradient.

    Raises:
        UnsupportedError: x is a dict, a dataclass or otherwise neither a batch nor an array; or an unknown `by`.

    >>> from autobatch import MaskedBatch
    >>> sum(MaskedBatch([[1, 2, 9], [3, 9, 9]], lengths=[2, 1]))
    np.int64(6)
    """
    return _reduced(np.sum, x, by)


@hiding_frames
def mean(x: object, by: str = "element") -> Any:
    """The mean of all elements of all examples, or of the examples' means; the usual loss over a batch.

    Args:
        x: as for `sum`.
        by: "element": every element has equal weight. "example": every example has, as the mean of the examples' means.

    Returns:
        A NumPy scalar of the dtype that `np.mean` gives; under `ab.grad`, a recorded scalar that carries the gradient.

    Raises:
        UnsupportedError: as for `sum`.

    >>> from autobatch import MaskedBatch
    >>> x = MaskedBatch.from_examples([[1.0, 3.0], [5.0]])
    >>> mean(x), mean(x, by="example")
    (np.float64(3.0), np.float64(3.5))
    """
    return _reduced(np.mean, x, by)


@hiding_frames
def max(x: object, by: str = "element") -> Any:
    """The largest element of all examples.

    Args:
        x: as for `sum`.
        by: "element"; or "example", the largest of the examples' maxima: an empty example is an error, as in NumPy.

    Returns:
        A NumPy scalar of the batch's dtype; under `ab.grad`, a value that carries the gradient.

    Raises:
        UnsupportedError: as for `sum`. ValueError: there is no element.

    >>> from autobatch import MaskedBatch
    >>> max(MaskedBatch([[-1, 0], [-3, -2]], lengths=[1, 2]))
    np.int64(-1)
    """
    return _reduced(np.max, x, by)


@hiding_frames
def min(x: object, by: str = "element") -> Any:
    """The smallest element of all examples.

    Args:
        x: as for `sum`.
        by: as for `max`.

    Returns:
        A NumPy scalar of the batch's dtype; under `ab.grad`, a value that carries the gradient.

    Raises:
        UnsupportedError: as for `sum`. ValueError: there is no element.

    >>> from autobatch import MaskedBatch
    >>> min(MaskedBatch([[1, 0], [3, 2]], lengths=[1, 2]))
    np.int64(1)
    """
    return _reduced(np.min, x, by)


@hiding_frames
def count(x: Any, by: str = "element") -> Any:
    """The number of elements, or of examples, of a batch: the divisor of `mean`.

    Args:
        x: as for `sum`.
        by: "element" or "example".

    Returns:
        An int.

    Raises:
        UnsupportedError: as for `sum`.

    >>> from autobatch import MaskedBatch
    >>> x = MaskedBatch.from_examples([[1.0, 3.0], [5.0]])
    >>> count(x), count(x, by="example")
    (3, 2)
    """
    _check_by(by)
    if _is_single(x):
        return 1 if by == "example" else getattr(x, "size", 1)
    if by == "element":
        return _elements(x).size
    return x.batch_size if isinstance(x, Batched | Packed) else len(_examples(x))


def _reduced(function: Callable[[Any], Any], x: object, by: str) -> Any:
    if isinstance(x, Batched) and not x.sizes and type(by) is str and by == "element" and current_region() is None:
        is_mean = function is np.mean and is_boxed(x.data)  # of losses: nearly always
        return mean_p(x.data, axis=(0,), keepdims=False) if is_mean else function(x.data)
    _check_by(by)
    if _is_single(x):  # in lock-step: one of each example
        return function(x)
    if by == "element":
        return function(_elements(x))
    x = _merge_levels(x)
    if isinstance(x, Batched | Packed):
        return function(function(x).data)
    found = [function(_elements(each)) for each in _examples(x)]
    return function(np.stack(found) if found else np.zeros(0))


def _check_by(by: object) -> None:
    if not isinstance(by, str) or by not in ("element", "example"):
        raise UnsupportedError(f"by={by!r}; expected 'element' or 'example'; np.mean(batch, axis) reduces each example")


def _is_single(x: object) -> bool:
    """True for one example's value: a plain array or number, or in lock-step a batch, which stands for that."""
    if isinstance(x, Batch):
        return current_region() is not None
    return isinstance(x, np.ndarray | np.generic | int | float | complex) or is_boxed(x)


def _examples(x: object) -> list[Any]:
    found = x.examples() if isinstance(x, Batch) else x
    if not isinstance(found, list | tuple):
        better = "is a `return` missing?" if x is None else "write ab.mean(out['loss'])"
        raise UnsupportedError(f"a {type(x).__name__} is neither a batch nor a list: {better}")
    if any(isinstance(each, Batch if isinstance(found, tuple) else tuple) for each in found):
        raise UnsupportedError("results that are tuples: write ab.mean(out[0]), of a list ab.mean([a for a, b in out])")
    return list(found)


def _merge_levels(x: object) -> Any:
    """A nested batch with its inner levels merged: each example is the concatenation of its lists."""
    while isinstance(x, Packed) and isinstance(x.values, Packed):
        x = FORMS["packed"].of(x.values.values, x.values.offsets[x.offsets])
    return x


def _elements(x: Any) -> Any:
    """All elements of all examples, without padding, as a 1-d array."""
    if _is_single(x):
        return np.reshape(x, (-1,))
    x = _merge_levels(x)
    if isinstance(x, Packed):
        return reshaped(x.values, (-1,))
    if isinstance(x, Batched):
        shape = shape_of(x.data)
        inside = padding_mask(x.sizes, shape[1:])
        flat = x.data if len(shape) == 1 else reshaped(x.data, (-1,))
        if inside is None or inside.all():
            return flat
        places = np.flatnonzero(np.broadcast_to(inside, shape))
        return rows_p(flat, places, unique=True) if is_boxed(flat) else flat[places]
    return np.concatenate([_elements(each) for each in _examples(x)] or [np.zeros(0)])


def shown_data(data: object, sizes: Sequence[Size]) -> Any:
    """The data of a batch as users see it: where there is padding, an array whose reductions warn."""
    inside = padding_mask(sizes, shape_of(data)[1:])
    if inside is None or inside.all():
        return data
    ragged = (True, *(isinstance(size, Lengths) for size in sizes))
    if is_boxed(data):
        return PaddedRecorded(data, ragged)
    out = np.asarray(data).view(PaddedArray)
    out._ragged = ragged
    return out


def plain_data(data: Any) -> Any:
    """The plain array inside a value of `.data`; any other value unchanged."""
    if type(data) is PaddedRecorded:
        return data.recorded
    return data.view(np.ndarray) if type(data) is PaddedArray else data


def _warn_if_padding_counts(ragged: Sequence[bool], axis: object, name: str) -> None:
    """Warn that padding is counted, unless only static dimensions are reduced."""
    axes = range(len(ragged)) if axis is None else axis if isinstance(axis, tuple) else (axis,)
    if not any(ragged[a] for a in axes if -len(ragged) <= a < len(ragged)):
        return
    own = f"ab.{name}(x)" if name in ("sum", "mean", "max", "min") else "a function of x.examples()"
    warn_user(
        f"{name} of the padded .data of a ragged batch x counts its padding; write {own} for all elements of all "
        f"examples, np.{name}(x) for one result per example, or where=x.mask"
    )


class PaddedArray(np.ndarray):
    """A view of padded data whose reductions warn. Results computed from it are plain arrays."""

    _ab_plain = True
    _ragged: tuple[bool, ...] | None

    def __array_finalize__(self, other: object) -> None:
        self._ragged = None  # derived arrays may have their padding along other dimensions

    def __array_ufunc__(self, ufunc: np.ufunc, method: str, *inputs: Any, **kwargs: Any) -> Any:
        first = inputs[0]
        known = method == "reduce" and type(first) is PaddedArray and first._ragged is not None
        if known and kwargs.get("where", True) is True:
            _warn_if_padding_counts(first._ragged, kwargs.get("axis", 0), _NAMES.get(ufunc, ufunc.__name__))
        if "out" in kwargs:
            kwargs["out"] = tuple(map(plain_data, kwargs["out"]))
        return getattr(ufunc, method)(*map(plain_data, inputs), **kwargs)

    def __array_function__(self, func: Any, types: Any, args: Any, kwargs: Any) -> Any:
        if func is np.mean or func is np.std or func is np.var:  # else the sums within them would warn as "sum"
            return getattr(args[0] if args else kwargs.pop("a"), func.__name__)(*args[1:], **kwargs)
        return super().__array_function__(func, types, args, kwargs)

    def _named(self, name: str, axis: object, args: Any, kwargs: Any) -> Any:
        if self._ragged is not None and kwargs.get("where", True) is True:
            _warn_if_padding_counts(self._ragged, axis, name)
        return getattr(plain_data(self), name)(axis, *args, **kwargs)

    def mean(self, axis: object = None, *args: object, **kwargs: object) -> Any:
        return self._named("mean", axis, args, kwargs)

    def std(self, axis: object = None, *args: object, **kwargs: object) -> Any:
        return self._named("std", axis, args, kwargs)

    def var(self, axis: object = None, *args: object, **kwargs: object) -> Any:
        return self._named("var", axis, args, kwargs)

    def __getitem__(self, index: object) -> Any:
        return plain_data(self)[index]

    def __reduce__(self) -> Any:
        return plain_data(self).__reduce__()


class PaddedRecorded(StandIn):
    """Like `PaddedArray`, for data on a tape or trace: any op on it is an op on that data."""

    __slots__ = ("_ragged", "recorded")

    def __init__(self, recorded: Any, ragged: tuple[bool, ...]) -> None:
        self.recorded = recorded
        self._ragged = ragged

    def _ab_force(self) -> Any:
        return self.recorded

    def _ab_apply(self, op: Op, args: Sequence[Any], params: dict[str, Any]) -> Any:
        if op.kind == "reduction" and args[0] is self and len(args) == 1:
            _warn_if_padding_counts(self._ragged, params.get("axis"), op.name)
        return op(*map(plain_data, args), **params)

    def _ab_rebind(self, new: Any) -> None:
        self.recorded._ab_rebind(plain_data(new))

    def __getattr__(self, name: str) -> Any:
        if name[0] == "_" and name not in ("_ab_index", "_ab_tape", "_ab_value"):  # a tape's
            raise AttributeError(name)
        return getattr(self.recorded, name)

    @property
    def shape(self) -> tuple[int, ...]:
        return self.recorded.shape

    @property
    def dtype(self) -> np.dtype:
        return self.recorded.dtype
