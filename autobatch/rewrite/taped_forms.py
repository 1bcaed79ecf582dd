"""Rewrites a user's function into its form for gradients, whose arrays can store values that carry a gradient.

The form runs the function's own statements; only calls change. A call that makes an array to be written into, or that
may take a list, is wrapped; a callee that may be a user function is called in its form. Without source: unchanged.

    h = np.zeros(n)                          h = _ab_maker(np.zeros)(n)
    for i in range(n):                       for i in range(n):
        h[i] = f(x[i])             ->            h[i] = f(x[i])
    return np.mean([h[0], h[1]])             return _ab_listed(np.mean)([h[0], h[1]])

`np.zeros` returns a plain array, and `np.mean` reads a list as plain numbers: no argument is an array of ours that
could intercept the call. `mark` finds these calls; `callees.through_form` rewrites them.
"""

import ast
import functools
from collections.abc import Callable, Iterator
from types import CellType, CodeType, FunctionType
from typing import Any

import numpy as np

from autobatch.autodiff.tape import active_tape
from autobatch.batches.any_batch import has_batch
from autobatch.blocks.block_expressions import Scope
from autobatch.core.diagnostics import is_library
from autobatch.errors import Unsupported
from autobatch.facts.call_effects import functions_of
from autobatch.lazy.fibers import active_trace
from autobatch.ops.numpy.creation import CREATION, array
from autobatch.ops.numpy.python_math import OF_NUMBERS, number
from autobatch.ops.rules.dispatch import top_box
from autobatch.program.bounded_caches import MOST_FUNCTIONS, BoundedDict, CodeCache
from autobatch.program.quote import expression
from autobatch.program.scopes import bound_names, local_nodes, parameters
from autobatch.program.source import compiled, inner_codes, own_tree, remember
from autobatch.program.syntax_effects import Reader, usual_meaning
from autobatch.rewrite.callees import FRAME_NAME_READERS, Forms, function_of, through_form
from autobatch.rewrite.in_place_writes import Ownership, is_fresh, is_maker, stored_names

_TAKING = frozenset({"array", "asarray", "asanyarray", "ascontiguousarray", "full"})
_NO_LISTS = (ast.Constant, ast.Compare, ast.UnaryOp, ast.JoinedStr, ast.Lambda, ast.Dict, ast.DictComp)


def mark(tree: ast.FunctionDef) -> None:
    """Mark, in a function and nested functions, arrays made to be written into and calls that may get a list.

    A value gets the attribute `made`; the function of a call gets `maker` or `listed`, and also `total` if the array is
    only added to as a whole (`+=`) and no item of it is written.
    """
    bodies = [part.body for part in ast.walk(tree) if isinstance(part, ast.FunctionDef)]
    written = set().union(*map(_written, bodies))
    totals = set().union(*map(_added_to, bodies)) - set().union(*map(stored_names, bodies))
    for part in ast.walk(tree):
        if isinstance(part, ast.FunctionDef):
            Ownership(part)  # sets `owned` on calls whose arrays will be held by containers or objects
    for part in ast.walk(tree):
        for name, value in _bindings(part):
            if name in written and is_fresh(value) and not _has_target(value):
                value.made = True  # type: ignore[attr-defined]
                if name in totals and isinstance(value, ast.Call):
                    value.func.total = True  # type: ignore[attr-defined]
    for part in ast.walk(tree):
        if isinstance(part, ast.Call):
            if getattr(part, "owned", False) or (getattr(part, "made", False) and is_maker(part)):
                part.func.maker = True  # type: ignore[attr-defined]
                part.made = False  # type: ignore[attr-defined]
            elif any(map(_may_be_list, part.args[:2])) or _named(part.func) in _TAKING:
                part.func.listed = True  # type: ignore[attr-defined]


def _written(body: list[ast.stmt]) -> set[str]:
    """Names of arrays that the statements write into, as a whole or in part."""
    reader = Reader([], (), usual_meaning)
    changed = [each for node in local_nodes(body) for each in reader.changed(node)]
    return stored_names(body) | {each.id for each in changed if isinstance(each, ast.Name)}


def _added_to(body: list[ast.stmt]) -> set[str]:
    """Names that are targets of augmented assignments (`+=` and the like)."""
    nodes = (node.target for node in local_nodes(body) if isinstance(node, ast.AugAssign))
    return {node.id for node in nodes if isinstance(node, ast.Name)}


def _bindings(node: ast.AST) -> Iterator[tuple[str, ast.expr]]:
    """The (name, value) pairs that an assignment binds one to one."""
    if isinstance(node, ast.Assign):
        for target in node.targets:
            if isinstance(target, ast.Name):
                yield target.id, node.value
            elif isinstance(target, ast.Tuple) and isinstance(node.value, ast.Tuple):
                yield from (
                    (part.id, value)
                    for part, value in zip(target.elts, node.value.elts, strict=False)
                    if isinstance(part, ast.Name)
                )
    elif isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name) and node.value is not None:
        yield node.target.id, node.value


def _named(function: ast.expr) -> str:
    return getattr(function, "attr", getattr(function, "id", ""))


def _has_target(value: ast.expr) -> bool:
    """True if a call may return an array that was passed to it to be written into (`out=`)."""
    return isinstance(value, ast.Call) and (len(value.args) > 2 or any(k.arg in ("out", None) for k in value.keywords))


def _may_be_list(arg: ast.expr) -> bool:
    """True if an argument may be a list, judging by syntax alone; a call (`ab.map`) may return one."""
    if isinstance(arg, ast.BinOp):
        return isinstance(arg.op, ast.Add | ast.Mult) and (_may_be_list(arg.left) or _may_be_list(arg.right))
    return not isinstance(arg, _NO_LISTS)


