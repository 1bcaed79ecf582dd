"""The names that rewritten code uses, and the checks that are too small for a module of their own."""

import functools
import operator
from typing import Any

from autobatch.batches.forms import Batch
from autobatch.batches.objects import ObjectBatch
from autobatch.batches.results import per_lane, stack_results
from autobatch.core.lanes import current_region
from autobatch.errors import NeedsLoop
from autobatch.lockstep import attempts, branches, items, matching, walks
from autobatch.lockstep.alone import evaluated
from autobatch.lockstep.calls import call, create, is_library
from autobatch.lockstep.cells import Cell
from autobatch.lockstep.contexts import Manager
from autobatch.lockstep.functions import is_batched_tree, shared, unwrapped
from autobatch.lockstep.generators import LaneGenerator
from autobatch.lockstep.lists import LaneList
from autobatch.lockstep.loops import each, loop
from autobatch.lockstep.merging import UNBOUND
from autobatch.lockstep.ownership import remember

__all__ = ["NAMES"]


def refuse(what: str) -> Any:
    """Syntax that lanes cannot run together."""
    raise NeedsLoop(what)


def is_same(a: Any, b: Any) -> Any:
    """`a is b`."""
    return stack_results(per_lane(operator.is_, (a, b), {})) if _are_objects(a, b) else a is b


def is_other(a: Any, b: Any) -> Any:
    """`a is not b`."""
    return stack_results(per_lane(operator.is_not, (a, b), {})) if _are_objects(a, b) else a is not b


def _are_objects(*values: Any) -> bool:
    """Whether an example's value may be one that others are too: any object, or True and False."""
    return any(isinstance(value, ObjectBatch) or getattr(value, "scalar", None) is bool for value in values)


def is_in(a: Any, b: Any) -> Any:
    """`a in b`."""
    if is_batched_tree(a) or is_batched_tree(b):
        if isinstance(b, dict) and not is_batched_tree(a):
            return a in b
        return stack_results(per_lane(lambda x, y: x in y, (unwrapped(a), unwrapped(b)), {}))
    return a in b


def not_in(a: Any, b: Any) -> Any:
    """`a not in b`."""
    if is_batched_tree(a) or is_batched_tree(b):
        return (
            stack_results(per_lane(lambda x, y: x not in y, (unwrapped(a), unwrapped(b)), {}))
            if not (isinstance(b, dict) and not is_batched_tree(a))
            else a not in b
        )
    return a not in b


def modulo(a: Any, b: Any) -> Any:
    """`a % b`, which formats if `a` is a string."""
    if isinstance(a, str | bytes) and is_batched_tree(b):
        return stack_results(per_lane(operator.mod, (a, unwrapped(b)), {}))
    return a % b


def fstring(*parts: Any) -> Any:
    """An f-string: text, and values each with its conversion and format."""
    if is_batched_tree(parts):
        return stack_results(per_lane(_fstring, unwrapped(parts), {}))
    return _fstring(*unwrapped(parts))


def _fstring(*parts: Any) -> str:
    return "".join(part if isinstance(part, str) else format(_CONVERT[part[1]](part[0]), part[2]) for part in parts)


_CONVERT: dict[int, Any] = {-1: lambda value: value, ord("s"): str, ord("r"): repr, ord("a"): ascii}


def comprehension(kind: str, fill: Any) -> Any:
    """A list, set or dict that `fill` fills."""
    if current_region() is None:
        out: Any = [] if kind == "list" else set() if kind == "set" else {}
    else:
        out = LaneList() if kind == "list" else remember(set() if kind == "set" else {})
    fill(out)
    return out


def unpack(item: Any) -> Any:
    """What a tuple target unpacks."""
    if isinstance(item, Batch) and not hasattr(item, "shape"):
        raise NeedsLoop("objects that differ by example are unpacked")
    return item


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


def property_of(x: Any, name: str) -> Any:
    """`x.name`, which may be a property of a class of the user's."""
    found = getattr(type(x), name, None) if current_region() is not None else None
    if type(found) is property:
        code = getattr(found.fget, "__code__", None)
        return call(found.fget, x) if code is not None and not is_library(code.co_filename) else getattr(x, name)
    if isinstance(found, functools.cached_property) and name not in vars(x):
        value = call(found.func, x)
        items.setattribute(value, x, name)
        return value
    return getattr(x, name)


def source(iterable: Any) -> Any:
    """What `yield from` reads."""
    return iterable


def result(iterable: Any) -> Any:
    """The value of `yield from`: what a generator returned."""
    return iterable.value if isinstance(iterable, LaneGenerator) else None


NAMES: dict[str, Any] = {
    "_ab_Aside": attempts.Aside,
    "_ab_Exception": Exception,
    "_ab_all": all_of,
    "_ab_and": branches.both,
    "_ab_any": any_of,
    "_ab_bound": matching.bound,
    "_ab_call": call,
    "_ab_cell": Cell,
    "_ab_chain": branches.chain,
    "_ab_check": branches.check,
    "_ab_choose": branches.choose,
    "_ab_comprehension": comprehension,
    "_ab_create": create,
    "_ab_delitem": items.delitem,
    "_ab_each": each,
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
    "_ab_loop": loop,
    "_ab_made": items.made,
    "_ab_manager": Manager,
    "_ab_middle": matching.middle,
    "_ab_mod": modulo,
    "_ab_not": branches.negation,
    "_ab_not_in": not_in,
    "_ab_once": (None,),
    "_ab_or": branches.either,
    "_ab_own": items.own,
    "_ab_place": matching.place,
    "_ab_property": property_of,
    "_ab_raised": branches.raised,
    "_ab_refuse": refuse,
    "_ab_rest": matching.rest,
    "_ab_result": result,
    "_ab_setattr": items.setattribute,
    "_ab_setitem": items.setitem,
    "_ab_setitem_in": items.setitem_in,
    "_ab_shared": shared,
    "_ab_slice": slice,
    "_ab_source": source,
    "_ab_try": attempts.Attempts,
    "_ab_unbound": UNBOUND,
    "_ab_unpack": unpack,
    "_ab_update": items.update,
    "_ab_waiting": attempts.Errors,
    "_ab_while": walks.while_walk,
}
