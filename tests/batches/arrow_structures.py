"""Crafted Arrow structures: valid ones of every type that a batch holds, with their values, and hostile ones.

    python -m tests.batches.arrow_structures --seed 5000 --count 1000

A structure is made by ctypes as the C data interface says, with each buffer in guarded memory. A hostile one is valid
but for a field or two. Reading it gives numbers and strings that it holds, or one of the documented errors.
"""

import ctypes
import dataclasses
import functools
import itertools
import sys
from collections.abc import Callable
from typing import Any

import numpy as np

import autobatch as ab
from autobatch.batches.data.arrow import _Array, _Schema, _Stream
from autobatch.errors import ShapeError, StructureError, UnsupportedError
from tests.fuzz import Fuzzer, main
from tests.hostile import Guarded, in_processes

NUMBERS = {"c": "i1", "C": "u1", "s": "i2", "S": "u2", "i": "i4", "I": "u4", "l": "i8", "L": "u8", "f": "f4", "g": "f8"}
WORDS = ("", "a", "bc", "é", "twelve bytes", "thirteen byte", "far more than thirteen bytes")
KINDS = ("number", "bits", "text", "view", "list", "list view", "fixed", "struct", "map", "codes")
ADVERSE = (-1, -3, 0, 1, 2, 40, -(2**31), 2**31 - 1, 2**50, 2**62, 2**63 - 1, -(2**63))

_capsule = ctypes.pythonapi.PyCapsule_New
_capsule.restype, _capsule.argtypes = ctypes.py_object, [ctypes.c_void_p, ctypes.c_char_p, ctypes.c_void_p]


@dataclasses.dataclass
class Node:
    """A column: its two structures, what it holds, and the buffers that say where something is.

    Attributes:
        values: of each of the elements, from the array's offset on.
        offset: of the array.
        places: its buffers of offsets, lengths, indices or views, each with the greatest value that is the producer's
            word, or None where every value can be checked.
    """

    kind: str
    schema: _Schema
    array: _Array
    values: list[Any]
    offset: int
    children: list["Node"] = dataclasses.field(default_factory=list)
    places: list[tuple[np.ndarray, int | None]] = dataclasses.field(default_factory=list)
    kept: list[Any] = dataclasses.field(default_factory=list)

    def listed(self, start: int, stop: int) -> Any:
        """A list of these elements: for records, a dict of the lists of each field."""

        def of_fields(values: Any, fields: Any) -> Any:
            if fields is None:
                return values
            return {name: of_fields([each[name] for each in values], below) for name, below in fields.items()}

        return of_fields(self.values[start:stop], self.fields())

    def fields(self) -> dict[str, Any] | None:
        """The names of the fields of these records, or of the records in these lists, with theirs."""
        if self.kind == "struct":
            return {each.schema.name.decode(): each.fields() for each in self.children}
        return self.children[0].fields() if self.children and self.kind != "codes" else None

    def all(self) -> list["Node"]:
        """This column and those below it."""
        return [self, *(node for child in self.children for node in child.all())]


