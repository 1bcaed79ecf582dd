"""Arrow structures by hand: valid ones give what they hold, wrong ones an error that names the column."""

import ctypes
import gc

import numpy as np
import pytest

import autobatch as ab
from autobatch.errors import ShapeError
from tests.batches.arrow_structures import KINDS, Maker, plain
from tests.hostile import in_processes

pytestmark = pytest.mark.fuzz


@pytest.mark.parametrize("kind", KINDS)
def test_valid_structures_give_what_they_hold_and_are_released_once(kind):
    for seed in range(12):
        maker = Maker(np.random.default_rng(seed))
        stream = bool(seed % 2)
        node = maker.column(kind, seed % 5, 2)
        batch = ab.collate(maker.given(node, stream))
        assert plain(ab.examples(batch)) == node.values
        del batch
        gc.collect()
        assert maker.released == {"schema": 1, "array": 1, "stream": stream}, "the batch keeps memory, or nobody does"


@pytest.mark.parametrize("seeds", [range(400), pytest.param(range(400, 10_000), marks=pytest.mark.slow)], ids=str)
def test_hostile_structures_neither_crash_nor_show_foreign_memory(seeds):
    in_processes(seeds, module="tests.batches.arrow_structures")


def lists(maker, offsets, kind="list", form="+l"):
    """A column of lists by these offsets into four numbers, or by other buffers."""
    buffers = [np.array(offsets, np.int32)] if kind == "list" else [np.array(each, np.int32) for each in offsets]
    count = len(buffers[0]) - (kind == "list")
    items = maker.node("number", "l", [0] * 4, 0, [np.arange(4)])
    return maker.node(kind, form, [0] * count, 0, buffers, [items])


def strings(maker, offsets):
    return maker.node("text", "u", [0] * (len(offsets) - 1), 0, [np.array(offsets, np.int32), np.full(4, 97, np.uint8)])


def viewed(maker, length, buffer, start):
    views = np.array([length, 0, buffer, start], np.int32)
    return maker.node("view", "vu", [0], 0, [views, np.full(20, 97, np.uint8), np.array([20])])


def coded(maker, index):
    return maker.node("codes", "l", [0], 0, [np.array([index])], codes=strings(maker, [0, 1, 2]))


def changed(made, **fields):
    for name, value in fields.items():
        setattr(made.schema if name in ("format", "children") else made.array, name, value)
    return made


WRONG = {
    "an offset beyond the child": (lambda m: lists(m, [0, 3, 40]), "elements 0 to 40 of an array of 4"),
    "an offset far beyond": (lambda m: lists(m, [0, 10**9]), "elements 0 to 1000000000 of an array of 4"),
    "an offset in the middle": (lambda m: lists(m, [0, 40, 4]), r"offsets\[1\] is 40, above the number of values, 4"),
    "offsets that fall": (lambda m: lists(m, [0, 3, 2, 4]), r"offsets\[2\] is 2, below"),
    "lists that start before the child": (lambda m: lists(m, [-1000, 2]), "elements -1000 to 2 of an array of 4"),
    "a list view beyond": (lambda m: lists(m, [[0, 3], [1, 2]], "list view", "+vl"), "outside of their 4 items"),
    "a list view whose end wraps around": (
        lambda m: lists(m, [[2**31 - 1], [2**31 - 1]], "list view", "+vl"),
        "outside of their 4 items",
    ),
    "fixed lists": (lambda m: changed(lists(m, [0, 4], form="+w:3"), n_buffers=1, length=2), "elements 0 to 6 of"),
    "a width that is none": (lambda m: changed(lists(m, [0, 4], form="+w:-3"), n_buffers=1), "expected '[+]w:' and a"),
    "a map of numbers": (lambda m: lists(m, [0, 4], form="+m"), "not structs of a key and a value"),
    "a negative text offset": (lambda m: strings(m, [-1, 2]), "offsets of strings that are negative or fall"),
    "text offsets that fall": (lambda m: strings(m, [0, 3, 2]), "offsets of strings that are negative or fall"),
    "a string in buffer 77": (
        lambda m: viewed(m, 13, 77, 0),
        "13 bytes at 0 of buffer 77; there are 1 buffers, of .20.",
    ),
    "a string past its buffer": (lambda m: viewed(m, 13, 0, 8), "13 bytes at 8 of buffer 0"),
    "a string of negative length": (lambda m: viewed(m, -1, 0, 0), "string 0 of -1 bytes"),
    "an index of no value": (lambda m: coded(m, 2), "indices 2 to 2 of 2 distinct values"),
    "a negative index": (lambda m: coded(m, -1), "indices -1 to -1 of 2 distinct values"),
    "a dictionary that is missing": (
        lambda m: changed(coded(m, 0), dictionary=None),
        "no dictionary, against its schema",
    ),
    "indices that are floats": (lambda m: changed(coded(m, 0), format=b"g"), "indices have the format 'g'"),
    "too many missing": (lambda m: changed(lists(m, [0, 4]), null_count=2), "length 1, offset 0 and null count 2"),
    "missing, and no bits": (lambda m: changed(lists(m, [0, 4]), null_count=1), "buffers that are missing"),
    "a negative length": (lambda m: changed(lists(m, [0, 4]), length=-1), "length -1"),
    "a length past all memory": (lambda m: changed(lists(m, [0, 4]), length=2**62), "length 4611686018427387904"),
    "a buffer too few": (lambda m: changed(lists(m, [0, 4]), n_buffers=1), "1 buffers for the format '[+]l'"),
    "a child too many": (lambda m: changed(lists(m, [0, 4]), n_children=2), "2 children, whose schema has 1"),
    "no children": (lambda m: changed(lists(m, [0, 4]), children=None), "a schema of format '[+]l' with 1 children"),
    "no format": (lambda m: changed(lists(m, [0, 4]), format=None), "its schema has no format"),
    "not UTF-8": (lambda m: changed(strings(m, [0, 1]), format=b"\xff"), "3 buffers for the format '\ufffd'"),
}


