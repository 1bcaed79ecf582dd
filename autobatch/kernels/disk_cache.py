"""The on-disk cache of machine code: which files may be read, how they are validated, and how Numba finds them.

The content is executed. So a file is read only if nobody but this user can have written it, and never through a link.
It is loaded only if the checksum at its start matches its name, its content, and everything that it was compiled from
and with. A file that is wrong or unreadable counts as missing.
"""

import contextlib
import functools
import hashlib
import importlib.util
import os
import pathlib
import pickle
import pkgutil
import stat
import sys
import tempfile
import warnings
from typing import Any

import llvmlite
import numba
import numpy as np
from numba.core import registry, serialize
from numba.core.caching import FunctionCache
from numba.core.runtime import rtsys

import autobatch.kernels

SUFFIX = ".kernel"
_DIGEST = hashlib.sha256().digest_size
_said: set[str] = set()


def say_once(message: str) -> None:
    """Give a warning, once in a process for each message."""
    if message not in _said:
        _said.add(message)
        warnings.warn(message, RuntimeWarning, stacklevel=2)


def is_own(status: os.stat_result) -> bool:
    """True if only this user (or root) could have written the file."""
    return not hasattr(os, "getuid") or (status.st_uid == os.getuid() and not status.st_mode & 0o022)


def read_own(path: pathlib.Path) -> bytes | None:
    """The content of a file; None if it cannot be read or others could have written it."""
    flags = os.O_RDONLY | getattr(os, "O_BINARY", 0) | getattr(os, "O_NOFOLLOW", 0) | getattr(os, "O_NONBLOCK", 0)
    try:
        descriptor = os.open(path, flags)
    except OSError:
        return None
    try:
        status = os.fstat(descriptor)
        if not (stat.S_ISREG(status.st_mode) and is_own(status)):
            say_once(f"{path} is not read: it is no file that only you can write to. Delete it")
            return None
        with open(descriptor, "rb", closefd=False) as file:
            return file.read()
    except OSError:
        return None
    finally:
        os.close(descriptor)


def keep(path: pathlib.Path, made: bytes) -> None:
    """Keep it for other processes: whole, or not at all."""
    with contextlib.suppress(OSError):
        descriptor, temporary = tempfile.mkstemp(dir=path.parent)  # a random name, for this user only
        try:
            with open(descriptor, "wb") as file:
                file.write(made)
            os.replace(temporary, path)
        except BaseException:
            os.unlink(temporary)
            raise


@functools.cache
def _sources() -> bytes:
    """The source of all kernels, which call each other."""
    found = []
    for each in pkgutil.iter_modules(autobatch.kernels.__path__):
        spec: Any = importlib.util.find_spec(f"autobatch.kernels.{each.name}")
        found.append(spec.loader.get_data(spec.origin))
    return b"".join(found)


@functools.cache
def stamp() -> str:
    """What, beside its own text, decides what a kernel is compiled to: versions, the CPU, the kernels that it calls."""
    cpu = registry.cpu_target.target_context.codegen().magic_tuple()
    digest = hashlib.sha256(repr((sys.version, np.__version__, numba.__version__, llvmlite.__version__, cpu)).encode())
    digest.update(_sources())
    return digest.hexdigest()


def _digest(name: str, content: bytes) -> bytes:
    return hashlib.sha256(f"{stamp()} {name}\n".encode() + content).digest()


def sealed(name: str, content: bytes) -> bytes:
    """A content with its checksum before it."""
    return _digest(name, content) + content


def unsealed(name: str, kept: bytes) -> bytes:
    """The content again.

    Raises:
        ValueError: it is not what was kept under this name.
    """
    content = kept[_DIGEST:]
    if kept[:_DIGEST] != _digest(name, content):
        raise ValueError(f"{name} is damaged: its checksum is another")
    return content


def ready_to_load(context: Any) -> None:
    """Name to LLVM what code that is compiled may call: Numba's memory, and the secrets of its hashes.

    Numba itself calls `context.refresh()`, which reads in all that could be compiled, SciPy and extensions of other
    libraries among it: half a second of a process that only loads what is there. Compiling calls it still.
    """
    rtsys.initialize(context)
    importlib.import_module("numba.cpython.hashing")


class NumbaFiles(FunctionCache):
    """Where a function that Numba compiles keeps its machine code: a file for each types of arguments.

    The folder is the one that Numba's own cache would take. That has one index for all types, which two processes may
    write at once, loads what it finds there unchecked, and raises where the disk is full.
    """

    def __init__(self, function: Any, options: str) -> None:
        super().__init__(function)
        self._options = options

    def _file_name(self, sig: Any) -> str | None:
        shown = repr(sig)
        if " at 0x" in shown:  # of an object of this process
            return None
        code, cells = self._py_func.__code__, self._py_func.__closure__ or ()
        # as Numba does, closures of one text are told apart by what they hold
        held = serialize.dumps(tuple([cell.cell_contents for cell in cells]))
        made_of = (
            shown,
            self._options,
            self._impl.locator.get_source_stamp(),
            code.co_code.hex(),
            repr(code.co_names),
            held,
        )
        return f"{self._impl.filename_base}-{hashlib.sha256(repr(made_of).encode()).hexdigest()[:16]}{SUFFIX}"

    def load_overload(self, sig: Any, target_context: Any) -> Any:
        """What is kept for these types; None where there is nothing, or nothing that is right."""
        ready_to_load(target_context)
        name = self._file_name(sig)
        kept = None if name is None else read_own(pathlib.Path(self.cache_path, name))
        if name is None or kept is None:
            return None
        try:
            return self._impl.rebuild(target_context, pickle.loads(unsealed(name, kept)))
        except Exception:
            return None

    def save_overload(self, sig: Any, data: Any) -> None:
        """Keep what these types were compiled to, where that can be."""
        name = self._file_name(sig)
        if name is not None and self._impl.check_cachable(data):
            with contextlib.suppress(OSError):
                self._impl.locator.ensure_cache_path()
                keep(pathlib.Path(self.cache_path, name), sealed(name, serialize.dumps(self._impl.reduce(data))))
