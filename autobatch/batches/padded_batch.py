"""`MaskedBatch`: examples padded to a common shape, stacked along a leading batch axis."""

import sys
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np

from autobatch.batches import scalars
from autobatch.batches.any_batch import ARRAY_SLOTS, Batch, narrowed, raise_own, refusal, register_form
from autobatch.batches.array_batch import ArrayBatch, as_masked, collated
from autobatch.batches.batch_reductions import plain_data, shown_data
from autobatch.batches.objects import ObjectBatch
from autobatch.batches.packing import as_arrays, check_numbers, flat_numbers
from autobatch.batches.stacking import broadcast, loop_over_examples, map_lanes, stack_numbers
from autobatch.batches.unpadded import unpadded
from autobatch.core.abstract_eval import (
    check_operands,
    check_plain,
    is_non_c_order,
    is_subclass,
    may_leave_c_order,
    ndim_of,
    shape_of,
)
from autobatch.core.batched import Batched, Lengths, Size, check_padding, padding_mask
from autobatch.core.current_region import asks_batches, check_time, current_region
from autobatch.core.diagnostics import at_users_line, hide_frames, hiding_frames, is_library_file, warn_user
from autobatch.core.formatting import ArrayLike, shown_value
from autobatch.core.op import BATCH_RANK, Op, is_boxed
from autobatch.errors import DTypeError, NeedsLoop, ShapeError, UnsupportedError
from autobatch.facts.other_libraries import ARRAY, missing
from autobatch.ops.numpy.contractions import matmul_p
from autobatch.ops.numpy.indexing import rows_between
from autobatch.ops.rules.aliasing import is_scalar, set_order, unclear_view, zero_d
from autobatch.ops.rules.op_kinds import words_of
from autobatch.ops.rules.padding import end_to_end, to_widths
from autobatch.ops.rules.ragged_checks import as_ids
from autobatch.ops.rules.row_gather import pad_rows
from autobatch.ops.rules.sizes import padded_width

_set_data = Batched.__dict__["data"].__get__  # reads the slot without the fallback to `__getattr__` if it is unset


