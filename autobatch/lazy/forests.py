"""Chains and trees of additions, each launched as one: `total = total + loss` at every node or step.

The place of a term in such a chain is no reason to launch it by itself. A block that adds to what comes in and does
nothing else with it is taken apart (`taken_apart`): its term is a result like any other, the addition a call of its
own. Additions that lead to each other, of all examples, are then one call (`contracted`), which adds in the order in
which the user's code does: every sum on the way is there, to the last bit. The same holds for products, extrema and
`np.logaddexp`.
"""

import copy
import dataclasses
from collections import Counter
from collections.abc import Sequence
from typing import Any

import numpy as np

from autobatch.blocks.program import Program, interned
from autobatch.core.op import Op
from autobatch.kernels.jit import jit
from autobatch.ops.numpy.elementwise import UFUNCS, add_p
from autobatch.ops.rules.row_gather import rows_p, scatter_rows_p

__all__ = ["Forest", "Graph", "chained_kinds", "contracted", "forest_p", "taken_apart"]

_CHAINED = frozenset(
    [UFUNCS[each] for each in (np.add, np.multiply, np.maximum, np.minimum, np.logaddexp)]
)  # ops of which what is on the way is done in no more than a pass over the operands
_MOST_KINDS = 3  # of operands whose additions are looked at in one graph
_SUMMED = frozenset(map(np.dtype, (np.float32, np.float64, np.int32, np.int64)))  # of which there are kernels


@dataclasses.dataclass(slots=True)
class Graph:
    """The calls of a segment, in an order in which operands come first.

    Attributes:
        sigs: (N,) int64, the number of each call's signature; from the number of signatures on, of its `Forest`.
        offsets: (N + 1,) int64, where the operands of each begin in `operands` and `refs`.
        operands: (R,) int64, the call that each operand is a result of; negative for what is outside.
        refs: (R,) int64, the place of each operand.
        places: (N,) int64, the place of each call's first result; those of its others follow.
        count: how many places there are before those of the outside.
        same: places and the places that they are another name of, (2, K) int64.
        forests: what is one call in place of several.
    """

    sigs: np.ndarray
    offsets: np.ndarray
    operands: np.ndarray
    refs: np.ndarray
    places: np.ndarray
    count: int
    same: np.ndarray
    forests: "list[Forest]" = dataclasses.field(default_factory=list)


class Forest:
    """Calls of one op and one kind of operand that lead to each other, as one call.

    Attributes:
        op: the op; aval: the kind of all its operands and results.
        left, right: (M,) int64, the operands of each call: a term, or from the number of terms on an earlier call.
        places: (M,) int64, those of the results; terms: how many.
    """

    __slots__ = ("aval", "avals", "block", "errors", "left", "op", "places", "right", "terms")

    def __init__(self, sig: Any, left: np.ndarray, right: np.ndarray, places: np.ndarray, terms: int) -> None:
        self.op = sig.op
        self.errors = sig.errors
        self.aval = sig.out
        self.avals = (sig.out,) * terms
        self.block = None
        self.left = left
        self.right = right
        self.places = places
        self.terms = terms

    @property
    def text(self) -> str:
        """What reports show."""
        return f"{self.aval!r}, {self.aval!r}, in chains"


def is_chained(sig: Any) -> bool:
    """Whether calls of this signature that lead to each other are one."""
    return (
        sig.op in _CHAINED
        and sig.block is None
        and len(sig.avals) == 2
        and sig.avals[0] is sig.avals[1] is sig.out
        and not sig.params
        and sig.out.dtype.kind in "iuf"
    )


# Blocks that add to what comes in


@dataclasses.dataclass(slots=True)
class Link:
    """One addition that is taken out of a block.

    Attributes:
        op, aval: the op, and the kind of its operands and result.
        start: the operand of the block that it adds to, for the first of a chain; else -1: the addition before.
        term: the output of the rest of the block that it adds.
        is_left: whether what it adds to is the left operand.
        output: the output of the block that is its result; -1 on the way.
    """

    op: Op
    aval: Any
    start: int
    term: int
    is_left: bool
    output: int


class Parts:
    """A block without the additions to what comes in.

    Attributes:
        rest: the program that is left; operands: the positions of the operands that it reads.
        outputs: which output of the block each of its first outputs is; the others are terms.
        links: the additions, in order.
    """

    __slots__ = ("links", "operands", "outputs", "rest")

    def __init__(self, rest: Program, operands: list[int], outputs: list[int], links: list[Link]) -> None:
        self.rest = rest
        self.operands = operands
        self.outputs = outputs
        self.links = links


