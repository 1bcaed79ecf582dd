"""`main`: prints the versions in use, the options and how a function is run; or what becomes of a function."""

import argparse
import dataclasses
import functools
import importlib
import inspect
import os
import platform
import re
import sys
from collections.abc import Sequence
from importlib import metadata
from typing import Any

from autobatch.api.batch import source
from autobatch.blocks.kernel_cache import SUFFIX, cache_folder
from autobatch.core.config import Config
from autobatch.errors import UnsupportedError
from autobatch.testing.command import add_check, run_check

__all__ = ["main"]

_SOURCE = "Print the code that runs instead of a function's own: in lock-step, or with --blocks under ab.map."
_REQUIRED = ("numpy", "numba", "networkx", "greenlet")

_WAYS = """\
f(x)                                       one example: plain NumPy
f(ab.MaskedBatch.from_examples(xs))        lock-step: f decorated with @ab.batch, one pass for the whole batch
ab.map(f, xs, params=params)               on the fly: any Python, equal operations grouped as it goes
ab.value_and_grad(loss)(params)            gradients, through either
ab.explain(f, xs, params=params)           what was launched, how large its groups were, what fell back and why
ab.testing.assert_equivalent(f, xs, ...)   the proof that all ways agree, gradients included
ab.source(f), ab.source(f, blocks=True)    the code that lock-step, or ab.map, runs instead of f's"""


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
    commands = parser.add_subparsers(dest="command", metavar="source | check")
    show = commands.add_parser("source", help="print what becomes of a function", description=_SOURCE)
    show.add_argument("function", metavar="MODULE:FUNCTION", help="imported from the current folder, or as installed")
    show.add_argument("--blocks", action="store_true", help="the form that ab.map runs, not the lock-step form")
    add_check(commands)
    options = parser.parse_args(arguments)
    if options.command == "check":
        return run_check(options)
    if options.command == "source":
        return _print_source(options.function, options.blocks)
    _print_overview()
    return 0


def _print_source(name: str, blocks: bool) -> int:
    module, _, path = name.partition(":")
    sys.path.insert(0, os.getcwd())
    try:
        if not module or not path:
            raise ValueError(f"{name!r}; expected MODULE:FUNCTION, such as models.tree:logits")
        function: Any = functools.reduce(getattr, path.split("."), importlib.import_module(module))
        print(source(function, blocks=blocks))
    except (ImportError, AttributeError, UnsupportedError, ValueError) as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    finally:
        sys.path.remove(os.getcwd())
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
