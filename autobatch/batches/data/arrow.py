"""Reads data of any library with Arrow's C data interface in place, without importing that library.

`__arrow_c_stream__` and `__arrow_c_array__` give a capsule with a C struct of buffers; pyarrow, polars, DuckDB,
narwhals, pandas with Arrow dtypes and Parquet readers have them. Numbers and offsets are not copied; bits, strings and
columns from which elements are dropped are.

Source: the Apache Arrow specification, "The Arrow C data interface" and "The Arrow PyCapsule interface".
"""

import ctypes
import itertools
import json
from typing import Any

import numpy as np

from autobatch.batches.data.columns import Column, Columns, Place, take_examples
from autobatch.batches.data.concat import concat_trees
from autobatch.errors import UnsupportedError


class _Schema(ctypes.Structure):
    pass


class _Array(ctypes.Structure):
    pass


class _Stream(ctypes.Structure):
    pass


_Schema._fields_ = [
    ("format", ctypes.c_char_p),
    ("name", ctypes.c_char_p),
    ("metadata", ctypes.c_void_p),
    ("flags", ctypes.c_int64),
    ("n_children", ctypes.c_int64),
    ("children", ctypes.POINTER(ctypes.POINTER(_Schema))),
    ("dictionary", ctypes.POINTER(_Schema)),
    ("release", ctypes.CFUNCTYPE(None, ctypes.POINTER(_Schema))),
    ("private_data", ctypes.c_void_p),
]
_Array._fields_ = [
    ("length", ctypes.c_int64),
    ("null_count", ctypes.c_int64),
    ("offset", ctypes.c_int64),
    ("n_buffers", ctypes.c_int64),
    ("n_children", ctypes.c_int64),
    ("buffers", ctypes.POINTER(ctypes.c_void_p)),
    ("children", ctypes.POINTER(ctypes.POINTER(_Array))),
    ("dictionary", ctypes.POINTER(_Array)),
    ("release", ctypes.CFUNCTYPE(None, ctypes.POINTER(_Array))),
    ("private_data", ctypes.c_void_p),
]
_Stream._fields_ = [
    ("get_schema", ctypes.CFUNCTYPE(ctypes.c_int, ctypes.POINTER(_Stream), ctypes.POINTER(_Schema))),
    ("get_next", ctypes.CFUNCTYPE(ctypes.c_int, ctypes.POINTER(_Stream), ctypes.POINTER(_Array))),
    ("get_last_error", ctypes.CFUNCTYPE(ctypes.c_char_p, ctypes.POINTER(_Stream))),
    ("release", ctypes.CFUNCTYPE(None, ctypes.POINTER(_Stream))),
    ("private_data", ctypes.c_void_p),
]

_pointer = ctypes.pythonapi.PyCapsule_GetPointer
_pointer.restype, _pointer.argtypes = ctypes.c_void_p, [ctypes.py_object, ctypes.c_char_p]

_NUMBERS = {
    **{"c": "i1", "C": "u1", "s": "i2", "S": "u2", "i": "i4", "I": "u4", "l": "i8", "L": "u8"},
    **{"e": "f2", "f": "f4", "g": "f8"},
    **{"tdm": "M8[ms]", "tts": "m8[s]", "ttm": "m8[ms]", "ttu": "m8[us]", "ttn": "m8[ns]"},
    **{f"tD{unit[0]}": f"m8[{unit}]" for unit in ("s", "ms", "us", "ns")},
}
_STORED = {"tdD": ("i4", "M8[D]"), "tts": ("i4", "m8[s]"), "ttm": ("i4", "m8[ms]")}  # not in NumPy's 64 bits
_INSTANTS = {"tss": "M8[s]", "tsm": "M8[ms]", "tsu": "M8[us]", "tsn": "M8[ns]"}
_TEXT = {"u": np.int32, "z": np.int32, "U": np.int64, "Z": np.int64, "vu": None, "vz": None}
_INT32 = 4  # bytes


