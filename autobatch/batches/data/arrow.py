"""Reads data of any library with Arrow's C data interface in place, without importing that library.

`__arrow_c_stream__` and `__arrow_c_array__` give a capsule with a C struct of buffers; pyarrow, polars, DuckDB,
narwhals, pandas with Arrow dtypes and Parquet readers have them. Numbers and offsets are not copied; bits, strings and
columns from which elements are dropped are.

What a structure says is checked before its memory is read: lengths, offsets and indices against the length of what they
point into. The interface holds the sizes of no buffers but those of string views, so an array's own length, and the
last offset of strings, are the producer's word.

Source: the Apache Arrow specification, "The Arrow C data interface" and "The Arrow PyCapsule interface".
"""

import ctypes
import itertools
import json
import math
from typing import Any

import numpy as np

from autobatch.batches.data.columns import Column, Columns, DataPlace, Valid, size_of, take_examples
from autobatch.batches.data.concat import concat_trees
from autobatch.batches.objects import ObjectBatch
from autobatch.batches.padded_batch import MaskedBatch
from autobatch.errors import OffsetsError, ShapeError, UnsupportedError


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
_LAYOUTS = {  # buffers and children, where they are not those of numbers, (2, 0); None: any number
    **{"n": (0, 0), "u": (3, 0), "z": (3, 0), "U": (3, 0), "Z": (3, 0), "vu": (None, 0), "vz": (None, 0)},
    **{"+l": (2, 1), "+L": (2, 1), "+m": (2, 1), "+vl": (3, 1), "+vL": (3, 1), "+w": (1, 1), "+s": (1, None)},
}
_INT32 = 4  # bytes
_MOST_LEVELS = 64  # of lists in lists; pyarrow reads as many
_BEYOND = 1 << 48  # more elements than a process has memory for


class _OwnedMemory:
    """Owns a C struct, and releases it when nothing refers to its memory any more."""

    def __init__(self, struct: Any) -> None:
        self.struct = struct

    def __del__(self, pointer_to: Any = ctypes.byref) -> None:  # a default, as modules go first when Python ends
        if self.struct.release:
            self.struct.release(pointer_to(self.struct))


class _Memory:
    """Lets NumPy make an array of memory that an owner keeps."""

    def __init__(self, address: int, count: int, dtype: np.dtype, owner: object) -> None:
        self.owner = owner
        self.__array_interface__ = {"data": (address, True), "shape": (count,), "typestr": dtype.str, "version": 3}


def read_arrow(data: Any, columns: Columns) -> Column:
    """The column that an object gives by Arrow's C interface; of a table or frame, records.

    Raises:
        UnsupportedError: a type that no batch holds; the message says which to convert it to.
        ShapeError: structures that contradict each other, or that were read before.
    """
    if type(data).__module__.startswith("pyarrow"):  # it knows the sizes of its buffers, which the structures leave out
        try:
            data.validate()
        except (ValueError, IndexError) as error:
            raise _wrong(DataPlace(), str(error)) from None
    if hasattr(data, "__arrow_c_array__"):
        capsules = data.__arrow_c_array__()
        if not isinstance(capsules, tuple) or len(capsules) != 2:
            raise _wrong(DataPlace(), f"__arrow_c_array__ gave {capsules!r:.60}; expected two capsules")
        described, owner = _moved(_Schema, capsules[0], b"arrow_schema"), _moved(_Array, capsules[1], b"arrow_array")
        return _ArrowReader(columns, owner).read(described.struct, owner.struct, 0, owner.struct.length, DataPlace())
    moved = _moved(_Stream, data.__arrow_c_stream__(), b"arrow_array_stream")
    stream = moved.struct
    if not (stream.get_schema and stream.get_next):
        raise _wrong(DataPlace(), "a stream without its functions")
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
            place = DataPlace("", lambda i, before=before: i + before)  # type: ignore[misc]
            found.append(_ArrowReader(columns, owner).read(held.struct, array, 0, array.length, place))
            before += array.length
    if not found:
        return _ArrowReader(columns, None).read(held.struct, None, 0, 0, DataPlace())
    return found[0] if len(found) == 1 else _joined(found)


def _joined(chunks: list[Column]) -> Column:
    valid = None
    if any(chunk.valid is not None for chunk in chunks):
        whole = [np.ones(size_of(chunk.tree), np.bool_) if chunk.valid is None else chunk.valid for chunk in chunks]
        valid = np.concatenate(whole)
    return Column(concat_trees([chunk.tree for chunk in chunks]), valid)


