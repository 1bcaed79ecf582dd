"""Random structured programs over ragged data, as source text.

A soak run compares as many as wanted with the plain interpreter, one example at a time:
    python -m tests.lockstep.fuzz 2000

To see that the suite can fail, break one thing by hand at a time: let `Journal.undo` restore nothing, or keep the
prints or the random calls; drop the `on_undo` in `Returns.give`; let `Cell._put` drop the lanes that do not set it; let
`Sharing` leave what generators capture as it is, or `LaneGenerator` change things for lanes that have left it.
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
NAMESPACE = {"np": np, "__name__": "fuzz"}

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


def counting(k, x):
    while k > 0:
        if k % 2:
            yield x
        elif k == 4:
            return
        else:
            yield k * 0.5
        k -= 1


def endless(x):
    while True:
        yield x
        x = x + 0.5


class Guard:
    def __init__(self, k):
        self.k = k
        self.seen = 0

    def __enter__(self):
        self.seen += 1
        return self

    def __exit__(self, kind, error, trace):
        self.seen += 10
        return kind is KeyError
"""


class Writer:
    """Writes one function of (xs, ys, n): xs (T, 2), ys (S,), n an int."""

    def __init__(self, seed):
        self.random = random.Random(seed)
        self.lines = []
        self.loops = self.inside = 0
        self.closures = False

    def write(self):
        self.put(0, "def f(xs, ys, n):")
        self.put(1, "a = 0.5; b = np.float64(1.0); c = n; d = None")
        self.put(1, "u = np.zeros(2); v = np.ones(2); kept = []; table = {}; buf = np.zeros(3); total = 0; q = n")
        self.put(1, "grid = [np.zeros(2) for _ in range(2)]; pad = {'p': np.ones(2)}")
        if self.random.random() < 0.6:
            self.closure()
        self.block(1, [], 4)
        self.put(1, "return a, b, c, d, u, v, kept, table, buf, len(kept), total, q, grid, pad")
        return "\n".join(self.lines) + "\n"

    def closure(self):
        r = self.random
        self.put(1, "def step(k):")
        self.put(2, "nonlocal total")
        self.put(2, r.choice(["total += 1", "total = total + k", "total += k if k > 1 else 0"]))
        if r.random() < 0.5:
            self.put(2, "if k % 2:")
            self.put(3, r.choice(["return k", "total = total * 2", "total -= n"]))
        self.put(2, "return total")
        self.closures = True

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

    def newer(self, depth, counters, budget):
        """try, with, match, generators, closures and walrus."""
        r = self.random
        kind = r.choice(["try", "try", "with", "match", "match", "generator", "generator", "closure", "walrus"])
        s = r.choice(SCALARS)
        if kind == "try":
            self.attempt(depth, counters, budget)
        elif kind == "with":
            self.put(depth, f"with Guard({self.scalar(counters)}) as guard:")
            self.inner(depth, counters, budget)
            if r.random() < 0.4:
                self.put(depth + 1, f"if {self.condition(counters)}:")
                self.put(depth + 2, r.choice(["raise KeyError(n)", self.leaves(), self.leaves()]))
            self.put(depth, "q = guard.seen")
        elif kind == "match":
            self.put(depth, f"match {r.choice(['n', 'len(ys)', '(n, len(xs))', '[n % 2, n, 3]', 'n % 3', 'd'])}:")
            cases = ["0 | 2", "1 as q", "(0, y)", "(q, 2 | 3)", "[0, *rest]", "[1, _, 3]", "int(q)", "(y, q)", "None"]
            for case in r.sample(cases, r.randint(1, 3)):
                guard = r.choice(["", "", f" if {self.condition(counters)}"])
                self.put(depth + 1, f"case {case}{guard}:")
                self.inner(depth + 1, counters, budget)
            if r.random() < 0.5:
                self.put(depth + 1, "case _:")
                self.put(depth + 2, f"{s} = {self.scalar(counters)}")
        elif kind == "generator":
            self.generator(depth, counters, budget)
        elif kind == "closure" and self.closures:
            self.put(
                depth, r.choice([f"{s} = step({r.choice(['n', 'len(ys)', '2'])}) * 0.5", "step(n)", "step(total)"])
            )
        else:
            test = f"(q := {r.choice(['n - 1', 'len(ys)', 'q + 1'])}) > {r.choice(['0', '1', '2'])}"
            self.put(depth, r.choice([
                f"{s} = 0.5 if {self.condition(counters)} and {test} else q",
                f"{s} = q if {self.condition(counters)} or {test} else 1.5",
                f"d = [q for w in ys if (q := w * 2) > {s}]",
                f"{s} = (q := n) if n > 1 else q",
            ]))  # fmt: skip

    def inner(self, depth, counters, budget):
        self.block(depth + 1, counters, budget - 1) if budget > 1 else self.put(depth + 1, "a = a + 1")

    def leaves(self):
        return self.jump() if self.inside else self.random.choice(["return b, v", "raise KeyError(n)"])

    def attempt(self, depth, counters, budget):
        r = self.random
        s = r.choice(SCALARS)
        self.put(depth, "try:")
        self.inner(depth, counters, budget)
        self.put(depth + 1, r.choice([
            f"{s} = 6 // (n - 2)", "kept.append([1.0, 2.0, 3.0][n])", f"{s} = {{0: 1.0, 2: 2.0, 3: 0.5}}[len(ys)]",
            f"if {self.condition(counters)}: raise ValueError(n)", "assert n > 1, n", f"q = {s}", "step(1)"
            if self.closures else "q = 1",
        ]))  # fmt: skip
        if r.random() < 0.4:
            self.put(depth + 1, f"if {self.condition(counters)}:")
            self.put(depth + 2, self.leaves())
        handled = r.random() < 0.85
        if handled:
            self.put(
                depth, r.choice(["except (ArithmeticError, LookupError):", "except Exception:", "except KeyError:"])
            )
            self.put(depth + 1, r.choice([f"{s} = -1", "kept.append(n)", "total += 1", "total = -1"]))
            if r.random() < 0.4:
                self.put(depth, "except (ValueError, AssertionError) as error:")
                self.put(depth + 1, "d = error.args[0]")
                if r.random() < 0.3:
                    self.put(depth + 1, self.leaves())
            if r.random() < 0.3:
                self.put(depth, "else:")
                self.put(depth + 1, f"{s} = {self.scalar(counters)}")
        if not handled or r.random() < 0.4:
            self.put(depth, "finally:")
            self.put(depth + 1, r.choice(["total += 10", "kept.append(0.5)", f"{s} = {s} + 1", "u = u * 0.5"]))

    def generator(self, depth, counters, budget):
        r = self.random
        s = r.choice(SCALARS)
        source = r.choice([
            f"counting(n, {s})", "counting(len(ys), b)", f"(w * 2 for w in ys if w > {s})", "(w.sum() + a for w in xs)",
            "(i * 0.5 for i in range(n) for j in range(i))",
        ])  # fmt: skip
        if r.random() < 0.5:
            self.put(depth, r.choice([
                f"d = list({source})", f"{s} = sum({source})", f"{s} = any(w > 1 for w in {source})",
                f"{s} = next({source}, 0.5)", f"{s} = all(w < 1 for w in ys)",
                f"{s} = next(w for w in endless(n) if w > 2)",
            ]))  # fmt: skip
            return
        self.loops += 1
        w = f"w{self.loops}"
        ends = r.random() < 0.3
        self.put(depth, f"for {w} in {f'endless({s})' if ends else source}:")
        if ends:
            self.put(depth + 1, f"if {w} > 3: break")
        self.put(depth + 1, f"a = a * 0.5 + {w}")
        self.inside += 1
        self.inner(depth, counters, budget)
        self.inside -= 1

    def statement(self, depth, counters, budget):
        r = self.random
        kind = r.choice(["scalar", "vector", "update", "list", "item", "loop", "loop", "if", "other", "newer"])
        if kind == "loop" and (depth > 3 or budget < 2):
            kind = "vector"
        s, v = r.choice(SCALARS), r.choice(VECTORS)
        if kind == "newer":
            self.newer(depth, counters, budget)
        elif kind == "scalar":
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
                "buf = buf * 2", "d = u",
                "buf[0], buf[n % 3] = buf[n % 3], buf[0]", "grid[n % 2][1] += a", "grid[1] = grid[0] * 2",
                "d = grid[n % 2]", "pad['p'][n % 2] = b", "buf[1:] = buf[1:][::-1]", "u, v = v, u",
                f"d = {s} if {self.condition(counters)} else {v}",
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
        self.end_of_loop(depth)

    def end_of_loop(self, depth):
        if self.random.random() < 0.25:
            self.put(depth, "else:")
            self.put(depth + 1, "b = b + 1")
            if self.random.random() < 0.5:
                self.put(depth + 1, self.leaves())

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
            (f"{i}, {w} in enumerate(counting(n, a))", "b"), (f"{w}, z in zip(ys, counting(3, b))", "a"),
        ])  # fmt: skip
        inner = [*counters, i] if head[0].startswith(i) else counters
        self.put(depth, f"for {head[0]}:")
        if head[1]:
            self.put(depth + 1, f"{head[1]} = {head[1]} * 0.5 + {w}")
        self.inside += 1
        self.block(depth + 1, inner, budget - 1)
        self.inside -= 1
        self.end_of_loop(depth)


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
