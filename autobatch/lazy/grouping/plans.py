"""Plans: which recorded calls are launched together, and when, after all rewrites that reduce the launches.

Calls that differ only in sizes are grouped (`ragged`); chains of additions become one call and blocks are split
(`addition_chains`) if that takes fewer launches. A choice that won several times for the same code is then reused.
"""

from array import array
from collections.abc import Hashable, Sequence
from typing import Any

import numpy as np

from autobatch.core.config import config
from autobatch.lazy.grouping.addition_chains import Graph, chain_signatures, contract, rewrite, split_blocks
from autobatch.lazy.grouping.general_blocks import find_merges
from autobatch.lazy.grouping.launch_order import Schedule, refine, schedule
from autobatch.lazy.grouping.ragged import Group, by_family, refusal_count, split_mixed

Plan = tuple[Graph, Schedule, Sequence[Group | None]]

_MOST_PLANS, _MOST_CALLS = 8, 1 << 12  # plans that a trace keeps, and calls of the largest that it keeps
_TRIALS, _RETRY_AFTER = 3, 64  # wins in a row that settle a choice, and uses until all is tried again


class Plans:
    """Cache of a trace's plans: a round that equals an earlier one is not planned again."""

    __slots__ = ("_kept",)

    def __init__(self) -> None:
        self._kept: dict[tuple[Any, ...], Plan] = {}

    def of(self, segment: Any, table: list[Any]) -> Plan:
        """The plan of a segment.

        Args:
            segment: the recorded `launching.GraphSegment`; table: the signatures; new ones may be added.
        """
        sigs, refs = _integers(segment.sigs), _integers(segment.refs)
        shared = tuple([ref for ref, constant in segment.large.items() if constant.common])
        key = sigs.tobytes(), refs.tobytes(), shared, len(segment.sources), config.scheduler, refusal_count()
        found = self._kept.get(key)
        if found is None:
            marks = np.zeros(len(segment.sources), np.int64)
            marks[np.array(shared, np.int64) * -1 - 1] = np.arange(1, len(shared) + 1)
            found = _make_plan(_graph_of(sigs, refs, table, len(marks)), table, marks)
            if len(sigs) <= _MOST_CALLS:
                if len(self._kept) >= _MOST_PLANS:
                    del self._kept[next(iter(self._kept))]
                self._kept[key] = found
        return found

    def clear(self) -> None:
        """Clear the cache."""
        self._kept.clear()


def _integers(values: Any) -> np.ndarray:
    """A list of ints as an array; through `array.array`, which is three times as fast as `np.array`."""
    if type(values) is np.ndarray:
        return values
    return np.frombuffer(array("q", values), np.int64) if values else np.zeros(0, np.int64)


def _graph_of(sigs: np.ndarray, refs: np.ndarray, table: Sequence[Any], outside: int) -> Graph:
    """The recorded calls as a graph."""
    count, operands = len(sigs), refs
    places = np.flatnonzero(sigs >= 0)
    if len(places) < count:  # some calls have further outputs, recorded as -1
        node = np.cumsum(sigs >= 0) - 1
        sigs = sigs[places]
        operands = np.where(refs >= 0, node[np.maximum(refs, 0)], refs)
    arity = np.array([len(sig.avals) for sig in table], np.int64)
    offsets = np.zeros(len(sigs) + 1, np.int64)
    np.cumsum(arity[sigs], out=offsets[1:])
    return Graph(sigs, offsets, operands, refs, places, count, np.zeros((2, 0), np.int64), len(table), outside)


def _used_signatures(graph: Graph, table: Sequence[Any]) -> list[int]:
    """The numbers of the signatures that have calls."""
    return np.flatnonzero(np.bincount(graph.sigs, minlength=len(table))[: len(table)]).tolist()


