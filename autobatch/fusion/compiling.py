"""The process that compiles kernels: reads the names of their modules, one a line, until its input ends."""

import contextlib
import os
import pathlib
import sys

from autobatch.fusion.kernels import load_compiled

__all__ = ["main"]


def main() -> None:
    """Compile what is asked for, behind everything else that runs on the machine."""
    if hasattr(os, "nice"):
        os.nice(10)
    for line in sys.stdin:
        path = pathlib.Path(line.rstrip("\n"))
        try:
            if load_compiled(path) is None:
                load_compiled(path, compile=True)
        except Exception as error:
            with contextlib.suppress(OSError):
                path.with_suffix(".failed").write_text(repr(error), encoding="utf-8")
