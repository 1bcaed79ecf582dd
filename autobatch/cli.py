"""`main`: prints the versions in use, the options and how a function is run; or what becomes of a function."""

import argparse
import dataclasses
import inspect
import platform
import re
from collections.abc import Sequence
from importlib import metadata

from autobatch.blocks.kernel_cache import SUFFIX, cache_folder
from autobatch.core.config import Config
from autobatch.report.command_line import add_commands
from autobatch.testing.command import add_check, run_check

__all__ = ["main"]

_REQUIRED = ("numpy", "numba", "networkx", "greenlet")

_WAYS = """\
f(x)                                       one example: plain NumPy
f(ab.MaskedBatch.from_examples(xs))        lock-step: f decorated with @ab.batch, one pass for the whole batch
ab.map(f, xs, params=params)               on the fly: any Python, equal operations grouped as it goes
ab.value_and_grad(loss)(params)            gradients, through either
ab.explain(f, xs, params=params)           what became of each line, what it took, and what to write instead
ab.testing.assert_equivalent(f, xs, ...)   the proof that all ways agree, gradients included
ab.source(f), ab.source(f, rewritten=True) f's lines with marks, or the code that lock-step runs instead"""


def main(arguments: Sequence[str]) -> int:
    """Run `python -m autobatch` with these arguments; returns the exit status.

    >>> main([])  # doctest: +ELLIPSIS
    autobatch ...
    0
    >>> main(["source", "autobatch.ops.nn:relu"])  # a library's, so not rewritten
    1
    """
    parser = argparse.ArgumentParser(prog="python -m autobatch", description="What is installed and what can be set.")
    parser.add_argument("--version", action="version", version=_version("autobatch"))
    commands = parser.add_subparsers(dest="command", metavar="explain | source | check")
    add_commands(commands)
    add_check(commands)
    options = parser.parse_args(arguments)
    if options.command == "check":
        return run_check(options)
    if options.command is not None:
        status: int = options.run(options)
        return status
    _print_overview()
    return 0


def _print_overview() -> None:
    print(f"autobatch {_version('autobatch')} on Python {platform.python_version()}")
    print(", ".join(f"{name} {_version(name)}" for name in _REQUIRED))
    kernels = len(list(cache_folder().glob(f"*{SUFFIX}")))
    print(f"{kernels} kernels in {cache_folder()} (AUTOBATCH_CACHE_DIR names another folder)")
    print("\nOptions, set for a block by `with ab.options(name=value):`")
    meanings = _meanings()
    for field in dataclasses.fields(Config):
        print(f"  {field.name} = {field.default!r}\n      {meanings[field.name]}")
    print("\nWays to run a function f of one example\n" + "\n".join(f"  {line}" for line in _WAYS.splitlines()))


def _version(package: str) -> str:
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return "(not installed)"


def _meanings() -> dict[str, str]:
    """What the docstring of `Config` says about each option."""
    text = (inspect.getdoc(Config) or "").partition("Attributes:\n")[2]
    return {
        name: " ".join(meaning.split()) for name, meaning in re.findall(r"^ {4}(\w+): ((?:.|\n {5,})+)", text, re.M)
    }
