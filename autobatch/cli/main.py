"""`main`: prints the versions in use, the options and their values, and how a function is run and explained."""

import argparse
import dataclasses
import inspect
import platform
import re
from collections.abc import Sequence
from importlib import metadata

from autobatch.core.config import Config

__all__ = ["main"]

_REQUIRED = ("numpy", "numba", "networkx", "greenlet")

_WAYS = """\
f(x)                                       one example: plain NumPy
f(ab.MaskedBatch.from_examples(xs))        lock-step: f decorated with @ab.batch, one pass for the whole batch
ab.map(f, xs, params=params)               on the fly: any Python, equal operations grouped as it goes
ab.value_and_grad(loss)(params)            gradients, through either
ab.explain(f, xs, params=params)           what was launched, how large its groups were, what fell back and why
ab.testing.assert_equivalent(f, xs, ...)   the proof that all ways agree, gradients included"""


def main(arguments: Sequence[str]) -> int:
    """Print what `python -m autobatch` prints; returns the exit status.

    >>> main([])  # doctest: +ELLIPSIS
    autobatch ...
    0

    """
    parser = argparse.ArgumentParser(prog="python -m autobatch", description=__doc__)
    parser.add_argument("--version", action="version", version=_version("autobatch"))
    parser.parse_args(arguments)
    print(f"autobatch {_version('autobatch')} on Python {platform.python_version()}")
    print(", ".join(f"{name} {_version(name)}" for name in _REQUIRED))
    print("\nOptions, set for a block by `with ab.options(name=value):`")
    meanings = _meanings()
    for field in dataclasses.fields(Config):
        print(f"  {field.name} = {field.default!r}\n      {meanings[field.name]}")
    print("\nWays to run a function f of one example\n" + "\n".join(f"  {line}" for line in _WAYS.splitlines()))
    return 0


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