@register_form("masked")
class MaskedBatch(Batched, ArrayBatch):
    """A batch of examples of one rank and dtype, padded to a common shape.

    Args:
        data: (B, ...) array; positions outside an example are padding, of any value.
        lengths: (B,) integers, the length of the varying dimension in each example; (B, k) for k varying dimensions.
        mask: in place of lengths: bool, of the data's shape or 1 along static dimensions; True on a leading corner.
        dims: one bool per example dimension, True where it varies. Default with `lengths`: the first dimension (the
            first k for (B, k) lengths); with `mask`: the dimensions that the mask covers.

    Attributes:
        data: the padded data; if ragged, a view whose reductions warn, as they count padding (unlike `ab.mean`).
        sizes: one int or `Lengths` per example dimension.
        scalar: int, float, bool or complex if each example is a Python scalar, else None.
        region: the lock-step region that it was made in; None outside.

    Raises:
        ShapeError: lengths, mask or dims do not fit the data.
        DTypeError: lengths are not integers, or the mask is not bool.

    `ndim`, `shape`, `dtype`, operators and NumPy functions mean what they mean for one example, and act on all: `x[0]`
    is element 0 of each example, `x[:2]` the first two of each, and `x[0] = 1` writes into each; `x.example(0)` is the
    first example, and `ab.Examples(x)` a sequence of the examples. `bool`, `int`, `float`, `len`, `in` and iteration,
    which would need one value for all examples, are errors outside of functions decorated with `ab.batch`.

    >>> x = MaskedBatch([[1, 2, 3], [4, 0, 0]], lengths=[3, 1])
    >>> (x + 1).examples()
    [array([2, 3, 4]), array([5])]
    """

    __slots__ = (*ARRAY_SLOTS, "_outside", "_written", "_zero_d")
    _ab_rank = BATCH_RANK
    _frozen: Any
    _written: bool  # True once written in place; else unset
    _outside: Any  # the data of a ragged batch outside lock-step, for which the slot `data` is unset; else None

    @hiding_frames
    def __init__(
        self,
        data: ArrayLike,
        lengths: ArrayLike | None = None,
        mask: ArrayLike | None = None,
        dims: Sequence[bool] | None = None,
    ) -> None:
        if isinstance(data, Batch):
            raise UnsupportedError("the data of a MaskedBatch is itself a batch; give its .data and .lengths")
        padded = as_data(data)
        if padded.ndim == 0:
            raise ShapeError("data of shape (); expected (batch size, ...): the first axis counts the examples")
        if lengths is not None and mask is not None:
            raise ShapeError("both lengths and mask are given; give one of them")
        if lengths is not None:
            sizes = sizes_from_lengths(padded.shape, lengths, dims)
        else:
            sizes = sizes_static(padded.shape, dims) if mask is None else sizes_from_mask(padded.shape, mask, dims)
        self.data, self.sizes, self.scalar = padded, sizes, None
        self.region = current_region()
        self._view = self._views = self._outside = None
        self._zero_d = False
        self.guard_data()

    @classmethod
    def of(cls, batched: Batched) -> "MaskedBatch":
        """A `MaskedBatch` of a batching rule's result, in the current region."""
        return cls.in_region(batched, current_region())

    @classmethod
    def in_region(cls, batched: Batched, region: object) -> "MaskedBatch":
        """A batch over the lanes of this region."""
        if not hasattr(batched, "sizes"):
            raise UnsupportedError(f"a MaskedBatch of {shown_value(batched)}; expected a Batched: see from_examples")
        return cls.of_data(batched.data, batched.sizes, region, batched.scalar)

    @classmethod
    def of_data(cls, data: Any, sizes: tuple[Size, ...], region: Any, scalar: type | None = None) -> "MaskedBatch":
        """A batch over the lanes of this region, from its fields."""
        self = object.__new__(cls)
        self.data, self.sizes, self.scalar, self.region = data, sizes, scalar, region
        self._view = self._views = self._outside = None  # set, so that looking for them never reaches __getattr__
        self._zero_d = False
        if region is None and sizes:
            self.guard_data()
        return self

    def guard_data(self) -> None:
        """Make reductions of `.data` by code outside the library warn if there may be padding.

        The slot is left unset, so that reading it calls `__getattr__`; in lock-step it is set, and read at no cost.
        """
        if self.region is None and Lengths in map(type, self.sizes):
            self._outside = self.data
            del self.data

    @classmethod
    @hiding_frames
    def from_examples(cls, examples: Sequence[ArrayLike], dims: Sequence[bool] | None = None) -> "MaskedBatch":
        """Stack examples, padded with zeros to the longest.

        Args:
            examples: B arrays of one rank and dtype, or nested lists of numbers; Python numbers, which stay Python's;
                or any other data that `ab.collate` takes, such as a column of Arrow or of a data frame.
            dims: one bool per example dimension; by default a dimension varies if its lengths differ.

        Returns:
            A batch of B examples, of their dtype. Python numbers of several types, or beyond int64, are an
            `ObjectBatch`, which keeps the type of each.

        Raises:
            ShapeError: no examples, ranks that differ, or lengths that differ along a dimension static by `dims`.
            DTypeError: dtypes that differ.

        >>> MaskedBatch.from_examples([[1, 2], [3]]).data.tolist()
        [[1, 2], [3, 0]]
        """
        if not isinstance(examples, list | tuple):
            out: MaskedBatch = as_masked(collated(examples))
            return out if dims is None else cls.from_examples(out.examples(), dims)
        of_numbers = stack_numbers(examples)
        if of_numbers is not None:
            read_dims(dims or (), 0)
            return of_numbers
        numbers = flat_numbers(examples) if dims is None else None
        if numbers is not None and numbers[0].size:
            values, lengths = numbers
            if (lengths == lengths[0]).all():
                return cls.of(Batched(values.reshape(len(lengths), -1), (int(lengths[0]),)))
            size = Lengths(lengths)
            return cls.of(Batched(pad_rows(values, size), (size,)))
        arrays = as_arrays(examples)
        varies = None if dims is None else read_dims(dims, arrays[0].ndim)
        return cls.of(Batched(*pad_stack(arrays, varies)))

    @classmethod
    def stacked(cls, arrays: Sequence[Any], dims: tuple[bool, ...] | None = None) -> "MaskedBatch":
        """`from_examples` without its checks, for arrays of one rank and dtype."""
        try:
            return cls.of(Batched(*pad_stack(arrays, dims)))
        except (AttributeError, IndexError, TypeError):  # they are none
            return cls.from_examples(arrays, dims)

    @property
    def mask(self) -> np.ndarray:
        """Bool, True inside the examples: (B, ...) with the padded size along varying dimensions and 1 along others."""
        out = padding_mask(self.sizes, self.data.shape[1:])
        return np.ones((self.batch_size,) + (1,) * self.ndim, np.bool_) if out is None else out

    @property
    def dims(self) -> tuple[bool, ...]:
        """(ndim,) bool: whether each dimension of the example varies."""
        return tuple(isinstance(size, Lengths) for size in self.sizes)

    @property
    def lengths(self) -> np.ndarray:
        """(B,) int64, the length of the one varying dimension; (B, k) if k dimensions vary, k ≠ 1."""
        varying = [size.values for size in self.sizes if isinstance(size, Lengths)]
        if len(varying) == 1:
            return varying[0]
        return np.stack(varying, axis=1) if varying else np.zeros((self.batch_size, 0), np.int64)

    @property
    def batch_size(self) -> int:
        return len(self.data) if self._outside is None else len(self.unguarded())

    def unguarded(self) -> Any:
        """The plain padded data, without the warnings of `.data`; for code that handles the padding."""
        if self._outside is None:
            return self.data
        try:
            return _set_data(self)  # which somebody has set since
        except AttributeError:
            return self._outside

    def examples(self) -> list[Any]:
        """The data of each example without its padding.

        Returns:
            A list of B arrays, views of the data; or of Python scalars, if the examples are such.
        """
        if self.scalar is not None:
            return list(self.data) if is_boxed(self.data) else self.data.tolist()
        data, sizes = self.unguarded(), self.sizes
        if type(data) is not np.ndarray or Lengths in map(type, sizes[1:]) or not (sizes or is_scalar(self)):
            return super().examples()
        if not sizes or type(sizes[0]) is not Lengths:
            return list(data)
        return [data[at, :length] for at, length in enumerate(sizes[0].values.tolist())]

    def _lane(self, index: int) -> Any:
        if self.scalar is not None:
            return self.data[index].item()
        if not self.is_ragged:
            return self.data[index] if self.sizes or is_scalar(self) else self.data[index, ...]
        corner = [slice(int(n.values[index])) if isinstance(n, Lengths) else slice(None) for n in self.sizes]
        return self.data[(index, *corner)]

    def _between(self, start: int, stop: int) -> "MaskedBatch":
        """The lanes from `start` up to `stop`, copied, so that the result does not keep the other lanes alive."""
        if self.is_ragged:
            return super()._between(start, stop)
        out = MaskedBatch.in_region(self, current_region())
        data = rows_between(self.data, start, stop)
        out.data = data.copy() if type(data) is np.ndarray else data
        return out if self.sizes or is_scalar(self) else zero_d(out)

    def _take(self, index: Any, memo: dict[Any, Any]) -> "MaskedBatch":
        return self._narrow(lambda array: _take_rows(array, index), memo)

    def _prefix(self, count: int, memo: dict[Any, Any]) -> "MaskedBatch":
        return self._narrow(lambda array: rows_between(array, 0, count), memo)

    def _narrow(self, take: Callable[[Any], Any], memo: dict[Any, Any]) -> "MaskedBatch":
        if Lengths not in map(type, self.sizes):
            out = MaskedBatch.of_data(take(self.data), self.sizes, current_region(), self.scalar)
            out._zero_d = self._zero_d
            return set_order(out, True) if self._ab_non_c_order else out
        sizes: list[Size] = []
        corner = []
        for size in self.sizes:
            width = slice(None)
            if isinstance(size, Lengths):
                known = memo.get(id(size))  # the entry keeps `size` alive, so its id stays its own
                if known is None:
                    fewer = Lengths(take(size.values))
                    known = memo[id(size)] = (fewer, slice(fewer.max()), size)
                size, width = known[0], known[1]
            sizes.append(size)
            corner.append(width)
        out = MaskedBatch.of(Batched(take(self.data[(slice(None), *corner)]), sizes, self.scalar))
        out._ab_set_order(self._ab_non_c_order)
        return out

    @property
    def ndim(self) -> int:
        """The number of dimensions of an example."""
        return len(self.sizes)

    @property
    def dtype(self) -> np.dtype:
        """The dtype of every example."""
        return self.data.dtype

    @property  # type: ignore[misc]  # an array's can be written
    def shape(self) -> tuple[Any, ...]:
        """The example's shape: an int for each static dimension, an int per example for each varying one."""
        return tuple(
            MaskedBatch.of_data(n.values, (), self.region, int) if isinstance(n, Lengths) else n for n in self.sizes
        )

    def _ab_apply(self, op: Op, args: Sequence[Any], params: dict[str, Any]) -> Any:
        """Like `ArrayBatch._ab_apply`, with a fast path for padded batches of this region and of one size."""
        region = current_region()
        size = -1
        non_c_order = False
        given = args
        if region is None and len(args) == 1 and type(args[0]) is MaskedBatch and op.rule is not None:  # guarded data
            (arg,) = args
            non_c_order = arg._view is not None and arg._view.non_c_order
            data = arg.data if arg._outside is None else arg._outside
            args, given = (Batched(data, arg.sizes, arg.scalar),), ()
        for arg in given:
            if type(arg) is MaskedBatch:
                if arg._view is not None and arg._view.non_c_order:
                    non_c_order = True
                if size < 0 and (region is None or arg.region is region):
                    size = arg.data.shape[0]
                    continue
                if arg.data.shape[0] == size and (region is None or arg.region is region):
                    continue
                return super()._ab_apply(op, args, params)
            if isinstance(arg, Batch):
                return super()._ab_apply(op, args, params)
            non_c_order = non_c_order or is_non_c_order(arg)
            if is_subclass(arg):
                check_operands(args)
        if op.rule is None:
            return loop_over_examples(op, args, params, f"{op.name} has no batching rule")
        if op is matmul_p and region is not None and type(args[0]) is MaskedBatch:
            _without_padding(*args)
        if region is not None:
            check_time()
        elif op.kind == "elementwise":
            _warn_of_rows(args, size)
        try:
            out = (words_of(op, args) if op.operator else at_users_line)(op.rule, op, args, params)
        except ValueError as error:
            raise_own(error, op, given or [self], params)
        self = object.__new__(MaskedBatch)
        self.data, self.sizes, self.scalar, self.region = out.data, out.sizes, out.scalar, region
        self._view = self._views = self._outside = None
        self._zero_d = False
        if non_c_order or op.layout is not None:
            self._ab_set_order(may_leave_c_order(op, params, non_c_order, len(out.sizes)))
        if Lengths in map(type, out.sizes):
            if region is None:
                self.guard_data()
            elif not hasattr(out.data, "_ab_unpadded"):
                check_padding(len(out.data), out.sizes, shape_of(out.data)[1:], out.data.dtype.itemsize)
        return self

    def _ab_rebind(self, new: Any) -> None:
        """Replace this batch's value by `new` (a batch, or an array for all lanes): the effect of a write in place.

        Raises:
            NeedsLoop: `new` has other lanes than this batch, as after a write under a branch, and its region cannot
                merge them.
        """
        new = broadcast(new, self.batch_size) if not isinstance(new, Batch) else new
        new = as_masked(new)
        if new.region is not self.region:
            merge = getattr(new.region, "merged", None)
            if merge is None:
                raise refusal("an array that several examples share is written for some of them")
            new = merge(self, new)
        self.data, self.sizes, self.scalar, self._outside = new.data, new.sizes, new.scalar, None
        self.guard_data()
        self._written = True

    def __getattr__(self, name: str) -> Any:
        """The `data` of a ragged batch, or per lane an attribute that only Python scalars have (`n.bit_length()`)."""
        if name == "data":
            data = self._outside
            return data if is_library_file(sys._getframe(1).f_code.co_filename) else shown_data(data, self.sizes)
        if name[0] == "_":
            raise AttributeError(name)
        if self.scalar is None and current_region() is None:
            try:  # not `hiding_frames`: `data` looks at the caller
                raise missing("'MaskedBatch' object", name, ARRAY)
            except AttributeError as error:
                hide_frames(error)
                raise
        if self.scalar is None:
            if hasattr(np.ndarray, name):
                raise NeedsLoop(f"ndarray.{name} of each example")
            raise AttributeError(f"'numpy.ndarray' object has no attribute {name!r}")
        attribute = getattr(self.scalar, name)  # raises as Python does
        if callable(attribute):
            return lambda *args, **kwargs: map_lanes(attribute, self, *args, **kwargs)
        return map_lanes(getattr, self, name)

    @hiding_frames
    def __len__(self) -> int:
        if current_region() is None:
            raise self._no_len()
        if not self.sizes:
            scalar = self.scalar
            raise TypeError(f"object of type {scalar.__name__!r} has no len()" if scalar else "len() of unsized object")
        if isinstance(self.sizes[0], Lengths):
            raise self._no_len()
        return self.sizes[0]

    @hiding_frames
    def __iter__(self) -> Iterator[Any]:
        if current_region() is None and not asks_batches.get():
            raise self._no_iteration()
        if not self.sizes:
            scalar = self.scalar
            raise TypeError(f"{scalar.__name__!r} object is not iterable" if scalar else "iteration over a 0-d array")
        here = narrowed(self)
        first = here.sizes[0]
        if isinstance(first, Lengths):
            if not len(first) or (first.values != first.values[0]).any():
                raise self._no_iteration()
            first = int(first.values[0])
        if here is self or len(here.sizes) == 1:
            return (here[i] for i in range(first))
        return (unclear_view(here[i], self) for i in range(first))  # a copy for these lanes: a write would miss it

    def __reduce__(self) -> Any:
        return _restore, (self.data, tuple(n.values if isinstance(n, Lengths) else n for n in self.sizes), self.scalar)

    def __copy__(self) -> "MaskedBatch":
        out = MaskedBatch.in_region(self, self.region)
        return out if self.sizes or is_scalar(self) else zero_d(out)

    def __deepcopy__(self, memo: object) -> "MaskedBatch":
        return MaskedBatch.in_region(Batched(np.copy(self.data), self.sizes, self.scalar), self.region)

    def __repr__(self) -> str:
        if self.scalar is not None:
            example = self.scalar.__name__
        else:
            shape = ", ".join("?" if isinstance(n, Lengths) else str(n) for n in self.sizes)
            example = f"({shape}{',' if self.ndim == 1 else ''}) {self.dtype}"
        shown = self._shown(self.lengths) if self.is_ragged else f", examples={shown_value(self.data)}"
        return f"MaskedBatch(batch_size={self.batch_size}, example={example}{shown})"


