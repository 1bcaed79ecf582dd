"""Calls whose operands are all shared: run once, when the first example makes them."""

import copy
from collections.abc import Sequence
from typing import Any

import numpy as np

from autobatch.blocks.launch import launch
from autobatch.lazy.array import LazyArray
from autobatch.lazy.aval import WEAK
from autobatch.lazy.execute import Signature
from autobatch.lazy.operators import link_views

__all__ = ["run_block", "run_op"]


def run_op(trace: Any, sig: Signature, key: tuple[Any, ...], args: Sequence[Any]) -> Any:
    """The result of an op."""
    trace.stats.reads += 1
    weak = tuple(repr(arg) for arg in args if type(arg) in WEAK)
    found = trace.memo.get((key, weak))
    if found is None:
        values = [arg.source if type(arg) is LazyArray and arg.trace is trace else arg for arg in args]
        found = trace.memo[key, weak] = _kept(trace, sig.op(*values, **sig.params))
    return _given(found)


def run_block(trace: Any, sig: Signature) -> Any:
    """The outputs of a block: one, or a tuple."""
    trace.stats.reads += 1
    key = (sig, *np.geterr().values())
    found, call = trace.memo.get(key), sig.block
    assert call is not None
    if found is None:
        found = trace.memo[key] = [_kept(trace, out) for out in launch(call.program, call.shared)]
    results = [_given(out) for out in found]
    link_views(call.views, results)
    return tuple(results) if len(results) > 1 else results[0]


def _kept(trace: Any, result: Any) -> Any:
    if type(result) is np.ndarray or hasattr(result, "_ab_rank"):
        result = trace.shared(result)
        result.row = -2
    return result


def _given(found: Any) -> Any:
    """What an example gets: a handle of its own, which it may write into."""
    return copy.copy(found) if type(found) is LazyArray else found