class _OwnedMemory:
    """Owns a C struct, and releases it when nothing refers to its memory any more."""

    def __init__(self, struct: Any) -> None:
        self.struct = struct

    def __del__(self, pointer_to: Any = ctypes.byref) -> None:  # a default, as modules go first when Python ends
        if self.struct.release:
            self.struct.release(pointer_to(self.struct))


class _Memory:
    """Lets NumPy make an array of memory that an owner keeps."""

    def __init__(self, address: int, count: int, dtype: np.dtype, owner: Any) -> None:
        self.owner = owner
        self.__array_interface__ = {
            "data": (address, True),
            "shape": (count,),
            "typestr": dtype.str,
            "version": 3,
        }


def read_arrow(data: Any, columns: Columns) -> Column:
    """The column that an object gives by Arrow's C interface; of a table or frame, records.

    Raises:
        UnsupportedError: a type that no batch holds; the message says which to convert it to.
    """
    if hasattr(data, "__arrow_c_array__"):
        schema_capsule, array_capsule = data.__arrow_c_array__()
        schema = _Schema.from_address(_pointer(schema_capsule, b"arrow_schema"))
        chunks = [_moved(_Array, _pointer(array_capsule, b"arrow_array"))]
        return _ArrowReader(columns, chunks[0]).read(schema, chunks[0].struct, 0, chunks[0].struct.length, Place())
    capsule = data.__arrow_c_stream__()
    stream = _Stream.from_address(_pointer(capsule, b"arrow_array_stream"))
    schema = _Schema()
    _check(stream, stream.get_schema(ctypes.byref(stream), ctypes.byref(schema)))
    held = _OwnedMemory(schema)
    found = []
    before = 0
    while True:
        array = _Array()
        _check(stream, stream.get_next(ctypes.byref(stream), ctypes.byref(array)))
        if not array.release:
            break
        owner = _OwnedMemory(array)
        if array.length:
            place = Place("", lambda i, before=before: i + before)  # type: ignore[misc]
            found.append(_ArrowReader(columns, owner).read(held.struct, array, 0, array.length, place))
            before += array.length
    if not found:
        return _ArrowReader(columns, None).read(held.struct, None, 0, 0, Place())
    return found[0] if len(found) == 1 else _joined(found)


def _joined(chunks: list[Column]) -> Column:
    valid = None
    if any(chunk.valid is not None for chunk in chunks):
        whole = [np.ones(_size(chunk), np.bool_) if chunk.valid is None else chunk.valid for chunk in chunks]
        valid = np.concatenate(whole)
    return Column(concat_trees([chunk.tree for chunk in chunks]), valid)


def _size(chunk: Column) -> int:
    return (
        chunk.tree.batch_size if hasattr(chunk.tree, "batch_size") else _size(Column(next(iter(chunk.tree.values()))))
    )


def _moved(kind: Any, address: int) -> _OwnedMemory:
    """Move a struct out of its capsule, which then has nothing to release."""
    source = kind.from_address(address)
    struct = kind()
    ctypes.memmove(ctypes.byref(struct), ctypes.byref(source), ctypes.sizeof(kind))
    source.release = type(source.release)()
    return _OwnedMemory(struct)


def _check(stream: _Stream, code: int) -> None:
    if code:
        message = stream.get_last_error(ctypes.byref(stream)) or b""
        raise UnsupportedError(f"the Arrow stream failed with code {code}: {message.decode(errors='replace')}")