# The functions that rewritten calls use at run time.


def made(value: Any) -> Any:
    """The new array; under a gradient, one that can store values that carry a gradient."""
    tape = active_tape()
    if tape is None or type(value) is not np.ndarray or value.dtype.kind not in "fc" or value.base is not None:
        return value
    trace = active_trace()
    return tape.constant(value) if trace is None or trace.level < tape.level else trace.computed(value)


@functools.cache
def maker(function: Any) -> Callable[..., Any]:
    """Wrap a function that makes an array which will be written into."""
    called = listed(function)
    return lambda *args, **kwargs: made(called(*args, **kwargs))


@functools.cache
def total_maker(function: Any) -> Callable[..., Any]:
    """Wrap a function that makes an array which will be added to; on the fly, adding to it waits for no launch."""
    called = maker(function)

    def make(*args: Any, **kwargs: Any) -> Any:
        value, trace = called(*args, **kwargs), active_trace()
        is_plain = type(value) is np.ndarray and value.ndim and value.dtype.kind == "f" and value.base is None
        return trace.computed(value) if trace is not None and is_plain else value

    return make


@functools.cache
def listed(function: Any) -> Callable[..., Any]:
    """Wrap a NumPy function so that it takes lists of our arrays where NumPy takes an array."""
    ours = CREATION.get(function)

    def create(*args: Any, **kwargs: Any) -> Any:
        plain = active_tape() is None or top_box((args, kwargs)) is None
        return (function if plain else ours)(*args, **kwargs)  # type: ignore[misc]

    def join(arrays: Any, *args: Any, **kwargs: Any) -> Any:
        if isinstance(arrays, list | tuple):
            arrays = [_as_array(each, 0) for each in arrays]
        return function(arrays, *args, **kwargs)

    def compute(*args: Any, **kwargs: Any) -> Any:
        return function(*[_as_array(arg, place) for place, arg in enumerate(args)], **kwargs)

    if function in functions_of("joins") and function not in _JOINING:
        return function
    return functools.wraps(function)(join if function in _JOINING else compute if ours is None else create)


def _if_taped(wrap: Callable[[Any], Any], function: Any) -> Any:
    return function if active_tape() is None else wrap(function)


def of_tape(function: Any) -> Any:
    """Wrap a function of Python numbers so that under a gradient it takes numbers that carry one."""
    return _if_taped(number, function)


_JOINING = {np.stack, np.concatenate, np.hstack, np.vstack, np.dstack, np.column_stack}


def _as_array(arg: Any, place: int) -> Any:
    """Stack a list (or a tuple as the first argument) that holds our arrays; return anything else unchanged."""
    is_list = type(arg) is list or (type(arg) is tuple and not place)
    return array(arg) if is_list and top_box(arg) is not None else arg


CELLS = {
    "_ab_made": CellType(made),
    "_ab_maker": CellType(maker),
    "_ab_total": CellType(total_maker),
    "_ab_listed": CellType(listed),
    "_ab_number": CellType(of_tape),
}


_ASYNCHRONOUS = 0x80 | 0x100 | 0x200  # coroutine, iterable coroutine, asynchronous generator

# {(id of code, id of globals): (code, globals, code of the form or None)}; holding both keeps their ids valid.
_forms: BoundedDict[tuple[int, int], tuple[CodeType, dict[str, Any], CodeType | None]] = BoundedDict(MOST_FUNCTIONS)
_generated: CodeCache[None] = CodeCache()


def _form(forms: Forms, function: FunctionType) -> FunctionType:
    code = function.__code__
    key = id(code), id(function.__globals__)
    found = _forms.get(key)
    if found is None:
        if id(code) in _generated:
            return function
        found = code, function.__globals__, None if is_library(code.co_filename) else _make(function)
        _forms[key] = found
    return function if found[2] is None else function_of(function, found[2], CELLS | forms.cells)


def _decorated(forms: Forms, function: Any) -> Any:
    """Form of a decorated function: runs its form, or lock-step if an argument holds a batch."""
    inner = forms(function.__wrapped__)
    if inner is function.__wrapped__:
        return function
    plain = type(function)(inner)

    def call(*args: Any, **kwargs: Any) -> Any:
        return (function if has_batch(args, kwargs) else plain)(*args, **kwargs)

    return call


taped_form = Forms(_form, _decorated, {each: number(each) for each in OF_NUMBERS})
"""Maps a function to the form to call while it is differentiated."""
call_form = Forms(_form, _decorated)
for _name, _wrap in {"_ab_listed": listed, "_ab_maker": maker, "_ab_total": total_maker}.items():
    call_form.cells[_name] = CellType(functools.partial(_if_taped, _wrap))
"""Maps a function to the form to call while its examples are recorded op by op, without blocks."""


def per_example_form(function: Any) -> Any:
    """The function to call per example in a loop: under a gradient its form for gradients, else the function."""
    return function if active_tape() is None else taped_form(function)


def _make(function: FunctionType) -> CodeType | None:
    code = function.__code__
    if code.co_flags & _ASYNCHRONOUS or FRAME_NAME_READERS & set(code.co_names):
        return None
    try:
        tree = own_tree(function)
        mark(tree)
        _Calls(tree, function).visit(tree)
        if not any(isinstance(part, ast.Name) and part.id.startswith("_ab_") for part in ast.walk(tree)):
            return None
        made = compiled(tree, code, CELLS | taped_form.cells)
    except (Unsupported, SyntaxError, RecursionError):
        return None
    remember(made, code)
    for each in inner_codes(made):
        _generated.put(each)
    return made


class _Calls(ast.NodeTransformer):
    """Sends calls through `callees.through_form`, and wraps values marked `made` as `_ab_made(VALUE)`."""

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
            node.func = through_form(node, self.scope)
        return node
