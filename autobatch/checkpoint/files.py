"""`Files`: every operation on files that saving and restoring make, in one place, so that tests can make each one fail.

A handle is what `create` or `open` gives. Nothing here retries or repairs: an error goes up to who knows what it means.
"""

import contextlib
import mmap
import os
import weakref
from typing import Any

import numpy as np

from autobatch.errors import CheckpointError, UnsupportedError

try:
    import fcntl
except ImportError:  # no POSIX
    fcntl = None  # type: ignore[assignment]


class Files:
    """The operating system's files. A class with the same methods may stand in for it."""

    def create(self, path: str) -> Any:
        """A new file, open for writing.

        Raises:
            FileExistsError: nothing that is there is ever written over.
        """
        return os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | getattr(os, "O_CLOEXEC", 0), 0o666)

    def write(self, handle: Any, data: Any, offset: int) -> int:
        """Write bytes at an offset; returns how many were written, which may be fewer."""
        return os.pwrite(handle, data, offset)

    def begin_flush(self, handle: Any, offset: int, length: int) -> None:
        """Have the disk begin with bytes that were written, where the system takes such advice; promises nothing."""
        if hasattr(os, "posix_fadvise"):
            with contextlib.suppress(OSError):
                os.posix_fadvise(handle, offset, length, os.POSIX_FADV_DONTNEED)

    def flush(self, handle: Any) -> None:
        """Return when the file's bytes are on the disk."""
        os.fsync(handle)

    def close(self, handle: Any) -> None:
        """Let go of a handle."""
        os.close(handle)

    def rename(self, old: str, new: str) -> None:
        """Give a file another name, in one step; a file of that name is replaced."""
        os.replace(old, new)

    def flush_folder(self, folder: str) -> None:
        """Return when the names in a folder are on the disk."""
        handle = os.open(folder, os.O_RDONLY)
        try:
            os.fsync(handle)
        finally:
            os.close(handle)

    def unlink(self, path: str) -> None:
        """Remove a file."""
        os.unlink(path)

    def make_folder(self, folder: str) -> None:
        """Make a folder and those above it, where they are not there."""
        os.makedirs(folder, exist_ok=True)

    def names(self, folder: str) -> list[str]:
        """The names in a folder; none where there is no such folder."""
        try:
            return sorted(os.listdir(folder))
        except FileNotFoundError:
            return []

    def open(self, path: str) -> Any:
        """A file, open for reading."""
        return os.open(path, os.O_RDONLY | getattr(os, "O_CLOEXEC", 0))

    def size(self, handle: Any) -> int:
        """The length of a file in bytes."""
        return os.fstat(handle).st_size

    def read_into(self, handle: Any, out: Any, offset: int) -> int:
        """Fill `out` with the bytes at an offset; returns how many were read, fewer at the file's end."""
        return os.preadv(handle, [out], offset)

    def map(self, handle: Any) -> np.ndarray:
        """(bytes,) uint8: the file in memory, read where it is looked at; what is written stays in this process."""
        return np.frombuffer(mmap.mmap(handle, 0, access=mmap.ACCESS_COPY), np.uint8)

    def lock(self, path: str) -> "Lock":
        """Take the lock that a file stands for, or raise `BlockingIOError`; it ends with the process, however it ends.

        Raises:
            BlockingIOError: someone holds it, perhaps another object of this process.
        """
        return Lock(path)


class Lock:
    """A lock of the operating system (`flock`) on a file that is never removed; a child process does not have it."""

    def __init__(self, path: str) -> None:
        if fcntl is None:
            raise UnsupportedError("checkpoints need the file locks of POSIX; ab.save and ab.load do without")
        self._handle: int | None = None
        handle = os.open(path, os.O_RDWR | os.O_CREAT | getattr(os, "O_CLOEXEC", 0), 0o666)
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
            os.ftruncate(handle, 0)
            os.pwrite(handle, f"{os.getpid()}\n".encode(), 0)  # for people
        except BaseException:
            os.close(handle)
            raise
        self._handle = handle
        _held.add(self)

    def release(self) -> None:
        """Let the next one have it."""
        if self._handle is not None:
            handle, self._handle = self._handle, None
            os.close(handle)

    @property
    def held(self) -> bool:
        """Whether this process has it."""
        return self._handle is not None

    __del__ = release


_held: weakref.WeakSet[Lock] = weakref.WeakSet()


def _forget() -> None:
    """In a forked child, whose copies of the handles would keep the locks when the parent is gone."""
    for lock in list(_held):
        with contextlib.suppress(OSError):
            lock.release()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_forget)


def write_all(files: Files, handle: Any, data: memoryview, offset: int) -> None:
    """Write all bytes, however few the system takes at a time."""
    while len(data):
        count = files.write(handle, data, offset)
        if count <= 0:
            raise OSError(f"a write of {len(data)} bytes wrote {count}")
        data, offset = data[count:], offset + count


def read_all(files: Files, handle: Any, out: memoryview, offset: int, path: str) -> None:
    """Fill `out`.

    Raises:
        CheckpointError: the file ends before.
    """
    while len(out):
        count = files.read_into(handle, out, offset)
        if count <= 0:
            raise CheckpointError(f"{path} ends at byte {offset}, {len(out)} bytes before it should")
        out, offset = out[count:], offset + count
