"""The command `autobatch` and its sub-commands; without one it prints the options and how a function is run."""

import argparse
import dataclasses
import inspect
import platform
import re
import sys
import traceback
from collections.abc import Sequence
from typing import Any, NoReturn

from autobatch.blocks.kernel_cache import cache_folder
from autobatch.cli import doctor, kernel_files, small_demo, users_code, way_timing
from autobatch.core.config import Config
from autobatch.core.config import options as set_options
from autobatch.core.tracebacks import hide_frames
from autobatch.report.explain import explain
from autobatch.report.marked_source import source
from autobatch.syntax.source import is_library
from autobatch.testing.equivalence import assert_equivalent
from autobatch.testing.sameness import assert_same

__all__ = ["main", "run"]

_WAYS = """\
f(x)                                       one example: plain NumPy
f(ab.MaskedBatch.from_examples(xs))        lock-step: f decorated with @ab.batch, one pass for the whole batch
ab.map(f, xs, params=params)               on the fly: any Python, equal operations grouped as it goes
ab.value_and_grad(loss)(params)            gradients, through either
ab.explain(f, xs, params=params)           what became of each line, what it took, and what to write instead
ab.testing.assert_equivalent(f, xs, ...)   the proof that all ways agree, gradients included
ab.source(f), ab.source(f, rewritten=True) f's lines with marks, or the code that lock-step runs instead"""

_EXAMPLES = """\
examples:
  autobatch                                     the options, and the ways to run a function
  autobatch demo                                ten seconds: a model proved, timed and trained
  autobatch check mymodel:loss --examples mymodel:examples --shared mymodel:shared
  autobatch bench mymodel:loss --examples mymodel:examples --shared mymodel:shared
  autobatch explain mymodel:loss --examples mymodel:examples --shared mymodel:shared
  autobatch source mymodel:loss                 what becomes of each line
  autobatch cache clear --older 30              remove kernels that are a month old
  autobatch doctor                              what is slow on this machine, and why

exit status: 0, all is well; 1, it is not so, or could not be done, as one line on stderr says; 2, wrong arguments"""


def main(arguments: Sequence[str]) -> int:
    """Run `autobatch` with these arguments; returns the exit status.

    >>> main([])  # doctest: +ELLIPSIS
    autobatch ...
    0
    >>> main(["source", "autobatch.ops.nn:relu"])  # a library's, so not rewritten
    1
    """
    options = _parser().parse_args(arguments)
    if options.command is None:
        _print_overview()
        return 0
    try:
        with users_code.from_here():
            status: int = options.run(options)
    except BrokenPipeError:  # `autobatch ... | head`
        sys.stderr.close()
        return 1
    except Exception as error:
        hide_frames(error)
        print(f"error: {_line_of(error)}", file=sys.stderr)
        return 1
    return status


def run() -> None:
    """The command that is installed."""
    sys.exit(main(sys.argv[1:]))


def _line_of(error: Exception) -> str:
    """An error in one line: its kind where the message alone says little, notes, and the user's line that raised it."""
    text = " ".join(str(error).split())
    known = isinstance(error, AssertionError | ImportError | AttributeError | TypeError | ValueError) and text
    notes = [" ".join(note.split()) for note in getattr(error, "__notes__", ())]
    frames = traceback.extract_tb(error.__traceback__)
    own = [frame for frame in frames if not is_library(frame.filename)]
    if own and own[-1] is frames[-1]:
        notes.append(f"{own[-1].filename}:{own[-1].lineno}")
    return (text if known else f"{type(error).__name__}: {text}") + (f" ({'; '.join(notes)})" if notes else "")


class _Parser(argparse.ArgumentParser):
    """Says what is wrong in one line."""

    def error(self, message: str) -> NoReturn:
        self.exit(2, f"error: {message}; `{self.prog} --help` shows what is expected\n")