def parts_of(program: Program, own: Sequence[bool]) -> Parts | None:
    """What a block is besides additions to its operands; None where it has no such.

    Args:
        own: which inputs are each example's own.
    """
    if program.views:
        return None
    number = len(program.inputs)
    first_step = number + len(program.constants)
    producer = {step.out: step for step in program.steps}
    uses = Counter([slot for step in program.steps for slot in step.args] + list(program.outputs))

    def chain(slot: int) -> list[tuple[Any, int]] | None:
        """The additions that lead from an operand to this value, and on which side of each what they add to is."""
        step = producer.get(slot)
        if step is None or step.op not in _CHAINED or step.params or uses[slot] != 1:
            return None
        aval = program.avals[slot]
        if aval.dtype.kind not in "iuf" or any(program.avals[arg] is not aval for arg in step.args):
            return None
        for side in (0, 1):
            at, term = step.args[side], step.args[1 - side]
            if term < first_step or term == at:
                continue
            if at < number and own[at] and uses[at] == 1:
                return [(step, side)]
            if at in producer and producer[at].op is step.op:
                before = chain(at)
                if before is not None:
                    return [*before, (step, side)]
        return None

    found = {place: path for place, slot in enumerate(program.outputs) if (path := chain(slot)) is not None}
    if not found:
        return None
    removed = {step.out for path in found.values() for step, _ in path}
    starts = {path[0][0].args[path[0][1]] for path in found.values()}
    outputs = [place for place in range(len(program.outputs)) if place not in found]
    terms = [step.args[1 - side] for path in found.values() for step, side in path]
    kept = [slot for slot in range(number) if slot not in starts]
    if not any(own[slot] for slot in kept) or any(term in removed for term in terms):
        return None
    slots = [*[program.outputs[place] for place in outputs], *terms]
    rest = interned(program.part(kept, [step for step in program.steps if step.out not in removed], slots))
    position = {slot: place for place, slot in enumerate([slot for slot in range(number) if own[slot]])}
    links: list[Link] = []
    for place, path in found.items():
        for step, side in path:
            at = step.args[side]
            last = step is path[-1][0]
            term = len(outputs) + len(links)
            start = position.get(at, -1)
            links.append(Link(step.op, program.avals[step.out], start, term, side == 0, place if last else -1))
    return Parts(rest, [position[slot] for slot in kept if own[slot]], outputs, links)


def _parts(sig: Any) -> Parts | None:
    if sig.parts is False:
        sig.parts = None
        if sig.block is not None:
            program, own = sig.block.program, tuple([value is None for value in sig.block.shared])
            if own not in program.parts:
                program.parts[own] = parts_of(program, own)
            sig.parts = program.parts[own]
    found: Parts | None = sig.parts
    return found


def taken_apart(graph: Graph, table: list[Any]) -> Graph:
    """The graph with additions of their own where blocks add to what others have added; itself where none do.

    Args:
        table: the signatures; those of the parts are added to it.
    """
    used = np.flatnonzero(np.bincount(graph.sigs, minlength=len(table))).tolist()
    found = {index: parts for index in used if (parts := _parts(table[index])) is not None}
    if not found:
        return graph
    calls = {index: np.flatnonzero(graph.sigs == index) for index in found}
    sums = np.zeros(graph.count, bool)  # places of sums
    for index in used:
        if is_chained(table[index]):
            sums[graph.places[graph.sigs == index]] = True
    for index, parts in found.items():
        for link in parts.links:
            if link.output >= 0:
                sums[graph.places[calls[index]] + link.output] = True
    for index, parts in list(found.items()):
        starts = [graph.refs[graph.offsets[calls[index]] + link.start] for link in parts.links if link.start >= 0]
        if not any((sums[np.maximum(refs, 0)] & (refs >= 0)).any() for refs in starts):
            del found[index]
    if not found:
        return graph
    return _Rewriting(graph, table).run({index: (parts, calls[index]) for index, parts in found.items()})