def _warn_of_rows(args: Sequence[Any], size: int) -> None:
    """Warn of a list or array as long as the batch beside numbers: an element for each may have been meant."""
    given = [arg for arg in args if type(arg) in (list, np.ndarray) and np.shape(arg) == (size,) != (1,)]
    if given and not any(type(arg) is MaskedBatch and arg.sizes for arg in args):
        what = f"{'a list' if type(given[0]) is list else 'an array'} of {size} beside a batch of {size} numbers"
        warn_user(f"{what}: each example gets all of it; write ab.collate(y) for one each", "as long as the batch")


def _without_padding(x: MaskedBatch, y: object) -> None:
    """Convert x's data to `Unpadded` before a product with a shared matrix, if that saves work."""
    if len(x.sizes) > 1 and not isinstance(y, Batch) and ndim_of(y) == 2 and x.scalar is None:
        x.data = unpadded(x.data, x.sizes)


def _take_rows(array: Any, index: np.ndarray) -> Any:
    """`array[index]`; `take` gathers faster, but would first copy an array that is not contiguous."""
    return array.take(index, axis=0) if type(array) is np.ndarray and array.flags.c_contiguous else array[index]


def _restore(data: object, sizes: Sequence[Any], scalar: type | None) -> MaskedBatch:
    known: dict[int, Lengths] = {}
    shared = [known.setdefault(id(n), Lengths(n)) if isinstance(n, np.ndarray) else n for n in sizes]
    return MaskedBatch.of(Batched(data, shared, scalar))


