"""Functions read from source files with `ast`: a first word to predict, and the body as tokens and as a tree.

Nothing is imported or run. The standard library of the running Python is the default folder; its test packages, and
whatever is installed beside it, are left out. A file that does not parse, or a function nested too deeply to walk, is
skipped.

What counts as the body: the statements without docstrings and annotations. A function defined inside another is a
function of its own, and only its header stays in the enclosing body. A string keeps none of its text.
"""

import ast
import functools
import keyword
import os
import re
import sysconfig
import warnings
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

LEFT_OUT = frozenset({"test", "tests", "idle_test", "site-packages", "dist-packages", "__pycache__"})

Symbol = str | tuple[str, ...]
Tree = tuple[Symbol, tuple[Any, ...]]  # (symbol, children)
Definition = ast.FunctionDef | ast.AsyncFunctionDef

_WORD = re.compile(r"[A-Z]+(?![a-z])|[A-Z]?[a-z]+|[0-9]+")
_TOKEN = re.compile(r"[^\W\d]\w*|\d[\w.]*|\n|[-+*/%@&|^<>=!:]+|[^\w\s]")
_STRING = '"'  # stands for a string where a name is expected; no name can be spelt so
_BLOCKS = ("body", "handlers", "orelse", "finalbody", "cases")  # fields that hold statements, or what holds them
_HOLDERS: tuple[type[ast.AST], ...] = (ast.stmt, ast.excepthandler, ast.match_case)
_LEAVES = frozenset((ast.Expr, ast.Assign, ast.Return, ast.AugAssign, ast.Raise, ast.Import, ast.ImportFrom))
_WORD_FIELDS = frozenset({"id", "attr", "arg", "name", "names", "module", "asname", "kwd_attrs", "rest"})


@dataclass(frozen=True, slots=True)
class SourceFunction:
    """One function as it stands in a file.

    Attributes:
        word: the first word of its name, lower case.
        file: its path inside the folder, with forward slashes.
        line: the line of its `def`.
        name: with those of the classes and functions around it: for people.
        tokens: its body as text. A name is the tuple of its words; anything else is a string `<…>`.
        tree: its body as a syntax tree. A name is the tuple of its words, any other symbol a string `<…>`.
    """

    word: str
    file: str
    line: int
    name: str
    tokens: tuple[Symbol, ...]
    tree: Tree


def stdlib_folder() -> Path:
    return Path(sysconfig.get_path("stdlib"))


def source_files(folder: Path) -> list[Path]:
    """Every Python file below a folder in a fixed order, tests and installed packages left out."""
    found: list[Path] = []
    for here, folders, files in os.walk(folder):
        folders[:] = [name for name in folders if name not in LEFT_OUT]
        found += (Path(here, name) for name in files if name.endswith(".py"))
    return sorted(path for path in found if path.is_file())


@functools.cache
def words_of(name: str) -> tuple[str, ...]:
    """The words of a name written in snake_case or CamelCase, lower case.

    >>> words_of("_readHTTPHeader_2")
    ('read', 'http', 'header', '2')
    """
    return tuple(word.lower() for word in _WORD.findall(name))


def parse_files(folder: Path) -> Iterator[tuple[str, ast.Module]]:
    """(path inside the folder, syntax tree) of each file that parses."""
    for path in source_files(folder):
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")  # a file's own invalid escapes are not our business
                tree = ast.parse(path.read_bytes())
        except (SyntaxError, ValueError, RecursionError, MemoryError, OSError):
            continue
        yield path.relative_to(folder).as_posix(), tree


def definitions(module: ast.Module) -> list[tuple[Definition, str]]:
    """(function, the names around it) of every function in a file, an enclosed one before the one around it.

    Special methods (`__init__`) are no examples: their names are Python's choice.
    """
    out: list[tuple[Definition, str]] = []
    stack: list[tuple[ast.AST, str]] = [(module, "")]
    while stack:
        node, around = stack.pop()
        if type(node) in _LEAVES:
            continue
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            if not (node.name.startswith("__") and node.name.endswith("__")):
                out.append((node, around))
            around = f"{around}{node.name}."
        elif isinstance(node, ast.ClassDef):
            around = f"{around}{node.name}."
        stack += [(child, around) for field in _BLOCKS for child in getattr(node, field, ())]
    return out[::-1]


