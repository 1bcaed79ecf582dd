"""`Files`: every file operation of saving and restoring, in one class, so that tests can make each one fail.

The order of operations that survives a crash is in `commit` of `manifests.py` (`manifests.Folder.commit`). A handle is
the result of `create` or `open`. Nothing here retries or repairs: errors go to the caller, who knows what they mean.

And the doors by which the JSON of files comes in: whatever is wrong with what a file says is found by what makes a
value of it, in `making`, which turns exceptions into CheckpointError.
"""

import contextlib
import json
import mmap
import os
import weakref
from collections.abc import Iterator
from typing import Any

import numpy as np

from autobatch.errors import CheckpointError, UnsupportedError

try:
    import fcntl
except ImportError:  # no POSIX
    fcntl = None  # type: ignore[assignment]


def flush(path: str) -> None:
    """Return when a closed file, or a folder's list of names, is on the disk."""
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


class Files:
    """The operating system's files. A class with the same methods may stand in for it."""

    def create(self, path: str) -> Any:
        """Create a file and open it for writing.

        Raises:
            FileExistsError: the path exists; an existing file is never overwritten.
        """
        return os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | getattr(os, "O_CLOEXEC", 0), 0o666)

    def write(self, handle: Any, data: Any, offset: int) -> int:
        """Write bytes at an offset; returns how many were written, which may be fewer."""
        return os.pwrite(handle, data, offset)

    def begin_flush(self, handle: Any, offset: int, length: int) -> None:
        """Advise the system to start writing these bytes to the disk, where it takes such advice; no guarantee."""
        if hasattr(os, "posix_fadvise"):
            with contextlib.suppress(OSError):
                os.posix_fadvise(handle, offset, length, os.POSIX_FADV_DONTNEED)

    def flush(self, handle: Any) -> None:
        """Return when the file's bytes are on the disk."""
        os.fsync(handle)

    def close(self, handle: Any) -> None:
        """Close a handle."""
        os.close(handle)

    def rename(self, old: str, new: str) -> None:
        """Rename a file atomically; an existing file `new` is replaced."""
        os.replace(old, new)

    def flush_folder(self, folder: str) -> None:
        """Return when the folder's list of names is on the disk."""
        flush(folder)

    def unlink(self, path: str) -> None:
        """Remove a file."""
        os.unlink(path)

    def make_folder(self, folder: str) -> None:
        """Create a folder and its parents where they do not exist."""
        os.makedirs(folder, exist_ok=True)

    def names(self, folder: str) -> list[str]:
        """The names in a folder, sorted; empty if there is no such folder."""
        try:
            return sorted(os.listdir(folder))
        except FileNotFoundError:
            return []

    def open(self, path: str) -> Any:
        """Open a file for reading."""
        return os.open(path, os.O_RDONLY | getattr(os, "O_CLOEXEC", 0))

    def size(self, handle: Any) -> int:
        """The length of a file in bytes."""
        return os.fstat(handle).st_size

    def read_into(self, handle: Any, out: Any, offset: int) -> int:
        """Fill `out` with the bytes at an offset; returns how many were read, which may be fewer, 0 at the end."""
        return os.preadv(handle, [out], offset)

    def map(self, handle: Any) -> np.ndarray:
        """(bytes,) uint8: the file, memory-mapped and copy-on-write: writes stay in this process."""
        return np.frombuffer(mmap.mmap(handle, 0, access=mmap.ACCESS_COPY), np.uint8)

    def lock(self, path: str) -> "Lock":
        """Take the lock on a file; the system releases it when the process ends, however it ends.

        Raises:
            BlockingIOError: the lock is held, perhaps by another object of this process.
        """
        return Lock(path)


class Lock:
    """An operating-system lock (`flock`) on a file that is never removed; a forked child does not inherit the lock."""

    def __init__(self, path: str) -> None:
        if fcntl is None:
            raise UnsupportedError("checkpoints need the file locks of POSIX; ab.save and ab.load do not need them")
        self._handle: int | None = None
        handle = os.open(path, os.O_RDWR | os.O_CREAT | getattr(os, "O_CLOEXEC", 0), 0o666)
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
            os.ftruncate(handle, 0)
            os.pwrite(handle, f"{os.getpid()}\n".encode(), 0)  # the owner, for people to read
        except BaseException:
            os.close(handle)
            raise
        self._handle = handle
        _held.add(self)

    def release(self) -> None:
        """Release the lock."""
        if self._handle is not None:
            handle, self._handle = self._handle, None
            os.close(handle)

    @property
    def held(self) -> bool:
        """True while this object holds the lock."""
        return self._handle is not None

    __del__ = release


_held: weakref.WeakSet[Lock] = weakref.WeakSet()


def _forget() -> None:
    """Run in a forked child: close its copies of the handles, which would keep the locks after the parent is gone."""
    for lock in list(_held):
        with contextlib.suppress(OSError):
            lock.release()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_forget)


def write_all(files: Files, handle: object, data: memoryview, offset: int) -> None:
    """Write all bytes, in as many calls as the system needs."""
    while len(data):
        count = files.write(handle, data, offset)
        if count <= 0:
            raise OSError(f"a write of {len(data)} bytes wrote {count}")
        data, offset = data[count:], offset + count


def open_file(files: Files, path: str) -> Any:
    """Open a file for reading; raises CheckpointError if the system cannot."""
    try:
        return files.open(path)
    except FileNotFoundError:
        raise CheckpointError(f"{path} does not exist") from None
    except OSError as error:
        raise CheckpointError(f"{path} cannot be opened: {error}") from error


def read_all(files: Files, handle: object, out: memoryview, offset: int, path: str) -> None:
    """Fill `out` from an offset; raises CheckpointError if the file ends before `out` is full, or cannot be read."""
    while len(out):
        try:
            count = files.read_into(handle, out, offset)
        except OSError as error:
            raise CheckpointError(f"{path} cannot be read: {error}") from error
        if count <= 0:
            raise CheckpointError(f"{path} ends at byte {offset}, {len(out)} bytes before it should")
        out, offset = out[count:], offset + count


OF_VALUES = (  # exceptions that wrong values cause in whatever is given them
    ValueError, TypeError, LookupError, AttributeError, ArithmeticError, AssertionError, MemoryError, RecursionError,
)  # fmt: skip


def parse(text: str | bytes, path: str) -> dict[str, Any]:
    """The object that a JSON text says.

    Raises:
        CheckpointError: it says none; names the file `path`.

    >>> parse("[]", "model.safetensors")
    Traceback (most recent call last):
      ...
    autobatch.errors.CheckpointError: model.safetensors is damaged: its description is not a JSON object
    """
    with contextlib.suppress(ValueError, TypeError, RecursionError, MemoryError):
        value = json.loads(text)
        if type(value) is dict:
            return value
    raise CheckpointError(f"{path} is damaged: its description is not a JSON object")


@contextlib.contextmanager
def making(what: str, passing: tuple[type[Exception], ...] = ()) -> Iterator[None]:
    """Exceptions of the code that makes `what` of a file's values are CheckpointErrors, but for those `passing`."""
    try:
        yield
    except passing:
        raise
    except (*OF_VALUES, ImportError, SyntaxError, Warning) as error:
        raise CheckpointError(f"{what} cannot be made from the file: {error!s:.300}") from error


def count(value: object) -> int:
    """A whole number of at least 0, of those that sizes are; ValueError for anything else."""
    if type(value) is not int or not 0 <= value < 1 << 63:
        raise ValueError(f"expected a whole number, got {value!r:.100}")
    return value
