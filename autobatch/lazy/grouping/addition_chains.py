"""Launches a whole chain or tree of additions as one call, as in `total = total + loss` at every node or step.

A term should not need a launch of its own because of its position in such a chain. So a block that only adds to an
incoming value is split (`split_block`): its term becomes an ordinary result, the addition a call of its own. Connected
additions, of all examples, then become one call (`contract`), which adds in the order of the user's code, so that
every intermediate sum is available and bit-identical. The same is done for products, extrema and all other ops that
have an identity.
"""

import dataclasses
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from autobatch.blocks.program import Program, interned
from autobatch.core.abstract_eval import Weak
from autobatch.core.op import Op
from autobatch.kernels.jit import jit
from autobatch.lazy.grouping.general_blocks import Merged
from autobatch.ops.numpy.elementwise import add_p, sub_p
from autobatch.ops.rules.row_gather import rows_p, scatter_rows_p

_SUBTRACT = sub_p  # bit-identical to adding the negated operand, so it may be part of a chain of additions
_KERNEL_DTYPES = frozenset(map(np.dtype, (np.float32, np.float64, np.int32, np.int64)))  # dtypes of the jitted kernels


@dataclasses.dataclass(slots=True)
class Graph:
    """The calls of a segment, in topological order (operands first).

    Attributes:
        sigs: (N,) int64, signature number of each call; a number >= `signatures` is that of a `Forest`.
        offsets: (N + 1,) int64, where the operands of each call begin in `operands` and `refs`.
        operands: (R,) int64, the call that each operand is a result of; negative for an external value.
        refs: (R,) int64, the place (number of a stored value) of each operand.
        places: (N,) int64, the place of each call's first result; its further results follow.
        count: number of places of results; those of external values come after.
        same: (2, K) int64, aliases: places, and the places whose values they share.
        signatures: number of signatures.
        outside: number of external values; extras: further external values added by rewriting.
        forests: the calls that each replace several additions.
    """

    sigs: np.ndarray
    offsets: np.ndarray
    operands: np.ndarray
    refs: np.ndarray
    places: np.ndarray
    count: int
    same: np.ndarray
    signatures: int
    outside: int
    extras: list[Any] = dataclasses.field(default_factory=list)
    forests: "list[Forest]" = dataclasses.field(default_factory=list)


class Forest:
    """One call that replaces connected calls of one op whose operands all have one `Aval`.

    Attributes:
        op: the op; aval: the `Aval` of all its operands and results.
        left, right: (M,) int64, the operands of each call: i < terms is term i, else the result of call i - terms.
        minus: (M,) bool, True where the right operand is subtracted; None if it never is.
        places: (M,) int64, the places of the results; terms: number of terms.
    """

    __slots__ = ("aval", "avals", "block", "errors", "left", "minus", "op", "places", "right", "terms")

    def __init__(self, sig: Any, pairs: np.ndarray, minus: np.ndarray, places: np.ndarray, terms: int) -> None:
        self.op = add_p if sig.op is _SUBTRACT else sig.op
        self.errors = sig.errors
        self.aval = sig.out
        self.avals = (sig.out,) * terms
        self.block = None
        self.left, self.right = np.ascontiguousarray(pairs.T)
        self.minus = minus if minus.any() else None
        self.places = places
        self.terms = terms

    @property
    def text(self) -> str:
        """Text for reports."""
        return f"{self.aval!r}, {self.aval!r}, in chains"


def is_chainable(sig: Any) -> bool:
    """True if connected calls of this signature can become one call. One operand may be a Python number."""
    out = sig.out
    if not (_chain_op(sig.op).identity is not None and sig.block is None and len(sig.avals) == 2 and not sig.params):
        return False
    arrays = [aval for aval in sig.avals if type(aval) is not Weak or out.dtype.kind != "f"]
    return out.dtype.kind in "iuf" and bool(arrays) and all(aval is out for aval in arrays)


