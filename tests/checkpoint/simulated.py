"""A file system in memory that does what a disk may do: fail, write less, fill up, and lose at a power cut all that was
not flushed.

After a power cut a file has the bytes of its last flush and any of those written since; a folder has the names of its
last flush and any of the changes since. `SimulatedFiles.after_power_cut` gives such a state.
"""

import errno
import itertools
import os

import numpy as np

from autobatch.checkpoint.files import Files


class PowerCutError(BaseException):
    """The machine is off: nothing that is done from here on has an effect."""


class Inode:
    def __init__(self, data: bytes = b"") -> None:
        self.data = bytearray(data)
        self.flushed = bytes(data)
        self.writes: list[tuple[int, bytes]] = []  # since the last flush


def write_into(data: bytearray, offset: int, part: bytes) -> None:
    if len(data) < offset:
        data.extend(bytes(offset - len(data)))
    data[offset : offset + len(part)] = part


class SimulatedFiles(Files):
    """Files, of which operation number `at` meets a fault.

    Args:
        fault: "error": it does nothing and fails; "late error": it is done and fails; "short": a write takes half;
            "full": it takes half and fails, as do all writes until something is removed; "power cut".
    """

    def __init__(self, at: int = -1, fault: str = "error") -> None:
        self.at, self.fault = at, fault
        self.count = 0
        self.log: list[str] = []
        self.names_: dict[str, Inode] = {}
        self.flushed_names: dict[str, Inode] = {}
        self.changes: list[tuple[str, ...]] = []  # of names since the last flush
        self.handles: dict[int, Inode] = {}
        self.numbers = itertools.count(1000)
        self.full = self.off = False
        self.locks: set[str] = set()
        self.inodes: dict[tuple[str, str], Inode] = {}

    def _step(self, what: str, path: str = "") -> str:
        """Count an operation; the fault that it meets."""
        if self.off:
            raise PowerCutError
        self.count += 1
        self.log.append(f"{what} {os.path.basename(path)}")
        fault = self.fault if self.count - 1 == self.at else ""
        if fault == "power cut":
            self.off = True
            raise PowerCutError
        if fault == "error" or (fault == "full" and what not in ("write", "create")):
            raise OSError(errno.EIO, "simulated", path)
        return fault

    def _late(self, fault: str) -> None:
        if fault == "late error":
            raise OSError(errno.EIO, "simulated, after it was done")

    def _handle(self, inode: Inode) -> int:
        handle = next(self.numbers)
        self.handles[handle] = inode
        return handle

    def create(self, path):
        fault = self._step("create", path)
        if path in self.names_:
            raise FileExistsError(path)
        if fault == "full":
            raise OSError(errno.ENOSPC, "simulated", path)
        inode = self.names_[path] = Inode()
        self.changes.append(("link", path, self._keep(inode)))
        self._late(fault)
        return self._handle(inode)

    def _keep(self, inode: Inode) -> str:
        self.inodes["inode", str(id(inode))] = inode
        return str(id(inode))

    def write(self, handle, data, offset):
        fault = self._step("write")
        data = bytes(data)
        if fault == "full" or self.full:
            self.full = True
            part = data[: len(data) // 2]
            write_into(self.handles[handle].data, offset, part)
            self.handles[handle].writes.append((offset, part))
            raise OSError(errno.ENOSPC, "simulated")
        if fault == "short" and len(data) > 1:
            data = data[: len(data) // 2]
        write_into(self.handles[handle].data, offset, data)
        self.handles[handle].writes.append((offset, data))
        self._late(fault)
        return len(data)

    def begin_flush(self, handle, offset, length):
        self._step("begin flush")

    def flush(self, handle):
        fault = self._step("flush")
        inode = self.handles[handle]
        inode.flushed, inode.writes = bytes(inode.data), []
        self._late(fault)

    def close(self, handle):
        self._late(self._step("close"))
        del self.handles[handle]

    def rename(self, old, new):
        fault = self._step("rename", new)
        self.names_[new] = self.names_.pop(old)
        self.changes.append(("rename", old, new))
        self._late(fault)

    def flush_folder(self, folder):
        fault = self._step("flush folder")
        self.flushed_names, self.changes = dict(self.names_), []
        self._late(fault)

    def unlink(self, path):
        fault = self._step("unlink", path)
        if path not in self.names_:
            raise FileNotFoundError(path)
        del self.names_[path]
        self.full = False
        self.changes.append(("unlink", path))
        self._late(fault)

    def make_folder(self, folder):
        self._late(self._step("make folder"))

    def names(self, folder):
        self._step("names")
        return sorted(os.path.basename(path) for path in self.names_ if os.path.dirname(path) == folder)

    def open(self, path):
        self._step("open", path)
        if path not in self.names_:
            raise FileNotFoundError(path)
        return self._handle(self.names_[path])

    def size(self, handle):
        self._step("size")
        return len(self.handles[handle].data)

    def read_into(self, handle, out, offset):
        fault = self._step("read")
        part = self.handles[handle].data[offset : offset + len(out)]
        if fault == "short":
            part = part[: max(1, len(part) // 2)]
        out[: len(part)] = part
        return len(part)

    def map(self, handle):
        return np.frombuffer(bytearray(self.handles[handle].data), np.uint8)

    def lock(self, path):
        self._step("lock", path)
        if path in self.locks:
            raise BlockingIOError(path)
        self.locks.add(path)
        return SimulatedLock(self, path)

    def after_power_cut(self, which: str, rng: np.random.Generator) -> "SimulatedFiles":
        """The disk of the next start: of what was not flushed "nothing", "all" or "some"."""

        def happened() -> bool:
            return which == "all" or (which == "some" and rng.random() < 0.5)

        out = SimulatedFiles()
        names = dict(self.flushed_names)
        for kind, path, *other in self.changes:
            if not happened():
                continue
            if kind == "link":
                names[path] = self.inodes["inode", other[0]]
            elif kind == "unlink":
                names.pop(path, None)
            elif path in names:
                names[other[0]] = names.pop(path)
        for path, inode in names.items():
            data = bytearray(inode.flushed)
            for offset, part in inode.writes:
                if happened():
                    write_into(data, offset, part if which == "all" else part[: rng.integers(0, len(part) + 1)])
            out.names_[path] = Inode(bytes(data))
        out.flushed_names = dict(out.names_)
        return out

    def copy(self) -> "SimulatedFiles":
        """The same files for another process, which has no faults."""
        out = SimulatedFiles()
        out.names_ = {path: Inode(bytes(inode.data)) for path, inode in self.names_.items()}
        out.flushed_names = dict(out.names_)
        return out


class SimulatedLock:
    def __init__(self, files: SimulatedFiles, path: str) -> None:
        self.files, self.path, self.held = files, path, True

    def release(self) -> None:
        self.held = False
        self.files.locks.discard(self.path)