class _ArrowReader:
    """Reads arrays of one owner; elements are counted from the start of an array, whatever its own offset."""

    def __init__(self, columns: Columns, owner: Any) -> None:
        self.columns = columns
        self.owner = owner

    def read(self, schema: Any, array: Any, start: int, count: int, place: Place) -> Column:
        """The elements from `start` on of an array of this schema; None is an array without elements."""
        kind = schema.format.decode()
        if kind == "n":
            return self.columns.numbers(np.zeros(count), np.zeros(count, np.bool_), place)
        valid = self._valid(array, start, count)
        if schema.dictionary:
            indices = self._numbers(array, 1, _NUMBERS[kind], start, count)
            return self._coded(schema, array, indices, valid, place)
        if kind[:3] in _INSTANTS and kind[3:4] == ":":
            return self.columns.numbers(
                self._numbers(array, 1, "i8", start, count).view(_INSTANTS[kind[:3]]), valid, place
            )
        if kind in _STORED:
            stored, dtype = _STORED[kind]
            found = self._numbers(array, 1, stored, start, count).astype(np.int64).view(dtype)
            return self.columns.numbers(found, valid, place)
        if kind in _NUMBERS:
            return self.columns.numbers(self._numbers(array, 1, _NUMBERS[kind], start, count), valid, place)
        if kind == "b":
            return self.columns.numbers(self._bits(array, 1, start, count), valid, place)
        if kind in _TEXT:
            return self.columns.objects(self._text(kind, array, start, count, valid), valid, place)
        if kind in ("+l", "+L", "+m"):
            return self._lists(schema, array, kind, start, count, valid, place)
        if kind in ("+vl", "+vL"):
            return self._views(schema, array, kind, start, count, valid, place)
        if kind[:3] == "+w:":
            width = int(kind[3:])
            first = 0 if array is None else (array.offset + start) * width
            inner = place.items(np.arange(count + 1) * width)
            items = self.read(schema.children[0].contents, _child(array, 0), first, count * width, inner)
            lists = self.columns.fixed(items, width, count, valid, place)
            shape = _tensor_shape(schema, place)
            return lists if shape is None else Column(lists.tree.reshape(shape), lists.valid)
        if kind == "+s":
            return self._records(schema, array, start, count, valid, place)
        raise UnsupportedError(
            f"data of Arrow's type {kind!r}{place}, which no batch holds; cast it to numbers, strings, lists or structs"
        )

    def _records(self, schema: Any, array: Any, start: int, count: int, valid: Any, place: Place) -> Column:
        fields: dict[str, Column] = {}
        first = start if array is None else array.offset + start
        for i in range(schema.n_children):
            child = schema.children[i].contents
            name = child.name.decode() if child.name else ""
            if name in fields:
                raise UnsupportedError(f"two columns are named {name!r}{place}; rename one of them")
            fields[name] = self.read(child, _child(array, i), first, count, place.field(name))
        return self.columns.records(fields, valid, place)

    def _lists(self, schema: Any, array: Any, kind: str, start: int, count: int, valid: Any, place: Place) -> Column:
        if count:
            offsets = self._numbers(array, 1, "i8" if kind == "+L" else "i4", start, count + 1)
        else:
            offsets = np.zeros(1, np.int64)
        first = int(offsets[0])
        offsets = offsets - first if first or offsets.dtype != np.int64 else offsets
        offsets = offsets.astype(np.int64, copy=False)
        items = self.read(schema.children[0].contents, _child(array, 0), first, int(offsets[-1]), place.items(offsets))
        return self.columns.lists(items, offsets, valid, place)

    def _views(self, schema: Any, array: Any, kind: str, start: int, count: int, valid: Any, place: Place) -> Column:
        dtype = "i8" if kind == "+vL" else "i4"
        starts = self._numbers(array, 1, dtype, start, count).astype(np.int64)
        lengths = self._numbers(array, 2, dtype, start, count).astype(np.int64)
        child = _child(array, 0)
        inner = place.runs(starts, lengths)
        items = self.read(schema.children[0].contents, child, 0, 0 if child is None else child.length, inner)
        return self.columns.runs(items, starts, lengths, valid, place)

    def _coded(self, schema: Any, array: Any, indices: np.ndarray, valid: Any, place: Place) -> Column:
        """Categories: distinct values, and an index into them per element."""
        inner = None if array is None else array.dictionary.contents
        values = self.read(schema.dictionary.contents, inner, 0, 0 if inner is None else inner.length, place)
        indices = indices if valid is None else np.where(valid, indices, 0)
        if not (valid is None or valid.any()):  # there may be no value to stand in
            indices, valid = indices[:0], self.columns.missing(valid, place, "value")
            return Column(take_examples(values.tree, indices), None if valid is None else valid[:0])
        tree = take_examples(values.tree, indices.astype(np.int64))
        leaf = tree.examples() if not hasattr(tree, "data") else None
        if leaf is not None:
            return self.columns.objects(leaf, valid, place)
        return self.columns.numbers(tree.data, valid, place)

    def _valid(self, array: Any, start: int, count: int) -> np.ndarray | None:
        if array is None or not array.null_count or not array.n_buffers or not array.buffers[0]:
            return None
        return self._bits(array, 0, start, count)

    def _bits(self, array: Any, buffer: int, start: int, count: int) -> np.ndarray:
        if not count:
            return np.zeros(0, np.bool_)
        first = array.offset + start
        whole = self._view(array, buffer, np.dtype(np.uint8), first // 8, -(-(first + count) // 8) - first // 8)
        bits = np.unpackbits(whole, bitorder="little")
        return bits[first % 8 : first % 8 + count].astype(np.bool_)

    def _numbers(self, array: Any, buffer: int, dtype: str, start: int, count: int) -> np.ndarray:
        if not count:
            return np.zeros(0, dtype)
        return self._view(array, buffer, np.dtype(dtype), array.offset + start, count)

    def _view(self, array: Any, buffer: int, dtype: np.dtype, first: int, count: int) -> np.ndarray:
        address = array.buffers[buffer] + first * dtype.itemsize
        return np.asarray(_Memory(address, count, dtype, self.owner))

    def _text(self, kind: str, array: Any, start: int, count: int, valid: Any) -> list[Any]:
        if not count:
            return []
        if kind[0] == "v":
            found = self._viewed_text(array, start, count, valid)
        else:
            offsets = self._numbers(array, 1, np.dtype(_TEXT[kind]).str, start, count + 1).tolist()
            base = array.buffers[2] or 0
            found = [ctypes.string_at(base + a, b - a) for a, b in itertools.pairwise(offsets)]
        return [each.decode() for each in found] if kind[-1] in "uU" else found

    def _viewed_text(self, array: Any, start: int, count: int, valid: Any) -> list[bytes]:
        """Strings of up to 12 bytes in their view, longer ones in one of several buffers."""
        views = self._view(array, 1, np.dtype("V16"), array.offset + start, count)
        words = views.view(np.int32).reshape(count, 4).tolist()
        raw = views.tobytes()
        found = []
        for i, (length, _, buffer, at) in enumerate(words):
            if valid is not None and not valid[i]:
                found.append(b"")
            elif length <= 3 * _INT32:
                found.append(raw[16 * i + _INT32 : 16 * i + _INT32 + length])
            else:
                found.append(ctypes.string_at(array.buffers[2 + buffer] + at, length))
        return found


def _tensor_shape(schema: Any, place: Place) -> tuple[int, ...] | None:
    """The shape of an element where lists of one length stand for tensors (`arrow.fixed_shape_tensor`)."""
    found = _metadata(schema)
    if found.get(b"ARROW:extension:name") != b"arrow.fixed_shape_tensor":
        return None
    said = json.loads(found[b"ARROW:extension:metadata"])
    order = said.get("permutation", [])
    if order != sorted(order):
        raise UnsupportedError(f"tensors of axes in the order {order}{place}, not C order; give .storage, as lists")
    return tuple(said["shape"])


def _metadata(schema: Any) -> dict[bytes, bytes]:
    """The pairs that a field carries: their number, then each key and value as a length and bytes."""
    at = schema.metadata
    if not at:
        return {}
    parts: list[bytes] = []
    count, at = ctypes.c_int32.from_address(at).value, at + _INT32
    for _ in range(2 * count):
        length = ctypes.c_int32.from_address(at).value
        parts.append(ctypes.string_at(at + _INT32, length))
        at += _INT32 + length
    return dict(zip(parts[::2], parts[1::2], strict=True))


def _child(array: Any, i: int) -> Any:
    return None if array is None else array.children[i].contents