class _Rewriting:
    """Builds a graph from sets of calls of one signature.

    Args:
        graph: what it is made from; table: the signatures, to which it adds.
    """

    def __init__(self, graph: Graph, table: list[Any]) -> None:
        self._graph = graph
        self._table = table
        self._count = graph.count
        self._keys: list[np.ndarray] = []
        self._sigs: list[np.ndarray] = []
        self._refs: list[np.ndarray] = []
        self._arities: list[np.ndarray] = []
        self._places: list[np.ndarray] = []
        self._same: list[np.ndarray] = [graph.same]
        self._added: dict[Any, int] = {}

    def run(self, found: dict[int, tuple[Parts, np.ndarray]]) -> Graph:
        graph = self._graph
        whole = np.ones(len(graph.sigs), bool)
        for _, calls in found.values():
            whole[calls] = False
        kept = np.flatnonzero(whole)
        arity = np.diff(graph.offsets)
        flat = np.repeat(whole, arity)
        most = 1 + max(len(parts.links) for parts, _ in found.values())
        self._add(kept * most, graph.sigs[kept], graph.refs[flat], arity[kept], graph.places[kept])
        for index, (parts, calls) in found.items():
            self._split(self._table[index], parts, calls, most)
        keys = np.concatenate(self._keys)
        order = np.argsort(keys)
        counts = np.concatenate(self._arities)
        starts = (np.cumsum(counts) - counts)[order]
        counts = counts[order]
        offsets = np.zeros(len(order) + 1, np.int64)
        np.cumsum(counts, out=offsets[1:])
        refs = np.concatenate(self._refs)[np.repeat(starts - offsets[:-1], counts) + np.arange(offsets[-1])]
        places, sigs = np.concatenate(self._places)[order], np.concatenate(self._sigs)[order]
        outputs = np.array([1 if sig.block is None else len(sig.block.outs) for sig in self._table])[sigs]
        same = np.concatenate(self._same, axis=1)
        call_at = np.full(self._count, -1, np.int64)
        first = np.repeat(places - np.cumsum(outputs) + outputs, outputs) + np.arange(outputs.sum())
        call_at[first] = np.repeat(np.arange(len(order)), outputs)
        call_at[same[0]] = call_at[same[1]]
        operands = np.where(refs >= 0, call_at[np.maximum(refs, 0)], refs)
        return Graph(sigs, offsets, operands, refs, places, self._count, same, graph.forests)

    def _add(self, keys: np.ndarray, sigs: Any, refs: np.ndarray, arities: Any, places: np.ndarray) -> None:
        self._keys.append(keys)
        self._sigs.append(np.broadcast_to(sigs, keys.shape))
        self._refs.append(refs.reshape(-1))
        self._arities.append(np.broadcast_to(arities, keys.shape))
        self._places.append(places)

    def _split(self, sig: Any, parts: Parts, calls: np.ndarray, most: int) -> None:
        """The rest of some calls of a block, and their additions."""
        graph = self._graph
        given = graph.refs[graph.offsets[calls][:, None] + np.arange(len(sig.avals))]
        places = graph.places[calls]
        rest = self._rest(sig, parts)
        width = len(rest.block.outs)
        results = self._count + width * np.arange(len(calls))
        self._count += width * len(calls)
        self._add(calls * most, rest.index, given[:, parts.operands], len(parts.operands), results)
        for at, output in enumerate(parts.outputs):
            self._same.append(np.stack([places + output, results + at]))
        before = places
        for number, link in enumerate(parts.links, 1):
            left = before if link.start < 0 else given[:, link.start]
            pair = (left, results + link.term) if link.is_left else (results + link.term, left)
            if link.output >= 0:
                before = places + link.output
            else:
                before = self._count + np.arange(len(calls))
                self._count += len(calls)
            self._add(calls * most + number, self._addition(sig, link), np.stack(pair, axis=1), 2, before)

    def _rest(self, sig: Any, parts: Parts) -> Any:
        if sig.rest is None:
            sig.rest = found = copy.copy(sig)
            found.index = len(self._table)
            found.block = type(sig.block)(parts.rest, _shared_of_rest(sig, parts), found.index)
            found.avals = tuple([sig.avals[position] for position in parts.operands])
            found.out, found.family, found.parts = parts.rest.results[0], False, None
            self._table.append(found)
        return sig.rest

    def _addition(self, sig: Any, link: Link) -> int:
        key = link.op, link.aval, *sig.errors.values()
        if key not in self._added:
            self._added[key] = len(self._table)
            kinds = (link.aval, link.aval)
            self._table.append(type(sig)(link.op, {}, kinds, link.aval, len(self._table), sig.where, sig.errors))
        return self._added[key]


def _shared_of_rest(sig: Any, parts: Parts) -> list[Any]:
    """The shared values of the inputs that the rest of a block reads."""
    positions, kept = set(parts.operands), []
    own = iter(range(len(sig.avals)))
    for value in sig.block.shared:
        if value is not None or next(own) in positions:
            kept.append(value)
    return kept


# Additions that lead to each other


