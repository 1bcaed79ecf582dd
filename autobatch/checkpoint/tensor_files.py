"""Files of tensors in the safetensors format, written and read as streams, with a checksum of every block.

A file is 8 bytes (the header's length, little-endian), a header in JSON, and the bytes of the tensors one after the
other, each in C order and little-endian. So any safetensors reader can read it. Our files add to `__metadata__`:

    format     "autobatch 1"
    crc32      8 hexadecimal digits for each block of 1 MiB of each tensor, in order; its last block may be shorter
    header     the CRC-32 of the first 8 bytes and the header, computed with "00000000" in this place

and the caller's own entries. A dtype that the format has no name for is stored as bytes, `U8`, with one more dimension;
the caller records which dtype it is. Source: github.com/huggingface/safetensors, "Format".
"""

import contextlib
import dataclasses
import functools
import json
import math
import zlib
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

import numpy as np

from autobatch.checkpoint.files import Files, count, open_file, parse, read_all, write_all
from autobatch.core.threads import run_parts, run_together, split_work
from autobatch.errors import CheckpointError

BLOCK = 1 << 20  # bytes per checksum
_GROUP, _TOGETHER = 8 << 20, 1 << 19  # most bytes per write; least for which checksums are computed in parallel with it
_FORMAT = "autobatch 1"
_NO_SUM = "00000000"
_NAMES = {
    "bool": "BOOL", "uint8": "U8", "int8": "I8", "uint16": "U16", "int16": "I16", "uint32": "U32", "int32": "I32",
    "uint64": "U64", "int64": "I64", "float16": "F16", "bfloat16": "BF16", "float32": "F32", "float64": "F64",
    "complex64": "C64",
}  # fmt: skip
_DTYPES = {code: name for name, code in _NAMES.items()}


@dataclasses.dataclass(frozen=True, slots=True)
class Tensor:
    """A tensor of a file: its name, the dtype in which it is stored, and its shape."""

    name: str
    dtype: np.dtype
    shape: tuple[int, ...]

    @property
    def nbytes(self) -> int:
        return math.prod(self.shape) * self.dtype.itemsize


@functools.lru_cache(maxsize=256)
def stored_dtype(dtype: np.dtype) -> np.dtype | None:
    """The dtype in which elements are stored, little-endian; None if the format has no name for it: stored as bytes.

    >>> stored_dtype(np.dtype(">f4")), stored_dtype(np.dtype("U3"))
    (dtype('float32'), None)
    """
    return np.dtype(dtype.type) if dtype.name in _NAMES else None


def raw(array: np.ndarray) -> memoryview:
    """The bytes of a C-contiguous array."""
    return memoryview(array.reshape(-1).view(np.uint8) if array.nbytes else b"")


def numpy_dtype(name: str) -> np.dtype:
    """The dtype of a name; `bfloat16` comes from the package `ml_dtypes`.

    Raises:
        CheckpointError: `ml_dtypes` is needed and not installed.
    """
    if name == "bfloat16":
        try:
            import ml_dtypes  # noqa: PLC0415
        except ImportError:
            raise CheckpointError("a tensor is bfloat16, which needs: pip install ml_dtypes") from None
        return np.dtype(ml_dtypes.bfloat16)
    return np.dtype(name)


def tensor_dtype(code: str) -> np.dtype:
    """The dtype that the format has by this code, such as "F32"; KeyError if it is none."""
    return numpy_dtype(_DTYPES[code])


