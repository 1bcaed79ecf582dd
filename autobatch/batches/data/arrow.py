"""Reads Arrow's data of any library, and awkward's, by pyarrow: numbers and offsets where they are, without a copy.

`__arrow_c_stream__` and `__arrow_c_array__` are Arrow's interface, by which pyarrow takes the memory of other
libraries: polars, DuckDB, narwhals, pandas with Arrow dtypes and Parquet readers have them. Bits, strings and columns
from which elements are dropped are copied.
"""

from typing import Any

import numpy as np

from autobatch.batches.data.columns import Column, Columns, Place, size_of
from autobatch.batches.data.concat import concat_trees
from autobatch.errors import ShapeError, UnsupportedError


def read_arrow(data: object, columns: Columns, place: Place) -> Column:
    """The column that an object gives by Arrow's interface; of a table or frame, records.

    Raises:
        UnsupportedError: a type that no batch holds, which the message says to convert; pyarrow is not installed.
        ShapeError: structures that contradict each other.
    """
    try:
        import pyarrow as pa  # noqa: PLC0415
    except ImportError as error:
        raise UnsupportedError("Arrow data are read by pyarrow, which is not installed: pip install pyarrow") from error
    try:
        whole = pa.array(data) if hasattr(data, "__arrow_c_array__") else pa.chunked_array(data)
        whole.validate(full=True)
    except pa.ArrowException as error:
        raise ShapeError(f"Arrow data with wrong structures: {error}") from error
    chunks = [chunk for chunk in getattr(whole, "chunks", [whole]) if len(chunk)] or [pa.nulls(0, whole.type)]
    starts = np.cumsum([0, *map(len, chunks)]).tolist()
    places = [Place(place.path, lambda i, start=start: place.example_of(i + start)) for start in starts]  # type: ignore[misc]
    found = [_read(chunk, columns, each) for chunk, each in zip(chunks, places, strict=False)]
    return found[0] if len(found) == 1 else _joined(found)


def _joined(chunks: list[Column]) -> Column:
    valid = None
    if any(chunk.valid is not None for chunk in chunks):
        whole = [np.ones(size_of(chunk.tree), np.bool_) if chunk.valid is None else chunk.valid for chunk in chunks]
        valid = np.concatenate(whole)
    return Column(concat_trees([chunk.tree for chunk in chunks]), valid)


def _read(array: Any, columns: Columns, place: Place) -> Column:
    """The column of a `pyarrow.Array`, which may be a part of a longer one."""
    from pyarrow import types  # noqa: PLC0415

    arrow_type = array.type
    if hasattr(array, "to_numpy_ndarray"):  # lists of one length that stand for tensors
        return columns.numbers(array.to_numpy_ndarray(), _valid(array), place)
    if hasattr(array, "storage"):
        found = _read(array.storage, columns, place)
        is_tuple = getattr(arrow_type, "record_is_tuple", False)  # of awkward's
        return Column(tuple(found.tree.values()), found.valid) if is_tuple else found
    if types.is_dictionary(arrow_type):
        return _read(array.dictionary_decode(), columns, place)
    if types.is_struct(arrow_type):
        return _records(array, columns, place)
    if types.is_fixed_size_list(arrow_type):
        width, count = arrow_type.list_size, len(array)
        items = array.values.slice(array.offset * width, count * width)
        inner = place.items(np.arange(count + 1) * width)
        return columns.fixed(_read(items, columns, inner), width, count, _valid(array), place)
    if types.is_list(arrow_type) or types.is_large_list(arrow_type) or types.is_map(arrow_type):
        offsets = array.offsets.to_numpy().astype(np.int64, copy=False)
        first, last = int(offsets[0]), int(offsets[-1])
        offsets = offsets - first if first else offsets
        items = _read(array.values.slice(first, last - first), columns, place.items(offsets))
        return columns.lists(items, offsets, _valid(array), place)
    if types.is_list_view(arrow_type) or types.is_large_list_view(arrow_type):
        starts, lengths = (part.to_numpy().astype(np.int64) for part in (array.offsets, array.sizes))
        items = _read(array.values, columns, place.runs(starts, lengths))
        return columns.runs(items, starts, lengths, _valid(array), place)
    if str(arrow_type).removeprefix("large_").removesuffix("_view") in ("string", "binary"):
        return columns.objects(array.to_numpy(zero_copy_only=False).tolist(), _valid(array), place)
    return columns.numbers(_numbers(array, place), _valid(array), place)


def _records(array: Any, columns: Columns, place: Place) -> Column:
    names = [field.name for field in array.type]
    for name in names:
        if names.count(name) > 1:
            raise UnsupportedError(f"two columns are named {name!r}{place}; rename one of them")
    fields = {name: _read(array.field(i), columns, place.field(name)) for i, name in enumerate(names)}
    return columns.records(fields, _valid(array), place)


def _valid(array: Any) -> np.ndarray | None:
    """(n,) bool, False where an element is missing; None if none is."""
    return array.is_valid().to_numpy(zero_copy_only=False) if array.null_count else None


def _numbers(array: Any, place: Place) -> np.ndarray:
    """The numbers, any where one is missing; a time of day is a duration."""
    from pyarrow import types  # noqa: PLC0415

    arrow_type = array.type
    if types.is_null(arrow_type):
        return np.zeros(len(array))
    if types.is_boolean(arrow_type):
        return array.fill_null(False).to_numpy(zero_copy_only=False)
    if types.is_integer(arrow_type) or types.is_floating(arrow_type):
        dtype = np.dtype(arrow_type.to_pandas_dtype())
    elif types.is_date(arrow_type):
        dtype = np.dtype("M8[D]" if types.is_date32(arrow_type) else "M8[ms]")
    elif types.is_temporal(arrow_type) and not types.is_interval(arrow_type):
        dtype = np.dtype(f"{'M8' if types.is_timestamp(arrow_type) else 'm8'}[{arrow_type.unit}]")
    else:
        raise UnsupportedError(
            f"data of Arrow's type {str(arrow_type).partition('<')[0]}{place}, which no batch holds; cast it to "
            "numbers, strings, lists or structs"
        )
    if not len(array):
        return np.zeros(0, dtype)
    if types.is_temporal(arrow_type):  # days, and some times of day, are of 32 bits
        stored = np.dtype(f"i{arrow_type.bit_width // 8}")
        found = np.frombuffer(array.buffers()[1], stored, len(array), array.offset * stored.itemsize)
        return found.astype(np.int64, copy=False).view(dtype)
    return np.frombuffer(array.buffers()[1], dtype, len(array), array.offset * dtype.itemsize)
