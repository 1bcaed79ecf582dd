"""`autobatch explain` and `autobatch source`: show how the lines of a function, named as MODULE:FUNCTION, are run."""

import argparse
import contextlib
import sys
from collections.abc import Iterator
from typing import Any

from autobatch.cli.users_code import add_arguments, check_call, examples, importing_from_cwd, object_named, shared
from autobatch.core.config import options as set_options
from autobatch.core.diagnostics import hide_frames
from autobatch.report.explain import explain
from autobatch.report.marked_source import source

_EXPLAIN = """\
Run a function of one example on some examples, and say of each line how it ran and how long it took.

  autobatch explain models.tree:logits --examples models.tree:trees --shared params=models.tree:params
  autobatch explain model.py:loss --examples words.npz --html report.html
"""
_SOURCE = """\
Print a function with what becomes of each line, or the code that runs instead of it.

  autobatch source models.tree:logits
  autobatch source models.tree:logits --rewritten
"""


def add_commands(commands: Any) -> None:
    """Add both commands to a parser; each sets `run`, a function from the parsed options to the exit status.

    Args:
        commands: the result of `ArgumentParser.add_subparsers`.

    >>> parser = argparse.ArgumentParser()
    >>> add_commands(parser.add_subparsers())
    >>> parsed = parser.parse_args(["source", "autobatch.ops.nn:relu"])
    >>> parsed.run(parsed)  # a library's, so not rewritten
    1
    """
    show = commands.add_parser("explain", help="say how each line of a function ran", description=_EXPLAIN)
    add_arguments(show)
    show.add_argument("--way", choices=("auto", "loop", "lockstep", "fly", "compiled"), default="auto", help="the mode")
    show.add_argument("--html", metavar="FILE", help="write the report as a page")
    show.add_argument("--trace", metavar="FILE", help="write the timeline for chrome://tracing")
    show.set_defaults(run=_explain)
    show = commands.add_parser("source", help="print what becomes of a function", description=_SOURCE)
    show.add_argument("function", metavar="MODULE:FUNCTION", help="imported from the current folder, or as installed")
    show.add_argument("--rewritten", action="store_true", help="the code that runs in lock-step")
    show.add_argument("--blocks", action="store_true", help="the code that ab.map runs")
    show.set_defaults(run=_source)


def _explain(options: argparse.Namespace) -> int:
    with one_line_errors() as failed, importing_from_cwd():
        function, columns, keywords = object_named(options.function), examples(options), shared(options)
        check_call(function, columns, keywords)
        with set_options(way=options.way):
            report = explain(function, *columns, **keywords)
        print(report)
        if options.html:
            report.save(options.html)
        if options.trace:
            report.chrome_trace(options.trace)
    return len(failed)


def _source(options: argparse.Namespace) -> int:
    with one_line_errors() as failed, importing_from_cwd():
        print(source(object_named(options.function), rewritten=options.rewritten, blocks=options.blocks))
    return len(failed)


@contextlib.contextmanager
def one_line_errors() -> Iterator[list[str]]:
    """Print an exception of the block as one line on stderr, and add that line to the list that this yields."""
    failed: list[str] = []
    try:
        yield failed
    except Exception as error:
        hide_frames(error)
        trace = error.__traceback__
        while trace is not None and trace.tb_next is not None:
            trace = trace.tb_next
        own = trace is not None and not isinstance(error, ImportError | AttributeError | SyntaxError)
        where = f" ({trace.tb_frame.f_code.co_filename}:{trace.tb_lineno})" if trace is not None and own else ""
        text = " ".join(str(error).split()) or type(error).__name__
        notes = "".join(f"; {note}" for note in getattr(error, "__notes__", ()))
        failed.append(f"error: {text}{notes}{where}")
        print(failed[0], file=sys.stderr)