def _operator(name: str, weak: Callable[[Any, Any], Any], reflected: bool = False) -> Callable[[Any, Any], Any]:
    """An array operator with Python's semantics (`weak`) if the lanes and the other operand are Python scalars."""
    array = getattr(ArrayBatch, name)

    def method(self: MaskedBatch, other: object) -> Any:
        if isinstance(other, ObjectBatch):  # lane by lane, by Python's own operator
            return NotImplemented
        try:
            if self.scalar is None and type(other) is not complex:
                return array(self, other)
            python = scalars.is_pythons(*((other, self) if reflected else (self, other)))
            return weak(self, other) if python else array(self, other)
        except Exception as error:
            hide_frames(error)
            raise

    method.__name__ = name
    return method


def _unary(name: str, weak: Callable[[Any], Any]) -> Callable[[Any], Any]:
    array = getattr(ArrayBatch, name)

    def method(self: MaskedBatch) -> Any:
        return array(self) if self.scalar is None else weak(self)

    method.__name__ = name
    return method


for _name, _weak in scalars.BINARY.items():
    for _prefix, _of in (("__", _weak), ("__i", _weak), ("__r", scalars.reflected(_weak))):
        if hasattr(ArrayBatch, _method := f"{_prefix}{_name}__"):
            setattr(MaskedBatch, _method, _operator(_method, _of, reflected=_prefix == "__r"))
