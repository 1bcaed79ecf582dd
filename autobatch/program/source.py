"""From a live function to the syntax tree it was compiled from, and from a rewritten tree to a code object.

The tree is found by compiling the source again and searching the result for the function's own code object: code
objects compare by value, line numbers included. So a file edited after its import can never make other code run, and
the right one of two lambdas on a line is found. The file's statement that contains the function is tried first, then
the whole file, because parsing a large file takes longer than running a batch; at last what notebooks and prompts
compile by itself, because CPython compiles `m.f()` differently if the same compilation imports `m`.
"""

import __future__

import ast
import bisect
import contextlib
import copy
import functools
import itertools
import linecache
import operator
import re
import sys
import textwrap
import threading
from collections.abc import Iterable, Iterator
from types import CodeType, FunctionType
from typing import Any

from autobatch.errors import FROM_PLAIN_CODE, KEEP_IN_A_FILE, Unsupported, shown_file
from autobatch.program import normal_form as nf
from autobatch.program.bounded_caches import CodeCache
from autobatch.program.liveness import annotate
from autobatch.program.lowering import lowered
from autobatch.program.quote import copied, definition, located, parse
from autobatch.program.scopes import parameters

PARSING = threading.RLock()
"""Held while trees are made and compiled, because CPython 3.11 counts tree depth over all threads together."""

FunctionNode = ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda
_FUTURE = (getattr(__future__, name) for name in __future__.all_feature_names)
_FUTURE_FLAGS = functools.reduce(operator.or_, (each.compiler_flag for each in _FUTURE))


# {code of a rewritten function: the user's code that it was made from}
_written: CodeCache[CodeType] = CodeCache()
_found: "CodeCache[FunctionSource]" = CodeCache()


class FunctionSource:
    """What is read of a code object, once for all readers; nobody changes it.

    Attributes:
        node: its definition, as written; owner: the name of the class it was written in, or None.
    """

    def __init__(self, node: FunctionNode, owner: str | None) -> None:
        self.node, self.owner = node, owner

    @functools.cached_property
    def tree(self) -> ast.FunctionDef:
        """The definition as a plain `def` without decorators and annotations, its class's private names mangled."""
        tree = as_function(_fresh(self.node), getattr(self.node, "name", ""))
        if self.owner is not None:
            Mangle(self.owner).visit(tree)
        return tree

    @functools.cached_property
    def form(self) -> nf.Closure:
        """The normal form, with liveness; nobody changes it."""
        form = lowered(self.tree)
        annotate(form)
        return form


def find(function: FunctionType) -> FunctionSource:
    """The definition that a function was compiled from, found once for each code object.

    Raises:
        Unsupported: there is no source, or the running code was not compiled from it.
    """
    _, code = _written.get(id(function.__code__), (None, function.__code__))
    if id(code) not in _found:
        _found.put(code, _search(function, code))
    return _found[id(code)][1]


def _search(function: FunctionType, code: CodeType) -> FunctionSource:
    name, file = function.__qualname__, shown_file(code.co_filename)
    lines = linecache.getlines(code.co_filename, function.__globals__)
    tried = (_find_in(each, code) for each in _sources(code, function.__globals__))
    found = next((each for each in tried if each is not None), None)
    found = found or _autoreloaded(linecache.getlines(code.co_filename, function.__globals__), code)
    if found is None:
        why = f"the source of {name} in {file} changed since it was imported; what runs is older"
        raise Unsupported(why if lines else f"{name} has no source ({file})", instead=KEEP_IN_A_FILE)
    return found


def _sources(code: CodeType, globals_: dict[str, Any]) -> Iterator[list[str]]:
    """The texts that a function may have been compiled from, the likeliest first."""
    lines = linecache.getlines(code.co_filename, globals_)
    yield lines
    if lines:
        linecache.checkcache(code.co_filename)
        yield linecache.getlines(code.co_filename, globals_)
    yield from _interactive_sources(code, globals_.get("__file__"))


def written_lines(code: CodeType) -> list[str]:
    """The lines of the file, notebook cell or prompt that code was written in; [] if unavailable."""
    lines = linecache.getlines(code.co_filename)
    if lines or not code.co_filename.startswith("<"):
        return lines
    return next((typed for typed in _interactive_sources(code) if _find_in(typed, code)), [])


