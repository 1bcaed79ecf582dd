"""The names that rewritten code uses, and the checks that are too small for a module of their own."""

import operator
from typing import Any

import numpy as np

from autobatch.batches.base import Batch, per_lane
from autobatch.batches.examples import stack_results
from autobatch.batches.masked import MaskedBatch
from autobatch.batches.objects import ObjectBatch
from autobatch.core.lanes import current_region
from autobatch.core.op import is_boxed
from autobatch.errors import NeedsLoop
from autobatch.lockstep import attempts, branches, items, matching, walks
from autobatch.lockstep.alone import evaluated
from autobatch.lockstep.boxes import LaneBox, boxed
from autobatch.lockstep.calls import call, create
from autobatch.lockstep.cells import Cell
from autobatch.lockstep.choosing import each_object
from autobatch.lockstep.classes import BINARY, UNARY, getattribute, hook
from autobatch.lockstep.contexts import Manager
from autobatch.lockstep.functions import HANDLERS, is_batched_tree, shared, unwrapped
from autobatch.lockstep.generators import LaneGenerator
from autobatch.lockstep.lists import LaneList
from autobatch.lockstep.loops import each, loop
from autobatch.lockstep.merging import UNBOUND
from autobatch.lockstep.rows import Choice, Held, each_lane
from autobatch.lockstep.unwrapping import read

__all__ = ["NAMES"]


def refuse(what: str) -> Any:
    """Syntax that lanes cannot run together."""
    raise NeedsLoop(what)


def is_same(a: Any, b: Any) -> Any:
    """`a is b`."""
    if a is b:
        return True
    if type(a) is Choice or type(b) is Choice:
        choice, other = (a, b) if type(a) is Choice else (b, a)
        return each_object(choice, lambda each: is_same(each, other))
    if isinstance(a, Held) and isinstance(b, Held):
        return stack_results(each_lane(operator.is_, a.here(), b.here()))
    if isinstance(a, Batch) or isinstance(b, Batch):
        return _same_lanes(a, b)
    return False


def _same_lanes(a: Any, b: Any) -> Any:
    for one, other in ((a, b), (b, a)):
        if type(one) is MaskedBatch and not isinstance(other, ObjectBatch):
            if isinstance(other, bool):
                return one == other if one.scalar is bool else False
            if not (isinstance(other, np.ndarray | np.generic | int | float | complex) or is_boxed(other)):
                return False
            raise NeedsLoop("whether two arrays or numbers are one object")  # a narrowed batch is another one
    if a is not None and b is not None:
        values = [*getattr(a, "values", ()), *getattr(b, "values", ())]
        if any(isinstance(value, np.ndarray | np.generic) or is_boxed(value) for value in values):
            raise NeedsLoop("whether two arrays are one object")
    return stack_results(per_lane(operator.is_, (a, b), {}))


def is_other(a: Any, b: Any) -> Any:
    """`a is not b`."""
    return branches.negation(is_same(a, b))


def is_in(a: Any, b: Any) -> Any:
    """`a in b`."""
    if isinstance(b, LaneList | LaneBox):
        return b.contains(a)
    if isinstance(b, LaneGenerator):
        return walks.until(b, lambda item: BINARY["=="](item, a), True)
    if type(b) is Choice:
        return each_object(b, lambda each: is_in(a, each))
    if (method := hook(b, "__contains__")) is not None:
        return branches.truth_value(call(method, a))
    if is_batched_tree(a) or is_batched_tree(b):
        if isinstance(b, dict) and not is_batched_tree(a):
            return a in b
        return stack_results(per_lane(lambda x, y: x in y, (unwrapped(a), unwrapped(b)), {}))
    return a in b


def not_in(a: Any, b: Any) -> Any:
    """`a not in b`."""
    return branches.negation(is_in(a, b))


def modulo(a: Any, b: Any) -> Any:
    """`a % b`, which formats if `a` is a string."""
    if isinstance(a, str | bytes):
        b = unwrapped(b)
        return stack_results(per_lane(operator.mod, (a, b), {})) if is_batched_tree(b) else a % b
    return BINARY["%"](a, b)


def fstring(*parts: Any) -> Any:
    """An f-string: text, and values each with its conversion and format."""
    if any(hook(part[0], name) is not None for part in parts if isinstance(part, tuple) for name in _SHOWN):
        raise NeedsLoop("an object with its own text is formatted")
    if is_batched_tree(parts):
        return stack_results(per_lane(_fstring, unwrapped(parts), {}))
    return _fstring(*unwrapped(parts))


def _fstring(*parts: Any) -> str:
    return "".join(part if isinstance(part, str) else format(_CONVERT[part[1]](part[0]), part[2]) for part in parts)


_SHOWN = ("__str__", "__repr__", "__format__")
_CONVERT: dict[int, Any] = {-1: lambda value: value, ord("s"): str, ord("r"): repr, ord("a"): ascii}


def comprehension(kind: str, fill: Any) -> Any:
    """A list, set or dict that `fill` fills."""
    if current_region() is None:
        out: Any = [] if kind == "list" else set() if kind == "set" else {}
    else:
        out = LaneList() if kind == "list" else boxed(set() if kind == "set" else {})
    fill(out)
    return out


