"""What certain builtins and NumPy functions do in converted code, where an argument may differ between lanes."""

import builtins
import functools
import math
import operator
from collections.abc import Callable
from typing import Any

from autobatch.batches.base import Batch, narrowed
from autobatch.batches.examples import map_lanes, weak_lanes
from autobatch.batches.masked import MaskedBatch
from autobatch.batches.objects import ObjectBatch
from autobatch.batches.scalars import LANE_FUNCTIONS, lane_len, lane_sum
from autobatch.core.abstract_eval import type_of
from autobatch.core.batched import Packed
from autobatch.core.lanes import current_region
from autobatch.core.pytree import map_tree
from autobatch.errors import NeedsLoop
from autobatch.lockstep.array_functions import ARRAY_HANDLERS
from autobatch.lockstep.boxes import BOXED, BoxView, LaneBox
from autobatch.lockstep.branches import truth_value
from autobatch.lockstep.classes import BINARY, UNARY, class_of_lanes, getattribute, hook, is_plain
from autobatch.lockstep.generators import LaneGenerator
from autobatch.lockstep.items import delitem, getitem, setattribute, setitem, update
from autobatch.lockstep.lists import LaneList
from autobatch.lockstep.loops import UniformLoop, iterated, loop, loop_over
from autobatch.lockstep.ownership import is_changeable, remember, require_own
from autobatch.lockstep.regions import current_root
from autobatch.lockstep.rows import Held, gathered
from autobatch.lockstep.sequences import Drawn, Enumerated, LaneSequence, Ranges, Zipped, in_reverse, lane_sequence
from autobatch.lockstep.unwrapping import (
    as_list,
    captures_lanes,
    is_batched_tree,
    is_readable,
    is_spread,
    read,
    shared,
    unwrapped,
)
from autobatch.lockstep.zipping import enumerated, zipped

__all__ = ["HANDLERS", "captures_lanes", "is_batched_tree", "shared", "unwrapped"]


def _tuple(iterable: Any = ()) -> Any:
    iterable = read(iterable)
    sequence = lane_sequence(iterable)
    if sequence is None:
        return tuple(iterable) if is_readable(iterable) else ()
    running = loop_over(sequence)
    if isinstance(running, UniformLoop):
        return tuple(running)
    return gathered(list(map(tuple, as_list(iterable).here())))


def _len(x: Any) -> Any:
    if isinstance(x, LaneList | LaneBox):
        return x.count_here()
    if isinstance(x, Packed) and isinstance(x.values, Packed):
        return weak_lanes(narrowed(x).lengths, int)
    if (method := hook(x, "__len__")) is not None:
        return current_root().call(method)  # type: ignore[union-attr]
    if isinstance(x, Ranges | BoxView):
        lengths = x.here().lengths()
        return lengths if isinstance(lengths, int) else weak_lanes(lengths, int)
    return lane_len(x)


def _sum(iterable: Any, start: Any = 0) -> Any:
    if isinstance(iterable, Batch):
        return lane_sum(iterable, start)
    running = loop(iterable)
    total = start
    for item in running:
        if running.fewer:
            (total,) = running.narrow((total,), ())
        total = BINARY["+"](total, item)
    (total,) = running.merge((total,))
    return total


def _of_items(function: Callable[..., Any]) -> Callable[..., Any]:
    """min, max, any, all: of several values, or of an iterable."""
    lanes = LANE_FUNCTIONS.get(function) or functools.partial(map_lanes, function)

    def call(*args: Any, **kwargs: Any) -> Any:
        args = tuple(unwrapped(arg) for arg in args)
        if not is_batched_tree(args):
            return function(*args, **kwargs)
        return lanes(*args, **kwargs)

    return call


def converted(function: Any) -> Any:
    root = current_root()
    if root is None or not hasattr(function, "__code__"):
        return function
    return root.convert(function) or function


def _lazily(make_lanes: Callable[..., Any], builtin: Callable[..., Any]) -> Callable[..., Any]:
    def call(*args: Any, **kwargs: Any) -> Any:
        if any(isinstance(arg, Batch | LaneSequence) or is_spread(arg) for arg in args):
            return make_lanes(*args, **kwargs)
        if current_region() is None:
            return builtin(*args, **kwargs)
        for arg in args:
            is_readable(arg)
        args = tuple(arg.items if isinstance(arg, LaneList) else arg for arg in args)
        return remember(builtin(*args, **kwargs))

    return call