class Maker:
    """Makes columns. `released` counts, by the name of a structure, how often it was released."""

    def __init__(self, rng: np.random.Generator) -> None:
        self.rng = rng
        self.released = {"schema": 0, "array": 0, "stream": 0}
        self.callbacks: list[Any] = []

    def release(self, kind: Any, name: str) -> Any:
        """A callback for a structure of this class."""

        def called(pointer: Any) -> None:
            self.released[name] += 1
            pointer.contents.release = type(pointer.contents.release)()

        self.callbacks.append(dict(kind._fields_)["release"](called))
        return self.callbacks[-1]

    def node(
        self, kind: str, form: str, values: list[Any], offset: int, buffers: list[Any], children: list[Node] = (),
        name: str = "", valid: Any = None, codes: Node | None = None,
    ) -> Node:  # fmt: skip
        """A column of `values`, which begin at `offset` of the buffers; `valid` has a bit for each, from 0 on."""
        if kind not in ("null",):
            buffers = [None if valid is None else np.packbits(valid, bitorder="little"), *buffers]
        guarded = [None if each is None else Guarded(np.asarray(each), bool(self.rng.integers(4))) for each in buffers]
        addresses = [None if each is None else each.array.ctypes.data for each in guarded]
        pointers = (ctypes.c_void_p * max(len(buffers), 1))(*addresses)
        below = [] if codes is None else [codes]
        schemas = (ctypes.POINTER(_Schema) * max(len(children), 1))(*(ctypes.pointer(each.schema) for each in children))
        arrays = (ctypes.POINTER(_Array) * max(len(children), 1))(*(ctypes.pointer(each.array) for each in children))
        missing = 0 if valid is None else int(len(valid[offset:]) - valid[offset:].sum())
        schema = _Schema(form.encode(), name.encode(), None, 2, len(children), schemas)
        array = _Array(len(values), missing, offset, len(buffers), len(children), pointers, arrays)
        schema.release, array.release = self.release(_Schema, "below"), self.release(_Array, "below")
        if codes is not None:
            schema.dictionary, array.dictionary = ctypes.pointer(codes.schema), ctypes.pointer(codes.array)
        out = Node(kind, schema, array, values, offset, [*children, *below])
        out.kept = [guarded, pointers, schemas, arrays]
        return out

    def column(self, kind: str, count: int, depth: int, name: str = "") -> Node:
        """A column of `count` elements, of random types below it."""
        rng, offset = self.rng, int(self.rng.integers(3))
        n = offset + count
        below = [k for k in KINDS if depth or k in ("number", "bits", "text", "view")]
        other = below[int(rng.integers(len(below)))]
        if kind == "number":
            form = list(NUMBERS)[int(rng.integers(len(NUMBERS)))]
            data = rng.integers(0, 100, n).astype(NUMBERS[form])
            return self.node(kind, form, data[offset:].tolist(), offset, [data], name=name)
        if kind == "bits":
            bits = rng.integers(0, 2, n).astype(bool)
            packed = np.packbits(bits, bitorder="little")
            return self.node(kind, "b", bits[offset:].tolist(), offset, [packed], name=name)
        if kind in ("text", "view"):
            words = [WORDS[int(i)] for i in rng.integers(0, len(WORDS), n)]
            return (self.text if kind == "text" else self.views)(words, offset, name)
        if kind == "codes":
            codes = self.column("text", 4, 0)
            form = "csSiIlL"[int(rng.integers(7))]
            indices = rng.integers(0, 4, n).astype(NUMBERS[form])
            values = [codes.values[i] for i in indices[offset:].tolist()]
            out = self.node(kind, form, values, offset, [indices], name=name, codes=codes)
            out.places.append((out.kept[0][1].array, None))
            return out
        if kind == "struct":
            fields = [self.column(other, n + int(rng.integers(2)), depth - 1, f"f{i}") for i in range(2)]
            values = [{f"f{i}": each.values[k] for i, each in enumerate(fields)} for k in range(offset, n)]
            return self.node(kind, "+s", values, offset, [], fields, name)
        if kind == "fixed":
            items = self.column(other, 2 * n, depth - 1)
            values = [items.listed(2 * k, 2 * k + 2) for k in range(offset, n)]
            return self.node(kind, "+w:2", values, offset, [], [items], name)
        lengths = rng.integers(0, 4, n)
        bounds = np.concatenate([[0], np.cumsum(lengths)]) + int(rng.integers(2))
        if kind == "map":
            total = int(bounds[-1])
            pairs = [self.column(k, total, 0, k) for k in ("text", "number")]
            entries = [{each.kind: each.values[i] for each in pairs} for i in range(total)]
            items = self.node("struct", "+s", entries, 0, [], pairs)
        else:
            items = self.column(other, int(bounds[-1]) + int(rng.integers(2)), depth - 1)
        values = [items.listed(a, b) for a, b in itertools.pairwise(bounds[offset:].tolist())]
        wide = bool(rng.integers(2)) and kind != "map"
        places = [bounds] if kind != "list view" else [bounds[:-1], lengths]
        form = {"map": "+m", "list": "+L" if wide else "+l", "list view": "+vL" if wide else "+vl"}[kind]
        buffers = [each.astype("i8" if wide else "i4") for each in places]
        out = self.node(kind, form, values, offset, buffers, [items], name)
        out.places = [(each.array, None) for each in out.kept[0][1:]]
        return out

    def text(self, words: list[str], offset: int, name: str) -> Node:
        """Strings by offsets into their bytes."""
        wide = bool(self.rng.integers(2))
        ends = np.cumsum([0, *(len(word.encode()) for word in words)]).astype("i8" if wide else "i4")
        data = np.frombuffer("".join(words).encode(), np.uint8)
        buffers = [ends, data if data.size else None]
        out = self.node("text", "U" if wide else "u", words[offset:], offset, buffers, name=name)
        out.places.append((out.kept[0][1].array, int(ends[-1])))  # the interface has no size of the bytes
        return out

    def views(self, words: list[str], offset: int, name: str) -> Node:
        """Strings in their views, or in one of two buffers."""
        far, views = [b"", b""], b""
        for word in words:
            raw, which = word.encode(), int(self.rng.integers(2))
            if len(raw) <= 12:
                views += np.int32(len(raw)).tobytes() + raw.ljust(12, b"\0")
            else:
                views += np.int32(len(raw)).tobytes() + raw[:4] + np.array([which, len(far[which])], np.int32).tobytes()
                far[which] += raw
        sizes = np.array([len(each) for each in far])
        buffers = [np.frombuffer(views, np.int32).copy(), *(np.frombuffer(each, np.uint8) for each in far), sizes]
        out = self.node("view", "vu", words[offset:], offset, buffers, name=name)
        out.places.append((out.kept[0][1].array, None))
        return out

    def given(self, node: Node, stream: bool) -> Any:
        """An object that hands a column over, as one array or as a stream of it."""
        node.schema.release, node.array.release = self.release(_Schema, "schema"), self.release(_Array, "array")
        if not stream:
            capsules = _capsule_of(node.schema, b"arrow_schema"), _capsule_of(node.array, b"arrow_array")
            return _Giver(node, __arrow_c_array__=lambda: capsules)
        kinds = dict(_Stream._fields_)
        left = [node.array]

        def hand_over(pointer: Any, struct: Any) -> int:
            ctypes.memmove(pointer, ctypes.byref(struct), ctypes.sizeof(struct))
            return 0

        def following(_: Any, pointer: Any) -> int:
            return hand_over(pointer, left.pop() if left else _Array())

        made = _Stream(
            kinds["get_schema"](lambda _, pointer: hand_over(pointer, node.schema)), kinds["get_next"](following),
            kinds["get_last_error"](lambda _: None), self.release(_Stream, "stream"),
        )  # fmt: skip
        capsule = _capsule_of(made, b"arrow_array_stream")
        return _Giver((node, made), __arrow_c_stream__=lambda: capsule)


