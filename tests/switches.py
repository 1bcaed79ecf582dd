"""Many mutants in one copy of the package, each behind a switch: tests are collected once, and each mutant is a fork.

A statement that a mutant changes becomes `if _mutant(17): <changed> else: <as it was>`. `_mutant` says whether that one
is on; where none is, it notes that it was asked, so that one run of all tests tells which of them reach which mutant.
What Numba compiles, and what runs when a module is imported, can have no switch.
"""

import ast
import builtins
import collections
import contextlib
import functools
import itertools
import json
import os
import select
import signal
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator
from typing import Any

import pytest

_PRELUDE = """
import builtins as _builtins
_builtins.__dict__.setdefault("_mutant", _builtins.__dict__.setdefault("_mutants_of_imports", set()).add)
"""

_CRASH = "the end of the process"


def switched(source: bytes, mutants: dict[int, tuple[int, bytes]]) -> tuple[str, set[int]]:
    """A file with all its mutants, and the numbers of those that have a switch.

    Args:
        mutants: of each number the place that it changes, in bytes, and the file with the change.
    """
    tree, changes, numbers = ast.parse(source), dict[int, list[tuple[int, Any]]](), set()
    starts = [0, *itertools.accumulate(map(len, source.splitlines(keepends=True)))]
    for number, (at, text) in mutants.items():
        found = _around(tree, ast.parse(text), at, starts)
        if found is not None:
            changes.setdefault(id(found[0]), []).append((number, found[1]))
            numbers.add(number)
    tree = ast.fix_missing_locations(_Switches(changes).visit(tree))
    first = tree.body[0]
    place = int(isinstance(first, ast.Expr) and isinstance(first.value, ast.Constant))  # behind the docstring
    tree.body[place:place] = ast.parse(_PRELUDE).body
    return ast.unparse(tree), numbers


def _around(node: ast.AST, other: ast.AST, at: int, starts: list[int]) -> tuple[ast.AST, ast.AST] | None:
    """The innermost statement of a function, or a lambda's body, around a place; and the same of the changed tree."""
    found, inside = None, False
    while True:
        parts = zip(_children(node), _children(other), strict=False)
        field, part, its_other = next(((*x, y) for x, (_, y) in parts if _spans(x[1], at, starts)), ("", None, None))
        if part is None or type(part) is not type(its_other):
            return found
        if isinstance(part, ast.FunctionDef) and any(
            word in ast.unparse(each) for each in part.decorator_list for word in ("jit", "intrinsic")
        ):
            return None
        if isinstance(node, ast.Lambda) and field == "body" and not inside:
            return part, its_other
        inside = (inside or (isinstance(node, ast.FunctionDef) and field == "body")) and not isinstance(
            part, ast.ClassDef
        )
        if inside and isinstance(part, ast.stmt) and not isinstance(part, ast.FunctionDef):
            found = part, its_other
        node, other = part, its_other


def _children(node: ast.AST) -> Iterator[tuple[str, ast.AST]]:
    for field, value in ast.iter_fields(node):
        yield from (
            (field, each) for each in (value if isinstance(value, list) else [value]) if isinstance(each, ast.AST)
        )


def _spans(node: Any, at: int, starts: list[int]) -> bool:
    if not hasattr(node, "end_lineno"):  # arguments, a comprehension: those of their parts
        return any(_spans(part, at, starts) for _, part in _children(node))
    first, last = starts[node.lineno - 1] + node.col_offset, starts[node.end_lineno - 1] + node.end_col_offset
    return first <= at < last


class _Switches(ast.NodeTransformer):
    def __init__(self, changes: dict[int, list[tuple[int, Any]]]) -> None:
        self.changes = changes

    def visit(self, node: ast.AST) -> Any:
        changes = self.changes.get(id(node), [])
        out: Any = self.generic_visit(node)
        for number, other in changes:
            asked = ast.parse(f"_mutant({number})", mode="eval").body
            out = ast.If(asked, [other], [out]) if isinstance(out, ast.stmt) else ast.IfExp(asked, other, out)
        return out


