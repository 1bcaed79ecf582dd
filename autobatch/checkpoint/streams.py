"""What is written: tensors, and the stream of their elements in pieces of bounded size; and tables of keys read back.

A table of keys is stored as columns of equally many rows: `keys`, `rows`, `versions`, `counts` and a `slot/…` for each
of the optimiser's slots. One file holds all keys, or those that changed and those that were removed.
"""

import dataclasses
import itertools
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from typing import Any

import numpy as np

from autobatch.checkpoint.files import Files
from autobatch.checkpoint.tensor_files import Tensor, TensorReader, TensorWriter, pieces, stored_dtype
from autobatch.errors import CheckpointError
from autobatch.tables.keyed.variable import EmbeddingVariable, SlotOf
from autobatch.tables.stored import StoredBlock

Piece = tuple[str, np.ndarray]  # the name of a tensor, and its next elements
TABLES: dict[str, type] = {"EmbeddingVariable": EmbeddingVariable}  # kinds of tables of keys, by their names in files
_SLOT = "slot/"
ROWS_AT_ONCE = 1 << 14  # of a table of keys that are read or written at a time, at least
_MOST_AT_ONCE, _READ_AT_ONCE = 1 << 17, 8 << 20  # rows, and bytes of one column, that are read at a time


@dataclasses.dataclass(slots=True)
class Stream:
    """Tensors of one file, and their elements in order, which may be asked for once.

    Attributes:
        copied: the pieces are new arrays, which nobody changes.
    """

    tensors: list[Tensor]
    pieces: Callable[[], Iterable[Piece]]
    copied: bool = False

    @property
    def nbytes(self) -> int:
        return sum(tensor.nbytes for tensor in self.tensors)

    def snapshot(self) -> "Stream":
        """The same with copies of what there is now."""
        kept = [(name, piece if self.copied else piece.copy()) for name, piece in self.pieces()]
        return Stream(self.tensors, lambda: kept, True)


def as_stored(dtype: np.dtype, shape: tuple[int, ...]) -> tuple[np.dtype, tuple[int, ...]]:
    """The dtype and shape in which an array is stored: bytes, where the format has no name for its dtype."""
    stored = stored_dtype(dtype)
    return (np.dtype(np.uint8), (*shape, dtype.itemsize)) if stored is None else (stored, shape)


def array_stream(name: str, array: np.ndarray) -> Stream:
    """An array, whole."""
    dtype, shape = as_stored(array.dtype, array.shape)
    target = stored_dtype(array.dtype)
    return Stream([Tensor(name, dtype, shape)], lambda: ((name, piece) for piece in pieces(array, target)))


def columns(block: StoredBlock) -> dict[str, np.ndarray]:
    """The columns of a block, by name."""
    named = {"keys": block.keys, "rows": block.rows, "versions": block.versions, "counts": block.counts}
    return named | {f"{_SLOT}{name}": slot for name, slot in block.slots.items()}


def whole_table(name: str, table: Any) -> tuple[Stream, dict[str, Any]]:
    """All keys of a table, and what says where they are."""
    return table_stream(name, len(table), lambda: table.blocks(ROWS_AT_ONCE), None)


def block_of(found: Mapping[str, np.ndarray]) -> StoredBlock:
    """The block of some columns."""
    slots = {column[len(_SLOT) :]: rows for column, rows in found.items() if column.startswith(_SLOT)}
    return StoredBlock(found["keys"], found["rows"], slots, found["versions"], found["counts"])