@jit
def _stages(offsets, operands, added, out):
    """How often, on the way to each call, what was added up is used for something else.

    Args:
        added: (N,) bool, the additions; out: (N,) int64, zero.
    """
    for i in range(added.shape[0]):
        for k in range(offsets[i], offsets[i + 1]):
            j = operands[k]
            if j >= 0:
                stage = out[j]
                if added[j] and not added[i]:
                    stage += 1
                if stage > out[i]:
                    out[i] = stage


def chained_kinds(graph: Graph, table: Sequence[Any]) -> list[np.ndarray]:
    """For each kind of additions of which some lead to each other, which calls they are, (N,) bool; longest first."""
    number: dict[Any, int] = {}
    kind_of = np.full(len(table) + len(graph.forests), -1, np.int64)
    for index in np.flatnonzero(np.bincount(graph.sigs, minlength=len(table))[: len(table)]).tolist():
        sig = table[index]
        if is_chained(sig):
            kind_of[index] = number.setdefault((sig.op, sig.out, *sig.errors.values()), len(number))
    if not number:
        return []
    kind = kind_of[graph.sigs]
    added = np.flatnonzero(kind >= 0)
    pairs = graph.operands[graph.offsets[added][:, None] + np.arange(2)]
    linked = (pairs >= 0) & (kind[np.maximum(pairs, 0)] == kind[added][:, None])
    links = np.bincount(kind[added], weights=linked.any(axis=1), minlength=len(number))
    if not links.any():
        return []
    is_part = np.ones(len(kind), bool)  # of a chain of two or more, or the end of all
    is_part[graph.operands[graph.operands >= 0]] = False
    is_part[added[linked.any(axis=1)]] = True
    is_part[pairs[linked]] = True
    return [(kind == each) & is_part for each in np.argsort(-links, kind="stable").tolist() if links[each]][
        :_MOST_KINDS
    ]


def contracted(graph: Graph, added: np.ndarray, table: Sequence[Any]) -> tuple[Graph, np.ndarray]:
    """The graph with one call in place of additions that lead to each other.

    Args:
        added: (N,) bool, additions of one kind.

    Returns:
        The graph, and which call of the old one each of its calls is; below 0 for a forest.
    """
    stage = np.zeros(len(added), np.int64)
    _stages(graph.offsets, graph.operands, added, stage)
    mine = np.flatnonzero(added)
    stages, inverse = np.unique(stage[mine], return_inverse=True)
    member = np.full(len(added), -1, np.int64)  # of a call that is part of a forest, its number
    member[mine] = inverse
    kept = np.flatnonzero(~added)
    forests, first = [], []
    for number in range(len(stages)):
        forest, terms, calls = _forest(graph, mine[inverse == number], member, number, table)
        forests.append(forest)
        first.append((stages[number], terms, calls))
    return _joined(graph, kept, stage, member, forests, first, len(table))


def _forest(
    graph: Graph, mine: np.ndarray, member: np.ndarray, number: int, table: Sequence[Any]
) -> tuple[Forest, np.ndarray, np.ndarray]:
    """The calls of one forest; the places of its terms and the calls that these come from."""
    at = graph.offsets[mine][:, None] + np.arange(2)
    operands, refs = graph.operands[at], graph.refs[at]
    inside = (operands >= 0) & (member[np.maximum(operands, 0)] == number)
    local = np.zeros(len(member), np.int64)
    local[mine] = np.arange(len(mine))
    terms, where, inverse = np.unique(refs[~inside], return_index=True, return_inverse=True)
    calls = operands[~inside][where]
    pairs = np.empty_like(refs)
    pairs[~inside] = inverse
    pairs[inside] = len(terms) + local[operands[inside]]
    sig = table[graph.sigs[mine[0]]]
    forest = Forest(sig, pairs[:, 0].copy(), pairs[:, 1].copy(), graph.places[mine], len(terms))
    return forest, terms, calls