def _make_plan(graph: Graph, table: list[Any], marks: np.ndarray) -> Plan:
    """The plan with the fewest launches: for the graph unchanged, with blocks split, merged, or both.

    Args:
        marks: for each external value 0, or the number (from 1) of a constant that several examples read.
    """
    used = _used_signatures(graph, table)
    code = len(graph.sigs).bit_length(), frozenset([(table[index].op.name, table[index].where) for index in used])
    settled = _known_choice(code)
    variants = {False: graph}
    if (settled is None or settled[0]) and (parts := split_blocks(graph, used, table)):
        variants = {**(variants if settled is None else {}), True: rewrite(graph, table, parts)}
    found: list[tuple[_Way, _Ungrouped]] = []
    for way, other in variants.items():
        own_used = _used_signatures(other, table)
        together = find_merges(own_used, table) if settled is None or settled[1] else {}
        if together:
            one = rewrite(other, table, together)
            found.append(((way, True), _schedule_chains(one, _used_signatures(one, table), table, marks)))
        if settled is None or not together:
            found.append(((way, False), _schedule_chains(other, own_used, table, marks)))
    chosen, (graph, plan, is_mixed) = min(found, key=lambda each: len(each[1][1].starts))
    if settled is None:
        _note_choice(code, chosen)
    if not is_mixed:
        return graph, plan, ()
    return graph, *split_mixed(plan, graph.sigs, table)


_Way = tuple[bool, bool]  # whether blocks are split, and merged
_Ungrouped = tuple[Graph, Schedule, bool]  # the flag: True if some launch has calls of several signatures


def _schedule_chains(graph: Graph, used: Sequence[int], table: Sequence[Any], marks: np.ndarray) -> _Ungrouped:
    """Schedule a graph; chains of additions become one call each where that takes fewer launches."""
    kinds, is_mixed = by_family(graph.sigs, used, table)
    count = len(table)
    if marks.any():
        marks = np.concatenate([marks, np.zeros(len(graph.extras), np.int64)])
        kinds, of_kind = refine(kinds, graph.offsets, graph.operands, marks)
        count = len(of_kind)

    def launches(graph: Graph, kinds: np.ndarray, count: int) -> Schedule:
        return schedule(kinds, graph.offsets, graph.operands, count, config.scheduler)

    plan: Schedule | None = None
    for kind, numbers in chain_signatures(used, table).items():
        key = kind, frozenset([table[index].where for index in numbers])
        settled = _known_choice(key)
        found: list[tuple[str, Graph, np.ndarray, int]] = []
        for way in _CHAINS if settled is None else (settled,):
            if way == "separate":
                found.append((way, graph, kinds, count))
            elif (shorter := contract(graph, numbers, table, way == "all")) is not None:
                other, calls = shorter
                own = np.where(calls >= 0, kinds[calls], count - 1 + np.cumsum(calls < 0))
                found.append((way, other, own, count + len(other.forests) - len(graph.forests)))
        if settled is None:
            plans = [plan if plan is not None and not at else launches(*each[1:]) for at, each in enumerate(found)]
            best = min(range(len(plans)), key=lambda at: len(plans[at].starts))
            (way, graph, kinds, count), plan = found[best], plans[best]
            _note_choice(key, way)
        elif found and settled != "separate":
            (_, graph, kinds, count), plan = found[0], None
    if plan is None:
        plan = launches(graph, kinds, count)
    return graph, plan, is_mixed


# Choices that are remembered

_CHAINS = "separate", "chains", "all"  # additions one by one; chains as one call; chains and also single additions
_choices: dict[Hashable, tuple[Any, int]] = {}  # {code: (choice, wins in a row)}


def _known_choice(code: Hashable) -> Any:
    """The choice that took the fewest launches for this code `_TRIALS` times in a row; None if all are to be tried."""
    if code not in _choices:
        return None
    chosen, times = _choices[code]
    if times >= _TRIALS:
        _choices[code] = chosen, times + 1
    return chosen if times >= _TRIALS and times % _RETRY_AFTER else None


def _note_choice(code: Hashable, chosen: Any) -> None:
    if len(_choices) >= 1 << 8:
        _choices.clear()
    known, times = _choices.get(code, (chosen, 0))
    _choices[code] = chosen, times + 1 if known == chosen else 1