def unpack(item: Any) -> Any:
    """What a tuple target unpacks."""
    if isinstance(item, Batch) and not hasattr(item, "shape"):
        raise NeedsLoop("objects that differ by example are unpacked")
    return read(item)


def any_of(function: Any, iterable: Any, step: Any) -> Any:
    """`any(step(x) for x in iterable)`."""
    if function is not any or current_region() is None:
        return function(map(step, iterable))
    return walks.until(iterable, step, True)


def all_of(function: Any, iterable: Any, step: Any) -> Any:
    """`all(step(x) for x in iterable)`."""
    if function is not all or current_region() is None:
        return function(map(step, iterable))
    return walks.until(iterable, step, False)


def first_of(function: Any, iterator: Any, *default: Any) -> Any:
    """`next(iterator)`, of an iterator that nothing else reads."""
    if function is next and type(iterator) is LaneGenerator:
        return walks.first(iterator, *default)
    return call(function, iterator, *default)


def changing_list(items: Any) -> Any:
    """A list that a loop over it changes."""
    if isinstance(items, LaneList | list):
        return items
    kind = items.kind if isinstance(items, LaneBox) else type(items)
    raise NeedsLoop(f"a loop over a {kind.__name__} that changes it")


def spread(iterable: Any) -> Any:
    """What Python itself unpacks, to targets or as arguments."""
    return iterable


def source(iterable: Any) -> Any:
    """What `yield from` reads."""
    return iterable


def result(iterable: Any) -> Any:
    """The value of `yield from`: what a generator returned."""
    return iterable.value if isinstance(iterable, LaneGenerator) else None


_OPERATORS = {
    "add": "+", "sub": "-", "mul": "*", "truediv": "/", "floordiv": "//", "pow": "**", "matmul": "@", "bitand": "&",
    "bitor": "|", "bitxor": "^", "lshift": "<<", "rshift": ">>", "lt": "<", "le": "<=", "gt": ">", "ge": ">=",
    "eq": "==", "ne": "!=",
}  # fmt: skip
NAMES: dict[str, Any] = {
    **{f"_ab_{name}": BINARY[symbol] for name, symbol in _OPERATORS.items()},
    "_ab_neg": UNARY["-"],
    "_ab_pos": UNARY["+"],
    "_ab_invert": UNARY["~"],
    "_ab_getattr": getattribute,
    "_ab_Aside": attempts.Aside,
    "_ab_Exception": Exception,
    "_ab_all": all_of,
    "_ab_and": branches.both,
    "_ab_any": any_of,
    "_ab_bound": matching.bound,
    "_ab_call": call,
    "_ab_cell": Cell,
    "_ab_chain": branches.chain,
    "_ab_changing": changing_list,
    "_ab_check": branches.check,
    "_ab_choose": branches.choose,
    "_ab_comprehension": comprehension,
    "_ab_create": create,
    "_ab_delitem": items.delitem,
    "_ab_dict": items.dict_of,
    "_ab_each": each,
    "_ab_element": items.element,
    "_ab_evaluated": evaluated,
    "_ab_first": first_of,
    "_ab_for": walks.for_walk,
    "_ab_fstring": fstring,
    "_ab_function": branches.Returns,
    "_ab_getitem": items.getitem,
    "_ab_globals": globals,
    "_ab_has": matching.has,
    "_ab_has_place": matching.has_place,
    "_ab_if": branches.branches,
    "_ab_in": is_in,
    "_ab_is": is_same,
    "_ab_is_instance": matching.is_instance,
    "_ab_is_mapping": matching.is_mapping,
    "_ab_is_not": is_other,
    "_ab_is_sequence": matching.is_sequence,
    "_ab_len": len,
    "_ab_locals": locals,
    "_ab_list": items.list_of,
    "_ab_loop": loop,
    "_ab_made": items.made,
    "_ab_manager": Manager,
    "_ab_middle": matching.middle,
    "_ab_mod": modulo,
    "_ab_not": branches.negation,
    "_ab_not_in": not_in,
    "_ab_old_attr": getattribute,
    "_ab_old_item": items.getitem,
    "_ab_once": (None,),
    "_ab_or": branches.either,
    "_ab_own": items.own,
    "_ab_place": matching.place,
    "_ab_raised": branches.raised,
    "_ab_refuse": refuse,
    "_ab_rest": matching.rest,
    "_ab_result": result,
    "_ab_set": items.set_of,
    "_ab_setattr": items.setattribute,
    "_ab_setitem": items.setitem,
    "_ab_setitem_in": items.setitem_in,
    "_ab_shared": shared,
    "_ab_slice": slice,
    "_ab_source": source,
    "_ab_spread": spread,
    "_ab_truth": branches.truth_value,
    "_ab_try": attempts.Attempts,
    "_ab_tuple": HANDLERS[tuple],
    "_ab_unbound": UNBOUND,
    "_ab_unpack": unpack,
    "_ab_update": items.update,
    "_ab_waiting": attempts.Errors,
    "_ab_while": walks.while_walk,
}