class TensorWriter:
    """Writes a new file of tensors; elements are appended piece by piece, to the tensors in any order.

    A context manager: an exception within it removes the file.

    Args:
        tensors: all tensors of the file, with distinct names.
        metadata: further entries of the header's `__metadata__`.
    """

    def __init__(self, files: Files, path: str, tensors: Iterable[Tensor], metadata: Mapping[str, str]) -> None:
        self.path = path
        self._files = files
        tensors = sorted(tensors, key=lambda tensor: -(tensor.dtype.itemsize & -tensor.dtype.itemsize))  # for alignment
        self._sums = {tensor.name: [_NO_SUM] * -(-tensor.nbytes // BLOCK) for tensor in tensors}
        self._sizes = {tensor.name: tensor.nbytes for tensor in tensors}
        self._filled = {tensor.name: (0, 0) for tensor in tensors}  # bytes so far, CRC of the incomplete block
        self._places: dict[str, int] = {}
        self._entries: dict[str, Any] = {}
        at = 0
        for tensor in tensors:
            entry = {"dtype": _NAMES[tensor.dtype.name], "shape": list(tensor.shape)}
            self._entries[tensor.name] = {**entry, "data_offsets": [at, at + tensor.nbytes]}
            self._places[tensor.name] = at
            at += tensor.nbytes
        self._metadata = dict(metadata)
        start = len(self._header(_NO_SUM))
        self._places = {name: start + place for name, place in self._places.items()}
        self.nbytes = start + at
        self._handle: Any = files.create(path)

    def _header(self, checksum: str) -> bytes:
        """The header and its length, as bytes; how many bytes does not depend on the checksums."""
        sums = "".join("".join(own) for own in self._sums.values())
        own = {"format": _FORMAT, "crc32": sums, "header": checksum}
        text = json.dumps({"__metadata__": {**self._metadata, **own}, **self._entries}, separators=(",", ":")).encode()
        text += b" " * (-(len(text) + 8) % 64)
        return len(text).to_bytes(8, "little") + text

    def append(self, name: str, array: np.ndarray) -> None:
        """Append the next elements of a tensor: C-contiguous, of the tensor's dtype."""
        data = raw(array)
        while len(data):
            group, data = data[:_GROUP], data[_GROUP:]
            done = self._filled[name][0]
            if done + len(group) > self._sizes[name]:
                raise ValueError(f"{self.path}: {name} was to have {self._sizes[name]} bytes and is given more")
            place, large = self._places[name] + done, len(group) >= _TOGETHER
            tasks = [functools.partial(self._write, group, place, large), functools.partial(self._add, name, group)]
            if large:
                run_together(tasks)
            for task in () if large else tasks:
                task()

    def _write(self, group: memoryview, place: int, large: bool) -> None:
        write_all(self._files, self._handle, group, place)
        if large:
            self._files.begin_flush(self._handle, place, len(group))  # during the next group's checksums

    def _add(self, name: str, group: memoryview) -> None:
        """Update the checksums with a tensor's next bytes."""
        done, crc = self._filled[name]
        while len(group):
            part, group = group[: BLOCK - done % BLOCK], group[BLOCK - done % BLOCK :]
            crc = zlib.crc32(part, crc)
            done += len(part)
            self._sums[name][(done - 1) // BLOCK] = f"{crc:08x}"
            crc = 0 if done % BLOCK == 0 else crc
        self._filled[name] = done, crc

    def finish(self) -> str:
        """Write the header and flush the file; returns the header's checksum, which covers the blocks' checksums."""
        for name, (done, _) in self._filled.items():
            if done != self._sizes[name]:
                raise ValueError(f"{self.path}: {name} was to have {self._sizes[name]} bytes and was given {done}")
        checksum = f"{zlib.crc32(self._header(_NO_SUM)):08x}"
        write_all(self._files, self._handle, memoryview(self._header(checksum)), 0)
        self._files.flush(self._handle)
        handle, self._handle = self._handle, None
        self._files.close(handle)
        return checksum

    def __enter__(self) -> "TensorWriter":
        return self

    def __exit__(self, error: type[BaseException] | None, *_: object) -> None:
        """After an exception, close and remove the unfinished file."""
        if error is not None:
            with contextlib.suppress(OSError):  # the first error is the one that the caller gets
                if self._handle is not None:
                    handle, self._handle = self._handle, None
                    self._files.close(handle)
                self._files.unlink(self.path)


@dataclasses.dataclass(frozen=True, slots=True)
class _TensorRecord:
    """A tensor in a file: the offset of its bytes, and the checksums of its blocks (None if the file has none)."""

    tensor: Tensor
    place: int
    sums: tuple[int, ...] | None


class TensorReader:
    """Reads a file of tensors: its header, and any part of any tensor, with its checksums verified.

    Attributes:
        tensors: by name. metadata: of the header. checksum: of the header; None for a file of another writer.

    Raises:
        CheckpointError: the file does not exist, or its header is damaged; each later read verifies its own blocks.
    """

    def __init__(self, files: Files, path: str) -> None:
        self.path = path
        self._files = files
        self._handle: Any = open_file(files, path)
        try:
            self._read_header()
        except BaseException:
            self.close()
            raise

    def close(self) -> None:
        """Close the file."""
        if self._handle is not None:
            handle, self._handle = self._handle, None
            self._files.close(handle)

    def __enter__(self) -> "TensorReader":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _read(self, out: memoryview, offset: int) -> None:
        read_all(self._files, self._handle, out, offset, self.path)

    def _read_header(self) -> None:
        self.nbytes = self._files.size(self._handle)
        first = bytearray(8)
        self._read(memoryview(first), 0)
        length = int.from_bytes(first, "little")
        if length > self.nbytes - 8:
            what = f"a header of {length} bytes in a file of {self.nbytes}"
            raise CheckpointError(f"{self.path} is damaged, or not a safetensors file as ab.save writes it: {what}")
        text = bytearray(length)
        self._read(memoryview(text), 8)
        try:
            header = parse(bytes(text).decode(), self.path)
            self.metadata: dict[str, str] = header.pop("__metadata__", {})
            own = bool({"crc32", "header"} & self.metadata.keys()) or self.metadata.get("format") == _FORMAT
            self.checksum = self.metadata["header"] if own else None
            if own:
                self._check_header(bytes(first + text), self.metadata["header"])
            self._records = dict(self._entries(header, 8 + length, own))
        except (ValueError, KeyError, TypeError, AttributeError, IndexError) as error:
            raise CheckpointError(f"{self.path} is damaged: its header cannot be read ({error})") from error
        self.tensors = {name: found.tensor for name, found in self._records.items()}

    def _check_header(self, data: bytes, checksum: str) -> None:
        place = data.rindex(b'"header":"' + checksum.encode() + b'"') + len(b'"header":"')
        plain = data[:place] + _NO_SUM.encode() + data[place + 8 :]
        if f"{zlib.crc32(plain):08x}" != checksum:
            raise CheckpointError(f"{self.path} is damaged: its header does not match its checksum")
        if self.metadata["format"] != _FORMAT:
            raise CheckpointError(f"{self.path} has format {self.metadata['format']!r}; expected {_FORMAT!r}")

    def _entries(self, header: dict[str, Any], start: int, own: bool) -> Iterator[tuple[str, _TensorRecord]]:
        sums, end = self.metadata.get("crc32", ""), 0
        for name, entry in header.items():
            tensor = Tensor(name, tensor_dtype(entry["dtype"]), tuple(map(count, entry["shape"])))
            lo, hi = map(count, entry["data_offsets"])
            if lo != end or hi - lo != tensor.nbytes:
                raise ValueError(f"{name} lies at {lo} to {hi}")
            end = hi
            blocks = -(-tensor.nbytes // BLOCK)
            crcs = tuple(int(sums[8 * i : 8 * i + 8], 16) for i in range(blocks)) if own else None
            sums = sums[8 * blocks :]
            yield name, _TensorRecord(tensor, start + lo, crcs)
        if start + end != self.nbytes:
            raise CheckpointError(f"{self.path} is damaged: {self.nbytes} bytes long, expected {start + end}")

    def read(self, name: str) -> np.ndarray:
        """A whole tensor, as a new array."""
        found = self._records[name]
        out = np.empty(found.tensor.shape, found.tensor.dtype)
        view = raw(out)
        parts = split_work(-(-len(view) // BLOCK), len(view))
        run_parts(lambda part: self._read_blocks(found, view[part[0] * BLOCK : part[1] * BLOCK], part[0]), parts)
        return out

    def _read_blocks(self, found: _TensorRecord, view: memoryview, first: int) -> None:
        """Fill `view` with a tensor's bytes from block number `first` on, and verify each block."""
        for block, start in enumerate(range(0, len(view), BLOCK), first):
            part, place = view[start : start + BLOCK], found.place + block * BLOCK
            self._read(part, place)
            if found.sums is not None and zlib.crc32(part) != found.sums[block]:
                raise CheckpointError(
                    f"{self.path} is damaged: bytes {place} to {place + len(part)}, of {found.tensor.name!r}, "
                    "do not match their checksum"
                )

    def elements(self, name: str, first: int, last: int) -> np.ndarray:
        """Elements [first, last) of a tensor, flat; the blocks that contain them are read and verified."""
        found = self._records[name]
        lo, hi = (place * found.tensor.dtype.itemsize for place in (first, last))
        start, end = lo // BLOCK, -(-hi // BLOCK)
        if lo >= hi:
            return np.empty(0, found.tensor.dtype)
        buffer = np.empty(min(end * BLOCK, found.tensor.nbytes) - start * BLOCK, np.uint8)
        self._read_blocks(found, raw(buffer), start)
        return buffer[lo - start * BLOCK : hi - start * BLOCK].view(found.tensor.dtype)

    def rows(self, name: str, first: int, last: int) -> np.ndarray:
        """Rows [first, last) of a tensor, verified as in `elements`."""
        shape = self.tensors[name].shape[1:]
        width = math.prod(shape)
        return self.elements(name, first * width, last * width).reshape(last - first, *shape)

    def map(self, name: str, memory: np.ndarray) -> np.ndarray:
        """A tensor as a view of the memory-mapped file (`mapped`); its checksums are not verified."""
        found = self._records[name]
        part = memory[found.place : found.place + found.tensor.nbytes]
        return part.view(found.tensor.dtype).reshape(found.tensor.shape)

    def mapped(self) -> np.ndarray:
        """(bytes,) uint8: the file, memory-mapped."""
        return self._files.map(self._handle)

    def verify(self) -> None:
        """Read and verify every block of every tensor.

        Raises:
            CheckpointError: names the first damaged block.
        """
        buffer = memoryview(bytearray(BLOCK))
        for found in self._records.values():
            for block in range(-(-found.tensor.nbytes // BLOCK)):
                self._read_blocks(found, buffer[: min(BLOCK, found.tensor.nbytes - block * BLOCK)], block)


def pieces(array: np.ndarray, dtype: np.dtype | None, most: int = BLOCK) -> Iterator[np.ndarray]:
    """An array's elements in C order, as contiguous pieces of about `most` bytes; converted to `dtype` if given."""
    target = array.dtype if dtype is None else dtype
    if array.flags.c_contiguous and array.dtype == target:
        yield array  # in one piece: the writer splits it
        return
    if array.ndim == 0:
        yield np.ascontiguousarray(array, target)
        return
    if array.ndim > 1 and len(array) and array[0].nbytes > most:
        for part in array:
            yield from pieces(part, dtype, most)
        return
    rows = max(1, most // max(array[0].nbytes, 1)) if len(array) else 1
    for first in range(0, len(array), rows):
        yield np.ascontiguousarray(array[first : first + rows], target)
