"""The user's source: functions, the statement at each line, and its syntax tree, for reports; and `ab.source`.

`ab.source` shows a function as the user wrote it, each line marked with how it runs, or the code that runs instead.
"""

import ast
import contextlib
import functools
import inspect
import itertools
import linecache
from collections.abc import Callable, Iterable, Iterator, Sequence
from types import CodeType, FunctionType, MethodType, WrapperDescriptorType
from typing import Any

from autobatch.batches.any_batch import Batch
from autobatch.compiled.compiled_map import prepared
from autobatch.core.diagnostics import hiding_frames
from autobatch.core.formatting import wrapped
from autobatch.errors import NeedsLoop, Reason, Unsupported, UnsupportedError
from autobatch.lazy.block_forms import block_source
from autobatch.lazy.recorders.generated_recorders import recorder_text
from autobatch.lockstep.lockstep_forms import block_lines
from autobatch.lockstep.lockstep_forms import source as lock_step_source
from autobatch.program.python_text import printed
from autobatch.program.quote import parse
from autobatch.program.source import FunctionNode, normal_form, statement_around, written_lines
from autobatch.report.line_profile import Place


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

    def enclosing_loops(self, node: ast.AST) -> list[ast.For | ast.While]:
        """The loops around a statement in the same function, innermost first."""
        out: list[ast.For | ast.While] = []
        while (outer := self._parents.get(node)) is not None and not isinstance(outer, FunctionNode):
            if isinstance(outer, ast.For | ast.While) and node in outer.body:
                out.append(outer)
            node = outer
        return out

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
            if isinstance(node, FunctionNode) and getattr(node, "name", "<lambda>") == name:
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


def names_read(node: ast.AST) -> set[str]:
    """The names that a syntax node reads."""
    return {each.id for each in ast.walk(node) if isinstance(each, ast.Name) and isinstance(each.ctx, ast.Load)}


@hiding_frames
def source(function: Callable[..., Any], *, rewritten: bool = False, blocks: bool = False) -> str:
    """The source of a function, each line marked with what lock-step does with it.

    `block`: part of a run of array expressions that is one launch; `parts`: examples may take different branches here,
    and each branch runs for those that take it; `steps`: a loop, each step of which runs for all examples still in it;
    `refused`: it cannot run batched, and the examples fall back to tracing, for the reason given below.

    Args:
        function: the function, decorated with `ab.batch` or not, or an object with a method `__call__`.
        rewritten: show the code that lock-step runs instead; the functions that it calls are in `lockstep/runtime.py`.
            A condition is an object that gives each of its branches the examples that take it; the variables that they
            assign are joined at its end.
        blocks: show the code that `ab.map` runs instead, in which each straight-line run of array expressions is one
            call of a recorder.

    Returns:
        Text: of marked lines, or Python source.

    Raises:
        UnsupportedError: the function has no source; the message says why.

    >>> import autobatch as ab
    >>> def clipped(x):
    ...     if x > 1:
    ...         x = 1.0
    ...     return x
    >>> print(ab.source(clipped))
       1           def clipped(x):
       2  parts        if x > 1:
       3                   x = 1.0
       4               return x
    >>> print(ab.source(clipped, rewritten=True))
    def clipped(x):
        _ab_if_1 = _ab_if(_ab_gt(x, 1), (x,), False, False)
        for _ab_arm_1 in _ab_if_1:
            if _ab_arm_1:
                x = 1.0
            if _ab_if_1.split:
                _ab_if_1.end((x,))
        if _ab_if_1.split:
            x, = _ab_if_1.join()
        return x
    """
    plain = plain_function(function)
    return block_source(plain) if blocks else lock_step_source(plain) if rewritten else "\n".join(_marked(plain))


def stages(f: Any, args: Sequence[object], shared: dict[str, Any], batched: bool) -> dict[str, str]:
    """What each mode makes of a function for such a call, in the order of its life: {what it is: text}.

    Where there is nothing, the text says why.
    """
    plain = plain_function(f)
    writers = {
        "normal form": lambda: printed(normal_form(plain)),
        "blocks": lambda: source(plain),
        "lock-step": lambda: source(plain, rewritten=True),
        "tracing": lambda: source(plain, blocks=True),
        "recorder": lambda: recorder_text(plain),
        "compiled": lambda: compiled_text(f, args, shared, batched),
    }
    found = {}
    for name, write in writers.items():
        try:
            found[name] = write()
        except (Unsupported, UnsupportedError) as error:
            found[name] = f"none: {error}"
    return found


def compiled_text(f: Any, args: Sequence[object], shared: dict[str, Any], batched: bool) -> str:
    """The text that the compiled mode compiles for such a call.

    Raises:
        Unsupported: there is none; the message says why.
    """
    is_column = [not batched or isinstance(each, Batch) for each in args]

    def arguments_of(given: Sequence[Any], named: dict[str, Any]) -> tuple[list[Any], dict[str, Any]]:
        places = iter(given)
        return [next(places) if own else each for own, each in zip(is_column, args, strict=True)], named

    _, form = prepared(inspect.unwrap(f), list(itertools.compress(args, is_column)), shared, arguments_of)
    if form is None or form.module is None:
        raise Unsupported(form.reason if form else "no examples")
    return form.module.text


def _marked(function: FunctionType) -> list[str]:
    code = function.__code__
    written = source_of(code.co_filename, code)
    section = written.section(code.co_firstlineno, code.co_name)
    refused: Reason | None = None
    found: list[range] = []
    try:
        found = block_lines(function)
    except NeedsLoop as error:
        refused = error.reason
    if not written.text(section.first):
        raise UnsupportedError(str(refused or f"{function.__qualname__} has no source ({code.co_filename})"))
    blocks = {line for lines in found for line in lines}
    at = section.first
    if refused is not None and refused.where is not None and refused.where in section:
        at = refused.where[1]
    out = []
    for number, text in written.shown(section):
        mark = "block" if number in blocks and text.strip() else ""
        if refused is not None:
            mark = "refused" if number == at else ""
        elif not mark and section.name != "<lambda>":
            mark = written.mark(number)
        out.append(f"{number:4d}  {mark:<7}  {text}".rstrip())
        if mark == "refused" and refused is not None:
            says = f"{refused}{f' → {refused.instead}' if refused.instead else ''}"
            out += wrapped(f"{' ' * 15}^ {says}", " " * 17)
    return out