def _interactive_sources(code: CodeType, file: str | None = None) -> Iterator[list[str]]:
    """Candidate sources of code that names no file: the program of `python -c`, a statement at the prompt, a cell.

    cloudpickle names no file for any function: it may be of the module's `file`, or of a cell that was sent with it.

    Python 3.13 keeps both, from 3.14 on by the code. Before, the program is among the interpreter's arguments, and the
    prompt's statements are in its history, yielded latest first; the caller compiles each to find the right one.
    """
    kept = getattr(linecache, "_getlines_from_code", None)
    if kept is not None:
        yield kept(code)
    if code.co_filename == "<dynamic-code>":
        yield linecache.getlines(file or "")
        yield from [entry[2] for entry in list(linecache.cache.values()) if len(entry) > 1 and entry[1] is None]
    if code.co_filename == "<string>" and "-c" in sys.orig_argv[1:-1]:
        program = sys.orig_argv[sys.orig_argv.index("-c") + 1]
        yield from (text.splitlines(keepends=True) for text in (textwrap.dedent(program), program))
    if code.co_filename == "<timed exec>":  # the rest of a notebook's cell that begins with %%time
        cells = [cell for name, cell in vars(sys.modules["__main__"]).items() if re.fullmatch(r"_i\d+", name)]
        rest = [re.sub(r"\A\s*%%time.*\n(\s*\n)*", "", cell) for cell in cells[::-1] if "%%time" in cell]
        yield from (text.splitlines(keepends=True) for text in rest)
    readline = sys.modules.get("readline")
    if code.co_filename in ("<stdin>", "<console>") and readline is not None:
        count = readline.get_current_history_length()
        typed = [f"{readline.get_history_item(at) or ''}\n" for at in range(max(1, count - 1000), count + 1)]
        for start in range(len(typed) - 1, -1, -1):
            if not typed[start][:1].isspace() and (
                code.co_name in typed[start] or typed[start].startswith("@") or "lambda" in typed[start]
            ):
                stop = start + 1
                while stop < len(typed) and (typed[stop][:1].isspace() or typed[stop - 1].startswith("@")):
                    stop += 1
                yield typed[start:stop]


def inner_codes(code: CodeType) -> list[CodeType]:
    """The code objects of a function and all its nested functions."""
    out = [code]
    for each in out:  # `out` grows meanwhile
        out += [const for const in each.co_consts if isinstance(const, CodeType)]
    return out


def remember(made: CodeType, code: CodeType) -> None:
    """Map rewritten code `made` to the user's `code`, also for nested functions that name and line identify."""
    _written.put(made, code)
    places: dict[tuple[str, int], list[CodeType]] = {}
    for each in inner_codes(code)[1:]:
        places.setdefault((each.co_name, each.co_firstlineno), []).append(each)
    ours: dict[tuple[str, int], list[CodeType]] = {}
    for each in inner_codes(made)[1:]:
        ours.setdefault((each.co_name, each.co_firstlineno), []).append(each)
    for place, found in ours.items():
        originals = places.get(place, [])
        if len(originals) == 1:
            originals *= len(found)
        if len(originals) == len(found):
            for each, original in zip(found, originals, strict=True):
                _written.put(each, original)


def is_rewritten(function: FunctionType) -> bool:
    """True if a function is rewritten code: it captures names that rewriting added.

    >>> is_rewritten(is_rewritten)
    False
    """
    return any(name.startswith("_ab_") for name in function.__code__.co_freevars)


def _find_in(lines: list[str], code: CodeType) -> FunctionSource | None:
    line, whole = code.co_firstlineno, "".join(lines)
    return _found_in(statement_around(lines, line), code) or _found_in(whole, code) or _found_in(whole, code, line)


def statement_around(lines: list[str], line: int) -> str:
    """The file's text with all lines blanked but its imports and the top-level statement around a line.

    Indentation tells where it starts. Imports stay because CPython compiles `m.f()` differently for an imported `m`.
    """
    starts = [at for at, text in enumerate(lines) if text[:1] not in _NO_STATEMENT]
    starts = [at for before, at in itertools.pairwise([-1, *starts]) if before < 0 or lines[before][:1] != "@"]
    bounds = list(itertools.pairwise([*starts, len(lines)]))
    own = bisect.bisect_left(starts, line) - 1
    kept = ["\n"] * len(lines)
    for place, (start, stop) in enumerate(bounds):
        if place == own or _IMPORT.match(lines[start]):
            kept[start:stop] = lines[start:stop]
    return "".join(kept)


_NO_STATEMENT = " \t\r\n\f#)]}"  # first characters of lines that continue a statement
_IMPORT = re.compile(r"import\s+[\w.]+\s*(as\s|,|$)|from\s+[\w.]+\s+import\s")


