"""Which tests reach which places of the package, and how long each test takes.

`record` writes a call of `hit` before the statement (or into the lambda) of each place, in a copy of the repository,
and runs tests there with this module as a plugin of pytest. Kernels, which are compiled, and what runs when a module is
imported are not recorded.
"""

import ast
import json
import os
import pathlib
import subprocess
import sys
import time
from collections.abc import Iterable, Iterator
from typing import Any

import pytest

__all__ = ["Reached", "hit", "record"]

Reached = dict[str, tuple[float, list[str]]]  # of each test: seconds, and the places that it reaches

_LOG = "REACHED_LOG"
_found: set[str] = set()
_reached: Reached = {}


def hit(place: str) -> None:
    """Note that a place was reached."""
    _found.add(place)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_protocol(item: Any) -> Iterator[None]:
    _found.clear()
    start = time.perf_counter()
    try:
        return (yield)
    finally:
        if _found:
            _reached[item.nodeid] = time.perf_counter() - start, sorted(_found)


def pytest_sessionfinish() -> None:
    if log := os.environ.get(_LOG):
        pathlib.Path(log).write_text(json.dumps(_reached))


def marked(source: bytes, places: Iterable[tuple[int, str]]) -> bytes:
    """A module that says when it is at one of these places, each an offset in bytes and a name."""
    lines = source.splitlines(keepends=True)
    starts = [0]
    for line in lines:
        starts.append(starts[-1] + len(line))

    def offset(line: int, column: int) -> int:
        return starts[line - 1] + column

    edits: list[tuple[int, str]] = []
    for at, name in places:
        chain = [node for node in ast.walk(ast.parse(source)) if _spans(node, at, offset)]
        functions = [node for node in chain if isinstance(node, ast.FunctionDef | ast.Lambda)]
        if not functions or any(isinstance(each, ast.FunctionDef) and _compiled(each) for each in functions):
            continue
        function = functions[-1]  # `ast.walk` is breadth first: the last is the innermost
        call = f"__import__('tests.reached', fromlist=['']).hit({name!r})"
        if isinstance(function, ast.Lambda):
            body = function.body
            edits.append((offset(body.lineno, body.col_offset), f"({call}, "))
            edits.append((offset(body.end_lineno or 0, body.end_col_offset or 0), ")[1]"))
            continue
        for node in reversed(chain):
            if isinstance(node, ast.stmt) and node is not function:
                line = lines[node.lineno - 1]
                indent = len(line) - len(line.lstrip())
                if indent == node.col_offset and not line.lstrip().startswith(b"elif"):
                    edits.append((starts[node.lineno - 1], " " * indent + call + "\n"))
                    break
    for at, text in sorted(edits, reverse=True):
        source = source[:at] + text.encode() + source[at:]
    return source


def _spans(node: ast.AST, at: int, offset: Any) -> bool:
    if not isinstance(node, ast.stmt | ast.Lambda):
        return False
    return offset(node.lineno, node.col_offset) <= at < offset(node.end_lineno or 0, node.end_col_offset or 0)


def _compiled(function: ast.FunctionDef) -> bool:
    return any("jit" in ast.unparse(each) or "intrinsic" in ast.unparse(each) for each in function.decorator_list)


def record(copy: pathlib.Path, places: dict[str, list[tuple[int, str]]], tests: list[str]) -> Reached:
    """What each of these tests reaches.

    Args:
        copy: a copy of the repository, which may be changed.
        places: of each file, those that are asked for.
        tests: as pytest takes them.
    """
    for path, each in places.items():
        file = copy / path
        file.write_bytes(marked(file.read_bytes(), each))
    log = copy / "reached.json"
    environment = {**os.environ, "PYTHONPATH": str(copy), _LOG: str(log)}
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-p", "no:xdist", "--tb=line"]
    subprocess.run([*command, "-p", "tests.reached", *tests], cwd=copy, env=environment, check=False)
    found: Reached = json.loads(log.read_text())
    return found
