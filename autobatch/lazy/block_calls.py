"""Calls of blocks: their signatures and their nodes."""

import functools
import os
from collections.abc import Sequence
from typing import Any

from autobatch.blocks.launch import launch
from autobatch.blocks.program import Program
from autobatch.core.abstract_eval import Aval
from autobatch.core.op import Op
from autobatch.lazy.array import LazyArray, link_views
from autobatch.lazy.launching import BlockCall, Signature

__all__ = ["append", "signature"]

Where = tuple[str, int, int]


def signature(
    trace: Any, program: Program, avals: Sequence[Any], shared: Sequence[LazyArray], where: Where
) -> Signature:
    """The signature of a call: the same for all blocks that do the same with the same shared values.

    Args:
        avals: the kind of each input of the program; shared: the handles of those that are shared, in order.
        where: (file, first line, last line).
    """
    trace.refuse_caught_warnings()
    given = iter(shared)
    values = [next(given).source if aval.shared and type(aval) is Aval else None for aval in avals]
    key = (program, *avals)
    found = trace.interned.get(key)
    if found is None:
        own = [aval for aval, value in zip(avals, values, strict=True) if value is None]
        found = Signature(_op(where), {}, own, program.results[0], len(trace.table), where[:2], trace.errors)
        found.block = BlockCall(program, values, found.index)
        found.shared = not own
        found.nbytes = sum(program.avals[step.out].nbytes for step in program.steps)
        found.text = f"{', '.join(map(repr, avals))}: {', '.join(step.op.name for step in program.steps)}"
        trace.table.append(found)
        trace.interned[key] = found
    return found


@functools.lru_cache(maxsize=4096)
def _op(where: Where) -> Op:
    """What reports call a block."""
    file, first, last = where
    lines = str(first) if first == last else f"{first}-{last}"
    return Op(f"block {os.path.basename(file)}:{lines}", launch, kind="block")


def append(trace: Any, sig: Signature, refs: Sequence[int]) -> Any:
    """Record a call; its outputs: one, or a tuple."""
    sig = trace.in_force(sig)
    segment, call = trace.segment, sig.block
    assert call is not None
    ref = len(segment.sigs)
    segment.refs.extend(refs)
    segment.sigs.extend(call.tail)
    outs = tuple([LazyArray(trace, aval, segment, ref + i) for i, aval in enumerate(call.outs)])
    link_views(call.views, outs)
    trace.spend(sig.nbytes)
    return outs if len(outs) > 1 else outs[0]
