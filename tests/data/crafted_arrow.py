"""Crafted Arrow data: lists, strings, maps and records whose lengths, offsets and buffers lie, through every door.

    python -m tests.data.crafted_arrow --seed 5000 --count 1000

Calls run in processes of their own, since a reader that trusts an offset reads foreign memory, or ends its process.
Numbers are from 1,000 on and texts of the letter "k", so that anything else in a result is foreign.
"""

import sys

import numpy as np

import autobatch as ab
from autobatch.core.pytree import leaves
from tests.fuzz import Fuzzer, main
from tests.hostile import DOCUMENTED, in_processes

_LIES = (-(2**31), -1000, -1, 5, 40, 10**6, 2**31 - 1)
_FIRST, _COUNT = 1000, 4


class Crafted:
    """Data of another library, which has Arrow's interface."""

    def __init__(self, array):
        self._array = array

    def __arrow_c_array__(self, requested_schema=None):
        return self._array.__arrow_c_array__(requested_schema)


def _buffer(pa, rng, numbers, dtype):
    numbers = np.array(numbers, dtype)
    for at in rng.integers(0, len(numbers), int(rng.integers(0, 3))):
        numbers[at] = rng.choice(_LIES)
    return pa.py_buffer(numbers.tobytes()[: None if rng.integers(8) else int(rng.integers(0, numbers.nbytes))])


def _array(pa, rng, depth=0):
    """An array of a random type, of which something may be a lie."""
    kinds = ["numbers", "text", "list", "large_list", "struct", "map", "fixed", "coded"]
    kind = str(rng.choice(kinds[: 2 if depth > 2 else None]))
    length, offset = int(rng.choice([2, 2, 2, 3, 40, 10**6])), int(rng.choice([0, 0, 0, 1, 30]))
    valid = None if rng.integers(3) else pa.py_buffer(bytes(rng.integers(0, 256, int(rng.integers(0, 2)), np.uint8)))
    null_count, of_offsets = (0 if valid is None else -1), np.int32
    if kind == "numbers":
        values = _FIRST + np.arange(_COUNT)
        return pa.Array.from_buffers(pa.int64(), length, [valid, pa.py_buffer(values)], null_count, offset)
    if kind == "text":
        large = bool(rng.integers(2))
        offsets = _buffer(pa, rng, [0, 1, 3, 4], np.int64 if large else np.int32)
        made = pa.large_string() if large else pa.string()
        return pa.Array.from_buffers(made, length, [valid, offsets, pa.py_buffer(b"kkkk")], null_count, offset)
    if kind == "coded":
        codes = pa.Array.from_buffers(pa.int32(), length, [valid, _buffer(pa, rng, [0, 1, 1, 0], np.int32)], -1, offset)
        return pa.DictionaryArray.from_arrays(codes, pa.array(["k", "kk"]), safe=False)
    if kind == "map":
        of_items = pa.StructArray.from_arrays([pa.array(["k"] * _COUNT), _array(pa, rng, 3)], ["key", "value"])
        child, made = of_items, pa.map_(of_items.type[0].type, of_items.type[1].type)
    else:
        child = _array(pa, rng, depth + 1)
        made = {"struct": pa.struct([("a", child.type)]), "fixed": pa.list_(child.type, 2)}.get(kind)
    if kind in ("struct", "fixed"):
        return pa.Array.from_buffers(made, length, [valid], null_count, offset, [child])
    if kind == "large_list":
        of_offsets = np.int64
    made = made or (pa.large_list if kind == "large_list" else pa.list_)(child.type)
    buffers = [valid, _buffer(pa, rng, [0, 1, 3, 4], of_offsets)]
    return pa.Array.from_buffers(made, length, buffers, null_count, offset, [child])


def _in_parts(data):
    return list(ab.minibatches(data, 2))


def _as_rows(data):
    """The rows of an embedding variable, as a batch."""
    import pyarrow as pa  # noqa: PLC0415

    variable = ab.EmbeddingVariable(2, dtype=np.float64)
    table = pa.table({"key": np.arange(2), "row": pa.chunked_array([pa.array(data)])})
    variable.from_arrow(table)
    return ab.MaskedBatch(variable.export()[1])


def call_once(seed):
    """What is wrong with the reading of a seed's data, None for nothing."""
    import pyarrow as pa  # noqa: PLC0415

    rng = np.random.default_rng(seed)
    print(f"seed {seed}: crafted", file=sys.stderr, flush=True)  # what is last there is what ended the process
    try:
        array = _array(pa, rng)
        data = array if rng.integers(2) else Crafted(array)
    except (pa.ArrowException, *DOCUMENTED):
        return None  # pyarrow itself does not make it
    door = (ab.collate, _in_parts, _as_rows)[int(rng.integers(3))]
    try:
        found = leaves([ab.examples(each) for each in leaves(door(data)) if hasattr(type(each), "batch_size")])
    except DOCUMENTED:
        return None
    for each in found:
        values = np.asarray(each).ravel()
        in_range = (values >= _FIRST) & (values < _FIRST + _COUNT) if values.dtype.kind in "iuf" else None
        known = np.char.strip(values.astype(str), "k") == "" if in_range is None else in_range
        if not (known | (values.astype(str) == "nan")).all():
            return f"seed {seed}: {door.__name__} of {array.type} gave {values[:5]!r}"
    return None


def read(seeds: range) -> str:
    """Read the data of these seeds in processes of their own."""
    return in_processes(seeds, __name__ if __name__ != "__main__" else "tests.data.crafted_arrow")


FUZZERS: dict[str, Fuzzer] = {"crafted arrow": read}

if __name__ == "__main__":
    sys.exit(main(FUZZERS))