# Splitting blocks that add to an incoming value


@dataclasses.dataclass(slots=True)
class Link:
    """One addition that is split off a block.

    Attributes:
        op, aval: the op, and the `Aval` of its operands and result.
        start: the position of the block operand that it adds to; -1 if it adds to the result of the previous link.
        term: the output of the rest of the block that it adds.
        is_left: True if the value that it adds to is the left operand.
        output: the block output that is its result; -1 for an intermediate sum.
    """

    op: Op
    aval: Any
    start: int
    term: int
    is_left: bool
    output: int


@dataclasses.dataclass(slots=True, eq=False)
class BlockParts:
    """A block split into additions to incoming values, which come last, and the rest of the block.

    Attributes:
        rest: the program without the additions; operands: positions of the block's operands that it reads.
        outputs: the block outputs that are the first outputs of `rest`, in order; its further outputs are terms.
        links: the additions, in order.
    """

    rest: Program
    operands: list[int]
    outputs: list[int]
    links: list[Link]


def split_block(program: Program, own: Sequence[bool]) -> BlockParts | None:
    """Split a block; None if it does not end in additions to an incoming value, or nothing else would be left.

    Args:
        own: for each input, True if it differs between examples.
    """
    if program.views:
        return None
    number = len(program.inputs)
    position = {slot: place for place, slot in enumerate([slot for slot in range(number) if own[slot]])}
    paths = _sum_paths(program, own)
    removed = {step.out for path in paths.values() for step, _ in path}
    steps = [step for step in program.steps if step.out not in removed]
    outputs = [place for place in range(len(program.outputs)) if place not in paths]
    terms = [step.args[1 - side] for path in paths.values() for step, side in path]
    results = [*[program.outputs[place] for place in outputs], *terms]
    read = {slot for step in steps for slot in step.args}.union(results)
    kept = [slot for slot in range(number) if not own[slot] or slot in read]
    if not paths or not steps or not any(own[slot] for slot in kept):
        return None
    links: list[Link] = []
    for place, path in paths.items():
        for step, side in path:
            start, term = position.get(step.args[side], -1), len(outputs) + len(links)
            last = place if step is path[-1][0] else -1
            links.append(Link(step.op, program.avals[step.out], start, term, side == 0, last))
    rest = interned(program.part(kept, steps, results))
    return BlockParts(rest, [position[slot] for slot in kept if own[slot]], outputs, links)


_Path = list[tuple[Any, int]]  # additions, each with the side (0 left, 1 right) of the value that it adds to


def _sum_paths(program: Program, own: Sequence[bool]) -> dict[int, _Path]:
    """{output: its additions} for outputs that add terms to an operand that is used for nothing else."""
    producer = {step.out: step for step in program.steps}
    uses = Counter([slot for step in program.steps for slot in step.args] + list(program.outputs))
    found = {place: _sum_path(program, own, producer, uses, slot) for place, slot in enumerate(program.outputs)}
    return {place: path for place, path in found.items() if path is not None}


def _sum_path(
    program: Program, own: Sequence[bool], producer: dict[int, Any], uses: Counter[int], slot: int
) -> _Path | None:
    step = producer.get(slot)
    if step is None or uses[slot] != 1 or not _is_addition(program, step):
        return None
    for side in (0, 1):
        at, term = step.args[side], step.args[1 - side]
        if term not in producer or term == at:
            continue
        if at < len(own) and own[at] and uses[at] == 1:
            return [(step, side)]
        if at in producer and _chain_op(producer[at].op) is _chain_op(step.op):
            before = _sum_path(program, own, producer, uses, at)
            if before is not None:
                return [*before, (step, side)]
    return None


def _is_addition(program: Program, step: Any) -> bool:
    """True if a step is an addition (or another chainable op) whose operands and result have one `Aval`."""
    aval = program.avals[step.out]
    if _chain_op(step.op).identity is None or step.params or aval.dtype.kind not in "iuf":
        return False
    return all(program.avals[arg] is aval for arg in step.args)


