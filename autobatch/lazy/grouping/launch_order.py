"""Scheduling: which recorded calls are launched together, and in which order.

A graph is flat: `sigs[i]` is the signature of node i and `refs[offsets[i]:offsets[i + 1]]` are its operands. References
to nodes are >= 0 and operands come before their users; external values are < 0. Every policy takes time linear in nodes
and references (agenda and frontier: plus launches times signatures) and returns the nodes in launch order and where
each launch starts.

- depth: one launch for all calls of one signature at one depth.
- agenda (Neubig et al. 2017, "On-the-fly operation batching in dynamic computation graphs"): among the signatures with
  ready calls, launch the one whose calls have the least average depth.
- frontier (Chen et al. 2023, "ED-Batch: efficient automatic batching of dynamic neural networks via learned finite
  state machines"): launching a signature is never wasteful if its ready calls are all the calls that no unlaunched
  call of the same signature precedes. Levels tell these: the level of a call is the largest number of calls of its
  own signature on a path to it. The sum over the signatures of their numbers of levels is a lower bound on launches.
"""

import dataclasses
from typing import Any

import numpy as np

from autobatch.kernels.jit import jit

_Uses = tuple[np.ndarray, np.ndarray, np.ndarray]  # what `uses_of` gives


@dataclasses.dataclass(slots=True)
class Schedule:
    """The launches of a graph, in order.

    Attributes:
        order: (N,) int64, the nodes; starts: (launches + 1,) int64, where each launch begins in `order`.
        bound: lower bound on the number of launches of any schedule; 0 if not computed.
    """

    order: np.ndarray
    starts: np.ndarray
    bound: int = 0


def schedule(sigs: np.ndarray, offsets: np.ndarray, refs: np.ndarray, num_sigs: int, policy: str) -> Schedule:
    """Schedule a graph.

    Args:
        policy: "depth", "agenda", "frontier", or "auto": the one of these with the fewest launches.

    >>> sigs = np.array([0, 1, 0])  # two chains: node 1 reads node 0
    >>> found = schedule(sigs, np.array([0, 1, 2, 3]), np.array([-1, 0, -1]), 2, "depth")
    >>> found.order.tolist(), found.starts.tolist()
    ([0, 2, 1], [0, 2, 3])
    """
    sigs, depth, order, starts, used = by_depth(sigs, offsets, refs, num_sigs)
    found = [(order, starts)] if policy in ("depth", "auto") else []
    bound: Any = used

    def is_settled() -> bool:
        return any(len(starts) - 1 <= bound for _, starts in found)

    # For more nodes times signatures, the levels cost more than a launch.
    if policy == "frontier" or (policy == "auto" and not is_settled() and used * len(sigs) <= 1 << 20):
        levels, bound = levels_of(sigs, offsets, refs, used)
        if not is_settled():
            found.append(by_queues(sigs, uses_of(offsets, refs), depth, levels, used, True))
    if policy == "agenda" or (policy == "auto" and not is_settled()):
        found.append(by_queues(sigs, uses_of(offsets, refs), depth, np.zeros(len(sigs), np.int64), used, False))
    order, starts = min(found, key=lambda each: len(each[1]))
    return Schedule(order, starts, int(bound))


@jit
def by_depth(
    sigs: np.ndarray, offsets: np.ndarray, refs: np.ndarray, num_sigs: int
) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray, int]:
    """The depth policy: sort by the length of the longest path to each node, then by signature.

    Returns:
        The signatures numbered anew, 0 to `used - 1`; the depth of each node; the order; the starts; `used`.
    """
    n = sigs.shape[0]
    number = np.full(num_sigs, -1, np.int64)
    for i in range(n):
        number[sigs[i]] = 0
    used = 0
    for s in range(num_sigs):
        if number[s] == 0:
            number[s] = used
            used += 1
    depth, numbered = np.zeros(n, np.int64), number[sigs]
    for i in range(n):
        for k in range(offsets[i], offsets[i + 1]):
            ref = refs[k]
            if ref >= 0 and depth[ref] >= depth[i]:
                depth[i] = depth[ref] + 1
    order = np.arange(n)
    for key in (numbered, depth):  # counting sorts, which keep the order of equal keys
        place = np.zeros(n + 1, np.int64)
        for i in range(n):
            place[key[i] + 1] += 1
        for i in range(n):
            place[i + 1] += place[i]
        before = order.copy()
        for i in range(n):
            order[place[key[before[i]]]] = before[i]
            place[key[before[i]]] += 1
    starts = np.empty(n + 1, np.int64)
    launches = 0
    for i in range(n):
        a, b = order[i - 1], order[i]
        if i == 0 or numbered[a] != numbered[b] or depth[a] != depth[b]:
            starts[launches] = i
            launches += 1
    starts[launches] = n
    return numbered, depth, order, starts[: launches + 1].copy(), used