def _moved(struct_type: type[Any], capsule: object, name: bytes) -> _OwnedMemory:
    """Move a struct out of its capsule, which then has nothing to release."""
    source = struct_type.from_address(_pointer(capsule, name))
    if not source.release:
        raise _wrong(DataPlace(), f"the capsule {name.decode()} was read before, and its structure released")
    struct = struct_type()
    ctypes.memmove(ctypes.byref(struct), ctypes.byref(source), ctypes.sizeof(struct_type))
    source.release = type(source.release)()
    return _OwnedMemory(struct)


def _wrong(place: DataPlace, what: str) -> ShapeError:
    """The error for structures that do not fit together."""
    return ShapeError(f"Arrow data{place} with wrong structures: {what}")


def _check(stream: _Stream, code: int) -> None:
    if code:
        message = (stream.get_last_error(ctypes.byref(stream)) if stream.get_last_error else b"") or b""
        raise UnsupportedError(f"the Arrow stream failed with code {code}: {message.decode(errors='replace')}")


def _checked_kind(schema: Any, array: Any, start: int, count: int, place: DataPlace) -> str:
    """The format of a column whose array has this schema's buffers and children, and the elements asked for."""
    if not schema.release or not schema.format:
        raise _wrong(place, "its schema was released" if schema.format else "its schema has no format")
    code: str = schema.format.decode(errors="replace")
    buffers, children = (2, 0) if schema.dictionary else _LAYOUTS.get(code.partition(":")[0], (2, 0))
    if schema.dictionary and _NUMBERS.get(code, " ")[0] not in "iu":
        raise _wrong(place, f"a dictionary whose indices have the format {code!r}; expected integers")
    if code[0] == "+" and code.partition(":")[0] not in _LAYOUTS:
        return code  # which `read` refuses
    given = schema.n_children
    if given != (given if children is None else children) or given < 0 or not _all_there(schema.children, given):
        raise _wrong(place, f"a schema of format {code!r} with {given} children")
    if array is None:
        return code
    if not array.release:
        raise _wrong(place, "its array was released or moved")
    length, offset = array.length, array.offset
    if length < 0 or offset < 0 or offset + length >= _BEYOND or not -1 <= array.null_count <= length:
        raise _wrong(place, f"length {length}, offset {offset} and null count {array.null_count}")
    if start < 0 or count < 0 or start + count > length:
        raise _wrong(place, f"elements {start} to {start + count} of an array of {length}")
    if array.n_children != given or not _all_there(array.children, given):
        raise _wrong(place, f"an array of {array.n_children} children, whose schema has {given}")
    if bool(array.dictionary) != bool(schema.dictionary):
        raise _wrong(place, f"{'no dictionary' if schema.dictionary else 'a dictionary'}, against its schema")
    held = array.n_buffers
    if not (held == buffers if buffers is not None else 3 <= held < _BEYOND) or (held and not array.buffers):
        raise _wrong(place, f"{held} buffers for the format {code!r}")
    needed = [1, held - 1] if held > 3 else range(1, 2 if code in _TEXT else held)
    unsaid = array.null_count > 0 and held and not array.buffers[0]
    if unsaid or (count and not all(array.buffers[i] for i in needed)):
        raise _wrong(place, "buffers that are missing")
    return code


def _all_there(pointers: Any, count: int) -> bool:
    return not count or (bool(pointers) and all(pointers[i] for i in range(count)))


