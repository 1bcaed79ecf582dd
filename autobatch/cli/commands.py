"""The command `autobatch` and its sub-commands; without a sub-command it prints the options and execution modes."""

import argparse
import dataclasses
import difflib
import inspect
import os
import pkgutil
import platform
import re
import sys
from collections.abc import Callable, Sequence
from typing import Any, NoReturn

from autobatch.blocks.kernel_cache import cache_folder
from autobatch.cli import doctor, small_demo, users_code, way_timing
from autobatch.core.config import Config
from autobatch.core.config import options as set_options
from autobatch.core.diagnostics import hide_frames
from autobatch.core.formatting import shown_bytes, wrapped
from autobatch.errors import ShapeError
from autobatch.report.explain import explain
from autobatch.report.source_lines import source
from autobatch.testing.equivalence import assert_equivalent
from autobatch.testing.own_batch_proof import assert_same

_WAYS = """\
f(x)                                       one example: plain NumPy
f(ab.collate(xs))                          lock-step, one pass for the batch
ab.map(f, xs, params=params)               tracing: any Python, any objects
ab.value_and_grad(loss)(params)            gradients, through either
ab.explain(f, xs, params=params)           how each line ran, and how long
ab.testing.assert_equivalent(f, xs, ...)   the proof that all modes agree
ab.source(f), ab.source(f, rewritten=True) f's lines with marks, or what runs"""

_EXAMPLES = """\
examples:
  autobatch                        the options, and how to run a function
  autobatch demo                   a model checked, timed and trained
  autobatch check models:loss --examples models:words models:labels --shared params=models:params
  autobatch bench models:loss --examples models:words models:labels --shared params=models:params
  autobatch explain models:loss --examples words.npz --html report.html
  autobatch source models:loss     each line, and how it runs
  autobatch cache clear --older 30
  autobatch doctor                 what is slow on this machine, and why

exit status: 0 success; 1 a check failed or an error (one line on stderr says which); 2 wrong usage"""


def main(arguments: Sequence[str]) -> int:
    """Run `autobatch` with these arguments; returns the exit status.

    >>> main([])  # doctest: +ELLIPSIS
    autobatch ...
    0
    >>> main(["source", "autobatch.ops.nn:relu"])  # a library's, so not rewritten
    1
    """
    options = _parser().parse_args(arguments)
    try:
        with users_code.importing_from_cwd():
            return options.run(options)
    except BrokenPipeError:  # the reader has read enough, as after `| head`
        os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
        return 0
    except Exception as error:
        print(_one_line(error), file=sys.stderr)
        return 1


def run() -> None:
    """The entry point of the installed command."""
    sys.exit(main(sys.argv[1:]))


def _fitting(text: str) -> str:
    """A text whose lines are wrapped one by one where they are longer than the terminal is wide."""
    return "\n".join("\n".join(wrapped(line, " " * 6 * line.startswith(" "))) for line in text.splitlines())


class _Parser(argparse.ArgumentParser):
    """A parser that reports an error in one line, and whose texts keep their lines."""

    def __init__(self, **given: Any) -> None:
        super().__init__(**given, formatter_class=argparse.RawDescriptionHelpFormatter)

    def format_help(self) -> str:
        return f"{_fitting(super().format_help())}\n"

    def error(self, message: str) -> NoReturn:
        commands = next((each.choices for each in self._actions if isinstance(each, argparse._SubParsersAction)), {})
        known = [*commands, *(name for each in (self, *commands.values()) for name in each._option_string_actions)]
        given = re.search(r"(?:unrecognized arguments: |invalid choice: ')([\w-]+)", message)
        meant = difflib.get_close_matches(given[1], {*known} - {given[1]}, 1, 0.75) if given else ()
        for each in self._actions:  # one that is missing, with what it takes
            name = "/".join(each.option_strings)
            message = message.replace(name, f"{name} {each.metavar}") if name and each.required else message
        example = re.search(r"autobatch \w+ \w+.*", self.epilog or "") if "are required" in message else None
        expected = f"write {example[0]}" if example else f"see {self.prog} --help"
        self.exit(2, f"error: {message}; {f'did you mean {meant[0]}?' if meant else expected}\n")


