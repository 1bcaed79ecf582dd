"""`autobatch cache`: lists, measures and removes the compiled kernels on disk."""

import dataclasses
import pathlib
import re
import time

from autobatch.blocks.kernel_cache import SUFFIX, cache_folder

_NAME = re.compile(r"kernel_[0-9a-f]{32}")


@dataclasses.dataclass(frozen=True)
class KernelFile:
    """One kernel: its file, the file's size in bytes, and when it was made, in seconds since 1970."""

    path: pathlib.Path
    size: int
    made: float

    @property
    def days(self) -> float:
        """Its age in days."""
        return (time.time() - self.made) / 86400


def kernel_files() -> list[KernelFile]:
    """The kernels in the cache folder, the newest first; empty if there is no folder."""
    found = []
    for path in cache_folder().glob(f"*{SUFFIX}"):
        try:
            status = path.stat()
        except OSError:  # another process has removed it
            continue
        if _NAME.fullmatch(path.stem):
            found.append(KernelFile(path, status.st_size, status.st_mtime))
    return sorted(found, key=lambda each: -each.made)


def clear(older_than: float = 0.0) -> list[KernelFile]:
    """Remove and return the kernels older than so many days; other files stay.

    Processes that use a removed kernel have it in memory already; others compile it again.
    """
    removed = []
    for each in kernel_files():
        if each.days >= older_than:
            each.path.unlink(missing_ok=True)
            removed.append(each)
    return removed
