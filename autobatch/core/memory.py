"""Buffers of a batch come and go by the thousand; asking the system for them anew each time is slow."""

import ctypes
import functools
import os
import sys

import numpy as np

__all__ = ["keep_freed_memory"]

_KEPT = 1 << 30  # bytes: a training step of middle size frees hundreds of MiB at its end
_TRIM_THRESHOLD = -1  # its number in glibc's malloc.h


@functools.cache
def keep_freed_memory() -> None:
    """Have the C library keep freed memory for the next call instead of giving it back page by page; once.

    A call holds its values and then frees them all. glibc maps every array above 128 KiB from the system and
    unmaps it when it is freed, so each call would fault all its pages in again (which can cost more than the
    arithmetic). It raises that threshold to the size of the largest block that was ever freed, up to 32 MiB, so one
    block of that size, never touched, is allocated and freed here. And it gives back what is free at the end of its
    heap once that is twice as much; 1 GiB is kept, unless the environment has glibc's own settings. Other allocators
    are not affected.
    """
    np.empty((1 << 25) - (1 << 13), np.uint8)
    if sys.platform == "linux" and not {"MALLOC_TRIM_THRESHOLD_", "GLIBC_TUNABLES"} & os.environ.keys():
        library = ctypes.CDLL(None)
        if hasattr(library, "gnu_get_libc_version"):
            library.mallopt(_TRIM_THRESHOLD, _KEPT)