def _parser() -> argparse.ArgumentParser:
    parser = _Parser(
        prog="autobatch",
        description="Check, time and inspect functions of one example; check the installation.",
        epilog=_EXAMPLES,
    )
    parser.add_argument("--version", action="version", version=doctor.version_of("autobatch"))
    parser.set_defaults(run=_overview)
    commands = parser.add_subparsers(dest="command", title="commands", metavar="COMMAND")
    given = "models:loss --examples models:words models:labels --shared params=models:params"

    demo = _command(commands, "demo", _demo, "check, time and train a small model", "  autobatch demo --sentences 500")
    demo.add_argument("--sentences", type=_number, default=2000, help="number of sentences (default: 2000)")
    demo.add_argument("--seed", type=int, default=0, help="seed of the data and the weights (default: 0)")

    check = _command(
        commands, "check", _check, "check that batching a function changes nothing",
        "Exit status 0 if all agree, 1 if not, 2 for wrong usage.\n\n"
        f"  autobatch check {given}\n  autobatch check models:pooled --batched models:in_torch --examples xs.npz",
    )  # fmt: skip
    users_code.add_arguments(check)
    check.add_argument("--batched", metavar="MODULE:FUNCTION", help="your own batched function, to check instead")
    check.add_argument("--no-grad", action="store_true", help="do not compare gradients")
    check.add_argument("--errors", choices=["raise"], help="check under np.errstate(all='raise'), warnings as errors")

    about = "time each execution mode against the loop; results are compared first"
    bench = _command(commands, "bench", _bench, about, f"  autobatch bench {given}")
    users_code.add_arguments(bench)
    bench.add_argument("--seconds", type=float, default=1.0, help="how long to repeat each mode (default: 1)")

    show = _command(
        commands, "explain", _explain, "show how each line of a function ran",
        f"  autobatch explain {given}\n  autobatch explain model.py:loss --examples words.npz --html report.html",
    )  # fmt: skip
    users_code.add_arguments(show)
    show.add_argument("--way", choices=("auto", *way_timing.NAMES), default="auto", help="the mode (fly: tracing)")
    show.add_argument("--html", metavar="FILE", help="write the report as a page")
    show.add_argument("--trace", metavar="FILE", help="write the timeline for chrome://tracing")

    show = _command(
        commands, "source", _source, "print each line of a function, and how it runs",
        "  autobatch source models.tree:logits\n  autobatch source models.tree:logits --rewritten",
    )  # fmt: skip
    users_code.add_function(show)
    show.add_argument("--rewritten", action="store_true", help="the code that runs in lock-step")
    show.add_argument("--blocks", action="store_true", help="the code that ab.map runs")

    cache = _command(
        commands, "cache", _cache, "compiled kernels on the disk: list, size, clear",
        "  autobatch cache size\n  autobatch cache list\n  autobatch cache clear --older 30",
    )  # fmt: skip
    cache.add_argument("what", choices=("list", "size", "clear"), nargs="?", default="size")
    cache.add_argument("--older", type=_days, default=0.0, metavar="DAYS", help="clear only kernels older than this")

    _command(commands, "doctor", _doctor, "versions, threads, BLAS, cache, compiler: what is slow, and why", "")
    return parser


def _command(
    commands: Any, name: str, run_it: Callable[[argparse.Namespace], int], about: str, epilog: str
) -> argparse.ArgumentParser:
    described = f"{about[0].upper()}{about[1:]}."
    parser: argparse.ArgumentParser = commands.add_parser(name, help=about, description=described, epilog=epilog)
    parser.set_defaults(run=run_it)
    return parser


def _one_line(error: Exception) -> str:
    """An error with its notes and the place where it was raised, in one line."""
    hide_frames(error)
    trace = error.__traceback__
    while trace is not None and trace.tb_next is not None:
        trace = trace.tb_next
    own = trace is not None and not isinstance(error, ImportError | AttributeError | SyntaxError)
    where = f" ({trace.tb_frame.f_code.co_filename}:{trace.tb_lineno})" if trace is not None and own else ""
    name, known = getattr(error, "name", None) or "", dir(error.obj) if isinstance(error, AttributeError) else []
    if isinstance(error, ModuleNotFoundError):
        folder, _, name = name.rpartition(".")
        paths = [folder.replace(".", os.sep)] if folder else [".", *sys.path]
        known = [each.name for each in pkgutil.iter_modules(paths)]
    meant = difflib.get_close_matches(name, known, 1)
    notes = [*getattr(error, "__notes__", ()), *(f"did you mean {each}?" for each in meant)]
    return f"error: {'; '.join([' '.join(str(error).split()) or type(error).__name__, *notes])}{where}"


def _number(text: str) -> int:
    if (number := int(text)) < 20:
        raise argparse.ArgumentTypeError(f"{number} is too few; expected 20 or more")
    return number


def _demo(options: argparse.Namespace) -> int:
    learnt = small_demo.run(print, sentences=options.sentences, seed=options.seed)
    print("\nNext: docs/tutorial.md, ten minutes; or `make demo`, in a checkout")
    return 0 if learnt or options.sentences < 1000 else 1


