"""Reading the entries of a checkpoint: each put together from its parts in several files, or streamed."""

import contextlib
import itertools
from collections.abc import Iterator
from typing import Any

import numpy as np

from autobatch.checkpoint import literals
from autobatch.checkpoint.changes import apply_units
from autobatch.checkpoint.manifests import Folder, Manifest
from autobatch.checkpoint.streams import (
    Piece,
    Stream,
    as_stored,
    blocks_of,
    restore_table,
    table_class,
    table_stream,
)
from autobatch.checkpoint.tensor_files import BLOCK, Tensor, TensorReader
from autobatch.checkpoint.trees import ANY
from autobatch.errors import CheckpointError
from autobatch.tables.stored import StoredBlock

__all__ = ["Entries"]


class Entries(contextlib.ExitStack):
    """The entries of one checkpoint, whose files are open until this is left."""

    def __init__(self, folder: Folder, manifest: Manifest, mapped: bool = False) -> None:
        super().__init__()
        self.folder, self.manifest, self._mapped = folder, manifest, mapped
        self._readers: dict[str, TensorReader] = {}
        self._memory: dict[str, np.ndarray] = {}

    def _reader(self, name: str) -> TensorReader:
        if name not in self._readers:
            self._readers[name] = self.enter_context(self.folder.reader(self.manifest, name))
        return self._readers[name]

    def _parts(self, name: str) -> list[tuple[TensorReader, dict[str, Any]]]:
        return [(self._reader(part["file"]), part) for part in self.manifest.entries[name]]

    def array(self, name: str, shape: tuple[int, ...], dtype: np.dtype) -> np.ndarray:
        """The elements of an entry, which are stored as of this shape and dtype."""
        (reader, whole), *changes = self._parts(name)
        found = reader.tensors.get(whole["tensor"])
        if found is None or (found.shape, found.dtype) != (shape, dtype):
            raise CheckpointError(f"{reader.path} is damaged: {name} is not there as it is said to be")
        if self._mapped:
            out = reader.map(whole["tensor"], self._memory.setdefault(reader.path, reader.mapped()))
        else:
            out = reader.read(whole["tensor"])
        for reader, said in changes:
            apply_units(out.reshape(-1), reader, said, 0, -(-out.size // said["unit"]))
        if self._mapped:
            out.flags.writeable = False
        return out

    def table(self, name: str, node: dict[str, Any], like: Any) -> Any:
        """A table of keys."""
        like = None if like is ANY else like
        arrays = {}
        for key, part in node["arrays"].items():
            dtype, shape = as_stored(literals.dtype_of_name(part["dtype"]), tuple(part["shape"]))
            arrays[key] = self.array(part["array"], shape, dtype)
        return restore_table(table_class(node["class"], like), node, like, self._parts(name), arrays)

    def merged(self, name: str) -> tuple[Stream, dict[str, Any]]:
        """An entry as one part, streamed from the files; and what says where it is."""
        (reader, first), *changes = self._parts(name)
        if "tensor" not in first:
            return self._merged_table(name)
        tensor = reader.tensors[first["tensor"]]

        def stream() -> Iterator[Piece]:
            unit = changes[0][1]["unit"] if changes else 1
            count = tensor.nbytes // tensor.dtype.itemsize
            step = unit * max(1, 8 * BLOCK // (unit * tensor.dtype.itemsize))
            for lo in range(0, count, step):
                piece = reader.elements(tensor.name, lo, min(lo + step, count))
                for other, said in changes:
                    apply_units(piece, other, said, lo // unit, -(-(lo + len(piece)) // unit))
                yield name, piece

        return Stream([Tensor(name, tensor.dtype, tensor.shape)], stream, copied=True), {"tensor": name}

    def _merged_table(self, name: str) -> tuple[Stream, dict[str, Any]]:
        parts = self._parts(name)
        alive = self._alive(parts)

        def blocks() -> Iterator[StoredBlock]:
            for (reader, said), mask in zip(parts, alive, strict=True):
                place = 0
                for block in blocks_of(reader, said):
                    chosen = mask[place : place + len(block.keys)]
                    place += len(chosen)
                    if chosen.any():
                        slots = {slot: rows[chosen] for slot, rows in block.slots.items()}
                        rest = (block.versions[chosen], block.counts[chosen])
                        yield StoredBlock(block.keys[chosen], block.rows[chosen], slots, *rest)

        return table_stream(name, sum(int(mask.sum()) for mask in alive), blocks, None)

    def _alive(self, parts: list[tuple[TensorReader, dict[str, Any]]]) -> list[np.ndarray]:
        """For each part which of its keys no later part has or removes; of the table only the keys are in memory."""
        later: np.ndarray | None = None
        out = []
        for reader, said in reversed(parts):
            keys = reader.read(said["columns"]["keys"]) if said["count"] else np.empty(0, np.int64)
            gone = [reader.read(said["removed"])] if "removed" in said else []
            out.append(np.ones(len(keys), bool) if later is None or not len(keys) else ~np.isin(keys, later))
            later = np.concatenate([x for x in (later, keys, *gone) if x is not None and len(x)] or [keys])
        return list(itertools.chain(reversed(out)))