def _chain_op(op: Op) -> Op:
    """The op of the chains that this op can be part of: addition for a subtraction."""
    return add_p if op is _SUBTRACT else op


def _cached_split(sig: Any) -> BlockParts | None:
    if "split" not in sig.groups:
        program, own = sig.block.program, tuple([value is None for value in sig.block.shared])
        if own not in program.groups:
            program.groups[own] = split_block(program, own)
        sig.groups["split"] = program.groups[own]
    found: BlockParts | None = sig.groups["split"]
    return found


def split_blocks(graph: Graph, used: Sequence[int], table: Sequence[Any]) -> dict[int, BlockParts]:
    """Split the blocks that add to an incoming value, if in some calls of them that value is itself a sum.

    Args:
        used: the numbers of the signatures that have calls.
    """
    blocks = [index for index in used if table[index].block is not None and table[index].any_length is None]
    found = {index: parts for index in blocks if (parts := _cached_split(table[index])) is not None}
    if not found:
        return found
    sums = np.zeros(graph.count, bool)  # places of sums
    for index in used:
        if is_chainable(table[index]):
            sums[graph.places[graph.sigs == index]] = True
    calls = {index: np.flatnonzero(graph.sigs == index) for index in found}
    for index, parts in found.items():
        for link in parts.links:
            if link.output >= 0:
                sums[graph.places[calls[index]] + link.output] = True
    out = {}
    for index, parts in found.items():
        starts = [graph.refs[graph.offsets[calls[index]] + link.start] for link in parts.links if link.start >= 0]
        if any((sums[np.maximum(refs, 0)] & (refs >= 0)).any() for refs in starts):
            out[index] = parts
    return out


def rewrite(graph: Graph, table: list[Any], found: Mapping[int, BlockParts | Merged]) -> Graph:
    """Rewrite the graph: split the calls of these signatures, or make them calls of a general block.

    Args:
        table: the signatures; those of the new calls are appended.
    """
    return _GraphRewriter(graph, table).run(found)


