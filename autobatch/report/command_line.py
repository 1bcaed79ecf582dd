"""`autobatch explain` and `autobatch source`: what becomes of a function that is named as MODULE:FUNCTION."""

import argparse
import contextlib
import functools
import importlib
import json
import os
import sys
from collections.abc import Iterator
from typing import Any

import numpy as np

from autobatch.checkpoint.single_file import load
from autobatch.core.config import options as set_options
from autobatch.core.tracebacks import hide_frames
from autobatch.report.explain import explain
from autobatch.report.marked_source import source

__all__ = ["add_commands"]

_EXPLAIN = """\
Run a function of one example on some examples, and say of each of its lines what became of it and what it took.

  autobatch explain models.tree:logits --examples models.tree:trees --shared params=models.tree:params
  autobatch explain model.py:loss --examples words.npz --html report.html
"""
_SOURCE = """\
Print a function with what becomes of each line, or the code that runs instead of it.

  autobatch source models.tree:logits
  autobatch source models.tree:logits --rewritten
"""
_VALUE = "MODULE:NAME (a function without arguments is called), or a file: .npy, .npz, .json, .safetensors"


def add_commands(commands: Any) -> None:
    """Add the two to the sub-commands of a parser; each sets `run`, which takes the options and gives the exit status.

    Args:
        commands: what `ArgumentParser.add_subparsers` gives.

    >>> parser = argparse.ArgumentParser()
    >>> add_commands(parser.add_subparsers())
    >>> parsed = parser.parse_args(["source", "autobatch.ops.nn:relu"])
    >>> parsed.run(parsed)  # a library's, so not rewritten
    1
    """
    raw = argparse.RawDescriptionHelpFormatter
    show = commands.add_parser(
        "explain", help="say what became of each line of a function", description=_EXPLAIN, formatter_class=raw
    )
    show.add_argument("function", metavar="MODULE:FUNCTION", help="imported from the current folder, or as installed")
    show.add_argument("--examples", nargs="+", required=True, metavar="EXAMPLES", help=f"one per argument: {_VALUE}")
    show.add_argument("--shared", nargs="+", default=[], metavar="NAME=VALUE", help="by keyword, for all examples")
    show.add_argument("--way", choices=("auto", "loop", "lockstep", "fly", "compiled"), default="auto")
    show.add_argument("--html", metavar="FILE", help="write the page with the timeline and the graph")
    show.add_argument("--trace", metavar="FILE", help="write the timeline for chrome://tracing")
    show.set_defaults(run=_explain)
    show = commands.add_parser(
        "source", help="print what becomes of a function", description=_SOURCE, formatter_class=raw
    )
    show.add_argument("function", metavar="MODULE:FUNCTION", help="imported from the current folder, or as installed")
    show.add_argument("--rewritten", action="store_true", help="the code that runs in lock-step")
    show.add_argument("--blocks", action="store_true", help="the code that ab.map runs")
    show.set_defaults(run=_source)


def _explain(options: argparse.Namespace) -> int:
    with _errors_of_one_line() as failed, _from_here():
        function = _named(options.function)
        examples = [_value(each) for each in options.examples]
        shared = dict(_pair(each) for each in options.shared)
        with set_options(way=options.way):
            report = explain(function, *examples, **shared)
        print(report)
        if options.html:
            report.save(options.html)
        if options.trace:
            report.chrome_trace(options.trace)
    return len(failed)


def _source(options: argparse.Namespace) -> int:
    with _errors_of_one_line() as failed, _from_here():
        print(source(_named(options.function), rewritten=options.rewritten, blocks=options.blocks))
    return len(failed)


@contextlib.contextmanager
def _errors_of_one_line() -> Iterator[list[str]]:
    """Print an error as one line; collects it."""
    failed: list[str] = []
    try:
        yield failed
    except Exception as error:
        hide_frames(error)
        trace = error.__traceback__
        while trace is not None and trace.tb_next is not None:
            trace = trace.tb_next
        own = trace is not None and not isinstance(error, ImportError | AttributeError)
        where = f" ({trace.tb_frame.f_code.co_filename}:{trace.tb_lineno})" if trace is not None and own else ""
        text = " ".join(str(error).split()) or type(error).__name__
        notes = "".join(f"; {note}" for note in getattr(error, "__notes__", ()))
        failed.append(f"error: {text}{notes}{where}")
        print(failed[0], file=sys.stderr)


@contextlib.contextmanager
def _from_here() -> Iterator[None]:
    """Import from the current folder first."""
    before = list(sys.path)
    sys.path.insert(0, os.getcwd())
    try:
        yield
    finally:
        sys.path[:] = before


def _named(name: str) -> Any:
    """What MODULE:NAME says; the module may be given as a file of the current folder, model.py."""
    module, _, path = name.partition(":")
    if not module or not path:
        raise ValueError(f"{name!r}; expected MODULE:FUNCTION, such as models.tree:logits")
    if module.endswith(".py"):
        module = module.removesuffix(".py").replace("/", ".").replace(os.sep, ".")
    return functools.reduce(getattr, path.split("."), importlib.import_module(module))


def _value(name: str) -> Any:
    """A value by its name, or from a file."""
    suffix = os.path.splitext(name)[1]
    if suffix in (".npy", ".npz", ".json", ".safetensors"):
        if not os.path.exists(name):
            raise FileNotFoundError(f"{name} does not exist; expected {_VALUE}")
        if suffix == ".npy":
            return np.load(name)
        if suffix == ".npz":  # examples of their own shapes, or parameters by name
            with np.load(name) as arrays:
                names = list(arrays)
                if all(each.startswith("arr_") for each in names):
                    return [arrays[each] for each in names]
                return {each: arrays[each] for each in names}
        if suffix == ".json":
            with open(name, encoding="utf-8") as file:
                return json.load(file)
        return load(name)
    found = _named(name)
    return found() if callable(found) and not hasattr(found, "__array__") else found


def _pair(text: str) -> tuple[str, Any]:
    name, equals, value = text.partition("=")
    if not equals or not name.isidentifier():
        raise ValueError(f"--shared {text!r}; expected NAME=VALUE, such as params=models.tree:params")
    return name, _value(value)
