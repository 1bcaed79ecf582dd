"""Loads what a user gives to a command: a function, its examples and shared values, by name or from files."""

import argparse
import contextlib
import difflib
import functools
import importlib
import inspect
import json
import os
import sys
from collections.abc import Iterator
from typing import Any

import numpy as np

from autobatch.checkpoint.single_file import load
from autobatch.errors import OptionError

VALUE = "MODULE:NAME (a function without arguments is called), or a file: .npy, .npz, .json, .jsonl, .safetensors"
_FILES = (".npy", ".npz", ".json", ".jsonl", ".safetensors")


def add_function(parser: argparse.ArgumentParser) -> None:
    """Add the argument that names a function."""
    parser.add_argument("function", metavar="MODULE:FUNCTION", help="in the current folder, or installed")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of a command that runs a function: its name, its examples, its shared values."""
    add_function(parser)
    parser.add_argument(
        "--examples", nargs="+", action="extend", required=True, metavar="EXAMPLES",
        help=f"a sequence of examples for each argument of the function: {VALUE}",
    )  # fmt: skip
    parser.add_argument(
        "--shared", nargs="+", action="extend", default=[], metavar="NAME=VALUE", help="shared arguments, by keyword"
    )


def examples(options: argparse.Namespace) -> list[Any]:
    """A sequence of examples for each positional argument of the function; lists in JSON become arrays.

    Raises:
        OptionError: a name of the wrong form. OSError, ImportError, AttributeError: it does not exist.
    """
    return [
        [np.array(x) if isinstance(x, list) else x for x in column] if ".json" in name else column
        for name, column in zip(options.examples, map(_value, options.examples), strict=True)
    ]


def shared(options: argparse.Namespace) -> dict[str, Any]:
    """The keyword arguments that all examples share.

    Raises:
        OptionError, OSError, ImportError, AttributeError: as for `examples`.
    """
    return dict(_pair(text) for text in options.shared)


def check_call(function: Any, columns: list[Any], keywords: dict[str, Any]) -> None:
    """Raise OptionError if these are not the function's arguments; the message says which option gives those."""
    try:
        signature = inspect.signature(function)
    except (TypeError, ValueError):  # a C function without a signature
        return
    try:
        signature.bind(*columns, **keywords)
    except TypeError as error:
        variadic = (inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD)
        named = [each for each in signature.parameters.values() if each.kind not in variadic][len(columns) :]
        open_ = [each.name for each in named if each.name not in keywords and each.default is each.empty]
        wrong = [name for name in keywords if name not in signature.parameters]
        close = [difflib.get_close_matches(name, open_, 1, 0)[0] for name in wrong if open_]
        meant = f"; did you mean --shared {close[0]}=... in place of {wrong[0]}=...?" if close else ""
        missing = "" if meant or not open_ else f"; give --shared {' '.join(f'{name}=MODULE:NAME' for name in open_)}"
        raise OptionError(f"{error}: the function takes {signature}{meant}{missing}") from None


@contextlib.contextmanager
def importing_from_cwd() -> Iterator[None]:
    """Within a `with` block, import from the current folder first."""
    before = list(sys.path)
    sys.path.insert(0, os.getcwd())
    try:
        yield
    finally:
        sys.path[:] = before


def object_named(name: str) -> Any:
    """The object named MODULE:NAME; the module may be given as a file of the current folder, model.py.

    >>> object_named("math:pi") < 4
    True
    """
    module, _, path = name.partition(":")
    if not module or not path or "=" in name:
        raise OptionError(f"{name!r}; expected MODULE:NAME, such as models.tree:logits (NAME=VALUE goes to --shared)")
    if module.endswith(".py"):
        parts = os.path.relpath(module).removesuffix(".py").split(os.sep)
        if os.pardir in parts:
            raise OptionError(f"{module} is outside the current folder, which holds the modules: change to its folder")
        module = ".".join(parts)
    return functools.reduce(getattr, path.split("."), importlib.import_module(module))


def _value(name: str) -> Any:
    """A value by its name, or from a file."""
    suffix = os.path.splitext(name)[1]
    if suffix in _FILES:
        if not os.path.exists(name):
            raise FileNotFoundError(f"{name} does not exist; expected {VALUE}")
        if suffix == ".npy":
            return np.load(name)
        if suffix == ".npz":  # savez(*examples): examples; savez(**parameters): a dict
            with np.load(name) as arrays:
                found = {each: arrays[each] for each in arrays}
            return list(found.values()) if all(each.startswith("arr_") for each in found) else found
        if suffix == ".safetensors":
            return load(name)
        with open(name, encoding="utf-8") as file:
            return [json.loads(line) for line in file if line.strip()] if suffix == ".jsonl" else json.load(file)
    found = object_named(name)
    makes = inspect.isroutine(found) or isinstance(found, type | functools.partial)  # a callable model is a value
    return found() if makes else found


def _pair(text: str) -> tuple[str, Any]:
    name, equals, value = text.partition("=")
    if not equals or not name.isidentifier():
        raise OptionError(f"--shared {text!r}; expected NAME=VALUE, such as params=models.tree:params")
    return name, _value(value)
