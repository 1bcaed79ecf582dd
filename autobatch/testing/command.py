"""`autobatch check`: the proof of a function from the command line."""

import argparse
import contextlib
import functools
import importlib
import json
import os
import pathlib
import sys
from collections.abc import Iterator
from typing import Any

import numpy as np

from autobatch.errors import OptionError
from autobatch.testing.equivalence import assert_equivalent
from autobatch.testing.sameness import assert_same

__all__ = ["add_check", "run_check"]

_DESCRIPTION = """Prove that batching a function changes nothing: every way that autobatch runs it, or with --batched
your own batched function, against the function of one example. Exit status 0 if all agree, 1 if not, 2 if it could not
be asked."""


def add_check(commands: Any) -> None:
    """Add the command to what `ArgumentParser.add_subparsers` gave; `run_check` runs it.

    >>> parser = argparse.ArgumentParser()
    >>> add_check(parser.add_subparsers(dest="command"))
    >>> parser.parse_args(["check", "models:f", "--examples", "models:xs"]).examples
    ['models:xs']
    """
    check = commands.add_parser(
        "check", help="prove that batching a function changes nothing", description=_DESCRIPTION
    )
    check.add_argument("function", metavar="MODULE:FUNCTION", help="of one example; imported from the current folder")
    check.add_argument(
        "--examples",
        required=True,
        action="append",
        metavar="MODULE:NAME | FILE",
        help="a sequence of examples, or a function that gives one; or a file: .npy, .json (a list), .jsonl (one a "
        "line). Once for each argument of the function",
    )
    check.add_argument("--batched", metavar="MODULE:FUNCTION", help="your own function of a batch, to prove instead")
    check.add_argument(
        "--shared", action="append", default=[], metavar="NAME=MODULE:NAME", help="a keyword argument for all examples"
    )
    check.add_argument("--no-grad", action="store_true", help="compare no gradients")


def run_check(options: argparse.Namespace) -> int:
    """Run the command; returns the exit status."""
    try:
        with _current_folder():
            function = _named(options.function)
            batched = _named(options.batched) if options.batched else None
            columns = [_examples(each) for each in options.examples]
            shared = dict(_assignment(each) for each in options.shared)
    except (ImportError, AttributeError, ValueError, OSError) as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    try:
        with _current_folder():
            if batched is None:
                report = assert_equivalent(function, *columns, grad=not options.no_grad, **shared)
            else:
                examples = columns[0] if len(columns) == 1 else list(zip(*columns, strict=True))
                report = assert_same(function, batched, examples, grad=not options.no_grad, **shared)
    except AssertionError as difference:
        print(difference)
        return 1
    except (TypeError, ValueError) as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    print(report)
    return 0


@contextlib.contextmanager
def _current_folder() -> Iterator[None]:
    """Modules are imported from here, too."""
    here = os.getcwd()
    sys.path.insert(0, here)
    try:
        yield
    finally:
        sys.path.remove(here)


def _named(name: str) -> Any:
    module, _, path = name.partition(":")
    if not module or not path:
        raise OptionError(f"{name!r}; expected MODULE:NAME, such as models.tree:logits")
    return functools.reduce(getattr, path.split("."), importlib.import_module(module))


def _examples(name: str) -> Any:
    suffix = pathlib.PurePath(name).suffix
    if suffix == ".npy":
        return np.load(name)
    if suffix in (".json", ".jsonl"):
        text = pathlib.Path(name).read_text(encoding="utf-8")
        found = (
            [json.loads(line) for line in text.splitlines() if line.strip()] if suffix == ".jsonl" else json.loads(text)
        )
        return [np.array(x) if isinstance(x, list) else x for x in found]
    found = _named(name)
    return found() if callable(found) else found


def _assignment(text: str) -> tuple[str, Any]:
    name, equals, value = text.partition("=")
    if not equals or not name.isidentifier():
        raise OptionError(f"--shared {text!r}; expected NAME=MODULE:NAME, such as params=models:params")
    return name, _named(value)
