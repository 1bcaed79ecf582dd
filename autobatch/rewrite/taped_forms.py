"""From a user's function to its form for gradients: the arrays that it makes and writes into take values that have one.

The form runs the function's own statements. Only calls are written anew, as `made` says; and what may be a function of
the user's is called in its own form. What has no source stays the function that it is.
"""

import ast
from types import CellType, CodeType, FunctionType
from typing import Any

from autobatch.autodiff.tape import active_tape
from autobatch.blocks.block_expressions import Scope
from autobatch.errors import NeedsLoop
from autobatch.lockstep.run import has_batch
from autobatch.rewrite.callees import FORM, ID, KNOWN, through_form
from autobatch.rewrite.convert import compiled
from autobatch.rewrite.rewritten_callables import LOOKS_AT_NAMES, Forms, function_of
from autobatch.rewrite.taped_allocations import CELLS, mark
from autobatch.syntax.quote import expression
from autobatch.syntax.scopes import bound_names, parameters
from autobatch.syntax.source import NoSourceError, inner_codes, is_library, own_tree, remember

__all__ = ["per_example_form", "taped_form"]

_ASYNCHRONOUS = 0x80 | 0x100 | 0x200  # coroutine, iterable coroutine, asynchronous generator

# By the ids of a function's code and globals, which are kept so that the ids stay theirs: the code of its form, if any.
_made: dict[tuple[int, int], tuple[CodeType, dict[str, Any], CodeType | None]] = {}
_ours: dict[int, CodeType] = {}


def _form(function: FunctionType) -> FunctionType:
    code = function.__code__
    key = id(code), id(function.__globals__)
    if key not in _made and id(code) not in _ours:
        _made[key] = code, function.__globals__, None if is_library(code.co_filename) else _make(function)
    made = _made[key][2] if key in _made else None
    return function if made is None else function_of(function, made, _CELLS)


def _decorated(function: Any) -> Any:
    """A function with the decorator: its form, but for batches, which run in lock-step."""
    inner = taped_form(function.__wrapped__)
    if inner is function.__wrapped__:
        return function
    plain = type(function)(inner)

    def call(*args: Any, **kwargs: Any) -> Any:
        return (function if has_batch(args, kwargs) else plain)(*args, **kwargs)

    return call


def _class(cls: Any) -> Any:
    """A class: what makes its objects, by the form of `__init__`."""
    start = cls.__init__
    if type(cls) is not type or cls.__new__ is not object.__new__ or type(start) is not FunctionType:
        return cls
    inner = taped_form(start)
    if inner is start:
        return cls

    def make(*args: Any, **kwargs: Any) -> Any:
        out: Any = object.__new__(cls)
        inner(out, *args, **kwargs)
        return out

    return make


taped_form = Forms(_form, _decorated, _class)
"""What to call instead of a function while it is differentiated."""


def per_example_form(function: Any) -> Any:
    """What to call for one example in a loop over the examples: under a gradient the function's form."""
    return function if active_tape() is None else taped_form(function)


_CELLS = {FORM: CellType(taped_form), KNOWN: CellType(taped_form.known), ID: CellType(id), **CELLS}


def _make(function: FunctionType) -> CodeType | None:
    code = function.__code__
    if code.co_flags & _ASYNCHRONOUS or LOOKS_AT_NAMES & set(code.co_names):
        return None
    try:
        tree = own_tree(function)
        mark(tree)
        _Calls(tree, function).visit(tree)
        if not any(isinstance(part, ast.Name) and part.id.startswith("_ab_") for part in ast.walk(tree)):
            return None
        made = compiled(tree, code, _CELLS)
    except (NoSourceError, NeedsLoop, SyntaxError, RecursionError):
        return None
    remember(made, code)
    _ours.update({id(each): each for each in inner_codes(made)})
    return made


class _Calls(ast.NodeTransformer):
    """Reads calls, and values that are marked as made; leaves calls of forms, and `_ab_made(VALUE)`."""

    def __init__(self, tree: ast.FunctionDef, function: FunctionType) -> None:
        own = set(function.__code__.co_freevars)
        for part in ast.walk(tree):
            if isinstance(part, ast.FunctionDef | ast.Lambda):
                own |= parameters(part) | bound_names(part.body)
        names = frozenset(own)
        self.scope = Scope(function.__globals__, names, names, names, lambda function: None)

    def visit(self, node: ast.AST) -> Any:
        out = super().visit(node)
        return expression("_ab_made(VALUE)", node, VALUE=out) if getattr(node, "made", False) else out

    def visit_ClassDef(self, node: ast.ClassDef) -> Any:
        return node

    def visit_Call(self, node: ast.Call) -> Any:
        self.generic_visit(node)
        if not (isinstance(node.func, ast.Name) and node.func.id == "super"):
            node.func = through_form(node.func, self.scope, classes=True)
        return node
