"""Manifests: the JSON document that lists the contents of one checkpoint; renaming it to its final name is the commit.

`00000007-step-120.json` is the checkpoint of step 120, the seventh save into its folder. The last save is the current
one, even if an earlier save has a higher step. The text is `{"checkpoint": …, "crc32": "…"}` with the CRC-32 of all
bytes before `, "crc32"`. The arrays' elements are in the tensor files that the manifest lists, each with its length and
its header's checksum; that header has the checksums of the rest of the file.
"""

import dataclasses
import json
import os
import re
import zlib
from collections.abc import Container, Iterator
from typing import Any

from autobatch.checkpoint.files import Files, count, making, open_file, parse, read_all, write_all
from autobatch.checkpoint.tensor_files import TensorReader
from autobatch.errors import CheckpointError

_MANIFEST = re.compile(r"(\d{8,})-step-(\d+)\.json")
_FILE = re.compile(r"\d{8,}\.safetensors")
_OURS = re.compile(r"(\d{8,})(-step-\d+\.json(\.part)?|\.safetensors)")
_VERSION = 1  # of what a manifest says; files of another one are refused
_HEAD, _TAIL = b'{"checkpoint": ', b', "crc32": "%08x"}\n'


@dataclasses.dataclass(frozen=True, slots=True)
class Manifest:
    """One checkpoint.

    Attributes:
        sequence: the number of the save. step: the training step.
        trees: the descriptions of "params", "state" and "extra" (`trees.py`).
        entries: for each array or table of keys, its parts in the order of their application, each with its "file".
        files: for each tensor file its length ("bytes") and its header's checksum ("header").
    """

    sequence: int
    step: int
    trees: dict[str, Any]
    entries: dict[str, list[dict[str, Any]]]
    files: dict[str, dict[str, Any]]

    @property
    def name(self) -> str:
        return f"{self.sequence:08d}-step-{self.step}.json"

    def encode(self) -> bytes:
        body = {field.name: getattr(self, field.name) for field in dataclasses.fields(self)}
        text = _HEAD + json.dumps({"version": _VERSION} | body).encode()
        return text + _TAIL % zlib.crc32(text)

    @classmethod
    def decode(cls, data: bytes, path: str) -> "Manifest":
        """Parse the text of a manifest.

        Raises:
            CheckpointError: the checksum is wrong, or the version is not ours.
        """
        text, tail = data[: -len(_TAIL % 0)], data[-len(_TAIL % 0) :]
        if tail != _TAIL % zlib.crc32(text) or not text.startswith(_HEAD):
            raise CheckpointError(f"{path} is damaged: it does not match its checksum")
        body = parse(text[len(_HEAD) :], path)
        version = body.get("version", _VERSION)
        if version != _VERSION:
            raise CheckpointError(f"{path} is of version {version!r:.20}; this library reads version {_VERSION}")
        with making(f"the manifest {path}"):
            used = {part["file"] for parts in body["entries"].values() for part in parts}
            files = {
                name: {"bytes": count(own["bytes"]), "header": own["header"]} for name, own in body["files"].items()
            }
            trees = {name: dict(body["trees"][name]) for name in ("params", "state", "extra")}
            found = cls(count(body["sequence"]), count(body["step"]), trees, body["entries"], files)
        if used - files.keys() or not all(map(_FILE.fullmatch, files)):
            raise CheckpointError(f"{path} is damaged: its entries are in files that it does not list, or cannot list")
        return found


