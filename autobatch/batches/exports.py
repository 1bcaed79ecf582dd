"""Converts batches to Arrow, awkward, torch, polars and pandas, without a copy where the memory layout is shared.

Each library is imported when a user asks for its form.
"""

import math
from collections.abc import Callable
from typing import Any

import numpy as np

from autobatch.core.batched import Batched, Lengths, Packed
from autobatch.core.op import is_boxed
from autobatch.errors import UnsupportedError
from autobatch.ops.rules.ragged_checks import offsets_from


def _layout(batch: Any) -> tuple[Any, list[Any]]:
    """The values, and from the outside in the levels above them: the offsets of lists, or the width of a static one.

    Raises:
        UnsupportedError: values on a tape, or examples of which another dimension than the first varies.
    """
    levels: list[Any] = []
    while isinstance(batch, Packed):
        levels.append(batch.offsets)
        batch = batch.values
    sizes = batch.sizes if isinstance(batch, Batched) else ()
    if any(isinstance(size, Lengths) for size in sizes[1:]):
        raise UnsupportedError("more dimensions than the first vary in this batch; .examples() lists them")
    data = batch.data if isinstance(batch, Batched) else batch
    _check_plain(data)
    if sizes and isinstance(sizes[0], Lengths):
        levels.append(offsets_from(sizes[0].values))
        data = data[sizes[0].mask(data.shape[1])]
    return data, levels + list(data.shape[1:])


def _check_plain(data: object) -> None:
    if is_boxed(data):
        raise UnsupportedError("a batch that carries a gradient cannot be converted; convert it outside of ab.grad")


def with_any_lengths(array: Any) -> Any:
    """An Arrow array with lists of any length in place of those whose type says their length."""
    import pyarrow as pa  # noqa: PLC0415

    def of_any_length(old: Any) -> Any:
        if pa.types.is_list(old) or pa.types.is_large_list(old) or pa.types.is_fixed_size_list(old):
            return pa.large_list(of_any_length(old.value_type))
        if pa.types.is_struct(old):
            return pa.struct([field.with_type(of_any_length(field.type)) for field in old])
        return old

    return array.cast(of_any_length(array.type))


def shared_values(batch: Any) -> np.ndarray:
    """The array that holds the examples and nothing else.

    Raises:
        UnsupportedError: padding lies between them, or they are objects.
    """
    while isinstance(batch, Packed):
        batch = batch.values
    if isinstance(batch, Batched) and not batch.is_ragged:
        batch = batch.data
    if not isinstance(batch, np.ndarray):
        raise UnsupportedError("one array cannot hold these examples: give .data, or ab.PackedBatch.from_masked(batch)")
    return batch


class Exports:
    """The methods of a batch that give its examples in the form of another library."""

    __slots__ = ()

    examples: Callable[[], list[Any]]

    def to_arrow(self) -> Any:
        """The examples as a pyarrow array of numbers, fixed-size lists or large lists; numbers are not copied.

        Returns:
            A `pyarrow.Array` with one element per example.

        Raises:
            UnsupportedError: the batch carries a gradient, or a dimension other than the first varies.
        """
        import pyarrow as pa  # noqa: PLC0415

        if hasattr(self, "values") and isinstance(self.values, list):
            return pa.array(self.values)
        values, levels = _layout(self)
        out = pa.array(np.ascontiguousarray(values).reshape(-1))
        for axis in range(values.ndim - 1, 0, -1):
            if width := values.shape[axis]:
                out = pa.FixedSizeListArray.from_arrays(out, width)
            else:  # which says nothing of how many there are
                out = pa.array([[]] * math.prod(values.shape[:axis]), pa.list_(out.type, 0))
        for offsets in reversed(levels[: len(levels) - values.ndim + 1]):
            out = pa.LargeListArray.from_arrays(pa.array(offsets), out)
        return out

    def to_awkward(self) -> Any:
        """The examples as an awkward array; packed values and offsets are not copied.

        Returns:
            An `awkward.Array` with one element per example.

        Raises:
            UnsupportedError: as `to_arrow`.
        """
        import awkward as ak  # noqa: PLC0415

        if hasattr(self, "values") and isinstance(self.values, list):
            return ak.Array(self.values)
        values, levels = _layout(self)
        out = ak.contents.NumpyArray(np.asarray(values))
        for level in reversed(levels):
            if not isinstance(level, int):
                out = ak.contents.ListOffsetArray(ak.index.Index64(level), out)
        return ak.Array(out)

    def to_torch(self) -> Any:
        """The examples as a torch tensor, jagged if the first dimension varies; values are not copied.

        Returns:
            A `torch.Tensor` whose first dimension is the batch.

        Raises:
            UnsupportedError: the examples are nested lists or objects, or the batch carries a gradient.
        """
        import torch  # noqa: PLC0415

        if hasattr(self, "values") and isinstance(self.values, list):
            raise UnsupportedError("objects that differ by example have no tensor; .examples() lists them")
        if isinstance(self, Batched) and any(isinstance(size, Lengths) for size in self.sizes[1:]):
            return torch.nested.nested_tensor([torch.from_numpy(np.array(x)) for x in self.examples()])
        values, levels = _layout(self)
        offsets = [level for level in levels if not isinstance(level, int)]
        if len(offsets) > 1:
            raise UnsupportedError("nested lists have no jagged tensor: write .values.to_torch() for all inner lists")
        values = torch.from_numpy(values if values.flags.writeable else values.copy())
        if not offsets:
            return values
        return torch.nested.nested_tensor_from_jagged(values, torch.from_numpy(offsets[0].copy()))

    def to_polars(self) -> Any:
        """The examples as a polars series, through Arrow.

        Returns:
            A `polars.Series` with one element per example.

        Raises:
            UnsupportedError: as `to_arrow`.
        """
        import polars as pl  # noqa: PLC0415

        found = self.to_arrow()
        empty = isinstance(self, Batched) and 0 in self.sizes  # polars cannot read Arrow's lists of length 0
        return pl.Series(values=pl.from_arrow(with_any_lengths(found) if empty else found))

    def to_pandas(self) -> Any:
        """The examples as a pandas series of numbers, or else of the objects that `examples()` lists.

        Returns:
            A `pandas.Series` with one element per example.
        """
        import pandas as pd  # noqa: PLC0415

        if isinstance(self, Batched) and not self.sizes:
            _check_plain(self.data)
            return pd.Series(self.data)
        return pd.Series(self.examples(), dtype=object)

    def __dlpack__(self, **options: Any) -> Any:
        return shared_values(self).__dlpack__(**options)

    def __dlpack_device__(self) -> Any:
        return shared_values(self).__dlpack_device__()