def read_function(node: Definition, file: str, around: str = "") -> SourceFunction | None:
    """The function as an example, or None where its name has no word or its body is too deep to walk.

    Changes `node`: strings, docstrings, annotations and the bodies of enclosed functions are cut out of it.
    """
    words = words_of(node.name)
    if not words:
        return None
    try:
        body = _Cut().statements(node.body)
        text = "\n".join(ast.unparse(statement) for statement in body)
        tokens = tuple(_token(match) for match in _TOKEN.findall(text))
        tree = ("<body>", tuple(_tree(statement) for statement in body))
    except RecursionError:
        return None
    return SourceFunction(words[0], file, node.lineno, around + node.name, tokens, tree)


class _Cut(ast.NodeTransformer):
    """Cuts out what is no part of the task: text, annotations, enclosed bodies."""

    def statements(self, body: list[ast.stmt]) -> list[ast.stmt]:
        kept = [new for old in body if not _is_text(old) for new in [self.visit(old)] if new is not None]
        return kept or [ast.Pass()]

    def generic_visit(self, node: ast.AST) -> ast.AST:
        if not isinstance(node, _HOLDERS):
            return super().generic_visit(node)
        for field in _BLOCKS:
            block = getattr(node, field, None)
            if block:
                setattr(node, field, [statement for statement in block if not _is_text(statement)])
        super().generic_visit(node)
        if getattr(node, "body", None) == []:
            node.body = [ast.Pass()]  # type: ignore[attr-defined]
        return node

    def visit_FunctionDef(self, node: Any) -> Any:
        node.body, node.returns = [ast.Pass()], None
        node.args = self.visit(node.args)
        node.decorator_list = [self.visit(decorator) for decorator in node.decorator_list]
        return node

    visit_AsyncFunctionDef = visit_FunctionDef  # noqa: N815

    def visit_arg(self, node: ast.arg) -> ast.arg:
        node.annotation = None
        return node

    def visit_AnnAssign(self, node: ast.AnnAssign) -> Any:
        if node.value is None:
            return None
        return ast.Assign([self.visit(node.target)], self.visit(node.value), lineno=0)

    def visit_Constant(self, node: ast.Constant) -> Any:
        return ast.Name(_STRING, ast.Load()) if isinstance(node.value, str | bytes) else node

    def visit_JoinedStr(self, node: ast.JoinedStr) -> Any:
        parts = [self.visit(part.value) for part in node.values if isinstance(part, ast.FormattedValue)]
        return ast.Call(ast.Name(_STRING, ast.Load()), parts, [])


def _is_text(statement: ast.stmt) -> bool:
    return isinstance(statement, ast.Expr) and isinstance(statement.value, ast.Constant | ast.JoinedStr)


def _token(text: str) -> Symbol:
    if text == _STRING:
        return "<string>"
    if text[0].isdigit():
        return "<number>"
    if text == "\n":
        return "<newline>"
    if keyword.iskeyword(text) or not (text[0].isalpha() or text[0] == "_"):
        return f"<{text}>"
    return words_of(text)


def _tree(node: Any) -> Tree:
    kind = type(node)
    if kind is ast.Name:
        return ("<string>", ()) if node.id == _STRING else (words_of(node.id), ())
    if kind is ast.Constant:
        return (f"<{node.value}>" if node.value in (None, True, False, ...) else "<number>"), ()
    if kind is ast.Expr:
        return _tree(node.value)
    symbol = node
    children: list[Tree] = []
    for field, value in ast.iter_fields(node):
        for part in value if isinstance(value, list) else (value,):
            if isinstance(part, ast.operator | ast.unaryop | ast.boolop | ast.cmpop):
                symbol = part  # an addition is a node <Add>, not a node <BinOp> with a child <Add>
            elif isinstance(part, ast.AST) and not isinstance(part, ast.expr_context):
                children.append(_tree(part))
            elif isinstance(part, str) and field in _WORD_FIELDS:
                children.append((words_of(part), ()))
    return f"<{type(symbol).__name__}>", tuple(children)
