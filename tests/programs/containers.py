"""Lists, dicts, sets, queues and heaps that come to differ between examples."""

# ruff: noqa: RUF005 (the programs are what people write)

import collections
import heapq

import numpy as np

import autobatch as ab
from tests.programs.registry import program, vectors, weights

FLOATS = [np.array(x) for x in ([1.0, -2.0, 3.0], [4.0], [], [-1.0, 2.0, 2.0, 5.0])]
IDS = [np.array(x, np.int64) for x in ([1, 2, 3], [4], [], [1, 2, 2, 5])]
COUNTS = [3, 0, 2, 5]
SCALARS = [np.float64(v) for v in (1.0, -2.0, 3.0, -0.5)]


@program(FLOATS)
def rebinds_its_list(xs):
    out = []
    for x in xs:
        out = out + [x]
        out = [*out, x * 2]
    other = kept = [1.0]
    for x in xs:
        kept += [x, x]
    recent = []
    for x in xs:
        recent.append(x)
        if len(recent) > 2:
            recent = recent[1:]
    return out, other, recent, recent[:-1], recent * 2


@program(IDS)
def takes_from_both_ends(xs):
    stack, order = list(xs), []
    while stack:
        top = stack.pop()
        if top > 2:
            stack.insert(0, top - 2)
        order.append(top)
    return order


@program(IDS)
def every_method_of_a_list(xs):
    s = [int(x) for x in xs]
    s.append(7)
    s.insert(1, 9)
    s.reverse()
    s.extend([2, 2])
    count, place = s.count(2), s.index(9)
    s.remove(2)
    t = s.copy()
    t.sort()
    u = sorted(s, key=lambda v: -v)
    del s[0]
    s[0] = 100
    if len(xs) > 1:
        t.clear()
    return s, t, u, count, place, 9 in s, 55 not in s, max(s), min(s), sum(s)


@program(IDS, COUNTS)
def writes_and_slices_by_example(xs, n):
    s = [0] * 8
    for x in xs:
        s[x] += 1
    s[n] = 50
    del s[n]
    if n > 2:
        s[1:3] = [9]
    return s, s[:n], s[n:], s[-n:]


@program(IDS)
def buckets(xs):
    groups = [[], [], []]
    for x in xs:
        groups[int(x) % 3].append(int(x))
    table = [[0] * 3 for _ in range(2)]
    for x in xs:
        table[int(x) % 2][int(x) % 3] += 1
    return groups, table


@program(IDS)
def word_counts(xs):
    counts, counter = {}, collections.Counter()
    for x in xs:
        counts[int(x)] = counts.get(int(x), 0) + 1
        counter[int(x)] += 1
    total = collections.Counter([int(x) for x in xs])
    return counts, sorted(counts.items()), len(counts), 2 in counts, total == counter, total.most_common(1)


@program(IDS)
def inverted_index(xs):
    places, parity = {}, collections.defaultdict(list)
    for i, x in enumerate(xs):
        places.setdefault(int(x) % 3, []).append(i)
        parity[int(x) % 2].append(i)
    out = [(key, places[key]) for key in places]
    for own in places.values():
        out.append(len(own))
    gone = places.pop(1, None)
    return out, gone, list(places), dict(sorted(parity.items()))


@program(IDS)
def sets_of_each_example(xs):
    seen = set()
    for x in xs:
        seen.add(int(x))
    same = seen
    if len(seen) > 1:
        seen = seen | {9}
    return sorted(seen), len(same), 2 in seen, sorted(seen & {1, 2}), sorted({int(x) % 2 for x in xs}), seen is same