class _ArrowReader:
    """Reads arrays of one owner; elements are counted from the start of an array, whatever its own offset."""

    def __init__(self, columns: Columns, owner: object, level: int = 0) -> None:
        self.columns = columns
        self.owner = owner
        self.level = level

    def read(self, schema: Any, array: Any, start: int, count: int, place: DataPlace) -> Column:
        """The elements from `start` on of an array of this schema; None is an array without elements."""
        if self.level == _MOST_LEVELS:
            raise _wrong(place, f"more than {_MOST_LEVELS} levels")
        code = _checked_kind(schema, array, start, count, place)
        self.level += 1
        found = self._read(code, schema, array, start, count, place)
        self.level -= 1
        return found

    def _read(self, code: str, schema: Any, array: Any, start: int, count: int, place: DataPlace) -> Column:
        if code == "n":
            return self.columns.numbers(np.zeros(count), np.zeros(count, np.bool_), place)
        valid = self._valid(array, start, count)
        if schema.dictionary:
            indices = self._numbers(array, 1, _NUMBERS[code], start, count)
            return self._coded(schema, array, indices, valid, place)
        if code[:3] in _INSTANTS and code[3:4] == ":":
            return self.columns.numbers(
                self._numbers(array, 1, "i8", start, count).view(_INSTANTS[code[:3]]), valid, place
            )
        if code in _STORED:
            stored, dtype = _STORED[code]
            found = self._numbers(array, 1, stored, start, count).astype(np.int64).view(dtype)
            return self.columns.numbers(found, valid, place)
        if code in _NUMBERS:
            return self.columns.numbers(self._numbers(array, 1, _NUMBERS[code], start, count), valid, place)
        if code == "b":
            return self.columns.numbers(self._bits(array, 1, start, count), valid, place)
        if code in _TEXT:
            return self.columns.objects(self._text(code, array, start, count, valid, place), valid, place)
        if code in ("+l", "+L", "+m"):
            return self._lists(schema, array, code, start, count, valid, place)
        if code in ("+vl", "+vL"):
            return self._views(schema, array, code, start, count, valid, place)
        if code[:3] == "+w:":
            width = int(code[3:]) if code[3:].isdecimal() else _BEYOND
            if width >= _BEYOND:
                raise _wrong(place, f"the format {code!r}; expected '+w:' and a number")
            first = 0 if array is None else (array.offset + start) * width
            inner = place.items(np.arange(count + 1) * width)
            items = self.read(schema.children[0].contents, _child(array, 0), first, count * width, inner)
            lists = self.columns.fixed(items, width, count, valid, place)
            shape = _tensor_shape(schema, width, place)
            return lists if shape is None else Column(lists.tree.reshape(shape), lists.valid)
        if code == "+s":
            return self._records(schema, array, start, count, valid, place)
        raise UnsupportedError(
            f"data of Arrow's type {code!r}{place}, which no batch holds; cast it to numbers, strings, lists or structs"
        )

    def _records(self, schema: Any, array: Any, start: int, count: int, valid: Valid, place: DataPlace) -> Column:
        fields: dict[str, Column] = {}
        first = start if array is None else array.offset + start
        for i in range(schema.n_children):
            child = schema.children[i].contents
            name = child.name.decode(errors="replace") if child.name else ""
            if name in fields:
                raise UnsupportedError(f"two columns are named {name!r}{place}; rename one of them")
            fields[name] = self.read(child, _child(array, i), first, count, place.field(name))
        return self.columns.records(fields, valid, place)

    def _lists(
        self, schema: Any, array: Any, code: str, start: int, count: int, valid: Valid, place: DataPlace
    ) -> Column:
        if count:
            offsets = self._numbers(array, 1, "i8" if code == "+L" else "i4", start, count + 1)
        else:
            offsets = np.zeros(1, np.int64)
        first, last = int(offsets[0]), int(offsets[-1])
        offsets = offsets.astype(np.int64, copy=False)
        offsets = offsets - first if first else offsets
        child = schema.children[0].contents
        if code == "+m" and (child.format != b"+s" or child.n_children != 2):
            raise _wrong(place, "a map whose entries are not structs of a key and a value")
        items = self.read(child, _child(array, 0), first, last - first, place.items(offsets))
        try:
            return self.columns.lists(items, offsets, valid, place)
        except OffsetsError as error:
            raise _wrong(place, f"of its lists, {error}") from None

    def _views(
        self, schema: Any, array: Any, code: str, start: int, count: int, valid: Valid, place: DataPlace
    ) -> Column:
        dtype = "i8" if code == "+vL" else "i4"
        starts = self._numbers(array, 1, dtype, start, count).astype(np.int64)
        lengths = self._numbers(array, 2, dtype, start, count).astype(np.int64)
        child = _child(array, 0)
        inner = place.runs(starts, lengths)
        items = self.read(schema.children[0].contents, child, 0, 0 if child is None else child.length, inner)
        return self.columns.runs(items, starts, lengths, valid, place)

    def _coded(self, schema: Any, array: Any, indices: np.ndarray, valid: Valid, place: DataPlace) -> Column:
        """Categories: distinct values, and an index into them per element."""
        inner = None if array is None else array.dictionary.contents
        reader = _ArrowReader(Columns("drop"), self.owner, self.level)  # a missing one may be no element's
        values = reader.read(schema.dictionary.contents, inner, 0, 0 if inner is None else inner.length, place)
        indices = indices if valid is None else np.where(valid, indices, 0)
        if not (valid is None or valid.any()):  # there may be no value to stand in
            indices, valid = indices[:0], self.columns.missing(valid, place, "value")
            return Column(take_examples(values.tree, indices), None if valid is None else valid[:0])
        if len(indices) and not 0 <= int(indices.min()) <= int(indices.max()) < size_of(values.tree):
            raise _wrong(place, f"indices {indices.min()} to {indices.max()} of {size_of(values.tree)} distinct values")
        indices = indices.astype(np.int64)
        if values.valid is not None:
            valid = values.valid[indices] if valid is None else valid & values.valid[indices]
        tree = take_examples(values.tree, indices)
        if isinstance(tree, ObjectBatch):
            return self.columns.objects(tree.values, valid, place)
        if isinstance(tree, MaskedBatch):
            return self.columns.numbers(tree.data, valid, place)
        return Column(tree, self.columns.missing(valid, place, "value"))

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

    def _text(self, code: str, array: Any, start: int, count: int, valid: Valid, place: DataPlace) -> list[Any]:
        if not count:
            return []
        if code[0] == "v":
            found = self._viewed_text(array, start, count, valid, place)
        else:
            offsets = self._numbers(array, 1, np.dtype(_TEXT[code]).str, start, count + 1)
            if offsets[0] < 0 or (offsets[1:] < offsets[:-1]).any():
                raise _wrong(place, "offsets of strings that are negative or fall")
            base = array.buffers[2] or 0
            if not base and offsets[0] < offsets[-1]:
                raise _wrong(place, f"{offsets[-1] - offsets[0]} bytes of strings, and no buffer 2")
            found = [ctypes.string_at(base + a, b - a) for a, b in itertools.pairwise(offsets.tolist())]
        try:
            return [each.decode() for each in found] if code[-1] in "uU" else found
        except UnicodeDecodeError as error:
            raise _wrong(place, f"strings that are not UTF-8, {error}") from None

    def _viewed_text(self, array: Any, start: int, count: int, valid: Valid, place: DataPlace) -> list[bytes]:
        """Strings of up to 12 bytes in their view, longer ones in one of several buffers, whose sizes are the last."""
        views = self._view(array, 1, np.dtype("V16"), array.offset + start, count)
        words = views.view(np.int32).reshape(count, 4)
        words = words if valid is None else np.where(valid[:, None], words, 0)
        lengths, buffers, starts = words[:, 0], words[:, 2], words[:, 3]
        several = array.n_buffers - 3
        sizes = self._view(array, several + 2, np.dtype(np.int64), 0, several) if several else np.zeros(0)
        far = lengths > 3 * _INT32
        known = far & (buffers >= 0) & (buffers < several) & (starts >= 0)
        room = np.where(known, np.append(sizes, 0)[np.where(known, buffers, several)] - starts, 0)
        if (lengths < 0).any() or (far & (lengths > room)).any():
            at = int(np.argmax((lengths < 0) | (far & (lengths > room))))
            held = f"string {at} of {lengths[at]} bytes at {starts[at]} of buffer {buffers[at]}"
            raise _wrong(place, f"{held}; there are {several} buffers, of {sizes.tolist()!s:.60} bytes")
        raw = views.tobytes()
        found = []
        for i, (length, _, buffer, at) in enumerate(words.tolist()):
            if length <= 3 * _INT32:
                found.append(raw[16 * i + _INT32 : 16 * i + _INT32 + length])
                continue
            if not array.buffers[2 + buffer]:
                raise _wrong(place, f"strings in buffer {buffer}, which is missing")
            found.append(ctypes.string_at(array.buffers[2 + buffer] + at, length))
        return found


