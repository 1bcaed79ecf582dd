"""Streams of data to write: tensors, with their elements in pieces of bounded size; also reads what they wrote back.

An array is stored whole, or only its units that changed since the last save. Any code may write into an array, so a
record of writes could not be trusted to be complete. Instead each save reads the whole array, at memory speed, compares
digests of its units, and misses no write (`kernels/hash_functions.py`). A unit is a run of elements of at least 256
bytes, whole rows if rows are short. The last unit may extend beyond the array's end; it is padded with zeros.

A table of keys (an `EmbeddingVariable`) is stored as columns with one row per key: `keys`, `rows`, `versions`, `counts`
and a `slot/…` for each optimiser slot. One file holds all keys, or only the changed and the removed ones.
"""

import dataclasses
import functools
import itertools
import math
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from typing import Any

import numpy as np

from autobatch.checkpoint.files import Files
from autobatch.checkpoint.tensor_files import BLOCK, Tensor, TensorReader, TensorWriter, pieces, stored_dtype
from autobatch.core.threads import run_parts, run_together, split_work
from autobatch.errors import CheckpointError
from autobatch.kernels.hash_functions import digest_units
from autobatch.tables.keyed.row_store import StoredBlock
from autobatch.tables.keyed.variable import EmbeddingVariable, SlotOf

Piece = tuple[str, np.ndarray]  # the name of a tensor, and its next elements
_SLOT = "slot/"
_COLUMNS = {"keys", "rows", "versions", "counts"}  # of each block
ROWS_AT_ONCE = 1 << 14  # the fewest rows of a table of keys that are read or written at a time
_MOST_AT_ONCE, _READ_AT_ONCE = 1 << 17, 8 << 20  # the most rows, and bytes of the widest column, read at a time


@dataclasses.dataclass(slots=True)
class Stream:
    """Tensors of one file, and a function that yields their elements in order; it may be called once.

    Attributes:
        copied: True if the pieces are new arrays, which nobody changes.
    """

    tensors: list[Tensor]
    pieces: Callable[[], Iterable[Piece]]
    copied: bool = False

    @property
    def nbytes(self) -> int:
        return sum(tensor.nbytes for tensor in self.tensors)

    def snapshot(self) -> "Stream":
        """The same stream with a copy of the elements as they are now."""
        kept = [(name, piece if self.copied else piece.copy()) for name, piece in self.pieces()]
        return Stream(self.tensors, lambda: kept, True)


def stored_form(dtype: np.dtype, shape: tuple[int, ...]) -> tuple[np.dtype, tuple[int, ...]]:
    """The dtype and shape in which an array is stored: as bytes if the format has no name for its dtype."""
    stored = stored_dtype(dtype)
    return (np.dtype(np.uint8), (*shape, dtype.itemsize)) if stored is None else (stored, shape)


def array_stream(name: str, array: np.ndarray) -> Stream:
    """A stream of a whole array."""
    dtype, shape = stored_form(array.dtype, array.shape)
    target = stored_dtype(array.dtype)
    return Stream([Tensor(name, dtype, shape)], lambda: ((name, piece) for piece in pieces(array, target)))


# Changes of an array.

_LEAST = 1 << 14  # bytes: smaller arrays are stored whole each time


def is_tracked(array: np.ndarray) -> bool:
    """True if only an array's changes are stored: it is large enough, C-contiguous, and in the dtype of the file."""
    return array.nbytes >= _LEAST and array.flags.c_contiguous and array.dtype == stored_dtype(array.dtype)


