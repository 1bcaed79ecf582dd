"""Random structured programs over ragged data, as source text.

A soak run compares as many as wanted with the plain interpreter, one example at a time:
    python -m tests.lockstep.fuzz 2000
"""

import linecache
import random
import sys
import warnings

import numpy as np

from autobatch.api.batch import batch
from autobatch.batches.results import examples
from tests.lockstep.law import assert_same, batch_of, ragged

SCALARS = ("a", "b", "c")
VECTORS = ("u", "v")
NAMESPACE = {"np": np}

HELPERS = """
def helper(x, k):
    out = np.zeros(2)
    for i in range(k):
        out = out * 0.5 + x * i
        if i == 3:
            break
    return out


def steps(x, k):
    if k < 1:
        return x
    if x > 1:
        return steps(x * 0.5, k - 1)
    for i in range(k):
        x = x + 0.25
        if x > 1:
            return x, i
    return steps(x, k - 2) if k % 2 else None


def pick(items, k):
    return items[k % len(items)] if len(items) else 0.5
"""


class Writer:
    """Writes one function of (xs, ys, n): xs (T, 2), ys (S,), n an int."""

    def __init__(self, seed):
        self.random = random.Random(seed)
        self.lines = []
        self.loops = self.inside = 0

    def write(self):
        self.put(0, "def f(xs, ys, n):")
        self.put(1, "a = 0.5; b = np.float64(1.0); c = n; d = None")
        self.put(1, "u = np.zeros(2); v = np.ones(2); kept = []; table = {}; buf = np.zeros(3)")
        self.block(1, [], 4)
        self.put(1, "return a, b, c, d, u, v, kept, table, buf, len(kept)")
        return "\n".join(self.lines) + "\n"

    def put(self, depth, text):
        self.lines.append("    " * depth + text)

    def block(self, depth, counters, budget):
        for _ in range(self.random.randint(1, budget)):
            self.statement(depth, counters, budget)

    def scalar(self, counters):
        r = self.random
        return r.choice(
            [*SCALARS, *counters, "n", "len(xs)", "1.5", "2", "ys.sum()", f"{r.choice(VECTORS)}[0]", "pick(ys, 3)"]
        )

    def vector(self, counters):
        r = self.random
        return r.choice(
            [*VECTORS, "xs.sum(0)", f"helper(u, {r.choice(['n', '2', 'len(ys)'])})", f"(v * {self.scalar(counters)})"]
        )

    def condition(self, counters):
        r = self.random
        if counters and r.random() < 0.7:
            return f"{r.choice(counters)} {r.choice(['== 1', '> 1', '% 2', '< 2'])}"
        return r.choice([
            "n > 2", "len(xs) > 2", "a > 0", "d is None", "kept", "True", "xs.shape[1] == 2", "u[0] > 0.1", "len(ys)",
            "ys.sum() > 0 and a < 2", "n and len(xs) or a > 1", "not b > a", "0 < n <= 2", "n % 2", "a > b",
            f"{self.vector(counters)}.sum() > 0", "0 <= a < b", "(n == 1) == (len(ys) > 1)",
        ])  # fmt: skip

    def jump(self):
        r = self.random
        return r.choice(
            ["break", "continue", "break", "continue", r.choice(["return a, kept, u", "return c", "return"])]
        )

    def statement(self, depth, counters, budget):
        r = self.random
        kind = r.choice(["scalar", "vector", "update", "list", "item", "loop", "loop", "if", "other"])
        if kind == "loop" and (depth > 3 or budget < 2):
            kind = "vector"
        s, v = r.choice(SCALARS), r.choice(VECTORS)
        if kind == "scalar":
            self.put(depth, f"{s} = {self.scalar(counters)} {r.choice('+-*')} {self.scalar(counters)} * 0.5")
        elif kind == "vector":
            self.put(depth, f"{v} = np.tanh({self.vector(counters)} + {self.vector(counters)})")
        elif kind == "update":
            self.put(
                depth, r.choice([f"{s} += {self.scalar(counters)}", f"{v} += {self.vector(counters)}", f"{v} *= 0.5"])
            )
        elif kind == "list":
            what = r.choice([self.scalar(counters), self.vector(counters), f"({s}, {v})"])
            self.put(depth, r.choice([f"kept.append({what})", f"kept += [{what}]", f"kept = [*kept, {what}]"]))
        elif kind == "item":
            self.put(
                depth, r.choice([f"buf[{r.randint(0, 2)}] = {s}", "buf[1] += 2", f"table['k'] = {s}", f"u[0] = {s}"])
            )
        elif kind == "other":
            self.put(depth, r.choice([
                f"{s}, {v} = {self.scalar(counters)}, {self.vector(counters)}", "d = a",
                f"d = [{s} for w in xs]",
                "d = [w * 2 for w in ys]", "d = sum([w for w in ys])", f"d = {{'z': {v}}}", "d = (a, b)",
                "d = kept[-1:]",
                "d = [(i, w) for i, w in enumerate(ys) if i != 1]", "d = np.stack([w + 1 for w in xs])",
                "buf = buf * 2", "d = u", f"d = {s} if {self.condition(counters)} else {v}",
                f"{s} = {self.scalar(counters)} if {self.condition(counters)} else {self.scalar(counters)}",
                f"d = [w for w in ys if w > {s}]", "d = kept[-1] if kept else None", f"d = steps({s}, n)",
            ]))  # fmt: skip
        elif kind == "if":
            self.put(depth, f"if {self.condition(counters)}:")
            self.block(depth + 1, counters, budget - 1) if budget > 1 else self.put(depth + 1, "a = a + 1")
            if r.random() < 0.4:
                self.put(depth, "else:")
                self.put(depth + 1, f"{v} = {self.vector(counters)}")
            elif r.random() < 0.3:
                self.put(depth, f"elif {self.condition(counters)}:")
                self.block(depth + 1, counters, 1)
            if self.inside and r.random() < 0.4:
                self.put(depth, f"if {self.condition(counters)}:")
                self.put(depth + 1, self.jump())
            elif r.random() < 0.05:
                self.put(depth, f"if {self.condition(counters)}:")
                self.put(depth + 1, "return b, v")
        elif r.random() < 0.3:
            self.while_loop(depth, counters, budget)
        else:
            self.loop(depth, counters, budget)

    def while_loop(self, depth, counters, budget):
        r = self.random
        self.loops += 1
        t = f"t{self.loops}"
        self.put(depth, f"{t} = {r.choice(['n', 'len(xs)', '3', 'len(ys) + 1', '0'])}")
        self.put(depth, f"while {t} > 0{r.choice(['', f' and {self.condition(counters)}', ' and a < 50'])}:")
        self.put(depth + 1, f"{t} {r.choice(['-= 1', '= ' + t + ' - 1', '-= 1 if a > 0 else 2'])}")
        self.inside += 1
        self.block(depth + 1, [*counters, t], budget - 1)
        self.inside -= 1
        if r.random() < 0.2:
            self.put(depth, "else:")
            self.put(depth + 1, "b = b + 1")

    def loop(self, depth, counters, budget):
        r = self.random
        self.loops += 1
        i, w = f"i{self.loops}", f"w{self.loops}"
        head = r.choice([
            (f"{w} in xs", "u"), (f"{w} in ys", "a"), (f"{i} in range(n)", None), (f"{i} in range(len(xs))", None),
            (f"{i}, {w} in enumerate(xs)", "u"), (f"{i}, ({w}, z) in enumerate(zip(xs, ys))", "u"),
            (f"{w} in reversed(ys)", "a"),
            (f"{i}, {w} in enumerate(reversed(xs))", "v"), (f"{i} in range(3)", None), (f"{w} in [1.0, 2.0]", "a"),
            (f"{i} in range(n, -1, -1)", None), (f"{w} in list(xs)", "u"),
        ])  # fmt: skip
        inner = [*counters, i] if head[0].startswith(i) else counters
        self.put(depth, f"for {head[0]}:")
        if head[1]:
            self.put(depth + 1, f"{head[1]} = {head[1]} * 0.5 + {w}")
        self.inside += 1
        self.block(depth + 1, inner, budget - 1)
        self.inside -= 1
        if r.random() < 0.2:
            self.put(depth, "else:")
            self.put(depth + 1, "b = b + 1")