def _found_in(text: str, code: CodeType, alone_at: int = 0) -> FunctionSource | None:
    flags = code.co_flags & _FUTURE_FLAGS
    try:
        codes = _codes(text, code.co_filename, flags, alone_at)
    except (SyntaxError, ValueError):
        return None
    if not any(_same(other, code) for other in codes.get((code.co_name, code.co_firstlineno), ())):
        return None
    nodes = _functions(text).get((code.co_name, code.co_firstlineno), [])
    if len(nodes) > 1:
        nodes = [(node, owner) for node, owner in nodes if _body_starts(node, code)]
        # of nested lambdas take the innermost: an outer one also has instructions outside of it
        nodes.sort(key=lambda found: (found[0].lineno, found[0].col_offset))
    return FunctionSource(*nodes[-1]) if nodes else None


def _autoreloaded(lines: list[str], code: CodeType) -> FunctionSource | None:
    """The definition whose code IPython's %autoreload put into a function; its line numbers start from 1, since it was
    compiled from the unparsed tree."""
    if code.co_firstlineno > 2:  # 2: a method, after its class line
        return None
    try:
        functions = _functions("".join(lines))
    except (SyntaxError, ValueError):
        return None
    for (name, _), found in functions.items():
        for node, owner in found if name == code.co_name and name != "<lambda>" else ():
            alone: Any = copy.copy(node)
            alone.decorator_list = []
            for written in (ast.unparse(node), ast.unparse(alone)):
                text = written if owner is None else f"class {owner}:\n{textwrap.indent(written, '    ')}"
                made = inner_codes(compile(text, code.co_filename, "exec", dont_inherit=True))
                if any(_same(each, code) for each in made):
                    return FunctionSource(node, owner)
    return None


@functools.lru_cache(maxsize=64)
def _codes(text: str, filename: str, flags: int, alone_at: int) -> dict[tuple[str, int], list[CodeType]]:
    """{(name, first line): code objects} of a file; with `alone_at`, of what is compiled alone there."""
    out: dict[tuple[str, int], list[CodeType]] = {}
    for unit in _compiled_alone(text, alone_at) if alone_at else [text]:
        with contextlib.suppress(SyntaxError, ValueError):
            for code in inner_codes(compile(unit, filename, "exec", flags=flags, dont_inherit=True)):
                out.setdefault((code.co_name, code.co_firstlineno), []).append(code)
    return out


def _compiled_alone(text: str, line: int) -> Iterator[ast.Module]:
    """What tools compile by itself of the top-level statements on a line: the statement, as IPython and Python's own
    prompt do; in a marimo notebook run as a script, a function without its decorator, or the block of a cell."""
    for node in parse(text).body:
        if _first_line(node) <= line <= (node.end_lineno or line):
            yield ast.Module([node], [])
            if getattr(node, "decorator_list", ()):
                node.decorator_list = []  # type: ignore[attr-defined]
                yield ast.Module([node], [])
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.With):
                before = _first_line(node.body[0]) - 1
                block = textwrap.dedent("".join(text.splitlines(keepends=True)[before : node.end_lineno]))
                with contextlib.suppress(SyntaxError):  # a text in it stands further left
                    body = parse("\n" * before + block).body
                    yield ast.Module([each for each in body if not isinstance(each, ast.Return)], [])


def _first_line(node: ast.stmt) -> int:
    return min(each.lineno for each in (node, *getattr(node, "decorator_list", ())))


def _same(compiled: CodeType, running: CodeType) -> bool:
    """True if the running code was compiled from this source; tolerates pytest's rewriting of `assert`."""
    if compiled == running:
        return True
    return _rewritten_by_pytest(running) and compiled.co_varnames == tuple(
        name for name in running.co_varnames if not name.startswith("@py")
    )


def _rewritten_by_pytest(code: CodeType) -> bool:
    return "@pytest_ar" in code.co_names or any(
        isinstance(const, CodeType) and _rewritten_by_pytest(const) for const in code.co_consts
    )


@functools.lru_cache(maxsize=16)
def _functions(text: str) -> dict[tuple[str, int], list[tuple[FunctionNode, str | None]]]:
    """{(name, first line): [(function node, class name or None)]} of a file. Cached: copy nodes before changing."""
    out: dict[tuple[str, int], list[tuple[FunctionNode, str | None]]] = {}
    stack: list[tuple[ast.AST, str | None]] = [(parse(text), None)]
    while stack:
        parent, owner = stack.pop()
        for node in ast.iter_child_nodes(parent):
            if isinstance(node, ast.Lambda):
                out.setdefault(("<lambda>", node.lineno), []).append((node, owner))
            elif isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
                for line in {node.lineno, _first_line(node)}:  # the first is that of a decorator taken off
                    out.setdefault((node.name, line), []).append((node, owner))
            stack.append((node, node.name if isinstance(node, ast.ClassDef) else owner))
    return out