def _tensor_shape(schema: Any, width: int, place: DataPlace) -> tuple[int, ...] | None:
    """The shape of an element where lists of one length stand for tensors (`arrow.fixed_shape_tensor`)."""
    found = _metadata(schema, place)
    if found.get(b"ARROW:extension:name") != b"arrow.fixed_shape_tensor":
        return None
    try:
        said = json.loads(found[b"ARROW:extension:metadata"])
        shape, order = tuple(said["shape"]), said.get("permutation", [])
        if math.prod(shape) != width or min(shape, default=0) < 0:
            raise ValueError(f"{width} numbers of shape {shape}")
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise _wrong(place, f"a fixed-shape tensor without its shape: {error!r:.90}") from None
    if order != sorted(order):
        raise UnsupportedError(f"tensors of axes in the order {order}{place}, not C order; give .storage, as lists")
    return shape


def _metadata(schema: Any, place: DataPlace) -> dict[bytes, bytes]:
    """The pairs that a field carries: their number, then each key and value as a length and bytes."""
    at = schema.metadata
    if not at:
        return {}
    parts: list[bytes] = []
    count, at = ctypes.c_int32.from_address(at).value, at + _INT32
    for _ in range(2 * count):
        length = ctypes.c_int32.from_address(at).value
        if length < 0:
            raise _wrong(place, f"metadata of {length} bytes")
        parts.append(ctypes.string_at(at + _INT32, length))
        at += _INT32 + length
    return dict(zip(parts[::2], parts[1::2], strict=True))


def _child(array: Any, i: int) -> Any:
    return None if array is None else array.children[i].contents