class _GraphRewriter:
    """Builds the rewritten graph, adding the calls of one signature at a time.

    Args:
        graph: the old graph; table: the signatures, to which new ones are appended.
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
        self._extras = list(graph.extras)
        self._known: dict[bytes, int] = {}  # references of the external values that it added, by content

    def run(self, found: Mapping[int, BlockParts | Merged]) -> Graph:
        graph = self._graph
        calls = {index: np.flatnonzero(graph.sigs == index) for index in found}
        whole = np.ones(len(graph.sigs), bool)
        for each in calls.values():
            whole[each] = False
        kept = np.flatnonzero(whole)
        arity = np.diff(graph.offsets)
        flat = np.repeat(whole, arity)
        taken = [parts for parts in found.values() if type(parts) is BlockParts]
        most = 1 + max([len(parts.links) for parts in taken], default=0)
        self._add(kept * most, graph.sigs[kept], graph.refs[flat], arity[kept], graph.places[kept])
        for index, parts in found.items():
            if type(parts) is BlockParts:
                self._split(self._table[index], parts, calls[index], most)
            else:
                self._merge(self._table[index], parts, calls[index], most)
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
        known, outside = len(self._table), graph.outside
        return Graph(sigs, offsets, operands, refs, places, self._count, same, known, outside, self._extras)

    def _add(self, keys: np.ndarray, sigs: Any, refs: np.ndarray, arities: Any, places: np.ndarray) -> None:
        self._keys.append(keys)
        self._sigs.append(np.broadcast_to(sigs, keys.shape))
        self._refs.append(refs.reshape(-1))
        self._arities.append(np.broadcast_to(arities, keys.shape))
        self._places.append(places)

    def _split(self, sig: Any, parts: BlockParts, calls: np.ndarray, most: int) -> None:
        """Add calls of a block as calls of its rest and of its additions."""
        graph = self._graph
        given = graph.refs[graph.offsets[calls][:, None] + np.arange(len(sig.avals))]
        places = graph.places[calls]
        numbers = iter(range(most))
        rest = self._rest_signature(sig, parts)
        width = len(rest.block.outs)
        results = self._new_places(len(calls), width)
        refs = given[:, parts.operands]
        self._add(calls * most + next(numbers), rest.index, refs, refs.shape[1], results)
        for at, output in enumerate(parts.outputs):
            self._same.append(np.stack([places + output, results + at]))
        before = places
        for link in parts.links:
            left = before if link.start < 0 else given[:, link.start]
            pair = (left, results + link.term) if link.is_left else (results + link.term, left)
            before = places + link.output if link.output >= 0 else self._new_places(len(calls))
            index = self._addition_signature(sig, link)
            self._add(calls * most + next(numbers), index, np.stack(pair, axis=1), 2, before)

    def _merge(self, sig: Any, parts: Any, calls: np.ndarray, most: int) -> None:
        """Add calls of a block as calls of the general block that stands for it."""
        graph = self._graph
        given = graph.refs[graph.offsets[calls][:, None] + np.arange(len(sig.avals))]
        columns = [
            given[:, each] if type(each) is int else np.full(len(calls), self._extra(each)) for each in parts.operands
        ]
        refs = np.stack(columns, axis=1)
        self._add(calls * most, parts.sig.index, refs, refs.shape[1], graph.places[calls])

    def _extra(self, value: Any) -> int:
        """Add an external value; returns its reference."""
        key = value.dtype.char.encode() + bytes(str(value.shape), "ascii") + value.tobytes()
        if key not in self._known:
            self._extras.append(value)
            self._known[key] = -self._graph.outside - len(self._extras)
        return self._known[key]

    def _new_places(self, count: int, width: int = 1) -> np.ndarray:
        """Reserve `width` places for each of `count` calls; returns the first place of each."""
        out = self._count + width * np.arange(count)
        self._count += width * count
        return out

    def _rest_signature(self, sig: Any, parts: BlockParts) -> Any:
        found = sig.groups.get("rest")
        if found is None:
            found = sig.groups["rest"] = sig.copied()
            found.index = len(self._table)
            found.block = type(sig.block)(parts.rest, _shared_of_rest(sig, parts), found.index)
            found.avals = tuple([sig.avals[at] for at in parts.operands])
            found.out = parts.rest.results[0]
            self._table.append(found)
        return found

    def _addition_signature(self, sig: Any, link: Link) -> int:
        """The number of the signature of an addition, appended to the table if it is new."""
        op, aval = link.op, link.aval
        key = op, aval, *sig.errors.values()
        if key not in self._added:
            self._added[key] = len(self._table)
            self._table.append(type(sig)(op, {}, (aval, aval), aval, len(self._table), sig.where, sig.errors))
        return self._added[key]


def _shared_of_rest(sig: Any, parts: BlockParts) -> list[Any]:
    """The shared values of the inputs that the rest of a block reads."""
    positions, kept = set(parts.operands), []
    own = iter(range(len(sig.avals)))
    for value in sig.block.shared:
        if value is not None or next(own) in positions:
            kept.append(value)
    return kept


# Replacing connected additions by forests


@jit
def _stages(offsets, operands, added, out):
    """Compute for each call how often, on any path to it, the result of an addition is used by another op.

    Args:
        added: (N,) bool, the additions; out: (N,) int64, zeros on entry: the result.
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


def chain_signatures(used: Sequence[int], table: Sequence[Any]) -> dict[Any, list[int]]:
    """The numbers of the signatures of additions, grouped by op, `Aval` and error state.

    Args:
        used: the numbers of the signatures that have calls.
    """
    out: dict[Any, list[int]] = {}
    for index in used:
        sig = table[index]
        if sig.block is None and is_chainable(sig):
            out.setdefault((_chain_op(sig.op), sig.out, *sig.errors.values()), []).append(index)
    return out