for _name, _weak_unary in scalars.UNARY.items():
    if hasattr(ArrayBatch, f"__{_name}__"):
        setattr(MaskedBatch, f"__{_name}__", _unary(f"__{_name}__", _weak_unary))


def as_data(data: object, what: str = "the data", cls: str = "MaskedBatch") -> Any:
    """The data of a batch as an array of numbers; what carries a gradient keeps it.

    Raises:
        ShapeError: nested lists of different lengths. DTypeError: a dtype that is not a number.
    """
    if is_boxed(data):
        return plain_data(data)
    check_plain(data, what)
    try:
        out = np.asarray(data)
    except ValueError as error:
        raise ShapeError(f"{what} is not one array ({error}); use {cls}.from_examples") from None
    check_numbers(out.dtype, what)
    return out


def read_dims(dims: Any, rank: int) -> tuple[bool, ...]:
    """Check the `dims` that a caller gave: one bool per example dimension."""
    out = tuple(dims)
    if len(out) != rank or not all(isinstance(dim, bool | np.bool_) for dim in out):
        raise ShapeError(f"dims={dims!r}; expected {rank} bools, one per example dimension (True where it varies)")
    return tuple(map(bool, out))


def pad(arrays: Sequence[Any], widths: Sequence[int], size: Lengths | None = None) -> Any:
    """Pad arrays to (B, *widths); `size` holds their lengths if they differ in the first dimension only."""
    if size is not None and (len(arrays) > 16 or set(map(type, arrays)) != {np.ndarray}):  # one by one is 0.3 us each
        return pad_rows(end_to_end(arrays), size, 0, widths[0])
    out: Any = np.zeros((len(arrays), *widths), arrays[0].dtype)
    for at, x in enumerate(arrays):
        if size is None:
            out[(at, *map(slice, x.shape))] = x
        else:  # half the time
            out[at, : len(x)] = x
    return out


