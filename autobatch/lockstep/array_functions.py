"""NumPy functions that make arrays of lists, where those are of ours."""

from collections.abc import Callable
from typing import Any

import numpy as np

from autobatch.batches.base import Batch, narrowed
from autobatch.batches.examples import map_lanes
from autobatch.core.lanes import current_region
from autobatch.errors import NeedsLoop
from autobatch.lockstep.lists import LaneList
from autobatch.lockstep.plain import per_lane_of
from autobatch.lockstep.regions import lanes_within
from autobatch.lockstep.unwrapping import is_batched_tree, is_spread, unwrapped
from autobatch.ops.numpy.creation import CREATION
from autobatch.ops.rules.dispatch import top_box

__all__ = ["ARRAY_HANDLERS"]


def _stack(arrays: Any, axis: int = 0, **kwargs: Any) -> Any:
    if kwargs or not is_spread(arrays):
        return np.stack(unwrapped(arrays), axis=axis, **kwargs)
    if _some_empty(arrays):
        raise ValueError("need at least one array to stack")
    out = _strong(arrays.stacked())
    return out if axis == 0 else np.moveaxis(out, 0, axis)


def _some_empty(arrays: LaneList) -> bool:
    """Whether the list is empty in some lane that is here; what it is elsewhere is of no matter."""
    here = lanes_within(current_region(), arrays.region)
    return bool((arrays.counts[... if here is None else here] == 0).any())


def _strong(batch: Any) -> Any:
    if not isinstance(batch, Batch):
        raise NeedsLoop("an array of a list of structures")
    return narrowed(batch)


def _concatenate(arrays: Any, axis: Any = 0, **kwargs: Any) -> Any:
    if kwargs or axis != 0 or not is_spread(arrays):
        return np.concatenate(unwrapped(arrays), axis=axis, **kwargs)
    if _some_empty(arrays):
        raise ValueError("need at least one array to concatenate")
    return narrowed(arrays.joined())


def _array(object: Any, *args: Any, **kwargs: Any) -> Any:
    if not is_spread(object):
        return _create(np.array)(object, *args, **kwargs)
    if _some_empty(object):
        return map_lanes(np.array, per_lane_of(object), *args, **kwargs)
    out = _strong(object.stacked())
    return _create(np.array)(out, *args, **kwargs) if args or kwargs else out


def _asarray(object: Any, *args: Any, **kwargs: Any) -> Any:
    return (_array if is_spread(object) else _create(np.asarray))(object, *args, **kwargs)


def _create(function: Callable[..., Any]) -> Callable[..., Any]:
    lanes = CREATION[function]

    def call(*args: Any, **kwargs: Any) -> Any:
        args = tuple(unwrapped(arg) for arg in args)
        if any(map(is_batched_tree, (*args, *kwargs.values()))) or top_box((args, kwargs)) is not None:
            return lanes(*args, **kwargs)
        return function(*args, **kwargs)

    return call


ARRAY_HANDLERS: dict[Any, Callable[..., Any]] = {
    **{function: _create(function) for function in CREATION},
    np.array: _array,
    np.asarray: _asarray,
    np.stack: _stack,
    np.concatenate: _concatenate,
}