@program(COUNTS)
def breadth_first(n):
    queue, seen = collections.deque([n]), []
    while queue:
        v = queue.popleft()
        seen.append(v)
        if v > 1:
            queue.append(v // 2)
        if v > 3:
            queue.append(v - 3)
    return seen


@program(IDS)
def heap_sort(xs):
    heap, out = [], []
    for i, x in enumerate(xs):
        heapq.heappush(heap, (-int(x), i))
    while heap:
        out.append(heapq.heappop(heap)[1])
    return out


@program(COUNTS)
def linked_list(n):
    head, total = None, 0
    for i in range(n):
        head = (i, head)
    while head is not None:
        value, head = head
        total += value
    return total


@program(IDS)
def memoised_recursion(xs):
    known = {}

    def fibonacci(k):
        if k in known:
            return known[k]
        known[k] = k if k < 2 else fibonacci(k - 1) + fibonacci(k - 2)
        return known[k]

    return [fibonacci(int(x)) for x in xs], len(known)


@program(FLOATS)
def tuples_that_grow(xs):
    path, other = (), ()
    for x in xs:
        path = path + (x,)
        other += (x, x)
    return path, len(path), other


@program(SCALARS)
def names_of_one_list(x):
    a = []
    b = a
    c = [a, b]
    d = {"list": a}
    if x > 0:
        a.append(1.0)
    else:
        d["list"] = [9.0]
    c[0].append(x)
    d["list"].append(5.0)
    e = a if x > 1 else b + [2]
    e.append(0)
    return a, b, c, d, e, a is b, c[0] is a, d["list"] is a, e is a


@program(SCALARS)
def a_list_or_none(x):
    kept = None
    if x > 0:
        kept = []
    if kept is not None:
        kept.append(x)
    return kept


@program(SCALARS)
def dicts_by_key(x):
    d = {"a": 1, "b": x}
    key = "a" if x > 0 else "b"
    d[key] = d[key] * 2
    for name in d:
        d[name] = d[name] + 1
    if x > 1:
        d.popitem()
    d.update(c=3)
    e = {**d, key: 0}
    return d, list(d.items()), e, {"c": x} == {"c": 1.0}, bool(d), d.get("b"), dict.fromkeys(["p"], x)


@program(SCALARS)
def truth_and_order_of_containers(x):
    kept, names, seen = [], {}, set()
    if x > 0:
        kept.append(1)
        names["one"] = 2
        seen.add(1)
    full = [bool(each) for each in (kept, names, seen)]
    return full, kept or names, not kept, [x] < [2.0], (x, 1) == (1.0, 1), [x] != [1.0], x in (1.0, 3.0)


@program(FLOATS)
def lists_of_arrays_joined(xs):
    rows = []
    for x in xs:
        if x > 0:
            rows.append(np.array([x, x * 2]))
    if not rows:
        return None
    return np.stack(rows).mean(0), np.concatenate(rows), np.array(rows).shape, rows.pop(0)


@program(vectors(4, 2, 1, 6, seed=50), grad=True)
def lists_given_to_numpy(xs):
    total, peak = xs.sum(), xs.max()
    both = [total, peak, np.float32(3.0)]
    return np.mean(both), np.sum([total, total]), np.max(both), np.dot(both, both), np.tanh([peak, total])


@program(vectors(4, 2, 0, 6, seed=51, width=3), grad=True, params=weights(w=(6, 3), gate=(3,)))
def stack_machine(xs, params):
    stack = []
    for x in xs:
        stack.append(x)
        while len(stack) > 1 and stack[-1] @ params["gate"] > stack[-2] @ params["gate"]:
            right, left = stack.pop(), stack.pop()
            stack.append(np.tanh(np.concatenate([left, right]) @ params["w"]))
    return sum(stack, np.zeros(3, np.float32)), len(stack)


@program(vectors(4, 2, 1, 6, seed=52, width=3), [[0, 1, 0, 1], [1, 1], [0], [1, 0, 0, 1, 1, 0]], grad=True)
def memory_by_speaker(xs, speakers):
    memory = {}
    for x, who in zip(xs, speakers):
        memory[who] = np.tanh(memory.get(who, np.zeros(3, np.float32)) + x)
    return np.stack(list(memory.values())).sum(0)


@program([0, 1, 2, 3], width=2, params=weights(emb=(5, 4), u=(4, 4), out=(4, 5)))
def beam_by_heap(start, width, params):
    beams = [(0.0, 0, (start,), params["emb"][start])]
    for _ in range(3):
        heap, number = [], 0
        for score, _, path, h in beams:
            h = np.tanh(h @ params["u"])
            scores = ab.nn.log_softmax(h @ params["out"])
            for k in range(5):
                heapq.heappush(heap, (-(score + float(scores[k])), number, path + (k,), h + params["emb"][k]))
                number += 1
        beams = []
        while heap and len(beams) < width:
            cost, number, path, h = heapq.heappop(heap)
            beams.append((-cost, number, path, h))
    return [path for _, _, path, _ in beams]
