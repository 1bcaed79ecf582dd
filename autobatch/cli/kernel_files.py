"""`autobatch cache`: the compiled kernels on disk, listed, measured, removed."""

import dataclasses
import pathlib
import re
import time

from autobatch.blocks.kernel_cache import SUFFIX, cache_folder

_NAME = re.compile(r"kernel_[0-9a-f]{32}")


@dataclasses.dataclass(frozen=True)
class KernelFile:
    """One kernel: its file, how many bytes that has, and when it was made, in seconds since 1970."""

    path: pathlib.Path
    size: int
    made: float

    @property
    def days(self) -> float:
        """Its age in days."""
        return (time.time() - self.made) / 86400


def kernel_files() -> list[KernelFile]:
    """The kernels in the cache folder, the newest first; none where there is no folder."""
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
    """Remove those that are older than so many days; what is not a kernel's file stays.

    Processes that use one have it in memory already, and compile again what they miss.
    """
    removed = []
    for each in kernel_files():
        if each.days >= older_than:
            each.path.unlink(missing_ok=True)
            removed.append(each)
    return removed


def size_in_words(count: float) -> str:
    """
    >>> size_in_words(10), size_in_words(12_345), size_in_words(3e9)
    ('10 B', '12 kB', '3000 MB')
    """
    return f"{count:.0f} B" if count < 1e3 else f"{count / 1e3:.0f} kB" if count < 1e6 else f"{count / 1e6:.0f} MB"
