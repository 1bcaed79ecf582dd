"""Reads data of any library with Arrow's PyCapsule interface, by pyarrow, which checks it and shares its memory.

pyarrow, polars, DuckDB, narwhals, pandas with Arrow dtypes and Parquet readers have that interface. Numbers and offsets
are not copied; bits, strings, categories and columns from which elements are dropped are.
"""

from types import ModuleType
from typing import Any

import numpy as np

from autobatch.batches.data.columns import Column, Columns, DataPlace, Valid, size_of
from autobatch.batches.data.concat import concat_trees
from autobatch.errors import OffsetsError, ShapeError, UnsupportedError


def read_arrow(data: Any, columns: Columns) -> Column:
    """The column that an object gives by Arrow's C interface; of a table or frame, records.

    Raises:
        UnsupportedError: pyarrow is not installed; or a type that no batch holds, and what to convert it to.
        ShapeError: structures that contradict each other, or that were read before.
    """
    try:
        import pyarrow as pa  # noqa: PLC0415
    except ImportError:
        raise UnsupportedError(f"data of {type(data).__module__} is read through Arrow: pip install pyarrow") from None
    try:
        if isinstance(data, pa.Table | pa.RecordBatch):
            data = data.to_struct_array()
        elif hasattr(data, "__arrow_c_array__") and not isinstance(data, pa.Array):
            data = pa.array(data)
        given = pa.chunked_array([data] if isinstance(data, pa.Array) else data)
        given.validate(full=_has_text(pa, given.type))  # offsets of lists are checked with the lists
    except pa.ArrowNotImplementedError as error:
        raise UnsupportedError(f"data of {type(data).__name__} that Arrow does not read: {error}") from None
    except (pa.ArrowException, ValueError, IndexError) as error:  # pyarrow raises ValueError for a capsule read before
        raise ShapeError(f"malformed Arrow data: {error}") from None
    chunks = [chunk for chunk in given.chunks if len(chunk)] or [pa.nulls(0, given.type)]
    found, before = [], 0
    for chunk in chunks:
        place = DataPlace("", lambda i, before=before: i + before)  # type: ignore[misc]
        found.append(_read(pa, chunk, columns, place))
        before += len(chunk)
    return found[0] if len(found) == 1 else _joined(found)


def _has_text(pa: ModuleType, arrow_type: Any) -> bool:
    """True if a type holds strings, at any depth."""
    children = [arrow_type.field(i).type for i in range(arrow_type.num_fields)]
    is_coded = pa.types.is_dictionary(arrow_type)
    return is_coded or _is_text(arrow_type) or any(_has_text(pa, each) for each in children)


def _is_text(arrow_type: Any) -> bool:
    return str(arrow_type).removeprefix("large_").removesuffix("_view") in ("string", "binary")


def _joined(chunks: list[Column]) -> Column:
    valid = None
    if any(chunk.valid is not None for chunk in chunks):
        whole = [np.ones(size_of(chunk.tree), np.bool_) if chunk.valid is None else chunk.valid for chunk in chunks]
        valid = np.concatenate(whole)
    return Column(concat_trees([chunk.tree for chunk in chunks]), valid)