class Driver:
    """A plugin of pytest that, instead of running the tests it has collected, shows them mutants.

    File by file, those first that are near to most mutants: a fork runs the file's tests without a mutant and notes
    which of them reach which, and forks of that run those tests, the shortest first, with each mutant not yet seen.

    Args:
        numbers: of the mutants.
        files: of a number the files of tests that may see it, nearest first.
        tell: is given the number, the name of the test that fails ("" if none does), and the seconds since the first.
        jobs: how many files at a time.
        limit: seconds for one file's tests without a mutant; a third of them for those with one.

    Attributes:
        untried: the numbers of those that no test reaches in a fork, and of those that imports had asked for before
            any could be on.
    """

    def __init__(
        self, numbers: Iterable[int], files: Callable[[int], list[str]], tell: Callable[[int, str, float], None],
        *, jobs: int, limit: float,
    ) -> None:  # fmt: skip
        self.waiting = set(numbers)
        self.untried: set[int] = set()
        self.files, self.tell, self.jobs, self.limit = files, tell, jobs, limit

    def pytest_runtestloop(self, session: pytest.Session) -> bool:
        self.untried = self.waiting & getattr(builtins, "_mutants_of_imports", set())
        self.waiting -= self.untried
        session.config._tmp_path_factory.getbasetemp()  # type: ignore[attr-defined]  # one for all forks
        files = self._in_order(session.items)
        running: dict[int, tuple[int, str]] = {}
        start, reached = time.monotonic(), set[int]()
        while (files and self.waiting) or running:
            if files and self.waiting and len(running) < self.jobs:
                pid, pipe = _forked(functools.partial(_try_file, files.pop(0), sorted(self.waiting), self.limit))
                running[pipe] = pid, ""
                continue
            for pipe in select.select(list(running), [], [], 1.0)[0]:
                pid, said = running.pop(pipe)
                more = os.read(pipe, 65536).decode()
                if not more:
                    _end(pid, pipe, "")
                    continue
                *lines, rest = (said + more).split("\n")
                running[pipe] = pid, rest
                for line in lines:
                    which, _, test = line.partition(" ")
                    number = int(which)
                    reached.add(number)
                    if test and number in self.waiting:
                        self.waiting.remove(number)
                        self.tell(number, test, time.monotonic() - start)
        self.untried |= self.waiting - reached
        for number in sorted(self.waiting & reached):
            self.tell(number, "", time.monotonic() - start)
        return True

    def _in_order(self, items: list[pytest.Item]) -> list[list[pytest.Item]]:
        """The tests by their files, those first that are the nearest of most mutants."""
        of_file, worth = (
            collections.defaultdict[str, list[pytest.Item]](list),
            collections.defaultdict[str, float](float),
        )
        for item in items:
            of_file[item.nodeid.split("::")[0]].append(item)
        for number in self.waiting:
            for place, file in enumerate(self.files(number)):
                worth[file] += 1 / (1 + place)
        return [of_file[file] for file in sorted(of_file, key=lambda file: -worth[file])]


def _forked(run: Callable[[Callable[[str], Any]], None]) -> tuple[int, int]:
    """A process that runs this, quietly; its id, and the pipe that what it says comes through."""
    out, into = os.pipe()
    pid = os.fork()
    if pid:
        os.close(into)
        return pid, out
    try:
        os.setpgid(0, 0)
        quiet = os.open(os.devnull, os.O_WRONLY)
        os.dup2(quiet, 1)
        os.dup2(quiet, 2)
        run(lambda text: os.write(into, text.encode()[:4000]))
    finally:
        os._exit(0)


def _end(pid: int, pipe: int, verdict: str | None = None) -> str:
    """End a process, and what it has started; what it said, unless that is known."""
    said = os.read(pipe, 4000).decode() if verdict is None else verdict
    os.close(pipe)
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(pid, signal.SIGKILL)
    os.waitpid(pid, 0)
    return "" if said == "all pass" else said or _CRASH


def _within(limit: float, run: Callable[[Callable[[str], Any]], None]) -> str | None:
    """What a process says that runs this; None where it takes longer."""
    pid, pipe = _forked(run)
    in_time = select.select([pipe], [], [], limit)[0]
    said = _end(pid, pipe, None if in_time else "?")
    return said if in_time else None


def _run(items: list[pytest.Item]) -> Iterator[tuple[pytest.Item, list[Any]]]:
    """Run tests, one for each turn; with the reports that failed."""
    reports: list[Any] = []

    class Watch:
        def pytest_runtest_logreport(self, report: Any) -> None:
            if report.failed:
                reports.append(report)

    items[0].config.pluginmanager.register(Watch())
    for item, following in itertools.zip_longest(items, items[1:]):
        item.config.hook.pytest_runtest_protocol(item=item, nextitem=following)
        yield item, reports


def _try_file(items: list[pytest.Item], numbers: list[int], limit: float, say: Callable[[str], Any]) -> None:
    """Say of the mutants that a file's tests reach, a line for each, its number and the test that fails with it."""
    tests = {item.nodeid: item for item in items}
    with tempfile.NamedTemporaryFile("w+") as log:
        _within(limit, functools.partial(_record, items, log.name))
        reached: dict[str, tuple[float, list[int]]] = {}
        for line in log:
            test, seconds, found = json.loads(line)
            reached[test] = seconds, found
    for number in numbers:
        shortest = sorted((seconds, test) for test, (seconds, found) in reached.items() if number in found)
        mine = [tests[test] for _, test in shortest]
        if mine:
            failed = _within(limit / 3, functools.partial(_try, number, mine))
            again = [tests[failed]] if failed in tests else mine if failed == _CRASH else []
            sound = bool(again) and _within(limit, functools.partial(_try, None, again)) == ""
            say(f"{number} {failed if sound else ''}\n")


def _try(number: int | None, items: list[pytest.Item], say: Callable[[str], Any]) -> None:
    builtins._mutant = lambda asked: asked == number  # type: ignore[attr-defined]
    for _, failed in _run(items):
        if failed:
            say(failed[0].nodeid)
            return
    say("all pass")


def _record(items: list[pytest.Item], path: str, say: Callable[[str], Any]) -> None:
    found: set[int] = set()
    builtins._mutant = lambda asked: found.add(asked)  # type: ignore[attr-defined]
    start = time.perf_counter()
    with open(path, "w", encoding="utf-8", buffering=1) as log:
        for item, failed in _run(items):
            if found and not failed:
                log.write(json.dumps([item.nodeid, time.perf_counter() - start, sorted(found)]) + "\n")
            found.clear()
            failed.clear()
            start = time.perf_counter()
    say("all pass")