def table_stream(
    name: str, count: int, blocks: Callable[[], Iterator[StoredBlock]], removed: np.ndarray | None
) -> tuple[Stream, dict[str, Any]]:
    """The keys of a table, or those that changed, as columns; and what says where they are.

    Args:
        blocks: gives `count` keys together; begun here, for what columns there are, and ended when it is written.
        removed: keys that were removed; None: all that there are is here.
    """
    waiting = blocks()
    first = next(waiting, None)
    said: dict[str, Any] = {"count": count, "columns": {}, "sorted": False}
    tensors = []
    if first is not None:
        for column, array in columns(first).items():
            said["columns"][column] = f"{name}#{column}"
            tensors.append(Tensor(f"{name}#{column}", array.dtype, (count, *array.shape[1:])))
    if removed is not None:
        said["removed"] = f"{name}#removed"
        tensors.append(Tensor(f"{name}#removed", removed.dtype, removed.shape))

    def all_pieces() -> Iterator[Piece]:
        if removed is not None:
            yield f"{name}#removed", np.ascontiguousarray(removed)
        for block in itertools.chain([first] if first is not None else [], waiting):
            for column, array in columns(block).items():
                yield f"{name}#{column}", np.ascontiguousarray(array)

    return Stream(tensors, all_pieces, copied=True), said


def blocks_of(reader: TensorReader, said: Mapping[str, Any], others: Collection[str] = ()) -> Iterator[StoredBlock]:
    """The keys of one file, in blocks, without these slots."""
    dropped = {_SLOT + name for name in others}
    named = {column: tensor for column, tensor in said["columns"].items() if column not in dropped}
    widest = max((reader.tensors[tensor].nbytes // max(said["count"], 1) for tensor in named.values()), default=1)
    # What is read is checked by whole blocks, so of narrow columns few rows at a time would be read many times.
    rows = max(ROWS_AT_ONCE, min(_MOST_AT_ONCE, _READ_AT_ONCE // max(widest, 1)))
    for first in range(0, said["count"], rows):
        last = min(first + rows, said["count"])
        found = {column: reader.rows(tensor, first, last) for column, tensor in named.items()}
        yield block_of(found)


def restore_table(
    node: Mapping[str, Any],
    like: Any,
    parts: Iterable[tuple[TensorReader, Mapping[str, Any]]],
    arrays: Any,
    slots: dict[int, SlotOf],
) -> Any:
    """A table of keys, of its parts one after the other.

    Args:
        like: a table whose class and settings are taken; None: those that were saved.
        slots: to which is added what stands in the restored state for each slot that stood in the saved one.
    """
    cls: Any = type(like) if like is not None else TABLES.get(node["class"])
    if cls is None:
        raise CheckpointError(f"a table of keys is a {node['class']}, which is not known here; give one like it")
    saved = node["settings"].get("slots", [])
    settings = node["settings"] if like is None else like.settings
    if saved and not settings.get("slots"):
        settings = settings | {"slots": saved}  # of a table that no optimiser has seen
    out = cls.from_settings(settings)
    forms = {slot["name"]: (slot["width"], slot["dtype"]) for slot in saved}
    kept = {
        slot["name"]: SlotOf(slot["name"], slot["token"])
        for slot in settings.get("slots", [])
        if forms.get(slot["name"]) == (slot["width"], slot["dtype"])
    }
    slots.update({slot["token"]: kept[slot["name"]] for slot in saved if slot["name"] in kept})
    others = forms.keys() - kept.keys()
    for reader, said in parts:
        removed = reader.read(said["removed"]) if "removed" in said else ()
        blocks, step = blocks_of(reader, said, others), node["settings"].get("step")
        if isinstance(out, EmbeddingVariable):
            out._expect(said["count"])
        out.restore_blocks(blocks, removed=removed, arrays=arrays, step=step)
    return out


def write_streams(files: Files, path: str, streams: Iterable[Stream], metadata: Mapping[str, str]) -> str:
    """A file of streams, flushed; returns its header's checksum. Nothing of it stays if that fails."""
    streams = list(streams)
    writer = TensorWriter(files, path, [tensor for stream in streams for tensor in stream.tensors], metadata)
    try:
        for stream in streams:
            for name, piece in stream.pieces():
                writer.append(name, piece)
        return writer.finish()
    except BaseException:
        writer.abandon()
        raise