def _parser() -> argparse.ArgumentParser:
    parser = _Parser(
        prog="autobatch",
        description="Prove, time and look at functions of one example; care for what is installed.",
        epilog=_EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--version", action="version", version=doctor.version_of("autobatch"))
    commands = parser.add_subparsers(dest="command", title="commands", metavar="COMMAND")

    demo = _command(commands, "demo", _demo, "prove, time and train a small model", "autobatch demo --sentences 500")
    demo.add_argument("--sentences", type=_number, default=2000, help="how many (default: 2000)")
    demo.add_argument("--seed", type=int, default=0, help="of the data and the weights (default: 0)")

    check = _command(
        commands,
        "check",
        _check,
        "prove that all ways give what the loop gives",
        f"{users_code.EXAMPLES}\n\n  autobatch check mymodel:loss --examples mymodel:examples --shared mymodel:shared",
    )
    users_code.add_arguments(check)
    check.add_argument("--no-grad", action="store_true", help="compare values only")
    check.add_argument("--batched", metavar="MODULE:FUNCTION", help="your own function of a batch, to prove instead")

    tell = _command(
        commands,
        "explain",
        _explain,
        "say what became of each line of a function, and what it took",
        f"{users_code.EXAMPLES}\n\n  autobatch explain mymodel:loss --examples words.npz --html report.html",
    )
    users_code.add_arguments(tell)
    tell.add_argument("--way", choices=("auto", "loop", "lockstep", "fly", "compiled"), default="auto")
    tell.add_argument("--html", metavar="FILE", help="write the page with the timeline and the graph")
    tell.add_argument("--trace", metavar="FILE", help="write the timeline for chrome://tracing")

    bench = _command(
        commands,
        "bench",
        _bench,
        "time every way beside the loop, results compared first",
        f"{users_code.EXAMPLES}\n\n  autobatch bench mymodel:loss --examples mymodel:examples --shared mymodel:shared",
    )
    users_code.add_arguments(bench)
    bench.add_argument("--seconds", type=float, default=1.0, help="for which each way is repeated (default: 1)")

    show = _command(
        commands,
        "source",
        _source,
        "print a function with what becomes of each line, or the code that runs instead of it",
        "  autobatch source mymodel:loss\n  autobatch source mymodel:loss --rewritten",
    )
    show.add_argument("function", metavar="MODULE:FUNCTION", help="imported from the current folder, or as installed")
    show.add_argument("--rewritten", action="store_true", help="the code that runs in lock-step")
    show.add_argument("--blocks", action="store_true", help="the code that ab.map runs")

    cache = _command(
        commands,
        "cache",
        _cache,
        "compiled kernels on the disk: list, size, clear",
        "  autobatch cache size\n  autobatch cache list\n  autobatch cache clear --older 30",
    )
    cache.add_argument("what", choices=("list", "size", "clear"), nargs="?", default="size")
    cache.add_argument("--older", type=float, default=0.0, metavar="DAYS", help="clear: only those older than this")

    _command(commands, "doctor", _doctor, "versions, threads, BLAS, cache, compiler: what is slow, and why", "")
    return parser


def _command(commands: Any, name: str, run_it: Any, about: str, epilog: str) -> argparse.ArgumentParser:
    parser: argparse.ArgumentParser = commands.add_parser(
        name,
        help=about,
        description=f"{about[0].upper()}{about[1:]}.",
        epilog=epilog,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.set_defaults(run=run_it)
    return parser


def _number(text: str) -> int:
    number = int(text)
    if number < 20:
        raise argparse.ArgumentTypeError(f"{number} is too few; expected 20 or more")
    return number


def _demo(options: argparse.Namespace) -> int:
    learnt = small_demo.run(print, sentences=options.sentences, seed=options.seed)
    print("\nNext: docs/tutorial.md, ten minutes; `make demo` in a checkout trains larger models")
    return 0 if learnt or options.sentences < 1000 else 1


def _check(options: argparse.Namespace) -> int:
    work = users_code.given(options)
    try:
        if options.batched:
            examples = work.columns[0] if len(work.columns) == 1 else list(zip(*work.columns, strict=True))
            batched = users_code.named(options.batched)
            print(assert_same(work.function, batched, examples, grad=not options.no_grad, **work.shared))
            return 0
        report = assert_equivalent(work.function, *work.columns, grad=not options.no_grad, **work.shared)
    except AssertionError as difference:  # what was asked for
        print(difference)
        return 1
    print(report)
    if report.failing == report.examples:  # more likely wrong arguments than a function that always raises
        work.function(*(column[0] for column in work.columns), **work.shared)
    return 0


def _explain(options: argparse.Namespace) -> int:
    work = users_code.given(options)
    with set_options(way=options.way):
        report = explain(work.function, *work.columns, **work.shared)
    print(report)
    if options.html:
        report.save(options.html)
    if options.trace:
        report.chrome_trace(options.trace)
    return 0


def _bench(options: argparse.Namespace) -> int:
    work = users_code.given(options)
    print(f"{options.function} on {work.count} examples\n")
    print(f"{'way':<28} {'first call':>12} {'later calls':>12} {'an example':>12}  of the loop's time")
    loop, wrong = 0.0, False
    for each in way_timing.timings(work, options.seconds):
        loop = loop or each.warm
        wrong |= each.why.startswith("DIFFERS")
        if not each.warm:
            print(f"{each.way:<28} {each.why}")
            continue
        share = f"{each.warm / loop:8.2f}" + (f"  ({each.why})" if each.why else "")
        times = (f"{seconds * 1e3:9.3f} ms" for seconds in (each.first, each.warm))
        print(f"{each.way:<28} {' '.join(times)} {each.warm / work.count * 1e6:9.1f} µs  {share}")
    return 1 if wrong else 0


def _source(options: argparse.Namespace) -> int:
    print(source(users_code.named(options.function), rewritten=options.rewritten, blocks=options.blocks))
    return 0


def _cache(options: argparse.Namespace) -> int:
    found = kernel_files.clear(options.older) if options.what == "clear" else kernel_files.kernel_files()
    if options.what == "list":
        for each in found:
            print(f"{each.path.name}  {kernel_files.size_in_words(each.size):>8}  {each.days:6.1f} days")
    total = kernel_files.size_in_words(sum(each.size for each in found))
    print(f"{'removed ' if options.what == 'clear' else ''}{len(found)} kernels, {total}, in {cache_folder()}")
    return 0


def _doctor(options: argparse.Namespace) -> int:
    marks = {"": " ", "note": "-", "slow": "!", "wrong": "X"}
    wrong = False
    for each in doctor.findings():
        wrong |= each.verdict == "wrong"
        print(f"{marks[each.verdict]} {each.about:<11} {each.found}", flush=True)
        if each.advice:
            print(f"  {'':<11} {each.verdict}: {each.advice}", flush=True)
    return 1 if wrong else 0


def _print_overview() -> None:
    version = doctor.version_of
    print(f"autobatch {version('autobatch')} on Python {platform.python_version()}")
    print(", ".join(f"{name} {version(name)}" for name in doctor.REQUIRED))
    print(f"{len(kernel_files.kernel_files())} kernels in {cache_folder()} (AUTOBATCH_CACHE_DIR names another folder)")
    print("\nOptions, set for a block by `with ab.options(name=value):`")
    meanings = _meanings()
    for field in dataclasses.fields(Config):
        print(f"  {field.name} = {field.default!r}\n      {meanings[field.name]}")
    print("\nWays to run a function f of one example\n" + "\n".join(f"  {line}" for line in _WAYS.splitlines()))
    print("\n`autobatch --help` names the commands")


def _meanings() -> dict[str, str]:
    """What the docstring of `Config` says about each option."""
    text = (inspect.getdoc(Config) or "").partition("Attributes:\n")[2]
    return {
        name: " ".join(meaning.split()) for name, meaning in re.findall(r"^ {4}(\w+): ((?:.|\n {5,})+)", text, re.M)
    }
