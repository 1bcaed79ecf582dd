"""Plans: which recorded calls are launched together, and when, after all rewrites that reduce the launches.

Calls that differ only in sizes are grouped (`ragged`); connected additions become one call, for which blocks are split
(`addition_chains`), and blocks that differ in what they read become calls of one (`general_blocks`).
"""

from array import array
from collections.abc import Sequence
from typing import Any

import numpy as np

from autobatch.core.config import config
from autobatch.kernels.jit import jit
from autobatch.lazy.grouping.addition_chains import Graph, chain_signatures, contract, rewrite, split_blocks
from autobatch.lazy.grouping.general_blocks import find_merges
from autobatch.lazy.grouping.launch_order import Schedule, refine, schedule
from autobatch.lazy.grouping.ragged import Group, by_family, split_mixed

Plan = tuple[Graph, Schedule, Sequence[Group | None]]


class Plans:
    """Makes the plans of a trace."""

    __slots__ = ("_arity", "_asked")

    def __init__(self) -> None:
        self._arity = np.zeros(0, np.int64)
        self._asked = np.zeros(0, np.bool_)  # signatures whose results an example has waited for: others may, too

    def of(self, segment: Any, table: list[Any], wanted: Sequence[int] = ()) -> Plan:
        """The plan of what a segment launches next; the other nodes go on waiting.

        Args:
            segment: the recorded `launching.GraphSegment`; table: the signatures; new ones may be added.
            wanted: the nodes that are launched, with what they depend on; all if there are none.
        """
        if len(self._arity) < len(table):
            new = table[len(self._arity) :]
            self._arity = np.append(self._arity, np.array([len(sig.avals) for sig in new], np.int64))
            self._asked = np.append(self._asked, np.zeros(len(new), np.bool_))
        begun, count = len(segment.buffer_of), len(segment.sigs)
        recorded = _integers(segment.sigs[begun:]), np.arange(begun, count), _integers(segment.refs)
        segment.refs.clear()
        nodes: Sequence[np.ndarray] = recorded
        if len(segment.waiting[0]):
            nodes = list(map(np.concatenate, zip(segment.waiting, recorded, strict=True)))
        found = take_calls(*nodes, self._arity, self._asked, np.full(count, -1), np.array(wanted, np.int64))
        sigs, offsets, operands, refs, places, *segment.waiting = found
        outside = len(segment.sources)
        same = np.zeros((2, 0), np.int64)
        graph = Graph(sigs, offsets, operands, refs, places, count, same, len(table), outside)
        for name in ("buffer_of", "row_of"):
            setattr(segment, name, np.concatenate([getattr(segment, name), np.full(count - begun, -1)]))
        shared = [~ref for ref, constant in segment.large.items() if constant.common]
        marks = np.zeros(outside, np.int64)
        marks[np.array(shared, np.int64)] = np.arange(1, len(shared) + 1)
        return _make_plan(graph, table, marks)


@jit
def take_calls(
    sigs: np.ndarray,
    numbers: np.ndarray,
    refs: np.ndarray,
    arity: np.ndarray,
    asked: np.ndarray,
    at: np.ndarray,
    wanted: np.ndarray,
) -> tuple[np.ndarray, ...]:
    """Divide nodes into the calls that are launched now, which are what `wanted` depends on, and those that wait.

    Args:
        sigs, numbers: (n,) the signature of each node, -1 for a further output of the node before, and its number.
        refs: (R,) their operands, one node after the other; arity: the number of operands of each signature.
        asked: for each signature, True if its calls are launched, too; those of `wanted` are added.
        at: (N,) for each number, -1 on entry.
        wanted: some of the numbers; all nodes are launched if it is empty.

    Returns:
        `sigs`, `offsets`, `operands`, `refs` and `places` of a `Graph`; and signatures, numbers and operands of the
        nodes that wait.
    """
    n = sigs.shape[0]
    offsets = np.zeros(n + 1, np.int64)
    for i in range(n):
        at[numbers[i]] = i
        offsets[i + 1] = offsets[i] + (arity[sigs[i]] if sigs[i] >= 0 else 0)
    needed = _needed(sigs, offsets, refs, asked, at, wanted)
    sizes = np.diff(offsets)
    calls, used = needed & (sigs >= 0), np.repeat(needed, sizes)
    at[numbers[needed]] = np.cumsum(calls)[needed] - 1
    starts = np.append(0, np.cumsum(sizes[calls]))
    operands = refs[used]
    own = np.where(operands >= 0, at[np.maximum(operands, 0)], operands)
    return sigs[calls], starts, own, operands, numbers[calls], sigs[~needed], numbers[~needed], refs[~used]


