"""A call that lanes cannot make together, made by each on its own: a loop over the examples for just that call.

Each lane's plain values go in, and what comes out is a batch again. That is possible where a call reads nothing but its
arguments and what all lanes share, and changes nothing: then its order among the other statements cannot be told. For
any other call the whole function runs as a loop.
"""

import builtins
from types import BuiltinFunctionType, FunctionType
from typing import Any

import numpy as np

from autobatch.batches.base import Batch, lane, name_lane, narrow_tree
from autobatch.batches.examples import stack_results
from autobatch.core.diagnostics import fell_back
from autobatch.core.lanes import Example, current_region, example, set_region
from autobatch.core.op import is_boxed
from autobatch.core.pytree import leaves
from autobatch.errors import NeedsLoop
from autobatch.lockstep.cells import Cell
from autobatch.lockstep.functions import captures_lanes, unwrapped
from autobatch.lockstep.generators import LaneGenerator
from autobatch.lockstep.items import made
from autobatch.lockstep.regions import current_root
from autobatch.lockstep.sequences import LaneSequence

__all__ = ["evaluated", "run_alone"]

_HARMLESS = (
    str, bytes, int, float, complex, type(None), np.generic, np.dtype, type, range, slice, frozenset, Batch, np.ndarray,
    BuiltinFunctionType,
)  # fmt: skip
_PURE = frozenset({
    tuple, set, dict, frozenset, list, sorted, min, max, sum, any, all, len, map, filter, zip, enumerate, reversed,
    np.stack, np.concatenate, np.array, np.asarray,
})  # fmt: skip
_LAZY = frozenset({map, filter, zip, enumerate, reversed})


def run_alone(f: Any, args: tuple[Any, ...], kwargs: dict[str, Any], error: NeedsLoop) -> Any:
    """The call, lane by lane.

    Args:
        error: why it cannot be made for all lanes at once.

    Raises:
        NeedsLoop: it may change something, or read what differs by lane otherwise than by its arguments.
    """
    root, region = current_root(), current_region()
    if root is None or region is None or root.outside is not None or not _may(f, root, error):
        raise error
    args, kwargs = _plain(args, error), {key: _plain(value, error) for key, value in kwargs.items()}
    fell_back(str(error))
    results = _each_lane(lambda *a, **named: _listed(f, f(*a, **named)), args, kwargs)
    return made_of(stack_results(results))


def _listed(f: Any, out: Any) -> Any:
    return list(out) if f in _LAZY else out


def made_of(value: Any) -> Any:
    """A result that the function may change, as if it had made it."""
    return made(value) if type(value) in (list, dict, set) else value


def _may(f: Any, root: Any, error: NeedsLoop) -> bool:
    if isinstance(f, FunctionType):
        return root.is_local(f) and not captures_lanes(f)
    return isinstance(f, BuiltinFunctionType | type | type(np.sum)) and f in _PURE


def _plain(value: Any, error: NeedsLoop) -> Any:
    """Arguments whose lanes can be told apart, and that no plain call could change for others to see."""
    if any(isinstance(leaf, LaneGenerator) or hasattr(leaf, "__next__") or _is_used_up(leaf) for leaf in leaves(value)):
        raise error
    value = unwrapped(value)
    for leaf in leaves(value):
        if isinstance(leaf, FunctionType):
            if captures_lanes(leaf):
                raise error
        elif not (isinstance(leaf, _HARMLESS) or is_boxed(leaf)):
            raise error
    return narrow_tree(value)


def _is_used_up(value: Any) -> bool:
    """Whether reading the items of a value leaves none for the next reader."""
    return isinstance(value, LaneSequence) and value.once


def _each_lane(function: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> list[Any]:
    region: Any = current_region()
    lanes = region.lanes().tolist()
    out: list[Any] = []
    for place, index in enumerate(lanes):
        values = tuple(lane(arg, place) for arg in args), {key: lane(arg, place) for key, arg in kwargs.items()}
        set_region(None)
        try:
            with example(Example(index)):
                out.append(function(*values[0], **values[1]))
        except Exception as error:
            set_region(region)
            name_lane(error, place)
            raise
        finally:
            set_region(region)
    return out


def evaluated(f: Any, names: dict[str, Any], outer: dict[str, Any], text: Any) -> Any:
    """`eval(text)` or `exec(text)` in a function with these variables, lane by lane.

    Raises:
        NeedsLoop: the text may change something.
    """
    root, region = current_root(), current_region()
    own = {key: value for key, value in names.items() if not key.startswith("_ab_")}
    cells = {key.removeprefix("_ab_cell_"): cell for key, cell in names.items() if isinstance(cell, Cell)}
    if root is None or region is None:
        return f(text, outer, {**own, **{key: cell.get() for key, cell in cells.items() if cell.pieces}})
    error = NeedsLoop(f"a call of {f.__name__}")
    texts = set(narrow_tree(text).examples()) if isinstance(text, Batch) else {text}
    if f not in (builtins.eval, builtins.exec) or not all(isinstance(each, str) for each in texts):
        raise error
    if not all(root.is_local(each, {**outer, **own}) for each in texts):
        raise error
    used = {key: value for key, value in own.items() if any(key in each for each in texts)}
    used.update((key, cell.get()) for key, cell in cells.items() if any(key in each for each in texts))
    plain = {key: _plain(value, error) for key, value in used.items()}
    fell_back(str(error))
    return made_of(stack_results(_each_lane(lambda each, **local: f(each, outer, local), (narrow_tree(text),), plain)))
