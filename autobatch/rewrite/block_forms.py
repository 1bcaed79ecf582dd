"""From a user's function to the form in which its straight-line runs are recorded as blocks.

It is made from the live function, as the lock-step form is: globals, closure cells and defaults are the function's.
What has no source, and what has nothing to gain, stays the function that it is.
"""

import ast
import copy
import functools
from types import CellType, CodeType, FunctionType
from typing import Any

from autobatch.batches.base import Batch
from autobatch.blocks.expressions import BlockForm, Scope
from autobatch.blocks.finder import body_function
from autobatch.blocks.preparing import set_tests_apart
from autobatch.errors import NeedsLoop, UnsupportedError
from autobatch.facts.source import NoSourceError, as_function, find, inner_codes, is_library, own_tree, remember
from autobatch.lazy.blocks import Block
from autobatch.lazy.stored import forget_classes
from autobatch.lazy.trace import plain_parts
from autobatch.rewrite.blocks import Blocks
from autobatch.rewrite.callees import FORM, ID, KNOWN, helper
from autobatch.rewrite.convert import compiled
from autobatch.rewrite.forms import LOOKS_AT_NAMES, Forms, function_of
from autobatch.rewrite.made import CELLS, mark
from autobatch.syntax.liveness import annotate
from autobatch.syntax.quote import statements

__all__ = ["block_form", "block_source", "forget_forms"]

_GENERATOR = 0x20
_BATCHED = "_ab_batched"
_CONTAINERS = (dict, list, tuple)
_PLAIN_CODE = 0x80 | 0x100 | 0x200  # coroutine, iterable coroutine, asynchronous generator


class _Made:
    """The code of a block form; None where the function stays as it is."""

    __slots__ = ("cells", "checking", "code", "globals", "origin", "tree")

    def __init__(self, origin: CodeType, globals_: dict[str, Any]) -> None:
        self.origin = origin  # these two keep the key alive
        self.globals = globals_
        self.code: CodeType | None = None
        self.checking: CodeType | None = None  # the same, and first looks for batches among the arguments
        self.tree: ast.FunctionDef | None = None
        self.cells: dict[str, CellType] = {
            FORM: CellType(block_form),
            KNOWN: CellType(block_form.known),
            ID: CellType(id),
            **CELLS,
        }


_made: dict[tuple[int, int], _Made] = {}
_ours: dict[int, CodeType] = {}
_checked = plain_parts  # containers without batches, by id
_harmless: set[type] = set()


def forget_forms() -> None:
    """Let go of the functions that were called; their code stays rewritten."""
    block_form.forget()
    _checked.clear()
    _harmless.clear()
    forget_classes()


def block_source(function: Any) -> str:
    """The rewritten source of a function, for reading; its own where it stays as it is.

    Raises:
        UnsupportedError: no function written in Python, or one without source.
    """
    function = getattr(function, "__wrapped__", function)
    if type(function) is not FunctionType:
        raise UnsupportedError(f"{function!r} is no function written in Python")
    made = _made_of(function)
    if made is not None and made.tree is not None:
        return ast.unparse(made.tree)
    try:
        return ast.unparse(as_function(find(function)[0], function.__name__))
    except NoSourceError as error:
        raise UnsupportedError(str(error)) from None


def _decorated(function: Any) -> Any:
    """A function with the decorator: its block form, but for batches, which run in lock-step."""
    inner = block_form(function.__wrapped__)
    if type(inner) is not FunctionType:
        return function
    made = _made_of(function.__wrapped__) if type(function.__wrapped__) is FunctionType else None
    if made is not None and made.checking is not None:
        cells = {**_CHECKS, _BATCHED: CellType(function)}
        return function_of(function.__wrapped__, made.checking, {**made.cells, **cells})
    harmless, checked = _harmless, _checked

    def call(*args: Any, **kwargs: Any) -> Any:
        for arg in args:
            if type(arg) not in harmless and id(arg) not in checked and _may_hold_batch(arg):
                return function(*args, **kwargs)
        if kwargs and any(map(_may_hold_batch, kwargs.values())):
            return function(*args, **kwargs)
        return inner(*args, **kwargs)

    return call