def pad_stack(arrays: Sequence[Any], dims: tuple[bool, ...] | None = None) -> tuple[Any, tuple[Size, ...]]:
    """Stack arrays of one rank and dtype, padded to the longest along each axis: the data and the sizes.

    Arrays of an interpreter below (a tape, a trace) are stacked by ops, so gradients flow to each example.

    Raises:
        ShapeError: `dims` says that a dimension is static, and the examples differ in it.
    """
    shapes = [x.shape for x in arrays]
    first = shapes[0]
    sizes: list[Size] = list(first)
    varying: list[int] = []
    if dims is not None or shapes.count(first) != len(shapes):
        for axis in range(len(first)):
            lengths = [shape[axis] for shape in shapes]
            differs = any(length != first[axis] for length in lengths)
            varies = differs if dims is None else dims[axis]
            if differs and not varies:
                wrong = next(i for i, length in enumerate(lengths) if length != first[axis])
                raise ShapeError(
                    f"dims says that dimension {axis} is static, but it is {lengths[wrong]} in example {wrong} "
                    f"and {first[axis]} in example 0; give dims with True there"
                )
            if varies:
                sizes[axis] = Lengths(lengths)
                if differs:
                    varying.append(axis)
    if not varying:
        if first and all(type(x) is np.ndarray for x in arrays):
            return end_to_end(arrays).reshape(len(arrays), *first), tuple(sizes)  # `stack` looks at each of them
        kept: Any = {} if arrays[0].dtype.isnative else {"dtype": arrays[0].dtype}
        return np.stack(arrays, **kept), tuple(sizes)
    padded = tuple(map(padded_width, sizes))
    check_padding(len(arrays), sizes, padded, arrays[0].dtype.itemsize)
    if varying != [0] and any(type(x) is not np.ndarray and is_boxed(x) for x in arrays):
        return np.concatenate([to_widths(np.reshape(x, (1, *x.shape)), padded) for x in arrays]), tuple(sizes)
    return pad(arrays, padded, sizes[0] if varying == [0] else None), tuple(sizes)  # type: ignore[arg-type]