def _zip(*iterables: Any, strict: bool = False) -> Any:
    if any(isinstance(each, LaneGenerator) for each in iterables):
        if strict:
            raise NeedsLoop("zip(strict=True) of a generator")
        return zipped(list(iterables))
    return _LANE_ZIP(*iterables, **({"strict": True} if strict else {}))


def _enumerate(iterable: Any, start: Any = 0) -> Any:
    if isinstance(iterable, LaneGenerator):
        return enumerated(iterable, start)
    return _LANE_ENUMERATE(iterable, start)


_LANE_ZIP, _LANE_ENUMERATE = _lazily(Zipped, zip), _lazily(Enumerated, enumerate)


def _range(*bounds: Any) -> Any:
    return Ranges(*bounds) if any(isinstance(bound, Batch) for bound in bounds) else range(*bounds)


def _isinstance(x: Any, classes: Any) -> Any:
    if isinstance(x, Held):
        return issubclass(x.kind, classes)
    if not isinstance(x, Batch) or isinstance(x, classes):
        return isinstance(x, classes)
    if isinstance(x, ObjectBatch):
        return map_lanes(isinstance, x, classes)
    return issubclass(_type(x), classes)


def _type(x: Any, *rest: Any) -> Any:
    if isinstance(x, Held) and not rest:
        return x.kind
    if not isinstance(x, Batch) or rest:
        return type_of(x, *rest)
    if isinstance(x, ObjectBatch):
        return map_lanes(type, x)
    return class_of_lanes(x)


def _print(*args: Any, **kwargs: Any) -> None:
    root, region = current_root(), current_region()
    if root is None:
        print(*args, **kwargs)
        return
    if kwargs.get("file") is not None:
        raise NeedsLoop("print to a file")
    frozen = map_tree(lambda leaf: leaf.__copy__() if type(leaf) is MaskedBatch else leaf, unwrapped(list(args)))
    root.note_change()
    root.prints.append((region, map_tree(narrowed, frozen), kwargs))


def _next(iterator: Any, *default: Any) -> Any:
    if isinstance(iterator, LaneGenerator):
        return iterator.following(*default)
    if (method := hook(iterator, "__next__")) is not None:
        return current_root().call(method)  # type: ignore[union-attr]
    if isinstance(iterator, LaneList):  # what map() and filter() gave
        raise NeedsLoop("next() of what a function has made of items")
    if current_region() is not None:
        require_own(iterator, "next()")
    return next(iterator, *default)


def _iter(x: Any, *sentinel: Any) -> Any:
    if isinstance(x, LaneGenerator):
        return x
    if current_region() is None:
        return iter(x, *sentinel)
    if sentinel:
        raise NeedsLoop("iter() of a function")
    x = iterated(x)
    if isinstance(x, LaneList) and not is_batched_tree(x):
        return remember(iter(x))
    if isinstance(x, Batch | LaneSequence | Held):
        return Drawn(x if isinstance(x, LaneList) else as_list(x))
    return remember(iter(x)) if not hasattr(x, "__next__") else x


_SPECIAL = {
    int: "__int__", float: "__float__", complex: "__complex__", str: "__str__", repr: "__repr__", round: "__round__",
    hash: "__hash__", format: "__format__", divmod: "__divmod__", math.floor: "__floor__", math.ceil: "__ceil__",
    math.trunc: "__trunc__",
}  # fmt: skip


def _of_value(function: Callable[..., Any]) -> Callable[..., Any]:
    """A builtin of one value: our containers as Python's, and of a user's object what its class says."""
    lanes, special = LANE_FUNCTIONS[function], _SPECIAL.get(function)

    def call(*args: Any, **kwargs: Any) -> Any:
        for arg in args:
            if not is_plain(arg) or isinstance(arg, Held | tuple | list | dict):
                break
        else:
            return lanes(*args, **kwargs)
        if special is not None and (method := hook(args[0], special)) is not None:
            return current_root().call(method, *args[1:])  # type: ignore[union-attr]
        if current_region() is not None and is_changeable(args[0]):
            raise NeedsLoop(f"{function.__name__}() of an object of the call")
        return lanes(*map(unwrapped, args), **kwargs)

    return call