class Folder:
    """The folder of checkpoints: lists, reads, adds and removes checkpoints.

    To add one, its files are flushed under new names; then a rename gives its manifest the name that makes it visible.
    """

    def __init__(self, path: str, files: Files) -> None:
        self.path = path
        self.files = files

    def join(self, name: str) -> str:
        """The path of a file in the folder."""
        return os.path.join(self.path, name)

    def listed(self) -> list[tuple[int, int, str]]:
        """(sequence, step, name) of each manifest, the last save last; of a step saved twice, only the later save."""
        found = {}
        for name in self.files.names(self.path):
            match = _MANIFEST.fullmatch(name)
            if match:
                found[int(match[1])] = int(match[2]), name
        last = {step: sequence for sequence, (step, _) in sorted(found.items())}
        return [(sequence, *found[sequence]) for sequence in sorted(last.values())]

    def next_sequence(self) -> int:
        """A sequence number above those of all files in the folder."""
        matches = map(_OURS.fullmatch, self.files.names(self.path))
        return 1 + max((int(match[1]) for match in matches if match), default=0)

    def read(self, name: str) -> Manifest:
        """Read a manifest and verify it.

        Raises:
            CheckpointError: it is damaged or does not exist.
        """
        path = self.join(name)
        handle = open_file(self.files, path)
        try:
            data = bytearray(self.files.size(handle))
            read_all(self.files, handle, memoryview(data), 0, path)
        finally:
            self.files.close(handle)
        found = Manifest.decode(bytes(data), path)
        if found.name != name:
            raise CheckpointError(f"{path} is damaged: it is the manifest {found.name}")
        return found

    def commit(self, manifest: Manifest) -> None:
        """Commit flushed tensor files as a checkpoint: write, flush and rename the manifest; survives a power cut."""
        path = self.join(manifest.name)
        handle = self.files.create(path + ".part")
        try:
            write_all(self.files, handle, memoryview(manifest.encode()), 0)
            self.files.flush(handle)
        finally:
            self.files.close(handle)
        self.files.flush_folder(self.path)  # the tensor files' names are on the disk before the manifest's
        self.files.rename(path + ".part", path)
        self.files.flush_folder(self.path)

    def clean(self, keep: int, sequence: int) -> None:
        """Remove all checkpoints but those after which fewer than `keep` good ones were saved, and their files.

        A later checkpoint is good if all that an earlier one does not have of it is undamaged: its manifest and its
        files, of which those that both need are not read. So a chain of increments on a damaged file does not displace
        a checkpoint without that file, and usually only increments are read.

        Args:
            sequence: files of later saves are left alone. A damaged manifest that stays raises before anything is
                removed: nothing says what it needs.
        """
        names = self.files.names(self.path)
        manifests = {name: self._read_if_good(name) for name in names if _MANIFEST.fullmatch(name)}
        listed, good = self.listed(), dict[tuple[str, str], bool]()
        dropped = []
        for own, name in ((int(name.partition("-")[0]), name) for name in manifests):
            step = int(name.rpartition("-")[2].removesuffix(".json"))
            replaced = [later for later in listed if later[0] > own and later[1] == step]
            needed, later = (1, replaced) if replaced else (keep, [each for each in listed if each[0] > own])
            shared = manifests[name].files if manifests[name] is not None else {}  # type: ignore[union-attr]
            for _, _, other in reversed(later if len(later) >= needed else []):
                needed -= self._is_good(manifests[other], shared, good)
                if not needed:
                    dropped.append(name)
                    break
        needed_files = set[str]()
        for name in manifests.keys() - dropped:
            needed_files |= (manifests[name] or self.read(name)).files.keys()
        for name in dropped:
            self.files.unlink(self.join(name))
        if dropped:
            self.files.flush_folder(self.path)  # manifests are gone from the disk before their tensor files
        for name in names:
            match = _OURS.fullmatch(name)
            if match and int(match[1]) <= sequence and name not in needed_files and not _MANIFEST.fullmatch(name):
                self.files.unlink(self.join(name))

    def _read_if_good(self, name: str) -> Manifest | None:
        try:
            return self.read(name)
        except CheckpointError:
            return None

    def _is_good(self, manifest: Manifest | None, besides: Container[str], known: dict[tuple[str, str], bool]) -> bool:
        """True if a manifest and its files are undamaged; files `besides` are not read. `known`: files read before."""
        if manifest is None:
            return False
        for name in manifest.files:
            key = name, manifest.files[name]["header"]
            if name not in besides and key not in known:
                try:
                    with self.reader(manifest, name) as reader:
                        reader.verify()
                    known[key] = True
                except CheckpointError:
                    known[key] = False
            if name not in besides and not known[key]:
                return False
        return True

    def reader(self, manifest: Manifest, name: str) -> TensorReader:
        """Open a tensor file that a manifest names, and check that it is the very file that was written for it.

        Raises:
            CheckpointError: it is damaged or another file.
        """
        reader = TensorReader(self.files, self.join(name))
        said = manifest.files[name]
        if reader.nbytes != said["bytes"] or reader.checksum != said["header"]:
            reader.close()
            raise CheckpointError(f"{reader.path} is damaged: it is not the file that {manifest.name} was saved with")
        return reader

    def readers(self, manifest: Manifest) -> Iterator[TensorReader]:
        """Each tensor file of a manifest, opened in turn and closed before the next."""
        for name in manifest.files:
            with self.reader(manifest, name) as reader:
                yield reader
