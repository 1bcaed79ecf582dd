"""The user's source for a report: functions, the statement at each line, and its syntax tree."""

import ast
import contextlib
import functools
import inspect
import linecache
from collections.abc import Iterable, Iterator
from types import CodeType, FunctionType, MethodType, WrapperDescriptorType

from autobatch.errors import UnsupportedError
from autobatch.program.quote import parse
from autobatch.program.source import statement_around, written_lines
from autobatch.report.line_profile import Place

Function = ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda


class Section:
    """The lines of a function: `first` to `last` of `file`, and the name to show."""

    __slots__ = ("file", "first", "last", "name")

    def __init__(self, file: str, first: int, last: int, name: str) -> None:
        self.file, self.first, self.last, self.name = file, first, last, name

    def __contains__(self, place: Place) -> bool:
        return place[0] == self.file and self.first <= place[1] <= self.last

    def is_inside(self, other: "Section") -> bool:
        begins_within = (other.first, -other.last) < (self.first, -self.last)
        return self.file == other.file and begins_within and self.last <= other.last


class Source:
    """A file as it is read: its lines, and the statement at each line.

    Args:
        file: its name, which may be that of a notebook's cell.

    Attributes:
        lines: the text of each line, without its end.
    """

    def __init__(self, file: str, lines: Iterable[str]) -> None:
        self.file = file
        self.lines = [line.rstrip("\r\n") for line in lines]
        self._parents: dict[ast.AST, ast.AST] = {}
        self._statements: dict[int, ast.stmt] = {}
        self._known: set[int] = set()

    def _read_around(self, line: int) -> None:
        """Read the top-level statement around a line; all of the file if that cannot be parsed by itself."""
        if line in self._known:
            return
        self._known.add(line)
        lines = [f"{each}\n" for each in self.lines]
        for text in (statement_around(lines, line), "".join(lines)):
            with contextlib.suppress(SyntaxError, ValueError):
                tree = parse(text)
                break
        else:
            return
        self._known.update(*(range(each.lineno, (each.end_lineno or 0) + 1) for each in tree.body))
        nodes: list[ast.AST] = [tree]
        for node in nodes:  # the list grows during the loop; most nodes are expressions, which are left out
            nodes += (inner := [each for each in ast.iter_child_nodes(node) if not isinstance(each, ast.expr)])
            self._parents.update(dict.fromkeys(inner, node))
            if isinstance(node, ast.stmt):
                self._statements.update(dict.fromkeys(_own_lines(node), node))

    def text(self, line: int) -> str:
        return self.lines[line - 1] if 0 < line <= len(self.lines) else ""

    def statement(self, line: int) -> ast.stmt | None:
        """The innermost statement of a line; of a compound one, its head."""
        self._read_around(line)
        return self._statements.get(line)

    def mark(self, line: int) -> str:
        """How a statement that begins at a line, without its body, runs for the examples of a batch."""
        node = self.statement(line)
        marks = {ast.For: "steps", ast.While: "steps", ast.If: "parts", ast.Assert: "parts"}
        return "" if node is None or node.lineno != line else marks.get(type(node), "")

    def start(self, line: int) -> int:
        """The first line of the statement at a line."""
        found = self.statement(line)
        return line if found is None else found.lineno

    def around(self, node: ast.AST) -> Iterator[ast.AST]:
        """The enclosing syntax nodes of a node, innermost first."""
        while node in self._parents:
            node = self._parents[node]
            yield node

    def shown(self, section: Section) -> Iterator[tuple[int, str]]:
        """The numbers and texts of a function's lines, without the indentation of the first one."""
        indent = len(self.text(section.first)) - len(self.text(section.first).lstrip())
        for number in range(section.first, section.last + 1):
            text = self.text(number)
            yield number, text if text[:indent].strip() else text[indent:]

    def section(self, first: int, name: str) -> Section:
        """The lines of the function of this name that begins at line `first`; only that line if there is none."""
        own = self.statement(first)
        for node in () if own is None else ast.walk(own) if name == "<lambda>" else (own,):
            if isinstance(node, Function) and getattr(node, "name", "<lambda>") == name:
                start = min([node.lineno, *[each.lineno for each in getattr(node, "decorator_list", ())]])
                if start == first:
                    return Section(self.file, start, node.end_lineno or start, name)
        return Section(self.file, first, first, name)


def plain_function(function: object) -> FunctionType:
    """The function written in Python that a partial, method, decorated function or callable object runs.

    Raises:
        UnsupportedError: there is none.
    """
    while not isinstance(function, FunctionType):
        if isinstance(function, MethodType):
            function = function.__func__
        elif isinstance(function, functools.partial):
            function = function.func
        elif hasattr(function, "__wrapped__"):
            function = function.__wrapped__
        elif callable(function) and not isinstance(type(function).__call__, WrapperDescriptorType):  # not C code's
            function = type(function).__call__
        else:
            given = repr(function) if callable(function) else f"{type(function).__name__} given, which"
            raise UnsupportedError(f"{given} is not a function written in Python")
    return function


def code_of(function: object) -> CodeType | None:
    """The code object of the user's function, None if it is not written in Python."""
    try:
        return plain_function(inspect.unwrap(function)).__code__  # type: ignore[arg-type]
    except UnsupportedError:
        return None


def _own_lines(node: ast.stmt) -> range:
    """The lines of a statement; for a compound statement, those of its head."""
    start = min([node.lineno, *[each.lineno for each in getattr(node, "decorator_list", ())]])
    body = getattr(node, "body", None) or getattr(node, "cases", None)
    if body:
        first = getattr(body[0], "lineno", None) or body[0].pattern.lineno
        return range(start, max(start + 1, first))
    return range(start, (node.end_lineno or start) + 1)


@functools.lru_cache(maxsize=64)
def _read(file: str, lines: tuple[str, ...]) -> Source:
    return Source(file, lines)


_prompts: dict[str, tuple[str, ...]] = {}  # by a prompt's file name, the lines last typed


def source_of(file: str, code: CodeType | None = None) -> Source:
    """The current source of a file; `code` is code from it, needed to find what was typed at a prompt."""
    lines = tuple(linecache.getlines(file))
    if not lines and code is not None:
        lines = tuple(written_lines(code))
        _prompts.update({file: lines} if lines else {})
    return _read(file, lines or _prompts.get(file, ()))


def enclosing_loops(source: Source, node: ast.stmt) -> list[ast.For | ast.While]:
    """The loops around a statement in the same function, innermost first."""
    out: list[ast.For | ast.While] = []
    inner: ast.AST = node
    for each in source.around(node):
        if isinstance(each, Function):
            break
        if isinstance(each, ast.For | ast.While) and inner in each.body:
            out.append(each)
        inner = each
    return out


def names_read(node: ast.AST) -> set[str]:
    """The names that a syntax node reads."""
    return {each.id for each in ast.walk(node) if isinstance(each, ast.Name) and isinstance(each.ctx, ast.Load)}