def _may_hold_batch(arg: Any) -> bool:
    """Whether the decorator has to look for batches in an argument, at the cost of walking through all of it."""
    if isinstance(arg, Batch):
        return True
    if type(arg) not in _CONTAINERS:  # a tree of objects that holds batches was made for lock-step
        _harmless.add(type(arg))
        return False
    if id(arg) in _checked:
        return False
    harmless, checked, nodes = _harmless, _checked, [arg]
    checked[id(arg)] = arg
    for node in nodes:  # which grows on the way
        for part in node.values() if type(node) is dict else node:
            kind = type(part)
            if kind in harmless:
                continue
            if kind in _CONTAINERS:
                if id(part) not in checked:
                    checked[id(part)] = part
                    nodes.append(part)
            elif isinstance(part, Batch):
                for each in nodes:
                    checked.pop(id(each), None)
                return True
            else:
                harmless.add(kind)
    return False


_CHECKS = {
    "_ab_type": CellType(type),
    "_ab_harmless": CellType(_harmless),
    "_ab_checked": CellType(_checked),
    "_ab_may_hold_batch": CellType(_may_hold_batch),
}


def _made_of(function: FunctionType) -> _Made | None:
    """The block form of the code of a user's function; None for code of a library, or ours."""
    code = function.__code__
    if id(code) in _ours:
        return None
    key = id(code), id(function.__globals__)
    made = _made.get(key)
    if made is None:
        if is_library(code.co_filename):
            return None
        made = _made[key] = _make(function)
    return made


def _form(function: FunctionType) -> FunctionType:
    made = _made_of(function)
    return function if made is None or made.code is None else function_of(function, made.code, made.cells)


def _make(function: FunctionType) -> _Made:
    code = function.__code__
    made = _Made(code, function.__globals__)
    if code.co_flags & _PLAIN_CODE or LOOKS_AT_NAMES & set(code.co_names):
        return made
    try:
        tree = own_tree(function)
        around = frozenset(code.co_freevars)
        scope = Scope(function.__globals__, around, around, around, helper)
        mark(tree)
        set_tests_apart(tree, scope)
        for part in ast.walk(tree):
            if isinstance(part, ast.FunctionDef):
                annotate(part, anywhere=True)
        Blocks(scope, functools.partial(_block, made, code.co_filename)).function(tree)
        if not any(isinstance(part, ast.Name) and part.id.startswith("_ab_") for part in ast.walk(tree)):
            return made
        new = compiled(tree, code, made.cells)
        checking = None
        if not code.co_flags & _GENERATOR:
            checking = compiled(_checking(tree), code, [*made.cells, *_CHECKS, _BATCHED])
    except (NoSourceError, NeedsLoop, SyntaxError, RecursionError):
        return made
    for ours in [new] if checking is None else [new, checking]:
        remember(ours, code)
        _ours.update({id(each): each for each in inner_codes(ours)})
    made.code, made.checking, made.tree = new, checking, tree
    return made


def _checking(tree: ast.FunctionDef) -> ast.FunctionDef:
    """The function as its decorated form: a call with a batch among its arguments is the decorator's.

    The test stands in the function itself, where it takes a fraction of the time of one more call.
    """
    args = tree.args
    positional = [arg.arg for arg in (*args.posonlyargs, *args.args)]
    named = [arg.arg for arg in args.kwonlyargs]
    rest, others = args.vararg, args.kwarg
    names = [*positional, *named, *[arg.arg for arg in (rest, others) if arg is not None]]
    if not names:
        return tree
    given = [
        *positional,
        *([f"*{rest.arg}"] if rest is not None else []),
        *[f"{name}={name}" for name in named],
        *([f"**{others.arg}"] if others is not None else []),
    ]
    test = " or ".join(
        f"_ab_type({name}) not in _ab_harmless and _ab_id({name}) not in _ab_checked and _ab_may_hold_batch({name})"
        for name in names
    )
    out = copy.copy(tree)
    out.body = [*statements(f"if {test}:\n    return {_BATCHED}({', '.join(given)})", tree), *tree.body]
    return out


block_form = Forms(_form, _decorated)
"""What to call instead of a function while examples are recorded."""


def _block(made: _Made, filename: str, form: BlockForm, body: list[ast.stmt], at: ast.AST) -> str:
    """Make a block, and give the name of the cell that its recorder is in."""
    lines = getattr(at, "lineno", 0), getattr(at, "end_lineno", 0)
    function = body_function(form, body, filename, at)
    block = Block((filename, *lines), form.slots()[1], list(form.guards.values()), function, made.globals)
    name = f"_ab_record{len(made.cells)}"
    made.cells[name] = block.cell
    return name
