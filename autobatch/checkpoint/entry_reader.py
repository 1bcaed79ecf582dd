"""Reads the entries of a checkpoint: each is assembled from its parts in several files, or streamed part by part."""

import contextlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from autobatch.checkpoint import json_values
from autobatch.checkpoint.streams import (
    ROWS_AT_ONCE,
    Piece,
    Stream,
    apply_units,
    block_from_columns,
    checked_part,
    restore_table,
    stored_form,
    table_stream,
)
from autobatch.checkpoint.tensor_files import BLOCK, Tensor, TensorReader
from autobatch.checkpoint.trees import ANY
from autobatch.errors import CheckpointError
from autobatch.tables.keyed.row_store import StoredBlock
from autobatch.tables.keyed.variable import EmbeddingVariable, SlotOf, look_ups_only, mapped_variable


class Entries(contextlib.ExitStack):
    """The entries of one checkpoint; a context manager that keeps the checkpoint's files open until it exits.

    Args:
        path: of the document that lists the entries, for messages.
        entries: by name, the parts in the order of their application, each with its "file".
        opened: opens a file; mapped: arrays are memory-mapped, and tables of keys are for look-ups only.
    """

    def __init__(
        self,
        path: str,
        entries: Mapping[str, Sequence[dict[str, Any]]],
        opened: Callable[[str], TensorReader],
        mapped: bool = False,
    ) -> None:
        super().__init__()
        self.path, self._entries, self._opened, self._mapped = path, entries, opened, mapped
        self._readers: dict[str, TensorReader] = {}
        self._memory: dict[str, np.ndarray] = {}
        self.slots: dict[int, SlotOf] = {}

    def _reader(self, name: str) -> TensorReader:
        if name not in self._readers:
            self._readers[name] = self.enter_context(self._opened(name))
        return self._readers[name]

    def _parts(self, name: str) -> list[tuple[TensorReader, dict[str, Any]]]:
        if name not in self._entries:
            raise CheckpointError(f"{self.path} is damaged: it has no entry {name!r:.100}")
        return [checked_part(self._reader(part["file"]), part) for part in self._entries[name]]

    def _array_parts(self, name: str) -> tuple[TensorReader, Tensor, list[tuple[TensorReader, dict[str, Any]]]]:
        """Of the entry of an array, the file and tensor of all elements, and the parts with changes."""
        (reader, whole), *changes = self._parts(name)
        found = reader.tensors.get(whole.get("tensor", ""))
        if found is None or not all(
            "index" in part and other.tensors[part["units"]].dtype == found.dtype for other, part in changes
        ):
            raise CheckpointError(f"{self.path} is damaged: {name!r:.100} is not an array")
        return reader, found, changes

    def _table_parts(self, name: str) -> list[tuple[TensorReader, dict[str, Any]]]:
        """The parts of the entry of a table of keys."""
        parts = self._parts(name)
        if not all("columns" in part for _, part in parts):
            raise CheckpointError(f"{self.path} is damaged: {name!r:.100} is not a table of keys")
        return parts

    def array(self, name: str, shape: tuple[int, ...], dtype: np.dtype) -> np.ndarray:
        """The array of an entry; shape and dtype are those in which it is stored."""
        reader, found, changes = self._array_parts(name)
        if (found.shape, found.dtype) != (shape, dtype):
            raise CheckpointError(f"{reader.path} is damaged: {name} is not where the file says it is")
        out = reader.map(found.name, self._mapped_file(reader)) if self._mapped else reader.read(found.name)
        for reader, entry in changes:
            apply_units(out.reshape(-1), reader, entry, 0, -(-out.size // entry["unit"]))
        if self._mapped:
            out.flags.writeable = False
        return out

    def table(self, name: str, node: dict[str, Any], like: Any) -> EmbeddingVariable:
        """The table of keys of an entry; class and settings are those of `like` if that is a table."""
        like = None if like is ANY else like
        arrays = {}
        for key, part in node["arrays"].items():
            dtype, shape = stored_form(json_values.dtype_of_name(part["dtype"]), tuple(part["shape"]))
            arrays[key] = self.array(part["array"], shape, dtype)
        parts = self._table_parts(name)
        if not self._mapped:
            return restore_table(node, like, parts, arrays, self.slots)
        settings = node["settings"] if like is None else like.settings
        as_saved = all(settings.get(name) == node["settings"].get(name) for name in ("dim", "dtype", "key_dtype"))
        if (
            node["class"] == "EmbeddingVariable"
            and as_saved  # else its rows or keys are converted
            and len(parts) == 1
            and parts[0][1].get("sorted")
            and parts[0][1]["count"]
        ):
            return mapped_variable(settings, block_from_columns(self._columns(*parts[0])), arrays)
        return look_ups_only(restore_table(node, like, parts, arrays, self.slots))

    def _mapped_file(self, reader: TensorReader) -> np.ndarray:
        if reader.path not in self._memory:
            self._memory[reader.path] = reader.mapped()
        return self._memory[reader.path]

    def merged(self, name: str) -> tuple[Stream, dict[str, Any]]:
        """An entry as one part: a stream from the files, and the manifest's description of that part."""
        if "columns" in self._parts(name)[0][1]:
            return self._merged_table(name)
        reader, tensor, changes = self._array_parts(name)

        def stream() -> Iterator[Piece]:
            unit = changes[0][1]["unit"] if changes else 1
            count = tensor.nbytes // tensor.dtype.itemsize
            step = unit * max(1, 8 * BLOCK // (unit * tensor.dtype.itemsize))
            for lo in range(0, count, step):
                piece = reader.elements(tensor.name, lo, min(lo + step, count))
                for other, entry in changes:
                    apply_units(piece, other, entry, lo // unit, -(-(lo + len(piece)) // unit))
                yield name, piece

        return Stream([Tensor(name, tensor.dtype, tensor.shape)], stream, copied=True), {"tensor": name}

    def _merged_table(self, name: str) -> tuple[Stream, dict[str, Any]]:
        """All keys of a table, sorted by their bits as int64, so that look-ups can search them in the mapped file."""
        parts = self._table_parts(name)
        for reader, _ in parts:
            reader.verify()  # sequentially, once: below, rows are read in any order and unchecked
        keys, part_of, place = self._live_rows(parts)
        order = np.argsort(keys.view(np.int64), kind="stable")
        part_of, place = part_of[order], place[order]
        found = [self._columns(reader, entry) for reader, entry in parts]
        like: dict[str, np.ndarray] = next(filter(None, found), {})

        def blocks() -> Iterator[StoredBlock]:
            for first in range(0, len(order), ROWS_AT_ONCE):
                chosen = slice(first, first + ROWS_AT_ONCE)
                block = {column: np.empty((len(part_of[chosen]), *x.shape[1:]), x.dtype) for column, x in like.items()}
                for number, columns in enumerate(found):
                    here = part_of[chosen] == number
                    for column, x in columns.items():
                        block[column][here] = x[place[chosen][here]]
                yield block_from_columns(block)

        stream, entry = table_stream(name, len(order), blocks, None)
        return stream, entry | {"sorted": True}

    def _columns(self, reader: TensorReader, entry: dict[str, Any]) -> dict[str, np.ndarray]:
        """The columns of a part by name, as views of its memory-mapped file."""
        memory = self._mapped_file(reader)
        return {column: reader.map(tensor, memory) for column, tensor in entry["columns"].items()}

    def _live_rows(self, parts: list[tuple[TensorReader, dict[str, Any]]]) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """(keys, parts, places): the keys that exist, and for each the part with its latest row and the row's index."""
        later: list[np.ndarray] = []
        out = []
        for number, (reader, entry) in reversed([*enumerate(parts)]):
            if entry["count"]:
                keys = reader.read(entry["columns"]["keys"])
                place = np.flatnonzero(~np.isin(keys, np.concatenate(later))) if later else np.arange(len(keys))
                out.append((keys[place], np.full(len(place), number), place))
                later.append(keys)
            if "removed" in entry:
                later.append(reader.read(entry["removed"]))
        if not out:
            return np.empty(0, np.int64), np.empty(0, np.int64), np.empty(0, np.int64)
        keys, part_of, place = (np.concatenate(column) for column in zip(*out, strict=True))
        return keys, part_of, place