def _check(options: argparse.Namespace) -> int:
    try:
        function = users_code.object_named(options.function)
        batched = users_code.object_named(options.batched) if options.batched else None
        columns, keywords = users_code.examples(options), users_code.shared(options)
        if batched and options.errors:
            raise ValueError("--errors compares autobatch's modes; it does not go with --batched")
        users_code.check_call(function, columns, keywords)
    except (ImportError, AttributeError, ValueError, OSError) as error:
        print(_one_line(error.with_traceback(None)), file=sys.stderr)
        return 2
    grad = not options.no_grad
    try:
        if batched is None:
            print(assert_equivalent(function, *columns, grad=grad, errors=options.errors, **keywords))
        else:
            rows = columns[0] if len(columns) == 1 else list(zip(*columns, strict=True))
            print(assert_same(function, batched, rows, grad=grad, **keywords))
    except AssertionError as difference:
        print(difference)
        return 1
    except (TypeError, ValueError) as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    return 0


def _explain(options: argparse.Namespace) -> int:
    function, columns = users_code.object_named(options.function), users_code.examples(options)
    keywords = users_code.shared(options)
    users_code.check_call(function, columns, keywords)
    with set_options(way=options.way):
        report = explain(function, *columns, **keywords)
    print(report, flush=True)
    if options.html:
        report.save(options.html)
    if options.trace:
        report.chrome_trace(options.trace)
    return 0


def _source(options: argparse.Namespace) -> int:
    print(source(users_code.object_named(options.function), rewritten=options.rewritten, blocks=options.blocks))
    return 0


def _bench(options: argparse.Namespace) -> int:
    function = users_code.object_named(options.function)
    columns, shared = [list(column) for column in users_code.examples(options)], users_code.shared(options)
    sizes = {len(column) for column in columns}
    if len(sizes) != 1 or sizes == {0}:
        raise ShapeError(f"the arguments have {sorted(sizes)} examples; expected one number for all, at least 1")
    count = sizes.pop()
    print(f"{options.function} on {count} examples\n")
    print(f"{'mode':<12} {'first call':>12} {'later calls':>12} {'an example':>12}  of the loop's time")
    loop, wrong = 0.0, False
    for each in way_timing.timings(function, columns, shared, options.seconds):
        loop = loop or each.warm
        wrong |= each.why.startswith("DIFFERS")
        if each.warm:
            times = (f"{seconds * 1e3:9.3f} ms" for seconds in (each.first, each.warm))
            print(f"{each.way:<12} {' '.join(times)} {each.warm / count * 1e6:9.1f} µs  {each.warm / loop:8.2f}")
        if each.why:
            print("\n".join(wrapped(f"{'' if each.warm else each.way:<12} {each.why}", " " * 13)))
    return 1 if wrong else 0


def _days(text: str) -> float:
    if not (days := float(text)) >= 0:  # NaN, too
        raise argparse.ArgumentTypeError(f"{text} days; expected 0 or more")
    return days


def _cache(options: argparse.Namespace) -> int:
    found = [each for each in doctor.kernel_files() if options.what != "clear" or each.days >= options.older]
    for each in found:
        if options.what == "list":
            print(f"{each.path.name}  {shown_bytes(each.size):>8}  {each.days:6.1f} days")
        elif options.what == "clear":  # processes that use it have it in memory already; others compile it again
            each.path.unlink(missing_ok=True)
    total = shown_bytes(sum(each.size for each in found))
    print(f"{'removed ' if options.what == 'clear' else ''}{len(found)} kernels, {total}, in {cache_folder()}")
    return 0


def _doctor(options: argparse.Namespace) -> int:
    marks, wrong = {"": " ", "slow": "!", "wrong": "X"}, False
    for each in doctor.findings():
        wrong |= each.verdict == "wrong"
        says = [f"{marks[each.verdict]} {each.about:<11} {each.found}"]
        says += [f"{'':<13} {each.verdict}: {each.advice}"] if each.advice else []
        print("\n".join("\n".join(wrapped(line, " " * 14)) for line in says), flush=True)
    return 1 if wrong else 0


def _overview(_: argparse.Namespace) -> int:
    print(f"autobatch {doctor.version_of('autobatch')} on Python {platform.python_version()}")
    print(", ".join(f"{name} {doctor.version_of(name)}" for name in doctor.REQUIRED))
    print(_fitting(f"{len(doctor.kernel_files())} kernels in {cache_folder()} (AUTOBATCH_CACHE_DIR: another folder)"))
    print("\nOptions, set for a block by `with ab.options(name=value):`")
    for field in dataclasses.fields(Config):
        print(_fitting(f"  {field.name} = {field.default!r}\n      {_option_texts()[field.name]}"))
    print("\nHow to run a function f of one example\n" + "\n".join(f"  {line}" for line in _WAYS.splitlines()))
    print("\n`autobatch --help` lists the commands", flush=True)
    return 0


def _option_texts() -> dict[str, str]:
    """The text about each option in the docstring of `Config`, by name."""
    text = (inspect.getdoc(Config) or "").partition("Attributes:\n")[2]
    return {
        name: " ".join(meaning.split()) for name, meaning in re.findall(r"^ {4}(\w+): ((?:.|\n {5,})+)", text, re.M)
    }