class _Giver:
    def __init__(self, kept: Any, **doors: Callable[[], Any]) -> None:
        self.kept = kept
        vars(self).update(doors)


def _capsule_of(struct: Any, name: bytes) -> Any:
    return _capsule(ctypes.addressof(struct), name, None)


def plain(x: Any) -> Any:
    """Examples as Python's own values."""
    if isinstance(x, np.ndarray | np.generic):
        return x.tolist()
    if isinstance(x, dict):
        return {key: plain(value) for key, value in x.items()}
    return [plain(each) for each in x] if isinstance(x, list) else x


# What may be wrong.


def _fields(rng: np.random.Generator, node: Node, whole: Node) -> None:
    """A number that a structure states, where the reader can know that it is wrong."""
    array, schema = node.array, node.schema
    views = node.kind == "view"
    choices: list[Callable[[int], None]] = [
        lambda x: setattr(array, "null_count", x),
        lambda x: setattr(array, "length", x if x < len(node.values) or x >= 2**50 else -1),
        lambda x: setattr(array, "offset", x if x < node.offset or x >= 2**50 else -1),
        lambda x: setattr(array, "n_buffers", x if not views or x < 3 or x >= 2**50 else -1),
        lambda x: setattr(array, "n_children", x),
        lambda x: setattr(schema, "n_children", x),
    ]
    choices[int(rng.integers(len(choices)))](ADVERSE[int(rng.integers(len(ADVERSE)))])