@pytest.mark.parametrize("name", WRONG)
def test_wrong_structures_name_the_column_and_what_is_wrong(name):
    make, message = WRONG[name]
    for stream in (False, True):
        maker = Maker(np.random.default_rng(0))
        below = make(maker)
        below.schema.name = b"x"
        count = below.array.length if below.array.length in range(9) else 1
        table = maker.node("struct", "+s", [0] * count, 0, [], [below])
        with pytest.raises((ValueError, TypeError), match=rf"(?s)\['x'\].*{message}|{message}.*\['x'\]"):
            ab.collate(maker.given(table, stream))


def test_a_structure_that_holds_itself_ends():
    maker = Maker(np.random.default_rng(0))
    made = lists(maker, [0, 1])
    made.kept[2][0], made.kept[3][0] = ctypes.pointer(made.schema), ctypes.pointer(made.array)
    with pytest.raises(ShapeError, match="more than 64 levels"):
        ab.collate(maker.given(maker.node("struct", "+s", [0], 0, [], [made], "x"), False))


@pytest.mark.parametrize("stream", [False, True])
def test_a_capsule_is_read_once(stream):
    maker = Maker(np.random.default_rng(0))
    given = maker.given(maker.column("list", 3, 1), stream)
    ab.collate(given)
    with pytest.raises(ShapeError, match="was read before, and its structure released"):
        ab.collate(given)


@pytest.mark.parametrize("part", ["schema", "array"])
def test_what_was_released_is_not_read(part):
    maker = Maker(np.random.default_rng(0))
    below = maker.column("number", 3, 0, "x")
    table = maker.node("struct", "+s", [0] * 3, 0, [], [below])
    struct = getattr(below, part)
    struct.release = type(struct.release)()
    with pytest.raises(ShapeError, match=rf"at \['x'\].*: its {part} was released"):
        ab.collate(maker.given(table, False))


def test_sizes_that_pyarrow_knows():
    pa = pytest.importorskip("pyarrow")
    ends = np.array([0, 3], np.int32)
    text = pa.StringArray.from_buffers(1, pa.py_buffer(ends), pa.py_buffer(b"abc"))
    ends[1] = 10**9
    with pytest.raises(ShapeError, match=r"(?s)wrong structures: .*1000000000.* larger than values array"):
        ab.collate(text)


def test_a_missing_value_among_the_distinct_ones_is_missing():
    pa = pytest.importorskip("pyarrow")
    data = pa.DictionaryArray.from_arrays(pa.array([0, 1, 0]), pa.array(["a", None]))
    assert plain(ab.examples(ab.collate(data, nulls="drop"))) == ["a", "a"]
    assert plain(ab.examples(ab.collate(data[:0]))) == []