@jit
def uses_of(offsets: np.ndarray, refs: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Number of operands of each node that are nodes; and the users of node i, `users[first[i]:first[i + 1]]`.

    Returns:
        (references, first, users): (N,), (N + 1,) and (references to nodes,) int64.
    """
    n = offsets.shape[0] - 1
    references = np.zeros(n, np.int64)
    first = np.zeros(n + 1, np.int64)
    for i in range(n):
        for k in range(offsets[i], offsets[i + 1]):
            if refs[k] >= 0:
                references[i] += 1
                first[refs[k] + 1] += 1
    for i in range(n):
        first[i + 1] += first[i]
    users = np.empty(first[n], np.int64)
    fill = first[:n].copy()
    for i in range(n):
        for k in range(offsets[i], offsets[i + 1]):
            if refs[k] >= 0:
                users[fill[refs[k]]] = i
                fill[refs[k]] += 1
    return references, first, users


@jit
def levels_of(sigs: np.ndarray, offsets: np.ndarray, refs: np.ndarray, num_sigs: int) -> tuple[Any, Any]:
    """The level of each node within its signature, (N,) int64, and the lower bound on launches.

    Args:
        sigs: (N,) int64 below `num_sigs`; offsets, refs: as in `schedule`.
    """
    n = sigs.shape[0]
    before = np.zeros((n, num_sigs), np.int32)  # most calls of each signature on a path to each node, itself excluded
    levels = np.zeros(n, np.int64)
    top = np.full(num_sigs, -1, np.int64)
    for i in range(n):
        for k in range(offsets[i], offsets[i + 1]):
            ref = refs[k]
            if ref >= 0:
                for s in range(num_sigs):
                    count = before[ref, s] + (sigs[ref] == s)
                    if count > before[i, s]:
                        before[i, s] = count
        levels[i] = before[i, sigs[i]]
        top[sigs[i]] = max(top[sigs[i]], levels[i])
    return levels, np.sum(top + 1)


@jit
def _next_signature(has_ready: np.ndarray, complete: np.ndarray, total: np.ndarray, count: np.ndarray) -> int:
    """Of the signatures with ready calls the one that is launched: the complete first, then of the least average depth
    (`total / count`)."""
    best = -1
    for s in range(len(count)):
        alike = best >= 0 and complete[s] == complete[best]
        if has_ready[s] and (total[s] * count[best] < total[best] * count[s] if alike else best < 0 or complete[s]):
            best = s
    if best < 0:
        raise ValueError("a call comes before its operands")
    return best


@jit
def by_queues(
    sigs: np.ndarray, uses: _Uses, depth: np.ndarray, levels: np.ndarray, num_sigs: int, frontier: bool
) -> tuple[np.ndarray, np.ndarray]:
    """Kahn's algorithm with one queue per signature. Next comes the signature with ready calls whose calls have the
    least average depth; with `frontier`, signatures whose lowest unlaunched level is completely ready come first.
    """
    n = sigs.shape[0]
    waiting, first, users = uses[0].copy(), uses[1], uses[2]
    total = np.zeros(num_sigs, np.float64)
    place = np.zeros(num_sigs + 1, np.int64)
    floor = np.zeros(num_sigs + 1, np.int64)
    for i in range(n):
        s = sigs[i]
        total[s] += depth[i]
        place[s + 1] += 1
        floor[s + 1] = max(floor[s + 1], levels[i] + 1)
    count = place[1:].copy()
    for s in range(num_sigs):
        place[s + 1] += place[s]
        floor[s + 1] += floor[s]
    level = floor[sigs] + levels  # numbered through all signatures
    left = np.zeros(floor[num_sigs], np.int64)  # number of unlaunched calls of each level
    ready = np.zeros(floor[num_sigs], np.int64)  # how many of these are ready
    lowest = floor[:num_sigs].copy()
    queue = np.empty(n, np.int64)
    head, tail = place[:num_sigs].copy(), place[:num_sigs].copy()
    for i in range(n):
        left[level[i]] += 1
        if waiting[i] == 0:
            ready[level[i]] += 1
            queue[tail[sigs[i]]] = i
            tail[sigs[i]] += 1
    order = np.empty(n, np.int64)
    starts = np.empty(n + 1, np.int64)
    done = 0
    launches = 0
    while done < n:
        best = _next_signature(head < tail, frontier & (ready[lowest] == left[lowest]), total, count)
        starts[launches] = done
        launches += 1
        begin, head[best] = head[best], tail[best]
        for i in queue[begin : head[best]]:
            order[done] = i
            done += 1
            left[level[i]] -= 1
            ready[level[i]] -= 1
            for user in users[first[i] : first[i + 1]]:
                waiting[user] -= 1
                if waiting[user] == 0:
                    ready[level[user]] += 1
                    queue[tail[sigs[user]]] = user
                    tail[sigs[user]] += 1
        while lowest[best] < floor[best + 1] - 1 and left[lowest[best]] == 0:
            lowest[best] += 1
    starts[launches] = n
    return order, starts[: launches + 1].copy()


def refine(sigs: np.ndarray, offsets: np.ndarray, refs: np.ndarray, marks: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Split signatures by which marked external value each operand is.

    Args:
        marks: for each external value, 0, or a unique number (for a constant that several examples read).

    Returns:
        The new signature of each node, and the old signature of each new one.
    """
    new, arity = sigs, np.diff(offsets)
    for position in range(arity.max(initial=0)):
        nodes = np.flatnonzero(arity > position)
        external = ~refs[offsets[nodes] + position]
        mark = np.zeros(len(sigs), np.int64)
        mark[nodes] = np.where(external >= 0, marks[np.maximum(external, 0)], 0)
        new = np.unique(new * (marks.max() + 1) + mark, return_inverse=True)[1]
    _, where, new = np.unique(new, return_index=True, return_inverse=True)
    return new.astype(np.int64), sigs[where]
