"""Awkward arrays: their layouts read where they are, nested lists, records and options included.

Awkward is not imported: a layout says by the name of its class what it is.

Source: the classes of `awkward.contents`.
"""

from typing import Any

import numpy as np

from autobatch.batches.data.columns import Column, Columns, DataPlace
from autobatch.errors import UnsupportedError

_TEXT = ("string", "bytestring")


def read_awkward(layout: Any, columns: Columns, place: DataPlace | None = None) -> Column:
    """The column of an awkward array's layout; of records, a dict, or a tuple where they have no names.

    Raises:
        UnsupportedError: a union of types.
    """
    place = DataPlace() if place is None else place
    layout_name = type(layout).__name__
    count = layout.length
    if layout.parameter("__array__") in _TEXT:
        return columns.objects(layout.to_list(), None, place)
    if layout_name == "NumpyArray":
        return columns.numbers(np.asarray(layout.data), None, place)
    if layout_name == "EmptyArray":
        return columns.numbers(np.zeros(0), None, place)
    if layout_name == "ListOffsetArray":
        offsets = np.asarray(layout.offsets.data)
        first, last = int(offsets[0]), int(offsets[-1])
        offsets = (offsets - first if first else offsets).astype(np.int64, copy=False)
        return columns.lists(
            read_awkward(layout.content[first:last], columns, place.items(offsets)), offsets, None, place
        )
    if layout_name == "ListArray":
        starts = np.asarray(layout.starts.data).astype(np.int64)
        lengths = np.asarray(layout.stops.data)[:count] - starts[:count]
        starts = starts[:count]
        items = read_awkward(layout.content, columns, place.runs(starts, lengths))
        return columns.runs(items, starts, lengths, None, place)
    if layout_name == "RegularArray":
        inner = place.items(np.arange(count + 1) * layout.size)
        items = read_awkward(layout.content[: count * layout.size], columns, inner)
        return columns.fixed(items, layout.size, count, None, place)
    if layout_name == "RecordArray":
        names = layout.fields
        fields = {name: read_awkward(layout.content(name)[:count], columns, place.field(name)) for name in names}
        found = columns.records(fields, None, place)
        return Column(tuple(found.tree.values()), found.valid) if layout.is_tuple else found
    if layout_name == "IndexedArray":
        return read_awkward(layout.project(), columns, place)
    if layout.is_option:
        valid = np.asarray(layout.mask_as_bool(valid_when=True))
        present = np.flatnonzero(valid)
        inner = DataPlace(place.path, lambda i: place.example_of(int(present[i])))
        return columns.optional(read_awkward(layout.project(), columns, inner), valid, place)
    raise UnsupportedError(f"awkward's {layout_name}{place}, which a batch cannot hold; give one type of values")