def sizes_static(shape: tuple[int, ...], dims: object) -> tuple[Size, ...]:
    """Sizes of examples that fill the padded shape; dimensions that vary by `dims` get `Lengths` all the same."""
    batch_size, padded = shape[0], shape[1:]
    varies = read_dims(dims, len(padded)) if dims is not None else (False,) * len(padded)
    return tuple(Lengths(np.full(batch_size, n)) if v else n for n, v in zip(padded, varies, strict=True))


def sizes_from_lengths(shape: tuple[int, ...], lengths: Any, dims: Any) -> tuple[Size, ...]:
    """Sizes from (B,) lengths of the varying dimensions (the first, if `dims` is None), or (B, k) of k such dimensions.

    Raises:
        DTypeError: lengths that are not integers.
        ShapeError: a wrong shape, a negative length, or one beyond the padded data.
    """
    batch_size, padded = shape[0], shape[1:]
    lengths = as_ids(lengths, "lengths")
    if lengths.ndim not in (1, 2) or lengths.shape[0] != batch_size:
        raise ShapeError(
            f"lengths of shape {lengths.shape} for data of shape {shape}; "
            f"expected ({batch_size},), or ({batch_size}, k) for k varying dimensions"
        )
    if dims is None:
        count = 1 if lengths.ndim == 1 else lengths.shape[1]
        if count > len(padded):
            raise ShapeError(f"lengths name {count} varying dimensions, but the examples have {len(padded)}")
        dims = [axis < count for axis in range(len(padded))]
    axes = [axis for axis, varies in enumerate(read_dims(dims, len(padded))) if varies]
    if lengths.ndim == 2 and lengths.shape[1] != len(axes):
        raise ShapeError(f"lengths have {lengths.shape[1]} columns, but dims={tuple(dims)} names {len(axes)}")
    if lengths.ndim == 1 and not axes:
        raise ShapeError(f"lengths are given, but dims={tuple(dims)} says that no dimension varies")
    sizes: list[Size] = list(padded)
    for column, axis in enumerate(axes):
        of_axis = lengths if lengths.ndim == 1 else lengths[:, column]
        wrong = (of_axis < 0) | (of_axis > padded[axis])
        if wrong.any():
            lane = int(np.argmax(wrong))
            raise ShapeError(
                f"length {of_axis[lane]} of example {lane} is not in 0..{padded[axis]}, "
                f"the padded size of dimension {axis}"
            )
        sizes[axis] = Lengths(of_axis)
    return tuple(sizes)


