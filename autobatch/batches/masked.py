"""`MaskedBatch`: padded examples under one leading batch axis."""

from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np

from autobatch.batches import scalars
from autobatch.batches.array_batch import ArrayBatch
from autobatch.batches.building import sizes_from_lengths, sizes_from_mask, sizes_static
from autobatch.batches.forms import Batch, agreed_size, form, narrowed, refuse
from autobatch.batches.loop import loop_over_examples
from autobatch.batches.objects import ObjectBatch
from autobatch.batches.results import broadcast, per_lane, stack_results
from autobatch.batches.stacking import as_arrays, as_data, pad_stack, read_dims
from autobatch.batches.unpadded import unpadded
from autobatch.core.aval import ndim_of
from autobatch.core.batched import Batched, Lengths, Packed, Size, padding_mask
from autobatch.core.lanes import current_region
from autobatch.core.layout import bends, is_crooked
from autobatch.core.op import BATCH_RANK, Op, is_boxed
from autobatch.errors import NeedsLoop, ShapeError, UnsupportedError
from autobatch.ops.numpy.contractions import matmul_p
from autobatch.ops.rules.aliasing import is_scalar, lay, zero_d
from autobatch.ops.rules.rows import rows_between

__all__ = ["MaskedBatch"]


@form("masked")
class MaskedBatch(Batched, ArrayBatch):
    """A batch of examples of one rank and dtype, padded to a common shape.

    Args:
        data: (B, ...) array; what lies outside an example is padding, of any value.
        lengths: (B,) integers, the length of the varying dimension in each example; (B, k) for k varying dimensions.
        mask: instead, bool, of the data's shape with 1 along static dimensions; True on each example's leading corner.
        dims: one bool per example dimension, True where it varies; by default the first one does if `lengths` are given
            (the first k, for (B, k) lengths), and those that the mask covers.

    Attributes:
        data: the padded data.
        sizes: one int or `Lengths` per example dimension.
        scalar: int, float, bool or complex where each example is a Python scalar, else None.
        region: the lock-step region that it was made in.

    Raises:
        ShapeError: lengths, mask or dims that do not fit the data.
        DTypeError: lengths that are no integers, a mask that is not bool.

    An example's face: `ndim`, `shape`, `dtype`, operators and NumPy functions are those of one example, and act on all.

    >>> x = MaskedBatch([[1, 2, 3], [4, 0, 0]], lengths=[3, 1])
    >>> (x + 1).examples()
    [array([2, 3, 4]), array([5])]
    """

    __slots__ = ("__weakref__", "_frozen", "_view", "_views", "_zero_d", "region")
    _ab_rank = BATCH_RANK
    _frozen: Any

    def __init__(self, data: Any, lengths: Any = None, mask: Any = None, dims: Sequence[bool] | None = None) -> None:
        if isinstance(data, Batch):
            raise UnsupportedError("the data of a MaskedBatch is itself a batch; give its .data and .lengths")
        data = as_data(data)
        if data.ndim == 0:
            raise ShapeError("data of shape (); expected (batch size, ...): the first axis counts the examples")
        if lengths is not None and mask is not None:
            raise ShapeError("both lengths and mask are given; give one of them")
        if lengths is not None:
            sizes = sizes_from_lengths(data.shape, lengths, dims)
        elif mask is not None:
            sizes = sizes_from_mask(data.shape, mask, dims)
        else:
            sizes = sizes_static(data.shape, dims)
        self.data, self.sizes, self.scalar = data, sizes, None
        self.region = current_region()
        self._view = self._views = None

    @classmethod
    def of(cls, batched: Batched) -> "MaskedBatch":
        """The batch of a rule's result, in the current region."""
        return cls.in_region(batched, current_region())

    @classmethod
    def in_region(cls, batched: Batched, region: Any) -> "MaskedBatch":
        """A batch whose lanes are those of this region."""
        return cls.of_data(batched.data, batched.sizes, region, batched.scalar)

    @classmethod
    def of_data(cls, data: Any, sizes: tuple[Size, ...], region: Any, scalar: type | None = None) -> "MaskedBatch":
        """A batch whose lanes are those of this region, from what it consists of."""
        self = object.__new__(cls)
        self.data, self.sizes, self.scalar, self.region = data, sizes, scalar, region
        self._view = self._views = None  # set, so that looking for them never reaches __getattr__
        return self

    @classmethod
    def from_examples(cls, examples: Sequence[Any], dims: Sequence[bool] | None = None) -> "MaskedBatch":
        """Stack examples (arrays, or nested lists of numbers), padded with zeros to the longest.

        Args:
            dims: one bool per example dimension; by default a dimension varies if its lengths differ.

        Raises:
            ShapeError: no examples, ranks that differ, or lengths that differ where `dims` says static.
            DTypeError: dtypes that differ.

        >>> MaskedBatch.from_examples([[1, 2], [3]]).data
        array([[1, 2],
               [3, 0]])
        """
        arrays = as_arrays(list(examples))
        varies = None if dims is None else read_dims(dims, arrays[0].ndim)
        return cls.of(Batched(*pad_stack(arrays, varies)))

    @property
    def mask(self) -> np.ndarray:
        """Bool, True inside the examples: (B, ...) with the padded size along varying dimensions and 1 along others."""
        out = padding_mask(self.sizes, self.data.shape[1:])
        return np.ones((self.batch_size,) + (1,) * self.ndim, np.bool_) if out is None else out

    @property
    def dims(self) -> tuple[bool, ...]:
        """For each example dimension, whether it varies."""
        return tuple(isinstance(size, Lengths) for size in self.sizes)

    @property
    def lengths(self) -> np.ndarray:
        """(B,) int64, the length of the one varying dimension; (B, k) if k dimensions vary, k ≠ 1."""
        varying = [size.values for size in self.sizes if isinstance(size, Lengths)]
        if len(varying) == 1:
            return varying[0]
        return np.stack(varying, axis=1) if varying else np.zeros((self.batch_size, 0), np.int64)

    def examples(self) -> list[Any]:
        """The data of each example without its padding: views, or Python scalars where examples are that."""
        if self.scalar is not None:
            return self.data.tolist()
        if is_boxed(self.data) or any(self.dims[1:]) or not (self.sizes or is_scalar(self)):
            return super().examples()
        if not self.is_ragged:
            return list(self.data)
        return [row[:length] for row, length in zip(self.data, self.lengths.tolist(), strict=True)]

    def _lane(self, index: int) -> Any:
        if self.scalar is not None:
            return self.data[index].item()
        if not self.is_ragged:
            return self.data[index] if self.sizes or is_scalar(self) else self.data[index, ...]
        corner = [slice(int(n.values[index])) if isinstance(n, Lengths) else slice(None) for n in self.sizes]
        return self.data[(index, *corner)]

    def _between(self, start: int, stop: int) -> "MaskedBatch":
        """The lanes from `start` up to `stop`, which do not keep the others alive."""
        if self.is_ragged:
            return super()._between(start, stop)
        out = MaskedBatch.in_region(self, current_region())
        data = rows_between(self.data, start, stop)
        out.data = data.copy() if type(data) is np.ndarray else data
        return out if self.sizes or is_scalar(self) else zero_d(out)

    def _take(self, index: Any, memo: dict[Any, Any]) -> "MaskedBatch":
        return self._narrow(lambda array: _taken(array, index), memo)

    def _prefix(self, count: int, memo: dict[Any, Any]) -> "MaskedBatch":
        return self._narrow(lambda array: rows_between(array, 0, count), memo)

    def _narrow(self, take: Callable[[Any], Any], memo: dict[Any, Any]) -> "MaskedBatch":
        if Lengths not in map(type, self.sizes):
            out = object.__new__(MaskedBatch)
            out.data, out.sizes, out.scalar, out.region = take(self.data), self.sizes, self.scalar, current_region()
            out._view = out._views = None
            if self._ab_crooked:
                lay(out, True)
            return out if self.sizes or is_scalar(self) else zero_d(out)
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
        out._ab_lay(self._ab_crooked)
        return out

    @property
    def ndim(self) -> int:
        """The number of dimensions of an example."""
        return len(self.sizes)

    @property
    def dtype(self) -> np.dtype:
        """The dtype of every example."""
        return self.data.dtype

    @property
    def shape(self) -> tuple[Any, ...]:
        """The example's shape: an int where all examples agree, else an int per example."""
        return tuple(
            MaskedBatch.in_region(Batched(n.values, (), int), self.region) if isinstance(n, Lengths) else n
            for n in self.sizes
        )

    def _ab_apply(self, op: Op, args: Sequence[Any], params: dict[str, Any]) -> Any:
        region = current_region()
        size = -1
        crooked = False
        for arg in args:
            if type(arg) is MaskedBatch:
                if arg._view is not None and arg._view.crooked:
                    crooked = True
                if size < 0 and (region is None or arg.region is region):
                    size = arg.data.shape[0]
                    continue
                if arg.data.shape[0] == size and (region is None or arg.region is region):
                    continue
                return self._ab_apply_any(op, args, params)
            if isinstance(arg, Batch):
                return self._ab_apply_any(op, args, params)
            crooked = crooked or is_crooked(arg)
        if op.rule is None:
            return loop_over_examples(op, args, params, f"{op.name} has no batching rule")
        if op is matmul_p and region is not None and type(args[0]) is MaskedBatch:
            _without_padding(*args)
        out = op.rule(op, args, params)
        self = object.__new__(MaskedBatch)
        self.data, self.sizes, self.scalar, self.region = out.data, out.sizes, out.scalar, region
        self._view = self._views = None
        if crooked or op.layout is not None:
            self._ab_lay(bends(op, params, crooked, len(out.sizes)))
        return self

    @staticmethod
    def _ab_apply_any(op: Op, args: Sequence[Any], params: dict[str, Any]) -> Any:
        """`_ab_apply` where an operand is of another region, another size, or another form of batch."""
        args = [narrowed(arg) for arg in args]
        agreed_size(arg for arg in args if isinstance(arg, Batch))
        if any(isinstance(arg, ObjectBatch) for arg in args):
            return loop_over_examples(op, args, params, "the examples differ in structure, rank or dtype")
        if op.rule is None:
            return loop_over_examples(op, args, params, f"{op.name} has no batching rule")
        for arg in args:
            if isinstance(arg, Packed):  # packed: it knows what runs on its values as they are
                return arg._ab_apply(op, args, params)  # type: ignore[attr-defined]
        out = MaskedBatch.of(op.rule(op, args, params))
        out._ab_lay(bends(op, params, any(map(is_crooked, args)), out.ndim))
        return out

    def _ab_rebind(self, new: Any) -> None:
        """Take over the value of `new` (a batch, or an array that all lanes share): what a write into this batch gives.

        Raises:
            NeedsLoop: `new` is of other lanes than this batch, as a write under a branch gives it, and its region does
                not say how they merge.
        """
        new = broadcast(new, self.batch_size) if not isinstance(new, Batch) else new
        new = new.to_masked() if isinstance(new, Packed) else new  # type: ignore[attr-defined]
        if new.region is not self.region:
            merge = getattr(new.region, "merged", None)
            if merge is None:
                raise refuse("an array that more examples have is written for some of them")
            new = merge(self, new)
        self.data, self.sizes, self.scalar = new.data, new.sizes, new.scalar

    def __getattr__(self, name: str) -> Any:
        """What a Python scalar has beside an array's attributes (`n.bit_length()`), per lane."""
        if name[0] == "_":
            raise AttributeError(name)
        if self.scalar is None:
            if current_region() is not None and hasattr(np.ndarray, name):
                raise NeedsLoop(f"ndarray.{name} of each example")
            raise AttributeError(f"'numpy.ndarray' object has no attribute {name!r}")
        attribute = getattr(self.scalar, name)  # raises as Python does
        if callable(attribute):
            return lambda *args, **kwargs: stack_results(per_lane(attribute, (self, *args), kwargs))
        return stack_results(per_lane(getattr, (self, name), {}))

    def __len__(self) -> int:
        if current_region() is None:
            raise UnsupportedError("len() of a batch: write .batch_size for the number of examples")
        if not self.sizes:
            kind = self.scalar
            raise TypeError(f"object of type {kind.__name__!r} has no len()" if kind else "len() of unsized object")
        if isinstance(self.sizes[0], Lengths):
            raise refuse("len() of a value whose length differs by example")
        return self.sizes[0]

    def __iter__(self) -> Iterator[Any]:
        if not self.sizes:
            kind = self.scalar
            raise TypeError(f"{kind.__name__!r} object is not iterable" if kind else "iteration over a 0-d array")
        here = narrowed(self)
        first = here.sizes[0]
        if isinstance(first, Lengths) and current_region() is not None and len(first):
            counts = first.values
            if (counts == counts[0]).all():
                return (here[i] for i in range(int(counts[0])))
        if isinstance(first, Lengths):
            raise refuse(
                "iteration over a dimension whose length differs by example, outside converted code (@ab.batch); "
                ".examples() lists the examples",
                "iteration over a dimension whose length differs by example",
            )
        return (here[i] for i in range(first))

    def __reduce__(self) -> Any:
        return _restore, (self.data, tuple(n.values if isinstance(n, Lengths) else n for n in self.sizes), self.scalar)

    def __copy__(self) -> "MaskedBatch":
        out = MaskedBatch.in_region(self, self.region)
        return out if self.sizes or is_scalar(self) else zero_d(out)

    def __deepcopy__(self, memo: Any) -> "MaskedBatch":
        return MaskedBatch.in_region(Batched(np.copy(self.data), self.sizes, self.scalar), self.region)

    def __repr__(self) -> str:
        if self.scalar is not None:
            example = self.scalar.__name__
        else:
            shape = ", ".join("?" if isinstance(n, Lengths) else str(n) for n in self.sizes)
            example = f"({shape}{',' if self.ndim == 1 else ''}) {self.dtype}"
        ragged = f", lengths={_head(self.lengths)}" if self.is_ragged else ""
        return f"MaskedBatch(batch_size={self.batch_size}, example={example}{ragged}, data={_head(self.data)})"


