"""What a command is given of the user's: a function, its examples, what they share, each as MODULE:NAME."""

import argparse
import functools
import importlib
import os
import sys
from collections.abc import Callable, Sequence
from typing import Any

from autobatch.errors import ShapeError, UnsupportedError

__all__ = ["EXAMPLES", "Given", "add_arguments", "given", "named"]

EXAMPLES = """\
FUNCTION, --examples and --shared name what a module has, imported from the current folder or as installed:

  # mymodel.py
  def loss(words, label, params): ...            # of ONE example
  def examples(): return sentences, labels       # a list for each argument by position; of one argument, the list
  def shared(): return {"params": params}        # keyword arguments that all examples share

What they name is called if it is a function, and taken as it is if not."""


class Given:
    """A function, one sequence of examples for each of its positional arguments, and what the examples share."""

    def __init__(self, function: Callable[..., Any], columns: Sequence[Sequence[Any]], shared: dict[str, Any]) -> None:
        self.function = function
        self.columns = columns
        self.shared = shared

    @property
    def count(self) -> int:
        """How many examples there are."""
        return len(self.columns[0])


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """What a command on a function of the user's takes."""
    parser.add_argument("function", metavar="MODULE:FUNCTION", help="a function of one example")
    parser.add_argument("--examples", metavar="MODULE:NAME", required=True, help="a list, or one for each argument")
    parser.add_argument("--shared", metavar="MODULE:NAME", help="a dict of the keyword arguments that all share")


def given(options: argparse.Namespace) -> Given:
    """What the arguments of `add_arguments` name.

    Raises:
        ImportError, AttributeError, UnsupportedError, ShapeError: it is not there, or not what it should be.
    """
    function = named(options.function)
    if not callable(function):
        raise UnsupportedError(f"{options.function} is a {type(function).__name__}; expected a function of one example")
    found = _made(options.examples)
    columns = list(found) if isinstance(found, tuple) else [found]
    try:
        columns = [list(column) for column in columns]
    except TypeError:
        raise UnsupportedError(
            f"{options.examples} holds a {type(found).__name__}; expected a list of examples, "
            "or a tuple of one list for each argument"
        ) from None
    sizes = {len(column) for column in columns}
    if len(sizes) != 1 or sizes == {0}:
        raise ShapeError(f"{options.examples} has {sorted(sizes)} examples; expected one list, or lists of one length")
    shared = _made(options.shared) if options.shared else {}
    if not isinstance(shared, dict):
        raise UnsupportedError(f"{options.shared} is a {type(shared).__name__}; expected a dict of keyword arguments")
    return Given(function, columns, shared)


def named(name: str) -> Any:
    """What MODULE:NAME names; names may be dotted.

    Raises:
        UnsupportedError: it is not of that form. ImportError, AttributeError: it is not there.

    >>> named("math:pi") < 4
    True
    """
    module, _, path = name.partition(":")
    if not module or not path:
        raise UnsupportedError(f"{name!r}; expected MODULE:FUNCTION, such as models.tree:logits")
    sys.path.insert(0, os.getcwd())
    try:
        return functools.reduce(getattr, path.split("."), importlib.import_module(module))
    finally:
        sys.path.remove(os.getcwd())


def _made(name: str) -> Any:
    found = named(name)
    return found() if callable(found) else found