@jit
def _needed(
    sigs: np.ndarray, offsets: np.ndarray, refs: np.ndarray, asked: np.ndarray, at: np.ndarray, wanted: np.ndarray
) -> np.ndarray:
    """Which nodes are launched; the arguments are as in `take_calls`, with the place of each number in `at`."""
    n = sigs.shape[0]
    needed = np.full(n, wanted.shape[0] == 0)
    for node in wanted:
        i = at[node]
        if i >= 0:
            needed[i] = True
            while sigs[i] < 0:
                i -= 1
            asked[sigs[i]] = True
    for i in range(n - 1, -1, -1):
        if sigs[i] < 0:
            needed[i - 1] |= needed[i]
        elif needed[i] or asked[sigs[i]]:
            needed[i] = True
            for k in range(offsets[i], offsets[i + 1]):
                if refs[k] >= 0 and at[refs[k]] >= 0:
                    needed[at[refs[k]]] = True
    for i in range(n):
        if sigs[i] < 0:
            needed[i] = needed[i - 1]
    return needed


def _integers(values: list[int]) -> np.ndarray:
    """A list of ints as an array; through `array.array`, which is three times as fast as `np.array`."""
    return np.frombuffer(array("q", values), np.int64) if values else np.zeros(0, np.int64)


def _used_signatures(graph: Graph, table: Sequence[Any]) -> list[int]:
    """The numbers of the signatures that have calls."""
    return np.flatnonzero(np.bincount(graph.sigs, minlength=len(table))[: len(table)]).tolist()


def _make_plan(graph: Graph, table: list[Any], marks: np.ndarray) -> Plan:
    """The plan with the fewest launches: with blocks split or not, and connected additions as one call each or not.

    Args:
        marks: for each external value 0, or the number (from 1) of a constant that several examples read.
    """
    parts = split_blocks(graph, _used_signatures(graph, table), table)
    found = []
    for each in [graph, rewrite(graph, table, parts)] if parts else [graph]:
        together = find_merges(_used_signatures(each, table), table)
        each = rewrite(each, table, together) if together else each
        other, kinds, count, is_mixed = _with_chains(each, table, marks)
        found.append((other, _schedule(other, kinds, count, config.scheduler), is_mixed))
    graph, plan, is_mixed = min(found, key=lambda each: len(each[1].starts))
    return (graph, *split_mixed(plan, graph.sigs, table)) if is_mixed else (graph, plan, ())


def _schedule(graph: Graph, kinds: np.ndarray, count: int, policy: str) -> Schedule:
    return schedule(kinds, graph.offsets, graph.operands, count, policy)


def _with_chains(graph: Graph, table: Sequence[Any], marks: np.ndarray) -> tuple[Graph, np.ndarray, int, bool]:
    """A graph whose connected additions are one call each where that takes fewer launches.

    Returns:
        The graph, the kind of each of its calls, the number of kinds, and True if calls of several signatures are of
        one kind.
    """
    used = _used_signatures(graph, table)
    kinds, is_mixed = by_family(graph.sigs, used, table)
    count = len(table)
    if marks.any():
        marks = np.concatenate([marks, np.zeros(len(graph.extras), np.int64)])
        kinds, of_kind = refine(kinds, graph.offsets, graph.refs, marks)
        count = len(of_kind)
    for numbers in chain_signatures(used, table).values():
        if (shorter := contract(graph, numbers, table)) is not None:
            other, calls = shorter
            own = np.where(calls >= 0, kinds[calls], count - 1 + np.cumsum(calls < 0))
            more = count + len(other.forests) - len(graph.forests)
            tried = _schedule(other, own, more, "depth"), _schedule(graph, kinds, count, "depth")  # it costs least
            if len(tried[0].starts) < len(tried[1].starts):
                graph, kinds, count = other, own, more
    return graph, kinds, count, is_mixed
