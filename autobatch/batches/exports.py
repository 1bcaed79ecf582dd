"""Converts batches to Arrow, awkward, torch, polars and pandas, without a copy where the memory layout is shared.

Each library is imported when a user asks for its form.
"""

import math
from typing import Any

import numpy as np

from autobatch.core.batched import Batched, Lengths, Packed
from autobatch.core.op import is_boxed
from autobatch.errors import UnsupportedError


def _layout(batch: Any) -> tuple[Any, list[Any]]:
    """The values, and from the outside in the levels above them: the offsets of lists, or the width of a static one.

    Raises:
        UnsupportedError: values on a tape, or examples of which another dimension than the first varies.
    """
    levels: list[Any] = []
    while isinstance(batch, Packed):
        levels.append(batch.offsets)
        batch = batch.values
    if isinstance(batch, Batched):
        if any(isinstance(size, Lengths) for size in batch.sizes[1:]):
            raise UnsupportedError("more dimensions than the first vary in this batch; .examples() lists them")
        data = batch.data
        _check_plain(data)
        if batch.sizes and isinstance(batch.sizes[0], Lengths):
            size = batch.sizes[0]
            levels.append(np.concatenate([np.zeros(1, np.int64), np.cumsum(size.values)]))
            data = data[size.mask(data.shape[1])]
            return data, levels + list(data.shape[1:])
        return data, levels + list(data.shape[1:])
    _check_plain(batch)
    return batch, levels + list(batch.shape[1:])


def _check_plain(data: Any) -> None:
    if is_boxed(data):
        raise UnsupportedError("a batch that carries a gradient cannot be converted; convert it outside of ab.grad")


def to_arrow(batch: Any) -> Any:
    """The implementation of `Batch.to_arrow`."""
    import pyarrow as pa  # noqa: PLC0415

    if hasattr(batch, "values") and isinstance(batch.values, list):
        return pa.array(batch.values)
    values, levels = _layout(batch)
    out = pa.array(np.ascontiguousarray(values).reshape(-1))
    for axis in range(values.ndim - 1, 0, -1):
        if width := values.shape[axis]:
            out = pa.FixedSizeListArray.from_arrays(out, width)
        else:  # which says nothing of how many there are
            out = pa.array([[]] * math.prod(values.shape[:axis]), pa.list_(out.type, 0))
    for offsets in reversed(levels[: len(levels) - values.ndim + 1]):
        out = pa.LargeListArray.from_arrays(pa.array(offsets), out)
    return out


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


def to_polars(batch: Any) -> Any:
    """The implementation of `Batch.to_polars`."""
    import polars as pl  # noqa: PLC0415

    found = to_arrow(batch)
    empty = isinstance(batch, Batched) and 0 in batch.sizes  # polars cannot read Arrow's lists of length 0
    return pl.Series(values=pl.from_arrow(with_any_lengths(found) if empty else found))


def to_awkward(batch: Any) -> Any:
    """The implementation of `Batch.to_awkward`."""
    import awkward as ak  # noqa: PLC0415

    if hasattr(batch, "values") and isinstance(batch.values, list):
        return ak.Array(batch.values)
    values, levels = _layout(batch)
    out = ak.contents.NumpyArray(np.asarray(values))
    for level in reversed(levels):
        if not isinstance(level, int):
            out = ak.contents.ListOffsetArray(ak.index.Index64(level), out)
    return ak.Array(out)


def to_torch(batch: Any) -> Any:
    """The implementation of `Batch.to_torch`."""
    import torch  # noqa: PLC0415

    if hasattr(batch, "values") and isinstance(batch.values, list):
        raise UnsupportedError("objects that differ by example have no tensor; .examples() lists them")
    if isinstance(batch, Batched) and any(isinstance(size, Lengths) for size in batch.sizes[1:]):
        return torch.nested.nested_tensor([torch.from_numpy(np.array(x)) for x in batch.examples()])  # type: ignore[attr-defined]
    values, levels = _layout(batch)
    offsets = [level for level in levels if not isinstance(level, int)]
    if len(offsets) > 1:
        raise UnsupportedError("nested lists have no jagged tensor; .values.to_torch() is the one of all inner lists")
    values = torch.from_numpy(values if values.flags.writeable else values.copy())
    if not offsets:
        return values
    return torch.nested.nested_tensor_from_jagged(values, torch.from_numpy(offsets[0].copy()))


def to_pandas(batch: Any) -> Any:
    """The implementation of `Batch.to_pandas`."""
    import pandas as pd  # noqa: PLC0415

    if isinstance(batch, Batched) and not batch.sizes:
        _check_plain(batch.data)
        return pd.Series(batch.data)
    found = batch.examples()
    out = np.empty(len(found), object)
    for i, x in enumerate(found):
        out[i] = x
    return pd.Series(out)


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
        raise UnsupportedError("no one array holds these examples: give .data, or ab.PackedBatch.from_masked(batch)")
    return batch
