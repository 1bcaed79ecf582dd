"""Runtime functions that rewritten code calls (`NAMES`), including small ones that have no module of their own."""

import operator
from typing import Any

import numpy as np

from autobatch.batches.any_batch import Batch, per_lane
from autobatch.batches.objects import ObjectBatch
from autobatch.batches.padded_batch import MaskedBatch
from autobatch.batches.stacking import stack_results
from autobatch.core.current_region import current_region
from autobatch.core.op import is_boxed
from autobatch.core.pytree import is_node, leaves
from autobatch.errors import MAKE_A_LIST, NeedsLoop
from autobatch.facts import operators
from autobatch.lockstep.calls.builtin_functions import HANDLERS, is_batched_tree, require_shared, unwrap
from autobatch.lockstep.calls.call_by_callee import call, call_for_writing
from autobatch.lockstep.calls.calls_on_items import eager
from autobatch.lockstep.lanes.region import UNBOUND, is_changeable
from autobatch.lockstep.regions import branches, items, loops
from autobatch.lockstep.regions.loops import loop
from autobatch.lockstep.values.lane_operators import BINARY, UNARY, getattribute, refuse_hooks
from autobatch.program import normal_form as nf


def refuse(what: str, instead: str = "") -> Any:
    """Raise NeedsLoop: generated in place of syntax that lanes cannot run together."""
    raise NeedsLoop(what, instead=instead)


def is_same(a: Any, b: Any) -> Any:
    """`a is b`."""
    if a is b:
        return True
    if isinstance(a, Batch) or isinstance(b, Batch):
        return _same_lanes(a, b)
    if type(a) is type(b) and is_node(a) and is_batched_tree((a, b)):  # narrowing makes another object
        raise NeedsLoop("whether two containers of values that differ by example are one object")
    return False


def _same_lanes(a: Any, b: Any) -> Any:
    batch, other = (a, b) if isinstance(a, Batch) else (b, a)
    if other is None and isinstance(batch, ObjectBatch):
        return stack_results(per_lane(operator.is_, (a, b), {}))
    if other is None:
        return False  # each example is an array or a number
    numbers = isinstance(other, np.ndarray | np.generic | int | float | complex) and not isinstance(other, bool)
    if type(batch) is not MaskedBatch or numbers or is_boxed(other):  # narrowing makes another object
        raise NeedsLoop("whether two values that differ by example are one object")
    return batch == other if isinstance(other, bool) and batch.scalar is bool else False


def is_not_same(a: Any, b: Any) -> Any:
    """`a is not b`."""
    return branches.logical_not(is_same(a, b))


def is_in(a: Any, b: Any) -> Any:
    """`a in b`."""
    refuse_hooks(b, "__contains__", "__iter__", "__getitem__")
    if is_batched_tree(a) or is_batched_tree(b):
        if isinstance(b, dict) and not is_batched_tree(a):
            return a in b
        a, b = unwrap(a), unwrap(b)
        if any(is_changeable(leaf) for leaf in leaves((a, b)) if not isinstance(leaf, dict)):
            raise NeedsLoop("an object of the call is searched")
        return stack_results(per_lane(_found, (a, b), {}))
    return a in b


def _found(a: Any, b: Any) -> bool:
    """`a in b` of one lane, where NaN is found if it is the same object, which narrowing may have copied."""
    numbers = [leaf for leaf in leaves(a) if isinstance(leaf, float | complex | np.generic | np.ndarray)]
    if a not in b and any(np.any(x != x) for x in numbers):
        raise NeedsLoop("whether two NaN are one object")
    return a in b


def not_in(a: Any, b: Any) -> Any:
    """`a not in b`."""
    return branches.logical_not(is_in(a, b))


def modulo(a: Any, b: Any) -> Any:
    """`a % b`; if `a` is a string, formatting with arguments that all lanes share."""
    return a % require_shared(b) if isinstance(a, str | bytes) else BINARY["%"](a, b)


def fstring(*parts: Any) -> Any:
    """An f-string from its parts: str for text, (value, conversion, format) for a value."""
    for part in parts:
        if isinstance(part, tuple):
            refuse_hooks(part[0], "__str__", "__repr__", "__format__")
    return stack_results(per_lane(_fstring, unwrap(parts), {})) if is_batched_tree(parts) else _fstring(*unwrap(parts))


def _fstring(*parts: Any) -> str:
    return "".join(part if isinstance(part, str) else format(_CONVERT[part[1]](part[0]), part[2]) for part in parts)


_CONVERT: dict[int, Any] = {-1: lambda value: value, ord("s"): str, ord("r"): repr, ord("a"): ascii}


_OPERATORS = {each.word: each.symbol for each in operators.BINARY if each.symbol != "%"}  # see `modulo`


def context_manager(value: Any) -> Any:
    """The context manager of a `with`: in lock-step only `np.errstate`, which all lanes enter together."""
    if current_region() is not None and type(value) is not np.errstate:
        raise NeedsLoop("a context manager", instead="put the `with` around the call")
    return value


def until(function: Any, known: Any) -> Any:
    """A function that loops until the result is known, in place of `any`, `all` or `next` of a generator."""
    if function not in (any, all, next):
        raise NeedsLoop("a generator", instead=MAKE_A_LIST)
    return known


NAMES: dict[str, Any] = {
    **{f"_ab_{name}": BINARY[symbol] for name, symbol in _OPERATORS.items()},
    "_ab_neg": UNARY["-"],
    "_ab_pos": UNARY["+"],
    "_ab_invert": UNARY["~"],
    "_ab_getattr": getattribute,
    "_ab_and": branches.logical_and,
    "_ab_call": call,
    "_ab_chain": branches.chained_comparison,
    "_ab_check": branches.assert_condition,
    "_ab_choose": branches.conditional,
    "_ab_create": call_for_writing,
    "_ab_dict": items.dict_display,
    "_ab_eager": eager,
    "_ab_for": loops.breakable_for,
    "_ab_fstring": fstring,
    "_ab_function": branches.Returns,
    "_ab_getitem": items.getitem,
    "_ab_if": branches.branches,
    "_ab_in": is_in,
    "_ab_is": is_same,
    "_ab_is_not": is_not_same,
    "_ab_locals": locals,
    "_ab_loop": loop,
    "_ab_made": items.wrap_new_container,
    "_ab_manager": context_manager,
    "_ab_mod": modulo,
    "_ab_not": branches.logical_not,
    "_ab_not_in": not_in,
    "_ab_or": branches.logical_or,
    "_ab_own": items.as_lane_arrays,
    **{f"_ab_{each.__name__}": each for each in nf.PARTS},
    "_ab_raised": branches.raised_exception,
    "_ab_refuse": refuse,
    "_ab_setattr": items.setattribute,
    "_ab_setitem": items.setitem,
    "_ab_slice": slice,
    "_ab_tuple": HANDLERS[tuple],
    "_ab_unbound": UNBOUND,
    "_ab_until": until,
    "_ab_update": items.inplace_update,
    "_ab_while": loops.DivergentLoop,
}