def contract(graph: Graph, numbers: Sequence[int], table: Sequence[Any]) -> tuple[Graph, np.ndarray] | None:
    """Replace additions of one kind by one call (a `Forest`) for each stage; None if no two are connected.

    Args:
        numbers: the signatures of these additions.

    Returns:
        The new graph, and for each of its calls the old call; negative for a forest.
    """
    is_chosen = np.zeros(len(table) + len(graph.forests), bool)
    is_chosen[list(numbers)] = True
    chosen = is_chosen[graph.sigs]
    mine = np.flatnonzero(chosen)
    pairs = graph.operands[graph.offsets[mine][:, None] + np.arange(2)]
    links = (pairs >= 0) & chosen[np.maximum(pairs, 0)]
    if not links.any():
        return None
    stage = np.zeros(len(chosen), np.int64)
    _stages(graph.offsets, graph.operands, chosen, stage)
    stages, inverse = np.unique(stage[mine], return_inverse=True)
    member = np.full(len(chosen), -1, np.int64)  # the number of each call's forest; -1 for none
    member[mine] = inverse
    kept = np.flatnonzero(~chosen)
    forests, first = [], []
    for number in range(len(stages)):
        forest, terms, calls = _forest(graph, mine[inverse == number], member, number, table)
        forests.append(forest)
        first.append((stages[number], terms, calls))
    return _with_forests(graph, kept, stage, member, forests, first, len(table))


def _forest(
    graph: Graph, mine: np.ndarray, member: np.ndarray, number: int, table: Sequence[Any]
) -> tuple[Forest, np.ndarray, np.ndarray]:
    """One forest, the places of its terms, and the calls that compute the terms (negative for external values)."""
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
    numbers = graph.sigs[mine]
    minus = np.isin(numbers, [index for index in set(numbers.tolist()) if table[index].op is _SUBTRACT])
    forest = Forest(sig, pairs, minus, graph.places[mine], len(terms))
    return forest, terms, calls


def _with_forests(
    graph: Graph,
    kept: np.ndarray,
    stage: np.ndarray,
    member: np.ndarray,
    forests: list[Forest],
    first: Sequence[tuple[Any, np.ndarray, np.ndarray]],
    num_sigs: int,
) -> tuple[Graph, np.ndarray]:
    """The graph of the remaining calls and the forests in topological order, and the old call of each of its calls."""
    counts = np.concatenate([np.diff(graph.offsets)[kept], [each.terms for each in forests]])
    key = np.concatenate([2 * stage[kept], [2 * each[0] + 1 for each in first]])
    order = np.argsort(key, kind="stable")
    place_in_order = np.empty(len(order), np.int64)
    place_in_order[order] = np.arange(len(order))
    new = np.empty(len(member), np.int64)
    new[kept] = place_in_order[: len(kept)]
    is_member = member >= 0
    new[is_member] = place_in_order[len(kept) + member[is_member]]
    starts = np.concatenate([graph.offsets[kept], len(graph.refs) + _offsets([each.terms for each in forests])])
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
        num_sigs,
        graph.outside,
        graph.extras,
        [*graph.forests, *forests],
    )
    return joined, np.concatenate([kept, np.full(len(forests), -1)])[order]


def _offsets(counts: Sequence[int]) -> np.ndarray:
    return np.cumsum([0, *counts])[:-1]


# The op


@jit
def _sum_pairs(values, left, right, minus, terms):
    """values[terms + k] = values[left[k]] + values[right[k]], in order; or the difference, where `minus`."""
    for k in range(left.shape[0]):
        a, b = left[k], right[k]
        if minus.shape[0] and minus[k]:
            for j in range(values.shape[1]):
                values[terms + k, j] = values[a, j] - values[b, j]
        else:
            for j in range(values.shape[1]):
                values[terms + k, j] = values[a, j] + values[b, j]


