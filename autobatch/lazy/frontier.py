"""The frontier policy: launch a signature when all of its calls that can come next are ready.

Chen et al. 2023, "ED-Batch: efficient automatic batching of dynamic neural networks via learned finite state
machines": a launch is never one too many if the ready calls of its signature are all those that no waiting call of
the same signature comes before. Which those are is told by levels: the level of a call is the most calls of its own
signature on a path that leads to it. The number of levels, summed over the signatures, bounds the launches from below.
"""

from typing import Any

import numpy as np

from autobatch.kernels.jit import jit

__all__ = ["LIMIT", "by_frontier", "levels_of"]

_Uses = tuple[np.ndarray, np.ndarray, np.ndarray]  # what `schedule.uses_of` gives

LIMIT = 1 << 20  # nodes times signatures; beyond it the levels cost more than a launch


@jit
def levels_of(sigs: np.ndarray, offsets: np.ndarray, refs: np.ndarray, num_sigs: int) -> tuple[Any, Any]:
    """The level of each node within its signature, (N,) int64, and the least number of launches.

    Args:
        sigs: (N,) int64 below `num_sigs`; offsets, refs: as in `schedule`.
    """
    n = sigs.shape[0]
    before = np.zeros((n, num_sigs), np.int32)  # calls of each signature on the way to each node, itself left out
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
def by_frontier(
    sigs: np.ndarray, uses: _Uses, depth: np.ndarray, levels: np.ndarray, num_sigs: int
) -> tuple[np.ndarray, np.ndarray]:
    """Kahn's algorithm with one queue for each signature; of those that are complete at their least level, and else of
    all, the one whose calls have the least average depth goes next.
    """
    n = sigs.shape[0]
    waiting, first, users = uses[0].copy(), uses[1], uses[2]
    total = np.zeros(num_sigs, np.float64)
    count = np.zeros(num_sigs, np.int64)
    height = np.zeros(num_sigs, np.int64)
    for i in range(n):
        s = sigs[i]
        total[s] += depth[i]
        count[s] += 1
        height[s] = max(height[s], levels[i] + 1)
    place = np.zeros(num_sigs + 1, np.int64)
    floor = np.zeros(num_sigs + 1, np.int64)
    for s in range(num_sigs):
        place[s + 1] = place[s] + count[s]
        floor[s + 1] = floor[s] + height[s]
    left = np.zeros(floor[num_sigs], np.int64)  # calls of each signature and level that have not been launched
    ready = np.zeros(floor[num_sigs], np.int64)  # and of these, the ones that could be
    least = np.zeros(num_sigs, np.int64)
    queue = np.empty(n, np.int64)
    head, tail = place[:num_sigs].copy(), place[:num_sigs].copy()
    for i in range(n):
        s = sigs[i]
        left[floor[s] + levels[i]] += 1
        if waiting[i] == 0:
            ready[floor[s] + levels[i]] += 1
            queue[tail[s]] = i
            tail[s] += 1
    order = np.empty(n, np.int64)
    starts = np.empty(n + 1, np.int64)
    done = 0
    launches = 0
    while done < n:
        best, best_complete = -1, False
        for s in range(num_sigs):
            if head[s] == tail[s]:
                continue
            at = floor[s] + least[s]
            complete = ready[at] == left[at]
            if best < 0 or complete > best_complete:
                best, best_complete = s, complete
            elif complete == best_complete and total[s] * count[best] < total[best] * count[s]:
                best = s
        starts[launches] = done
        launches += 1
        begin, end = head[best], tail[best]
        head[best] = end
        for k in range(begin, end):
            i = queue[k]
            order[done] = i
            done += 1
            left[floor[best] + levels[i]] -= 1
            ready[floor[best] + levels[i]] -= 1
            for j in range(first[i], first[i + 1]):
                user = users[j]
                waiting[user] -= 1
                if waiting[user] == 0:
                    ready[floor[sigs[user]] + levels[user]] += 1
                    queue[tail[sigs[user]]] = user
                    tail[sigs[user]] += 1
        while least[best] < height[best] - 1 and left[floor[best] + least[best]] == 0:
            least[best] += 1
    starts[launches] = n
    return order, starts[: launches + 1].copy()