def sizes_from_mask(shape: tuple[int, ...], mask: object, dims: object) -> tuple[Size, ...]:
    """Sizes from a bool mask, True inside the examples: (B, ...), with 1 along static dimensions.

    A mask of fewer dimensions than the data covers the leading ones. In each example it must be True on a leading
    corner and False elsewhere.

    Raises:
        DTypeError: a mask that is not bool.
        ShapeError: a shape that does not fit the data, a mask that is no leading corner, or one that varies along a
            dimension that `dims` says is static.
    """
    check_plain(mask, "the mask")
    padded = shape[1:]
    mask = np.asarray(mask)
    if mask.dtype != np.bool_:
        raise DTypeError(f"the mask is {mask.dtype}; expected bool (True inside the examples): write mask != 0")
    given = mask.shape
    fits = 0 < mask.ndim <= len(shape)
    mask = mask.reshape(given + (1,) * (len(shape) - mask.ndim)) if fits else mask
    if not fits or any(n not in (1, size) for n, size in zip(mask.shape, shape, strict=True)):
        raise ShapeError(
            f"a mask of shape {given} for data of shape {shape}; expected the data's shape, "
            "with 1 along dimensions that do not vary"
        )
    mask = np.broadcast_to(mask, (shape[0], *mask.shape[1:]))
    varies = read_dims(dims, len(padded)) if dims is not None else _varying_axes(mask, padded)
    sizes: list[Size] = list(padded)
    rebuilt = np.ones((shape[0],) + (1,) * len(padded), np.bool_)
    for axis, (length, of_mask) in enumerate(zip(padded, mask.shape[1:], strict=True)):
        if varies[axis]:
            others = tuple(other for other in range(1, mask.ndim) if other != axis + 1)
            inside = np.broadcast_to(mask.any(axis=others), (shape[0], length))
            sizes[axis] = Lengths(inside.sum(axis=1))
            along = sizes[axis].mask(length)  # type: ignore[union-attr]
            rebuilt = rebuilt & along.reshape(shape[0], *(1,) * axis, length, *(1,) * (len(padded) - axis - 1))
        elif of_mask > 1 and not (mask == mask.take([0], axis=axis + 1)).all():
            raise ShapeError(f"the mask varies along dimension {axis}, which dims={tuple(varies)} says is static")
    wrong = (rebuilt != mask).any(axis=tuple(range(1, len(shape))))
    if wrong.any():
        raise ShapeError(
            f"the mask of example {int(np.argmax(wrong))} is not True on one leading corner and False elsewhere "
            f"(varying dimensions: {tuple(varies)}); move the padding to the end of each dimension, "
            "or select what is valid (x[mask]) and use MaskedBatch.from_examples"
        )
    return tuple(sizes)


def _varying_axes(mask: np.ndarray, padded: tuple[int, ...]) -> tuple[bool, ...]:
    """The dimensions along which a mask varies: its axes longer than 1, or else the first one of padded size 1."""
    varies = [n > 1 for n in mask.shape[1:]]
    if not any(varies) and not mask.all():
        varies = [n == 1 for n in padded]
        if sum(varies) > 1:
            varies = [axis == varies.index(True) for axis in range(len(padded))]
    return tuple(varies)
