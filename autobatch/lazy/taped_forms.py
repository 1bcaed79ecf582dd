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

import functools
from collections.abc import Callable, Iterator
from types import CellType, CodeType, FunctionType
from typing import Any

import numpy as np

from autobatch.autodiff.tape import active_tape
from autobatch.batches.any_batch import has_batch
from autobatch.core.diagnostics import at_users_line, is_library
from autobatch.errors import Unsupported
from autobatch.facts.call_effects import functions_of
from autobatch.lazy.callees import FRAME_NAME_READERS, Calls, Forms, Marks, function_of
from autobatch.lazy.fibers import active_trace
from autobatch.ops.numpy.creation import CREATION, array
from autobatch.ops.numpy.python_math import OF_NUMBERS, number
from autobatch.ops.rules.dispatch import top_box
from autobatch.program import normal_form as nf
from autobatch.program.bounded_caches import MOST_FUNCTIONS, BoundedDict, CodeCache
from autobatch.program.effects import EffectReader, updated, usual_meaning
from autobatch.program.folding import folded
from autobatch.program.liveness import all_names
from autobatch.program.ownership import Ownership, is_fresh, is_maker, stored_names
from autobatch.program.scopes import Scope
from autobatch.program.source import compiled, inner_codes, normal_form, remember

_TAKING = frozenset({"array", "asarray", "asanyarray", "ascontiguousarray", "full"})


def mark(function: nf.Closure) -> Marks:
    """Find, in a function and nested functions, arrays made to be written into and calls that may get a list."""
    marks = Marks()
    every = list(nf.closures(function))
    written = set().union(*[_written(each.body) for each in every])
    stored = set().union(*[stored_names(each.body) for each in every])
    for each in every:
        owned = Ownership(each)
        nodes = list(nf.walk(each.body))
        totals = {node.target for node in nodes if isinstance(node, nf.Bind) and updated(node) is not None} - stored
        for name, value in [binding for node in nodes for binding in _bindings(node)]:
            if name in written and is_fresh(value) and not _has_target(value):
                marks.made.add(value.at)
                marks.total.update([value.at] if name in totals else ())
        for call in nodes:
            if isinstance(call, nf.Call) and not call.symbol:
                if is_maker(call) and (call.at in marks.made or owned.makes(call)):
                    marks.maker.add(call.at)
                    marks.made.discard(call.at)
                elif any(map(_may_be_list, call.args[:2])) or _named(call.function) in _TAKING:
                    marks.listed.add(call.at)
    return marks


def _written(body: list[nf.Statement]) -> set[str]:
    """Names of arrays that the statements write into, as a whole or in part."""
    reader = EffectReader([], (), usual_meaning)
    changed = [each for node in nf.walk(body) for each in reader.changed(node)]
    return stored_names(body) | {each.id for each in changed if isinstance(each, nf.Name)}


def _bindings(node: nf.Node) -> Iterator[tuple[str, nf.Value]]:
    """The (name, value) pairs that an assignment binds one to one."""
    match node:
        case nf.Bind(target=str(name), value=nf.Value() as value) if updated(node) is None:
            yield name, value
        case nf.Bind(target=nf.Unpack(targets=targets), value=nf.Call(args=values) as value) if value.symbol == "tuple":
            pairs = zip(targets, values, strict=False)
            yield from ((target, each) for target, each in pairs if isinstance(target, str))


def _named(function: nf.Value) -> Any:
    return getattr(function, "key", getattr(function, "id", ""))


def _has_target(value: nf.Value) -> bool:
    """True if a call may return an array that was passed to it to be written into (`out=`)."""
    if not isinstance(value, nf.Call) or value.symbol:
        return False
    return len(value.args) > 2 or any(name in ("out", "") for name, _ in value.keywords)


_NO_LISTS = nf.SINGLE | nf.COMPARED | nf.OF_OBJECTS | {"not", "truth", "format", "dict"}


def _may_be_list(arg: nf.Value) -> bool:
    """True if an argument may be a list, judging by syntax alone; a call (`ab.map`) may return one."""
    if isinstance(arg, nf.Call) and arg.symbol in nf.ARITHMETIC:
        return arg.symbol in "+*" and any(map(_may_be_list, arg.args))
    if isinstance(arg, nf.Call):
        return arg.symbol not in _NO_LISTS
    return not isinstance(arg, nf.Constant | nf.Closure)


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
    """Wrap a function that makes an array which will be added to; when traced, adding to it waits for no launch."""
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
        return (function if top_box((args, kwargs)) is None else ours)(*args, **kwargs)  # type: ignore[misc]

    def join(arrays: Any, *args: Any, **kwargs: Any) -> Any:
        if isinstance(arrays, list | tuple):
            arrays = [_as_array(each, 0) for each in arrays]
        return function(arrays, *args, **kwargs)

    def compute(*args: Any, **kwargs: Any) -> Any:
        return at_users_line(function, *[_as_array(arg, place) for place, arg in enumerate(args)], **kwargs)

    if function in functions_of("joins") and function not in _JOINING:
        return function
    return functools.wraps(function)(join if function in _JOINING else compute if ours is None else create)


def of_tape(function: Any) -> Any:
    """Wrap a function of Python numbers so that under a gradient it takes numbers that carry one."""
    return function if active_tape() is None else number(function)


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
    **{f"_ab_{each.__name__}": CellType(each) for each in nf.PARTS},
}


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
    plain: list[Any] = []  # made when it is first needed

    def call(*args: Any, **kwargs: Any) -> Any:
        if has_batch(args, kwargs):
            return function(*args, **kwargs)
        if not plain:
            inner = forms(function.__wrapped__)
            plain.append(function if inner is function.__wrapped__ else type(function)(inner))
        return plain[0](*args, **kwargs)

    return call


taped_form = Forms(_form, _decorated, {each: number(each) for each in OF_NUMBERS})
"""Maps a function to the form to call while it is differentiated."""
call_form = Forms(_form, _decorated)
"""Maps a function to the form to call while its examples are recorded op by op, without blocks."""


def per_example_form(function: Any) -> Any:
    """The function to call per example in a loop: under a gradient its form for gradients, else the function."""
    return function if active_tape() is None else taped_form(function)


def _make(function: FunctionType) -> CodeType | None:
    code = function.__code__
    # A coroutine, iterable coroutine, asynchronous generator.
    if code.co_flags & (0x80 | 0x100 | 0x200) or FRAME_NAME_READERS & set(code.co_names):
        return None
    try:
        form = normal_form(function)
        names = all_names(form).union(code.co_freevars)
        scope = Scope(function.__globals__, names, names, names, lambda function: None)
        marks = mark(form)
        tree = Calls(scope, marks).definition(folded(form))
        if not marks.is_changed:
            return None
        made = compiled(tree, code, CELLS | taped_form.cells)
    except (Unsupported, SyntaxError, RecursionError):
        return None
    remember(made, code)
    for each in inner_codes(made):
        _generated.put(each)
    return made