def _joined(
    graph: Graph,
    kept: np.ndarray,
    stage: np.ndarray,
    member: np.ndarray,
    forests: list[Forest],
    first: Sequence[tuple[Any, np.ndarray, np.ndarray]],
    num_sigs: int,
) -> tuple[Graph, np.ndarray]:
    """The calls that are left and the forests, in an order in which operands come first."""
    counts = np.concatenate([np.diff(graph.offsets)[kept], [each.terms for each in forests]])
    key = np.concatenate([2 * stage[kept], [2 * each[0] + 1 for each in first]])
    order = np.argsort(key, kind="stable")
    place_in_order = np.empty(len(order), np.int64)
    place_in_order[order] = np.arange(len(order))
    new = np.empty(len(member), np.int64)
    new[kept] = place_in_order[: len(kept)]
    is_member = member >= 0
    new[is_member] = place_in_order[len(kept) + member[is_member]]
    starts = np.concatenate([graph.offsets[kept], len(graph.refs) + _starts([each.terms for each in forests])])
    all_refs = np.concatenate([graph.refs, *[each[1] for each in first]])
    all_calls = np.concatenate([graph.operands, *[each[2] for each in first]])
    counts, starts = counts[order], starts[order]
    offsets = np.zeros(len(order) + 1, np.int64)
    np.cumsum(counts, out=offsets[1:])
    take = np.repeat(starts - offsets[:-1], counts) + np.arange(offsets[-1])
    operands = all_calls[take]
    own = operands >= 0
    operands[own] = new[operands[own]]
    scratch = graph.count + np.arange(len(forests))
    joined = Graph(
        np.concatenate([graph.sigs[kept], num_sigs + len(graph.forests) + np.arange(len(forests))])[order],
        offsets,
        operands,
        all_refs[take],
        np.concatenate([graph.places[kept], scratch])[order],
        graph.count + len(forests),
        graph.same,
        [*graph.forests, *forests],
    )
    return joined, np.concatenate([kept, np.full(len(forests), -1)])[order]


def _starts(counts: Sequence[int]) -> np.ndarray:
    return np.cumsum([0, *counts])[:-1]


# The op


@jit
def _sum_pairs(values, left, right, terms):
    """values[terms + k] = values[left[k]] + values[right[k]], in order."""
    for k in range(left.shape[0]):
        a, b = left[k], right[k]
        for j in range(values.shape[1]):
            values[terms + k, j] = values[a, j] + values[b, j]


@jit
def _give_back(cts, left, right, terms):
    """The reverse: what is at a sum is added to both of its operands, from the last to the first."""
    for k in range(left.shape[0] - 1, -1, -1):
        a, b = left[k], right[k]
        for j in range(cts.shape[1]):
            cts[a, j] += cts[terms + k, j]
            cts[b, j] += cts[terms + k, j]


def _levels(left: np.ndarray, right: np.ndarray, terms: int) -> list[np.ndarray]:
    """The calls by the number of calls that lead to them."""
    depth = [0] * len(left)
    for k, (a, b) in enumerate(zip((left - terms).tolist(), (right - terms).tolist(), strict=True)):
        depth[k] = 1 + max(depth[a] if a >= 0 else -1, depth[b] if b >= 0 else -1)
    order = np.argsort(depth, kind="stable")
    return np.split(order, np.flatnonzero(np.diff(np.array(depth)[order])) + 1)


def _run(terms: Any, *, op: Op, left: np.ndarray, right: np.ndarray) -> Any:
    """(M, ...): `op` of the values at `left` and `right`, which are terms or results before."""
    count = len(terms)
    values = np.empty((count + len(left), *terms.shape[1:]), terms.dtype)
    values[:count] = terms
    out = values[count:]
    if op is add_p and values.dtype in _SUMMED:
        _sum_pairs(values.reshape(len(values), -1), left, right, count)
        if values.dtype.kind != "f" or np.isfinite(out).all():
            return out
    for level in _levels(left, right, count):  # what NumPy warns of, it says
        out[level] = op.impl(values[left[level]], values[right[level]])
    return out


def _vjp(position: int, ct: Any, out: Any, args: Sequence[Any], params: dict[str, Any]) -> Any:
    op, left, right = params["op"], params["left"], params["right"]
    (terms,) = args
    count = len(terms)
    if op is add_p and type(ct) is np.ndarray:
        cts = np.zeros((count + len(left), *ct.shape[1:]), ct.dtype)
        cts[count:] = ct
        _give_back(cts.reshape(len(cts), -1), left, right, count)
        return cts[:count]
    values: Any = np.concatenate([terms, out])
    found: Any = np.concatenate([np.zeros(terms.shape, terms.dtype), ct])
    for level in reversed(_levels(left, right, count)):
        mine, result = rows_p(found, count + level), rows_p(values, count + level)
        pair = rows_p(values, left[level]), rows_p(values, right[level])
        for side, rows in enumerate((left[level], right[level])):
            given = op.vjp(side, mine, result, pair, {})
            found = found + scatter_rows_p(given, rows, rows=count + len(left))
    return found[:count]


# forest(terms, op=, left=, right=): (M, ...) results of calls that lead to each other.
forest_p = Op("forest", _run, vjp=_vjp, kind="reduction")
