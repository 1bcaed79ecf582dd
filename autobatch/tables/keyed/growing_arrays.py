"""Arrays that grow in place: address space for many rows is reserved, and memory pages are used only when written.

The rows never move, so addresses stay valid and a table grows without a copy. An in-memory reservation is a range of
addresses without pages behind it; for a table in a folder, a file is mapped into such a range as it grows.
"""

import contextlib
import ctypes
import mmap
import os
import pathlib
import sys
import weakref
from typing import Any

import numpy as np

from autobatch.core.formatting import DTypeLike
from autobatch.errors import UnsupportedError

try:
    import resource
except ImportError:  # Windows
    resource = None  # type: ignore[assignment]

_NORESERVE = {"linux": 0x4000, "darwin": 0x40}.get(sys.platform, 0)
_RESERVED: Any = {} if os.name == "nt" else {"flags": mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | _NORESERVE}


def memory_of_machine() -> int:
    """The machine's memory in bytes; 64 GiB if the system does not tell."""
    with contextlib.suppress(AttributeError, ValueError, OSError):
        return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    return 1 << 36


class Reserved:
    """A reservation of `rows` rows of `width` elements, zeros until written; `array` is the whole of it.

    It has fewer rows (`len(array)`) if the system does not allow so many: a limit on the address space, or a system
    that commits memory for every reservation.

    Args:
        path: a file that holds the rows; None: memory. An existing file keeps its content.

    Raises:
        MemoryError: nothing could be reserved. UnsupportedError: a file on a system without fixed mappings (Windows).

    >>> reserved = Reserved(1 << 20, 4, np.float32)
    >>> reserved.ensure(10)
    >>> reserved.array.shape, float(reserved.array[9].sum())
    ((1048576, 4), 0.0)
    """

    def __init__(self, rows: int, width: int, dtype: DTypeLike, path: pathlib.Path | None = None) -> None:
        self.dtype = np.dtype(dtype)
        self.row_bytes = width * self.dtype.itemsize
        self._mapping, rows = _range(rows, self.row_bytes)
        self._bytes = rows * self.row_bytes
        self.array = np.frombuffer(self._mapping, self.dtype, rows * width).reshape(rows, width)
        self._file: int | None = None
        self._mapped = 0
        if path is not None:
            if not hasattr(os, "pwrite"):
                raise UnsupportedError("storage= in a folder is not supported on this system; leave it out")
            self._file = os.open(path, os.O_RDWR | os.O_CREAT, 0o644)
            weakref.finalize(self, os.close, self._file)
            self._map(os.fstat(self._file).st_size)

    def ensure(self, rows: int) -> None:
        """Make the first `rows` rows usable.

        Raises:
            MemoryError: more than were reserved. OSError: the disk is full.
        """
        if rows > len(self.array):
            raise MemoryError(
                f"{rows} rows of {self.row_bytes} bytes; addresses for {len(self.array)} could be reserved: give the "
                "table a capacity, or raise the limit on the address space"
            )
        wanted = rows * self.row_bytes
        if self._file is not None and wanted > self._mapped:
            # A file grows by 4 MiB at least; a large one grows by an eighth.
            size = min(self._bytes, max(wanted, self._mapped + max(1 << 22, self._mapped // 8)))
            self._map(size)

    def _map(self, size: int) -> None:
        """Grow the file to this size, and map the new part right after the mapped one."""
        size = _whole_pages(size)
        if size <= self._mapped or self._file is None:
            return
        os.posix_fallocate(self._file, 0, size) if hasattr(os, "posix_fallocate") else os.truncate(self._file, size)
        address = self.array.ctypes.data + self._mapped
        library = ctypes.CDLL(None, use_errno=True)
        library.mmap.restype = ctypes.c_void_p
        library.mmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t, *[ctypes.c_int] * 3, ctypes.c_long]
        access, flags = mmap.PROT_READ | mmap.PROT_WRITE, mmap.MAP_SHARED | 0x10  # which the module `mmap` leaves out
        found = library.mmap(address, size - self._mapped, access, flags, self._file, self._mapped)
        if found != address:
            raise MemoryError(f"a file of {size} bytes could not be mapped: {os.strerror(ctypes.get_errno())}")
        self._mapped = size


_LEAST_ROWS = 1 << 16  # of a reservation, however little address space there is


def _range(rows: int, row_bytes: int) -> tuple[mmap.mmap, int]:
    """Reserve addresses for `rows` rows, or fewer if they are limited; returns (mapping, rows)."""
    limit = -1 if resource is None else resource.getrlimit(resource.RLIMIT_AS)[0]
    if limit >= 0:
        # A reservation takes at most 1/64 of a limited address space, to leave room for everything else.
        rows = min(rows, max(limit // 64 // row_bytes, _LEAST_ROWS))
    while True:
        size = max(_whole_pages(rows * row_bytes), mmap.PAGESIZE)
        try:
            found = mmap.mmap(-1, size, **_RESERVED)
            break
        except (OSError, ValueError, OverflowError) as error:
            if rows <= _LEAST_ROWS:
                raise MemoryError(f"no addresses for {rows} rows of {row_bytes} bytes: {error}") from error
            rows //= 2
    if hasattr(mmap, "MADV_HUGEPAGE"):
        with contextlib.suppress(OSError):  # a kernel without huge pages
            found.madvise(mmap.MADV_HUGEPAGE)
    return found, rows


def _whole_pages(size: int) -> int:
    return -(-size // mmap.PAGESIZE) * mmap.PAGESIZE
