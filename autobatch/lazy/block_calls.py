"""Calls of blocks: the structure of their inputs, their signatures and their nodes.

An input may be a list or tuple of recorded arrays; its structure is part of what calls are alike in.
"""

import functools
import os
from collections.abc import Iterator, Sequence
from typing import Any

from autobatch.blocks.launch import launch
from autobatch.blocks.program import Program
from autobatch.core.abstract_eval import Aval
from autobatch.core.op import Op
from autobatch.lazy.array import LazyArray, link_views
from autobatch.lazy.launching import BlockCall, Signature

__all__ = ["Tree", "append", "flattened", "signature"]

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


_MOST = 16  # arrays in one input; of more, each number of them would be a program of its own
_MOST_KNOWN = 1 << 12
_known_trees: dict[Any, "Tree"] = {}


class Tree:
    """The structure of one input, interned.

    Attributes:
        leaves: the `Aval` of each array, in order.
    """

    __slots__ = ("_structure", "leaves")

    def __init__(self, structure: Any) -> None:
        self._structure = structure
        self.leaves = tuple(_leaves(structure))

    def rebuilt(self, values: Iterator[Any]) -> Any:
        """The same structure around other arrays, taken one after the other."""
        return _rebuilt(self._structure, values)


def flattened(trace: Any, value: Any) -> tuple[Tree | None, list[int]]:
    """The structure of a list or tuple and the references of its arrays; (None, []) for what is no such input.

    An input holds arrays that were recorded in this trace, in lists and tuples, and nothing else.
    """
    refs: list[int] = []
    structure = _structure(trace, value, refs)
    if structure is None or len(refs) > _MOST:
        return None, []
    found = _known_trees.get(structure)
    if found is None:
        if len(_known_trees) > _MOST_KNOWN:
            _known_trees.clear()
        found = _known_trees.setdefault(structure, Tree(structure))
    return found, refs


def _structure(trace: Any, value: Any, refs: list[int]) -> Any:
    segment = trace.segment
    out: list[Any] = [type(value)]
    for part in value:
        kind = type(part)
        if kind is LazyArray:
            if part.segment is not segment and (part.aval.shared or not trace.enter(part)):
                return None
            refs.append(part.ref)
            out.append(part.aval)
        elif (kind is tuple or kind is list) and len(part) <= _MOST:
            inner = _structure(trace, part, refs)
            if inner is None:
                return None
            out.append(inner)
        else:
            return None
    return tuple(out)


def _leaves(structure: Any) -> Iterator[Aval]:
    for part in structure[1:]:
        if type(part) is tuple:
            yield from _leaves(part)
        else:
            yield part


def _rebuilt(structure: Any, values: Iterator[Any]) -> Any:
    kind, *parts = structure
    return kind([_rebuilt(part, values) if type(part) is tuple else next(values) for part in parts])
