"""What a command is given of the user's: a function, its examples, what they share, by name or from files."""

import argparse
import functools
import importlib
import json
import os
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import numpy as np

from autobatch.checkpoint.single_file import load
from autobatch.errors import ShapeError, UnsupportedError

__all__ = ["EXAMPLES", "Given", "add_arguments", "from_here", "given", "named"]

EXAMPLES = """\
A VALUE is MODULE:NAME, imported from the current folder or as installed (a function without arguments is called), or a
file: .npy, .npz, .json, .jsonl (one a line), .safetensors. So with

  # mymodel.py
  def loss(words, label, params): ...            # of ONE example
  def examples(): return sentences, labels       # a list for each argument by position; of one argument, the list
  def shared(): return {"params": params}        # keyword arguments that all examples share

the function is mymodel:loss, or mymodel.py:loss."""
_FILES = (".npy", ".npz", ".json", ".jsonl", ".safetensors")


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
    parser.add_argument(
        "--examples",
        metavar="VALUE",
        nargs="+",
        action="extend",
        required=True,
        help="a list, or one for each argument by position",
    )
    parser.add_argument(
        "--shared",
        metavar="NAME=VALUE",
        nargs="+",
        action="extend",
        default=[],
        help="keyword arguments that all examples share; or the VALUE of a dict of them",
    )


def given(options: argparse.Namespace) -> Given:
    """What the arguments of `add_arguments` name.

    Raises:
        ImportError, AttributeError, OSError, UnsupportedError, ShapeError: it is not there, or not what it should be.
    """
    function = named(options.function)
    if not callable(function):
        raise UnsupportedError(f"{options.function} is a {type(function).__name__}; expected a function of one example")
    found = [_value(each) for each in options.examples]
    said = " ".join(options.examples)
    if len(found) == 1 and isinstance(found[0], tuple):
        found = list(found[0])
    for column in found:
        if not isinstance(column, Sequence | np.ndarray) or isinstance(column, str | bytes):
            raise UnsupportedError(
                f"{said} holds a {type(column).__name__}; expected a list of examples, or one for each argument"
            )
    columns = [list(column) for column in found]
    sizes = {len(column) for column in columns}
    if len(sizes) != 1 or sizes == {0}:
        raise ShapeError(f"{said} has {sorted(sizes)} examples; expected one list, or lists of one length")
    shared: dict[str, Any] = {}
    for each in options.shared:
        shared |= _keywords(each)
    return Given(function, columns, shared)


def named(name: str) -> Any:
    """What MODULE:NAME names; names may be dotted, and the module a file of the current folder, model.py.

    Raises:
        UnsupportedError: it is not of that form. ImportError, AttributeError: it is not there.

    >>> named("math:pi") < 4
    True
    """
    module, _, path = name.partition(":")
    if not module or not path:
        raise UnsupportedError(f"{name!r}; expected MODULE:FUNCTION, such as models.tree:logits")
    if module.endswith(".py"):
        module = module.removesuffix(".py").replace("/", ".").replace(os.sep, ".")
    with from_here():
        return functools.reduce(getattr, path.split("."), importlib.import_module(module))


@contextmanager
def from_here() -> Iterator[None]:
    """Import from the current folder first; what runs of the user's may import on its own."""
    before = list(sys.path)
    sys.path.insert(0, os.getcwd())
    try:
        yield
    finally:
        sys.path[:] = before


def _value(name: str) -> Any:
    """A value by its name, called if it is a function, or from a file."""
    suffix = os.path.splitext(name)[1]
    if suffix in _FILES and ":" not in name:
        if not os.path.exists(name):
            raise FileNotFoundError(f"{name} does not exist; expected MODULE:NAME or a file: {', '.join(_FILES)}")
        return _read(name, suffix)
    found = named(name)
    return found() if callable(found) and not hasattr(found, "__array__") else found


def _read(name: str, suffix: str) -> Any:
    if suffix == ".npy":
        return np.load(name)
    if suffix == ".npz":  # examples of their own shapes, or parameters by name
        with np.load(name) as arrays:
            if all(each.startswith("arr_") for each in arrays):
                return [arrays[each] for each in arrays]
            return dict(arrays)
    if suffix == ".safetensors":
        return load(name)
    with open(name, encoding="utf-8") as file:
        found = json.load(file) if suffix == ".json" else [json.loads(line) for line in file if line.strip()]
    return [np.array(x) if isinstance(x, list) else x for x in found] if isinstance(found, list) else found


def _keywords(text: str) -> dict[str, Any]:
    name, equals, value = text.partition("=")
    if equals and name.isidentifier():
        return {name: _value(value)}
    if equals or (":" not in text and os.path.splitext(text)[1] not in _FILES):
        raise UnsupportedError(f"--shared {text!r}; expected NAME=VALUE, such as params=models.tree:params")
    found = _value(text)
    if not isinstance(found, dict):
        raise UnsupportedError(f"{text} is a {type(found).__name__}; expected a dict of keyword arguments")
    return found