def _fresh(node: Any) -> Any:
    """A deep copy of a tree."""
    return copied(node, _fresh)


def _body_starts(node: FunctionNode, code: CodeType) -> bool:
    """True if all instruction positions of a code object lie inside the body of `node`."""
    body = node.body if isinstance(node, ast.Lambda) else node
    assert isinstance(body, ast.expr | ast.stmt)
    start, end = (body.lineno, body.col_offset), (body.end_lineno, body.end_col_offset)
    places = {(line, column) for line, _, column, _ in code.co_positions()} - {(code.co_firstlineno, 0)}
    inside = [(line, column) for line, column in places if line is not None and column is not None]
    return bool(inside) and all(start <= position < end for position in inside)


def normal_form(function: FunctionType) -> nf.Closure:
    """The normal form of a function, with liveness; made once for each code object, and not to be changed.

    Raises:
        Unsupported: the source is unavailable, or the function is a coroutine.
    """
    found = find(function)
    try:
        with PARSING:
            return found.form
    except RecursionError:
        raise Unsupported(f"{function.__qualname__} is nested too deeply") from None


def as_function(node: Any, name: str) -> ast.FunctionDef:
    """The definition without decorators and annotations; a lambda becomes a function that returns its body."""
    if isinstance(node, ast.Lambda):
        body: list[ast.stmt] = [ast.copy_location(ast.Return(node.body), node.body)]
        return definition("_lambda", node.args, body, node)
    if isinstance(node, ast.AsyncFunctionDef):
        raise Unsupported(f"{name} is a coroutine", instead=FROM_PLAIN_CODE)
    node.decorator_list = []
    node.returns = None
    for arg in ast.walk(node.args):
        if isinstance(arg, ast.arg):
            arg.annotation = None
    return node


class Mangle(ast.NodeTransformer):
    """Mangles the private names of a class as the compiler does: `self.__x` becomes `self._Class__x`."""

    def __init__(self, owner: str) -> None:
        self.prefix = f"_{owner.lstrip('_')}"

    def _mangled(self, name: str) -> str:
        private = name.startswith("__") and not name.endswith("__") and "." not in name
        return f"{self.prefix}{name}" if private and self.prefix != "_" else name

    def visit_ClassDef(self, node: ast.ClassDef) -> Any:
        return node  # mangled by its own class name

    def visit_Attribute(self, node: ast.Attribute) -> Any:
        self.generic_visit(node)
        node.attr = self._mangled(node.attr)
        return node

    def visit_Name(self, node: ast.Name) -> Any:
        node.id = self._mangled(node.id)
        return node

    def visit_arg(self, node: ast.arg) -> Any:
        node.arg = self._mangled(node.arg)
        return node


def compiled(tree: ast.FunctionDef, code: CodeType, given: Iterable[str]) -> CodeType:
    """Compile a rewritten function inside a factory with the captured names as parameters, which makes them free.

    Args:
        given: captured names that the rewriter added to the user's own (`code.co_freevars`).
    """
    free = [*code.co_freevars, *given]
    taken = parameters(tree)
    names = [ast.arg(name) for name in dict.fromkeys(free) if name not in taken]
    factory = definition("_ab_factory", ast.arguments([], names, None, [], [], None, []), [tree], tree)
    defaults, own_name = (tree.args.defaults, tree.args.kw_defaults), tree.name
    tree.name = "_ab_function"  # so that the function's name in its body stays global or captured
    tree.lineno = code.co_firstlineno  # the line of its first decorator, as in the user's code
    tree.args.defaults = [ast.Constant(None) for _ in tree.args.defaults]
    tree.args.kw_defaults = [None if default is None else ast.Constant(None) for default in tree.args.kw_defaults]
    outer = compile(located(ast.Module([factory], [])), code.co_filename, "exec", dont_inherit=True)
    (tree.args.defaults, tree.args.kw_defaults), tree.name = defaults, own_name
    (made,) = [const for const in outer.co_consts if isinstance(const, CodeType)]
    (inner,) = [const for const in made.co_consts if isinstance(const, CodeType) and const.co_name == "_ab_function"]
    return _requalified(inner, inner.co_qualname, code.co_qualname).replace(co_name=code.co_name)


def _requalified(code: CodeType, own: str, name: str) -> CodeType:
    """The code with qualified-name prefix `own` replaced by `name`, in nested functions and classes too."""

    def renamed(const: Any) -> Any:
        if isinstance(const, CodeType):
            return _requalified(const, own, name)
        return name + const.removeprefix(own) if isinstance(const, str) and const.startswith(own) else const

    return code.replace(co_consts=tuple(map(renamed, code.co_consts)), co_qualname=renamed(code.co_qualname))