def _bool(x: Any = False) -> Any:
    return truth_value(x) if current_region() is not None else bool(x)


def _abs(x: Any) -> Any:
    method = hook(x, "__abs__")
    return LANE_FUNCTIONS[abs](x) if method is None else current_root().call(method)  # type: ignore[union-attr]


def _getattr(x: Any, name: Any, *default: Any) -> Any:
    if is_batched_tree((x, name)) and (default or not isinstance(name, str)):
        return map_lanes(getattr, unwrapped(x), name, *default)
    try:
        return getattribute(x, name)
    except AttributeError:
        if default:
            return default[0]
        raise


def _hasattr(x: Any, name: Any) -> Any:
    if isinstance(x, ObjectBatch) or isinstance(name, Batch):
        return map_lanes(hasattr, x, name)
    try:
        value = getattribute(x, name)
    except AttributeError:
        return False
    if isinstance(value, Batch):
        narrowed(value)  # raises where only other lanes have it
    return True


def _setattr(x: Any, name: Any, value: Any) -> None:
    setattribute(value, x, name)


def _refused(function: Callable[..., Any]) -> Callable[..., Any]:
    def call(*args: Any, **kwargs: Any) -> Any:
        if current_region() is not None:
            raise NeedsLoop(f"a call of {function.__name__}")
        return function(*args, **kwargs)

    return call


def _is_iterated(arg: Any) -> bool:
    return isinstance(arg, LaneSequence) or hasattr(arg, "__next__")


def _copied(container: type) -> Callable[..., Any]:
    """dict(), set(), deque() and the like: new containers, which may be changed."""

    def call(*args: Any, **kwargs: Any) -> Any:
        if current_region() is None:
            return container(*args, **kwargs)
        args = tuple(map(read, args))
        given = [as_list(arg) if _is_iterated(arg) else arg for arg in args if is_readable(arg)]
        if container is not dict or any(map(is_batched_tree, given)):
            return LaneBox.made(container, *given, **kwargs)
        return LaneBox(dict(*map(unwrapped, given), **kwargs))

    return call


def _update(name: str) -> Callable[..., Any]:
    symbol = {"iadd": "+", "isub": "-", "imul": "*", "itruediv": "/"}[name]
    return lambda x, y: update(symbol, x, y)


_OPERATORS = {
    "add": "+", "sub": "-", "mul": "*", "truediv": "/", "floordiv": "//", "mod": "%", "pow": "**", "matmul": "@",
    "and_": "&", "or_": "|", "xor": "^", "lshift": "<<", "rshift": ">>", "lt": "<", "le": "<=", "gt": ">", "ge": ">=",
    "eq": "==", "ne": "!=",
}  # fmt: skip
HANDLERS: dict[Any, Callable[..., Any]] = {
    **{function: _of_value(function) for function in LANE_FUNCTIONS},
    **ARRAY_HANDLERS,
    len: _len,
    bool: _bool,
    sum: _sum,
    min: _of_items(min),
    max: _of_items(max),
    any: _of_items(any),
    all: _of_items(all),
    list: as_list,
    tuple: _tuple,
    **{container: _copied(container) for container in BOXED},
    range: _range,
    zip: _zip,
    enumerate: _enumerate,
    reversed: _lazily(in_reverse, reversed),
    isinstance: _isinstance,
    type: _type,
    print: _print,
    next: _next,
    iter: _iter,
    setattr: _setattr,
    getattr: _getattr,
    hasattr: _hasattr,
    abs: _abs,
    **{getattr(operator, name): _update(name) for name in ("iadd", "isub", "imul", "itruediv")},
    **{
        getattr(builtins, name): _refused(getattr(builtins, name))
        for name in ("open", "input", "exec", "eval", "delattr", "id")
    },
    **{getattr(operator, name): BINARY[symbol] for name, symbol in _OPERATORS.items()},
    operator.neg: UNARY["-"],
    operator.pos: UNARY["+"],
    operator.invert: UNARY["~"],
    operator.getitem: getitem,
    operator.setitem: lambda x, index, value: setitem(value, x, index),
    operator.delitem: delitem,
}