def compare(seed):
    """Run program `seed` both ways. Returns why it did not run in lock-step; raises AssertionError on a difference."""
    text = HELPERS + Writer(seed).write()
    filename = f"<fuzz {seed}>"
    linecache.cache[filename] = (len(text), None, text.splitlines(keepends=True), filename)
    namespace = dict(NAMESPACE)
    exec(compile(text, filename, "exec"), namespace)
    rng = np.random.default_rng(seed)
    size = int(rng.integers(1, 6))
    low = int(rng.integers(0, 2))
    columns = [
        ragged(*rng.integers(low, 5, size), width=2, seed=seed),
        ragged(*rng.integers(low, 5, size), seed=seed + 1),
        [int(k) for k in rng.integers(low, 5, size)],
    ]
    f = namespace["f"]
    want, error = [], None
    for row in zip(*columns, strict=True):
        try:
            want.append(f(*row))
        except Exception as raised:
            error = raised
            break
    raised, got = None, []
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        try:
            got = examples(batch(f)(*map(batch_of, columns)))
        except Exception as other:
            raised = other
    if raised is not None:
        assert (type(raised), str(raised)) == (type(error), str(error)), text
        return ["an example raised"]
    assert error is None, f"{text}\ndid not raise {error!r}"
    for i, (a, b) in enumerate(zip(got, want, strict=True)):
        assert_same(a, b, f"{text}\nseed {seed}, example {i}: ")
    linecache.cache.pop(filename)
    return [str(each.message) for each in caught]


if __name__ == "__main__":
    alone, start = 0, int(sys.argv[2]) if len(sys.argv) > 2 else 0
    reasons = {}
    for seed in range(start, start + int(sys.argv[1])):
        why = compare(seed)
        alone += not why
        for reason in why or ():
            reasons[reason[:90]] = reasons.get(reason[:90], 0) + 1
    print(f"{alone} of {sys.argv[1]} in lock-step, no difference")
    for reason, count in sorted(reasons.items(), key=lambda item: -item[1])[:25]:
        print(count, reason)