def _without_padding(x: MaskedBatch, y: Any) -> None:
    """Hold the rows that are multiplied by a shared matrix without their padding from now on, if that saves work."""
    if len(x.sizes) > 1 and not isinstance(y, Batch) and ndim_of(y) == 2 and x.scalar is None:
        x.data = unpadded(x.data, x.sizes)


def _taken(array: Any, index: np.ndarray) -> Any:
    """array[index]; `take` is the faster gather, but copies what is not contiguous first."""
    if type(array) is np.ndarray and array.flags.c_contiguous:
        return array.take(index, axis=0)
    return array[index]


def _head(data: Any) -> str:
    if is_boxed(data):
        return repr(data)
    with np.printoptions(threshold=20, edgeitems=2, precision=4):
        return str(data)


def _restore(data: Any, sizes: Sequence[Any], scalar: type | None) -> MaskedBatch:
    known: dict[int, Lengths] = {}
    shared = [known.setdefault(id(n), Lengths(n)) if isinstance(n, np.ndarray) else n for n in sizes]
    return MaskedBatch.of(Batched(data, shared, scalar))


def _operator(name: str, weak: Callable[[Any, Any], Any]) -> Callable[[Any, Any], Any]:
    """An array operator that is Python's own where the lanes are Python scalars and NumPy has no part in it."""
    array = getattr(ArrayBatch, name)

    def method(self: MaskedBatch, other: Any) -> Any:
        if isinstance(other, ObjectBatch):  # lane by lane, by Python's own operator
            return NotImplemented
        if self.scalar is not None and scalars.is_python(other):
            return weak(self, other)
        return array(self, other)

    method.__name__ = name
    return method


def _unary(name: str, weak: Callable[[Any], Any]) -> Callable[[Any], Any]:
    array = getattr(ArrayBatch, name)

    def method(self: MaskedBatch) -> Any:
        return array(self) if self.scalar is None else weak(self)

    method.__name__ = name
    return method


for _name, _weak in scalars.BINARY.items():
    if hasattr(ArrayBatch, f"__{_name}__"):
        setattr(MaskedBatch, f"__{_name}__", _operator(f"__{_name}__", _weak))
    if hasattr(ArrayBatch, f"__i{_name}__"):
        setattr(MaskedBatch, f"__i{_name}__", _operator(f"__i{_name}__", _weak))
    if hasattr(ArrayBatch, f"__r{_name}__"):
        setattr(MaskedBatch, f"__r{_name}__", _operator(f"__r{_name}__", scalars.reflected(_weak)))
for _name, _weak_unary in scalars.UNARY.items():
    if hasattr(ArrayBatch, f"__{_name}__"):
        setattr(MaskedBatch, f"__{_name}__", _unary(f"__{_name}__", _weak_unary))