def unit_of(array: np.ndarray) -> int:
    """The number of elements in one unit of an array; a unit is digested and stored as a whole.

    >>> unit_of(np.zeros((1000, 16), np.float32)), unit_of(np.zeros((100, 100), np.float32)), unit_of(np.zeros(5))
    (64, 100, 32)
    """
    size = array.itemsize
    step = 8 // math.gcd(size, 8)  # the digest reads pairs of 4-byte words
    row = math.prod(array.shape[1:]) if array.ndim > 1 else 1
    if 0 < row * size <= 1 << 12:  # bytes: rows up to this size are not split between units
        step = math.lcm(step, row)
    return step * -(-256 // (step * size))  # bytes of a unit, at least


class Digester:
    """Computes digests with random keys, drawn at construction, so that nobody can craft data that collides."""

    def __init__(self) -> None:
        self._random = np.random.default_rng()
        self._keys: dict[int, np.ndarray] = {}

    def __call__(self, array: np.ndarray) -> np.ndarray:
        """(units, 2) uint64: the digests of an array for which `is_tracked` holds."""
        unit = unit_of(array)
        words = unit * array.itemsize // 4
        if words not in self._keys:
            self._keys[words] = self._random.integers(0, 1 << 32, (2, words), np.uint32)
        body, tail = _units(array, unit)
        out = np.empty((len(body) + len(tail), 2), np.uint64)
        keys, parts = self._keys[words], split_work(len(body), array.nbytes)
        view = body.view(np.uint32)
        run_parts(lambda part: digest_units(view, keys, *part, out), parts)
        if len(tail):
            digest_units(tail.view(np.uint32), keys, 0, 1, out[len(body) :])
        return out


def _units(array: np.ndarray, unit: int) -> tuple[np.ndarray, np.ndarray]:
    """The complete units of an array as a view, and an incomplete last unit, if any, as a copy padded with zeros."""
    flat = array.reshape(-1)
    whole = flat.size // unit
    body, rest = flat[: whole * unit].reshape(whole, unit), flat[whole * unit :]
    tail = np.zeros((1 if rest.size else 0, unit), array.dtype)
    if rest.size:
        tail[0, : rest.size] = rest
    return body, tail


def changes_stream(name: str, array: np.ndarray, changed: np.ndarray) -> tuple[Stream, dict[str, Any]]:
    """A stream of an array's changed units, and the manifest's description of this part.

    Args:
        changed: (n,) the numbers of the changed units, ascending.
    """
    unit = unit_of(array)
    index, units = f"{name}#index", f"{name}#units"
    tensors = [Tensor(index, np.dtype(np.int64), (len(changed),)), Tensor(units, array.dtype, (len(changed), unit))]

    def stream() -> Iterator[Piece]:
        yield index, changed.astype(np.int64)
        body, tail = _units(array, unit)
        step = max(1, BLOCK // (unit * array.itemsize))
        for first in range(0, len(changed), step):
            named = changed[first : first + step]
            inside = named[: np.searchsorted(named, len(body))]
            yield units, body[inside]
            if len(inside) < len(named):
                yield units, tail

    entry = {"index": index, "units": units, "unit": unit, "count": len(changed)}
    return Stream(tensors, stream, copied=True), entry


def apply_units(out: np.ndarray, reader: TensorReader, entry: dict[str, Any], first: int, last: int) -> None:
    """Write the stored units whose numbers are in [first, last) into `out`.

    Args:
        out: flat: the elements of the array's units [first, last), fewer at the array's end.
        entry: the description from `changes_stream`.
    """
    index, unit = reader.read(entry["index"]), entry["unit"]
    if len(index) and (index[0] < 0 or (np.diff(index) <= 0).any()):
        raise CheckpointError(f"{reader.path} is damaged: {entry['index']!r} is not ascending")
    lo, hi = np.searchsorted(index, [first, last])
    whole = len(out) // unit
    body, rest = out[: whole * unit].reshape(whole, unit), out[whole * unit :]
    step = max(1, 4 * BLOCK // (unit * out.itemsize))
    for start in range(int(lo), int(hi), step):
        end = min(start + step, int(hi))
        rows, places = reader.rows(entry["units"], start, end), index[start:end] - first
        inside = int(np.searchsorted(places, whole))
        body[places[:inside]] = rows[:inside]
        if inside < len(places):
            if not len(rest) or places[-1] != whole:
                raise CheckpointError(f"{reader.path} is damaged: {entry['index']!r} is beyond the end of its array")
            rest[:] = rows[-1, : len(rest)]


# Tables of keys.


def columns(block: StoredBlock) -> dict[str, np.ndarray]:
    """The columns of a block, by name."""
    named = {"keys": block.keys, "rows": block.rows, "versions": block.versions, "counts": block.counts}
    return named | {f"{_SLOT}{name}": slot for name, slot in block.slots.items()}


def whole_table(name: str, table: Any) -> tuple[Stream, dict[str, Any]]:
    """A stream of all keys of a table, and the manifest's description of this part."""
    return table_stream(name, len(table), lambda: table.blocks(ROWS_AT_ONCE), None)


def block_from_columns(found: Mapping[str, np.ndarray]) -> StoredBlock:
    """The block made of columns; the inverse of `columns`."""
    slots = {column[len(_SLOT) :]: rows for column, rows in found.items() if column.startswith(_SLOT)}
    return StoredBlock(found["keys"], found["rows"], slots, found["versions"], found["counts"])


def table_stream(
    name: str, count: int, blocks: Callable[[], Iterator[StoredBlock]], removed: np.ndarray | None
) -> tuple[Stream, dict[str, Any]]:
    """A stream of a table's keys, all or the changed ones, as columns; and the manifest's description of this part.

    Args:
        blocks: yields `count` keys in total; started here, to learn the columns, and exhausted when it is written.
        removed: the keys that were removed; None if the stream has the whole table.
    """
    waiting = blocks()
    first = next(waiting, None)
    entry: dict[str, Any] = {"count": count, "columns": {}, "sorted": False}
    tensors = []
    if first is not None:
        for column, array in columns(first).items():
            entry["columns"][column] = f"{name}#{column}"
            tensors.append(Tensor(f"{name}#{column}", array.dtype, (count, *array.shape[1:])))
    if removed is not None:
        entry["removed"] = f"{name}#removed"
        tensors.append(Tensor(f"{name}#removed", removed.dtype, removed.shape))

    def all_pieces() -> Iterator[Piece]:
        if removed is not None:
            yield f"{name}#removed", np.ascontiguousarray(removed)
        for block in itertools.chain([first] if first is not None else [], waiting):
            for column, array in columns(block).items():
                yield f"{name}#{column}", np.ascontiguousarray(array)

    return Stream(tensors, all_pieces, copied=True), entry


def checked_part(reader: TensorReader, part: dict[str, Any]) -> tuple[TensorReader, dict[str, Any]]:
    """A reader and a part of an entry, once the file has the part's tensors, and as long as the part says.

    Raises:
        CheckpointError: it has not.
    """
    tensors = reader.tensors
    wanted: dict[str, tuple[int, ...] | None]
    if "tensor" in part:
        wanted = {part["tensor"]: None}
    elif "index" in part:
        wanted = {part["index"]: (part["count"],), part["units"]: (part["count"], part["unit"])}
    else:
        wanted = dict.fromkeys(part["columns"].values(), (part["count"],))
        if "removed" in part:
            wanted[part["removed"]] = None
    right = part.get("unit", 1) > 0 and (
        not part.get("count") or "columns" not in part or part["columns"].keys() >= _COLUMNS
    )
    for name, sizes in wanted.items():
        found = tensors.get(name)
        right = right and found is not None and (sizes is None or found.shape[: len(sizes)] == sizes)
    for numbers in (part.get("index"), part.get("removed"), part.get("columns", {}).get("keys")):
        right = right and (
            numbers is None or (tensors[numbers].dtype.kind in "iu" and len(tensors[numbers].shape) == 1)
        )
    if not right:
        raise CheckpointError(f"{reader.path} is damaged: it does not match its description, {part!r:.200}")
    return reader, part


def blocks_of(reader: TensorReader, entry: Mapping[str, Any], others: Collection[str] = ()) -> Iterator[StoredBlock]:
    """The keys of one part, in blocks, without the slots named in `others`."""
    dropped = {_SLOT + name for name in others}
    named = {column: tensor for column, tensor in entry["columns"].items() if column not in dropped}
    widest = max((reader.tensors[tensor].nbytes // max(entry["count"], 1) for tensor in named.values()), default=1)
    # Reads are verified by whole checksum blocks: few rows of a narrow column at a time would reread blocks often.
    rows = max(ROWS_AT_ONCE, min(_MOST_AT_ONCE, _READ_AT_ONCE // max(widest, 1)))
    for first in range(0, entry["count"], rows):
        last = min(first + rows, entry["count"])
        found = {column: reader.rows(tensor, first, last) for column, tensor in named.items()}
        yield block_from_columns(found)


def restore_table(
    node: Mapping[str, Any],
    like: EmbeddingVariable | None,
    parts: Iterable[tuple[TensorReader, Mapping[str, Any]]],
    arrays: dict[str, np.ndarray],
    slots: dict[int, SlotOf],
) -> EmbeddingVariable:
    """A table of keys, made by applying its parts in order.

    Args:
        like: a table whose class and settings are used; None: the saved ones.
        slots: added to here: the restored table's `SlotOf` for the token of each saved slot that it keeps.
    """
    if like is None and node["class"] != EmbeddingVariable.__name__:
        raise CheckpointError(f"a table of keys is a {node['class']}, which is not known here; give one like it")
    saved = node["settings"].get("slots", [])
    settings = node["settings"] if like is None else like.settings
    if saved and not settings.get("slots"):
        settings = settings | {"slots": saved}  # `like` was not used by an optimiser yet
    out = (EmbeddingVariable if like is None else type(like)).from_settings(settings)
    forms = {slot["name"]: (slot["width"], slot["dtype"]) for slot in saved}
    kept = {
        slot["name"]: SlotOf(slot["name"], slot["token"])
        for slot in settings.get("slots", [])
        if forms.get(slot["name"]) == (slot["width"], slot["dtype"])
    }
    slots.update({slot["token"]: kept[slot["name"]] for slot in saved if slot["name"] in kept})
    others = forms.keys() - kept.keys()
    for reader, entry in parts:
        if "removed" in entry:
            out.restore_block(removed=reader.read(entry["removed"]))
        out._store.expect(entry["count"])
        waiting = blocks_of(reader, entry, others)
        block = next(waiting, None)
        while block is not None:  # the next block is read and verified while this one is put into the table
            put = functools.partial(out.restore_block, block)
            _, block = run_together([put, functools.partial(next, waiting, None)])
    out.restore_block(arrays=arrays, step=node["settings"].get("step"))
    return out


def writer_of(files: Files, path: str, streams: Iterable[Stream], metadata: Mapping[str, str]) -> TensorWriter:
    """A writer of a file with room for these streams."""
    return TensorWriter(files, path, [tensor for stream in streams for tensor in stream.tensors], metadata)


def write(writer: TensorWriter, streams: Iterable[Stream]) -> None:
    """Append streams to a file."""
    for stream in streams:
        for name, piece in stream.pieces():
            writer.append(name, piece)