def _pointers(rng: np.random.Generator, node: Node, whole: Node) -> None:
    """A pointer or callback that is missing, or leads elsewhere."""
    array, schema, (_, buffers, schemas, arrays) = node.array, node.schema, node.kept
    some = whole.all()[int(rng.integers(len(whole.all())))]
    choices: list[Callable[[], None]] = [
        lambda: setattr(array, "buffers", None),
        lambda: setattr(array, "children", None),
        lambda: setattr(schema, "children", None),
        lambda: setattr(array, "dictionary", None),
        lambda: setattr(schema, "dictionary", None),
        lambda: setattr(array, "release", type(array.release)()),
        lambda: setattr(schema, "release", type(schema.release)()),
        lambda: buffers.__setitem__(int(rng.integers(len(buffers))), None),
        lambda: schemas.__setitem__(0, None),
        lambda: arrays.__setitem__(0, None),
        lambda: setattr(array, "dictionary", ctypes.pointer(some.array)) if not array.dictionary else None,
        lambda: (schemas.__setitem__(0, ctypes.pointer(schema)), arrays.__setitem__(0, ctypes.pointer(array))),
    ]
    choices[int(rng.integers(len(choices)))]()


def _format(rng: np.random.Generator, node: Node, whole: Node) -> None:
    """Another type; not of wider elements, as no size of a buffer is known, nor one that reads the bytes of a float."""
    byte = "" if node.schema.format in (b"f", b"g") else "c"
    forms = ("", "?", byte, "+w:-3", "+w:x", "+w:9", "+w:", "+s", "+r", "+ud:0,1", "n", "\udcff", None)
    form = forms[int(rng.integers(len(forms)))] if node.kind != "bits" else "+s"
    node.schema.format = None if form is None else form.encode(errors="surrogateescape")


def _contents(rng: np.random.Generator, node: Node, whole: Node) -> None:
    """A place that leads out of what it is a place in."""
    nodes = [each for each in whole.all() if each.places] or [node]
    for data, limit in nodes[int(rng.integers(len(nodes)))].places:
        if data.size:
            bad = ADVERSE[int(rng.integers(len(ADVERSE)))]
            bad = bad if limit is None else min(bad, limit)
            data[int(rng.integers(data.size))] = np.array(bad).astype(data.dtype)


MISTAKES = (_fields, _fields, _pointers, _pointers, _format, _contents, _contents)


def hostile(seed: int) -> tuple[Any, str]:
    """An object that hands over structures with a mistake or two, and what they are."""
    rng = np.random.default_rng(seed)
    maker = Maker(rng)
    kind = KINDS[int(rng.integers(len(KINDS)))]
    node = maker.column(kind, int(rng.integers(0, 5)), 2)
    given = maker.given(node, bool(rng.integers(2)))
    said = kind
    for _ in range(int(rng.integers(1, 3))):
        mistake = MISTAKES[int(rng.integers(len(MISTAKES)))]
        nodes = node.all()
        mistake(rng, nodes[int(rng.integers(len(nodes)))], node)
        said += mistake.__name__
    return given, said


def call_once(seed: int) -> str | None:
    """What is wrong with reading the hostile structures of a seed, None for nothing."""
    given, said = hostile(seed)
    said = f"seed {seed}: {said}"
    print(said, file=sys.stderr, flush=True)  # what is last there is what ended the process
    try:
        found = plain(ab.examples(ab.collate(given, nulls="drop")))
    except (ShapeError, StructureError, UnsupportedError) as error:
        return f"{said} raised {error!r:.200}" if "0xa5" in str(error) else None  # what guards strings is no UTF-8
    except Exception as error:
        return f"{said} raised {error!r:.200}"
    foreign = [x for x in _leaves(found) if isinstance(x, int | float) and x not in _HELD]
    return f"{said} gave {foreign[:5]}" if foreign else None


_HELD = frozenset(range(100))


def _leaves(x: Any) -> list[Any]:
    if isinstance(x, dict):
        return [leaf for each in x.values() for leaf in _leaves(each)]
    return [leaf for each in x for leaf in _leaves(each)] if isinstance(x, list) else [x]


FUZZERS: dict[str, Fuzzer] = {"arrow": functools.partial(in_processes, module="tests.batches.arrow_structures")}

if __name__ == "__main__":
    sys.exit(main(FUZZERS))
