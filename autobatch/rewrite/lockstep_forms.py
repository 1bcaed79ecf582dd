"""Rewrites a user's function into its lock-step form: find the tree, run the passes, compile, cache by code object.

The lock-step form is made from the live function: its globals, closure cells and defaults are the function's own, so
rebinding any of them is seen.
"""

import ast
from types import CellType, CodeType, FunctionType
from typing import Any

from autobatch.blocks.block_expressions import Names, Scope
from autobatch.blocks.block_inputs import Guard
from autobatch.blocks.finder import split_off_arrays
from autobatch.core.current_region import check_time
from autobatch.core.diagnostics import is_library
from autobatch.errors import (
    FROM_PLAIN_CODE,
    MAKE_A_LIST,
    RETURN_VALUES,
    TEST_BEFORE,
    NeedsLoop,
    Unsupported,
    UnsupportedError,
    reason_of,
)
from autobatch.lockstep.block_launch import Site
from autobatch.lockstep.block_loops import ScanSite
from autobatch.lockstep.runtime import NAMES
from autobatch.program.bounded_caches import MOST_FUNCTIONS, BoundedDict, CodeCache
from autobatch.program.scopes import bound_names, parameters
from autobatch.program.source import PARSING, compiled, inner_codes, own_tree
from autobatch.rewrite.block_sites import BlockSites
from autobatch.rewrite.callees import helper
from autobatch.rewrite.control import Control
from autobatch.rewrite.expressions import Calls, Choices, Comprehensions, Displays, Guards, Operators, Reads, is_pause
from autobatch.rewrite.in_place_writes import Ownership, Stores

PASSES: list[Any] = [
    Control,
    Comprehensions,
    Choices,
    Guards,
    Stores,
    Operators,
    Displays,
    Reads,
    Calls,
]
"""The passes in order; each removes the syntax that it names, and its `remains` finds any that is left."""

_REFUSED: dict[type[ast.AST], tuple[str, str]] = {  # {syntax: (what it is, what to write instead)}
    ast.Await: ("a coroutine", FROM_PLAIN_CODE),
    ast.AsyncFor: ("asynchronous code", FROM_PLAIN_CODE),
    ast.AsyncWith: ("asynchronous code", FROM_PLAIN_CODE),
    ast.AsyncFunctionDef: ("asynchronous code", FROM_PLAIN_CODE),
    ast.Yield: ("a generator", MAKE_A_LIST),
    ast.YieldFrom: ("a generator", MAKE_A_LIST),
    ast.Try: ("an exception that is handled", TEST_BEFORE),
    ast.TryStar: ("an exception that is handled", TEST_BEFORE),
    ast.Match: ("a match statement", "write the cases as if / elif"),
    ast.ClassDef: ("a class that is made", "define the class outside of the function"),
    ast.Global: ("an assignment to a global name", RETURN_VALUES),
    ast.Nonlocal: ("an assignment to a variable of another function", RETURN_VALUES),
}
_ASYNCHRONOUS = 0x80 | 0x200  # coroutine, asynchronous generator
_NAME_CELLS = {name: CellType(value) for name, value in NAMES.items()}


class _Converted:
    """The code of a lock-step form, or the reason why there is none."""

    __slots__ = ("code", "last", "origin", "reason", "sites", "tree")

    def __init__(self, origin: CodeType, code: CodeType | None, tree: ast.FunctionDef | None, reason: str) -> None:
        self.origin = origin  # keeps the key alive
        self.code = code
        self.tree = tree
        self.reason = reason
        self.sites: dict[str, CellType] = {}
        self.last: tuple[Any, Any, Any, Any] = (None, None, None, None)


_cache: BoundedDict[int, _Converted] = BoundedDict(MOST_FUNCTIONS)
_generated: CodeCache[None] = CodeCache()


def convert(function: FunctionType) -> Any:
    """The lock-step form of a function; None if it is not the user's own code (a library's, or ours).

    Raises:
        NeedsLoop: there is no lock-step form; the message says why.
    """
    code = function.__code__
    if id(code) in _generated:
        return function
    known = _cache.get(id(code))
    if known is None:
        if is_library(code.co_filename):
            return None
        with PARSING:
            known = _cache.get(id(code)) or _convert(function)
            _cache[id(code)] = known
    if known.code is None:
        raise NeedsLoop(known.reason)
    last, defaults, named, out = known.last
    if last is function and defaults is function.__defaults__ and named is function.__kwdefaults__:
        return out
    cells = dict(zip(code.co_freevars, function.__closure__ or (), strict=True))
    ours = _NAME_CELLS | known.sites
    closure = tuple([ours.get(name) or cells[name] for name in known.code.co_freevars])
    out = FunctionType(known.code, function.__globals__, function.__name__, function.__defaults__, closure)
    out.__kwdefaults__ = function.__kwdefaults__
    known.last = (function, function.__defaults__, function.__kwdefaults__, out)
    return out


