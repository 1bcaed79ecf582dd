"""Many mutants in one copy of the package, each behind a switch: tests are collected once, and each mutant is a fork.

A statement that a mutant changes becomes `if _mutant(17): <changed> else: <as it was>`. `_mutant` says whether that one
is on; where none is, it notes that it was asked, so that one run of all tests tells which of them reach which mutant.
What Numba compiles, and what runs when a module is imported, can have no switch.
"""

import ast
import builtins
import contextlib
import functools
import itertools
import json
import os
import pathlib
import select
import signal
import time
from collections.abc import Callable, Iterable, Iterator
from typing import Any

import pytest

Reached = dict[str, tuple[float, list[int]]]  # of each test: seconds, and the mutants that it reaches

_PRELUDE = """
import builtins as _builtins
_builtins.__dict__.setdefault("_mutant", _builtins.__dict__.setdefault("_mutants_of_imports", set()).add)
"""


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
    """A plugin of pytest that, instead of running the tests it has collected, runs some of them for each mutant.

    Args:
        numbers: of the mutants.
        files: of a number the files of tests that may see it, nearest first, where no test is known to reach it.
        tell: is given the number, the name of the test that fails ("" if none does, "?" if it took too long or fails
            without the mutant, too), and the seconds that it took.
        jobs: how many forks at a time.
        limit: seconds for one mutant.
        reached: where to note, or find noted, which tests reach which mutants; None: not noted.

    Attributes:
        of_imports: the numbers of those that imports had asked for before any could be on, which were not tried.
    """

    def __init__(
        self,
        numbers: Iterable[int],
        files: Callable[[int], list[str]],
        tell: Callable[[int, str, float], None],
        *,
        jobs: int,
        limit: float,
        reached: pathlib.Path | None,
    ) -> None:
        self.waiting = list(numbers)
        self.of_imports: set[int] = set()
        self.sound: dict[str, bool] = {}
        self.files, self.tell, self.jobs, self.limit, self.reached = files, tell, jobs, limit, reached

    def pytest_runtestloop(self, session: pytest.Session) -> bool:
        items = {item.nodeid: item for item in session.items}
        self.of_imports = set(self.waiting) & getattr(builtins, "_mutants_of_imports", set())
        self.waiting = [number for number in self.waiting if number not in self.of_imports]
        session.config._tmp_path_factory.getbasetemp()  # type: ignore[attr-defined]  # one for all forks
        reached = self._recorded(items)
        running: dict[int, tuple[int, int, float]] = {}
        while self.waiting or running:
            if self.waiting and len(running) < self.jobs:
                number = self.waiting.pop(0)
                tests = self._tests(number, items, reached)
                pid, pipe = _forked(functools.partial(_try, number, tests))
                running[pipe] = number, pid, time.monotonic()
                continue
            ready, _, _ = select.select(list(running), [], [], 1.0)
            for pipe, (number, pid, start) in list(running.items()):
                seconds = time.monotonic() - start
                if pipe in ready or seconds > self.limit:
                    del running[pipe]
                    verdict = _end(pid, pipe, None if pipe in ready else "?")
                    self.tell(number, verdict if self._is_sound(verdict, items) else "?", seconds)
        return True

    def _is_sound(self, verdict: str, items: dict[str, pytest.Item]) -> bool:
        """Whether the test that is said to have failed passes without a mutant."""
        if verdict in items and verdict not in self.sound:
            self.sound[verdict] = not _end(*_forked(functools.partial(_try, None, [items[verdict]])))
        return self.sound.get(verdict, True)

    def _tests(self, number: int, items: dict[str, pytest.Item], reached: Reached) -> list[pytest.Item]:
        """Those that reach a mutant, the shortest first; else those of the files."""
        mine = sorted((seconds, test) for test, (seconds, numbers) in reached.items() if number in numbers)
        if mine:
            return [items[test] for _, test in mine if test in items]
        order = {file: place for place, file in enumerate(self.files(number))}
        near = [item for item in items.values() if item.nodeid.split("::")[0] in order]
        return sorted(near, key=lambda item: order[item.nodeid.split("::")[0]])

    def _recorded(self, items: dict[str, pytest.Item]) -> Reached:
        if self.reached is None:
            return {}
        if not self.reached.exists():
            pid, pipe = _forked(functools.partial(_record, list(items.values()), self.reached))
            _end(pid, pipe)
        found: Reached = json.loads(self.reached.read_text())
        return found


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
    return "" if said == "all pass" else said or "the process itself"


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


def _try(number: int | None, items: list[pytest.Item], say: Callable[[str], Any]) -> None:
    builtins._mutant = lambda asked: asked == number  # type: ignore[attr-defined]
    for _, failed in _run(items) if items else ():
        if failed:
            say(failed[0].nodeid)
            return
    say("all pass")


def _record(items: list[pytest.Item], log: pathlib.Path, say: Callable[[str], Any]) -> None:
    found: set[int] = set()
    builtins._mutant = lambda asked: found.add(asked)  # type: ignore[attr-defined]
    reached: Reached = {}
    start = time.perf_counter()
    for item, _ in _run(items):
        if found:
            reached[item.nodeid] = time.perf_counter() - start, sorted(found)
        found.clear()
        start = time.perf_counter()
    log.write_text(json.dumps(reached))
    say("all pass")