@jit
def _sum_pairs_vjp(cts, left, right, minus, terms):
    """Backward of `_sum_pairs`, in place: add the cotangent of each sum to both operands, from last to first."""
    for k in range(left.shape[0] - 1, -1, -1):
        a, b = left[k], right[k]
        is_minus = minus.shape[0] and minus[k]
        for j in range(cts.shape[1]):
            ct = cts[terms + k, j]
            cts[a, j] += ct
            if is_minus:
                cts[b, j] -= ct
            else:
                cts[b, j] += ct


def _levels(left: np.ndarray, right: np.ndarray, terms: int) -> list[np.ndarray]:
    """The calls grouped by depth: those of one group depend only on terms and earlier groups."""
    depth = [0] * len(left)
    for k, (a, b) in enumerate(zip((left - terms).tolist(), (right - terms).tolist(), strict=True)):
        depth[k] = 1 + max(depth[a] if a >= 0 else -1, depth[b] if b >= 0 else -1)
    order = np.argsort(depth, kind="stable")
    return np.split(order, np.flatnonzero(np.diff(np.array(depth)[order])) + 1)


_NO_MINUS = np.zeros(0, bool)


def _run_forest(terms: Any, *, op: Op, left: np.ndarray, right: np.ndarray, minus: np.ndarray | None) -> Any:
    """(M, ...) results, one call after the other: `op` of two values that are terms or earlier results."""
    count = len(terms)
    values = np.empty((count + len(left), *terms.shape[1:]), terms.dtype)
    values[:count] = terms
    out = values[count:]
    if op is add_p and values.dtype in _KERNEL_DTYPES:
        _sum_pairs(values.reshape(len(values), -1), left, right, _NO_MINUS if minus is None else minus, count)
        if values.dtype.kind != "f" or np.isfinite(out).all():
            return out
    for level in _levels(left, right, count):  # again by NumPy, which warns about non-finite results
        for each, part in _by_sign(op, level, minus):
            out[part] = each.impl(values[left[part]], values[right[part]])
    return out


def _by_sign(op: Op, level: np.ndarray, minus: np.ndarray | None) -> list[tuple[Op, np.ndarray]]:
    """Split the calls of a level into those of `op` and subtractions."""
    if minus is None:
        return [(op, level)]
    return [(each, part) for each, part in ((op, level[~minus[level]]), (_SUBTRACT, level[minus[level]])) if len(part)]


def _forest_vjp(position: int, ct: Any, out: Any, args: Sequence[Any], params: dict[str, Any]) -> Any:
    op, left, right, minus = params["op"], params["left"], params["right"], params["minus"]
    (terms,) = args
    count = len(terms)
    if op is add_p and type(ct) is np.ndarray and ct.dtype in _KERNEL_DTYPES:
        cts = np.zeros((count + len(left), *ct.shape[1:]), ct.dtype)
        cts[count:] = ct
        _sum_pairs_vjp(cts.reshape(len(cts), -1), left, right, _NO_MINUS if minus is None else minus, count)
        return cts[:count]
    values: Any = np.concatenate([terms, out])
    found: Any = np.concatenate([np.zeros(terms.shape, terms.dtype), ct])
    for level in reversed(_levels(left, right, count)):
        for each, part in _by_sign(op, level, minus):
            mine, result = rows_p(found, count + part), rows_p(values, count + part)
            pair = rows_p(values, left[part]), rows_p(values, right[part])
            for side, rows in enumerate((left[part], right[part])):
                given = each.vjp(side, mine, result, pair, {})  # type: ignore[misc]
                found = found + scatter_rows_p(given, rows, rows=count + len(left))
    return found[:count]


# forest(terms, op=, left=, right=, minus=): (M, ...) results of connected additions.
forest_p = Op("forest", _run_forest, vjp=_forest_vjp, kind="reduction")