def source(function: Any) -> str:
    """The rewritten source of a function, for reading.

    Raises:
        UnsupportedError: it has none; the message says why.
    """
    function = getattr(function, "__wrapped__", function)
    code = getattr(function, "__code__", None)
    if code is None:
        raise UnsupportedError(f"{function!r} is no function written in Python")
    try:
        rewritten = convert(function)
    except NeedsLoop as error:
        raise UnsupportedError(str(error)) from None
    if rewritten is None:
        raise UnsupportedError(f"{function.__qualname__} belongs to a library, which is not rewritten")
    if rewritten is function:
        raise UnsupportedError(f"{function.__qualname__} is rewritten code itself")
    return ast.unparse(_cache[id(code)].tree or ast.Module([], []))


def block_lines(function: FunctionType) -> list[range]:
    """The lines of each block of a function in lock-step.

    Raises:
        NeedsLoop: there is no lock-step form; `where` is the file and line of the reason.
        UnsupportedError: the function belongs to a library.
    """
    if convert(function) is None:
        raise UnsupportedError(f"{function.__qualname__} belongs to a library, which is not rewritten")
    known = _cache.get(id(function.__code__))
    sites = [] if known is None else [cell.cell_contents for cell in known.sites.values()]
    found = [[line for *_, line in each.body.__code__.co_lines() if line] for each in sites if isinstance(each, Site)]
    return [range(min(lines), max(lines) + 1) for lines in found if lines]


def _convert(function: FunctionType) -> _Converted:
    code = function.__code__
    sites: dict[str, Site | ScanSite] = {}
    try:
        if code.co_flags & _ASYNCHRONOUS:
            raise Unsupported(f"{function.__qualname__} is a coroutine", instead=FROM_PLAIN_CODE)
        tree = own_tree(function)
        _check(tree)
        functions = [part for part in ast.walk(tree) if isinstance(part, ast.FunctionDef)]
        around = Names(code.co_freevars).union(*[parameters(part) | bound_names(part.body) for part in functions])
        for part in functions:
            split_off_arrays(part, Scope(function.__globals__, around, around, around, _helper), recorded=False)
        own = around.union(*[bound_names(part.body) for part in functions])
        scope = Scope(function.__globals__, own, own, own, _helper)
        for part in functions:
            part.ownership = Ownership(part)  # type: ignore[attr-defined]
            if any(map(is_pause, ast.walk(tree))):
                continue  # a debugger shows the variables, and a block binds only those that are read after it
            part.blocks = BlockSites(part, scope, code.co_filename, sites)  # type: ignore[attr-defined]
        for each in PASSES:
            check_time()
            _apply(each, tree)
        made = compiled(tree, code, [*NAMES, *sites])
    except (Unsupported, SyntaxError, RecursionError) as error:
        if not isinstance(error, Unsupported):
            error = Unsupported(reason_of(error))
        return _Converted(code, None, None, error.at(code.co_filename, code.co_firstlineno).reason)
    for each in inner_codes(made):
        _generated.put(each)
    out = _Converted(code, made, tree, "")
    out.sites = {key: CellType(site) for key, site in sites.items()}
    return out


def _helper(function: Any) -> list[Guard] | None:
    """Guards of a helper that a block may call; None if it reads global numbers, whose change would go unnoticed."""
    found = helper(function)
    return None if found is None or any(type(each.value) in (int, float, bool) for each in found) else found


def _check(tree: ast.FunctionDef) -> None:
    for node in ast.walk(tree):
        reason = _REFUSED.get(type(node))
        if reason is not None:
            why, instead = reason
            raise Unsupported(f"{why} in {tree.name}", node, instead=instead)


def _apply(each: Any, tree: ast.FunctionDef) -> None:
    """Run one pass, and check that it removed its syntax."""
    rewriter = each(tree) if "__init__" in vars(each) else each()
    if hasattr(rewriter, "body_of"):
        tree.body = rewriter.body_of(tree)
    else:
        results = [rewriter.visit(statement) for statement in tree.body]
        tree.body = [line for out in results for line in (out if isinstance(out, list) else [out])]
    for node in _in_functions(tree):
        if rewriter.remains(node):
            raise Unsupported(f"{each.__name__} left {rewriter.removes}", node)


def _in_functions(tree: ast.FunctionDef) -> Any:
    stack: list[ast.AST] = list(tree.body)
    while stack:
        node = stack.pop()
        yield node
        stack += list(ast.iter_child_nodes(node))