def _read(pa: ModuleType, array: Any, columns: Columns, place: DataPlace) -> Column:
    """The elements of a pyarrow array; `pa` is the module."""
    arrow_type, count = array.type, len(array)
    if isinstance(arrow_type, pa.BaseExtensionType):
        return _extension(pa, array, columns, place)
    if pa.types.is_null(arrow_type):
        return columns.numbers(np.zeros(count), np.zeros(count, np.bool_), place)
    if pa.types.is_dictionary(arrow_type):
        return _read(pa, array.dictionary_decode(), columns, place)
    valid = array.is_valid().to_numpy(zero_copy_only=False) if array.null_count else None
    if pa.types.is_boolean(arrow_type) or pa.types.is_integer(arrow_type) or pa.types.is_floating(arrow_type):
        return columns.numbers(_numbers(array), valid, place)
    if (stands_for := _time_dtype(pa, arrow_type)) is not None:
        stored = _numbers(array.view(pa.int32() if arrow_type.bit_width == 32 else pa.int64()))
        return columns.numbers(stored.astype(np.int64, copy=False).view(stands_for), valid, place)
    if _is_text(arrow_type):
        return columns.objects(array.to_pylist(), valid, place)
    if pa.types.is_struct(arrow_type):
        return _records(pa, array, columns, valid, place)
    if pa.types.is_fixed_size_list(arrow_type):
        width = arrow_type.list_size
        values = array.values.slice(array.offset * width, count * width)
        items = _read(pa, values, columns, place.items(np.arange(count + 1) * width))
        return columns.fixed(items, width, count, valid, place)
    if pa.types.is_list(arrow_type) or pa.types.is_large_list(arrow_type) or pa.types.is_map(arrow_type):
        return _lists(pa, array, columns, valid, place)
    if str(arrow_type).removeprefix("large_").startswith("list_view"):
        starts, lengths = (x.to_numpy(zero_copy_only=False).astype(np.int64) for x in (array.offsets, array.sizes))
        items = _read(pa, array.values, columns, place.runs(starts, lengths))
        return columns.runs(items, starts, lengths, valid, place)
    raise UnsupportedError(
        f"data of Arrow's type {arrow_type}{place}: cast it to numbers, strings, lists or structs, which batches hold"
    )


def _numbers(array: Any) -> np.ndarray:
    """The numbers of a pyarrow array; 0 where one is missing."""
    array = array.fill_null(0) if array.null_count else array
    out: np.ndarray = array.to_numpy(zero_copy_only=False)
    return out


def _time_dtype(pa: ModuleType, arrow_type: Any) -> str | None:
    """NumPy's dtype for dates, instants and durations, a time of day being one; None for other types."""
    if pa.types.is_date(arrow_type):
        return "M8[D]" if arrow_type.bit_width == 32 else "M8[ms]"
    if pa.types.is_timestamp(arrow_type):
        return f"M8[{arrow_type.unit}]"
    return f"m8[{arrow_type.unit}]" if pa.types.is_time(arrow_type) or pa.types.is_duration(arrow_type) else None


def _records(pa: ModuleType, array: Any, columns: Columns, valid: Valid, place: DataPlace) -> Column:
    fields: dict[str, Column] = {}
    for i, field in enumerate(array.type):
        if field.name in fields:
            raise UnsupportedError(f"two columns are named {field.name!r}{place}; rename one of them")
        fields[field.name] = _read(pa, array.field(i), columns, place.field(field.name))
    return columns.records(fields, valid, place)


def _lists(pa: ModuleType, array: Any, columns: Columns, valid: Valid, place: DataPlace) -> Column:
    offsets = array.offsets.to_numpy(zero_copy_only=False).astype(np.int64, copy=False)
    first, last = (int(offsets[0]), int(offsets[-1])) if len(offsets) else (0, 0)
    offsets = offsets - first if first else offsets
    items = _read(pa, array.values.slice(first, last - first), columns, place.items(offsets))
    try:
        return columns.lists(items, offsets, valid, place)
    except OffsetsError as error:
        raise ShapeError(f"Arrow data{place} is malformed in its lists: {error}") from None


def _extension(pa: ModuleType, array: Any, columns: Columns, place: DataPlace) -> Column:
    """What an extension type stores: of `arrow.fixed_shape_tensor` arrays of a shape."""
    arrow_type = array.type
    stored = _read(pa, array.storage, columns, place)
    if not isinstance(arrow_type, pa.FixedShapeTensorType):
        return stored
    order = arrow_type.permutation or []
    if list(order) != sorted(order):
        raise UnsupportedError(f"tensors of axes in the order {order}{place}, not C order; give .storage, as lists")
    return Column(stored.tree.reshape(tuple(arrow_type.shape)), stored.valid)
