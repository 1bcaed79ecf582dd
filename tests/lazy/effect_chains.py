"""Random functions that change the objects they are given, wait for values and fail, as text of f(o, x, q, s, w).

`o`: an object of each example, with others in it; `x`: its array; `q`: its list of arrays; `s`: what all share.
What becomes of all of them, aliases included, is that of the loop. A soak run:
    python -m tests.lazy.effect_chains --seed 5000 --count 500
"""

import dataclasses
import random
import sys
import warnings

import numpy as np

import autobatch as ab
from tests.fuzz import by_seed, main

_FIELDS = ("h", "n", "v", "kids", "seen", "d")


class Node:
    def __init__(self, v, kids):
        self.v, self.kids, self.h, self.n, self.seen, self.d = v, kids, None, 0, set(), {}

    def bump(self, k=1):
        self.n += k
        return self.n


class Slotted(Node):
    __slots__ = _FIELDS


@dataclasses.dataclass(eq=False)
class Record:
    v: object
    kids: list
    h: object = None
    n: int = 0
    seen: set = dataclasses.field(default_factory=set)
    d: dict = dataclasses.field(default_factory=dict)
    bump = Node.bump


CONDITIONS = [
    "float({a}.sum()) > 0", "{a}[0] > 0", "{o}.n > 1", "{o}.h is None", "'k' in {o}.d", "len({o}.seen) > 1",
]  # fmt: skip
ARRAYS = [
    "{a} * 2", "{a} + {b}", "np.exp({a})", "{a}.copy()", "{o}.h if {o}.h is not None else x", "{a}[::-1]",
    "np.stack([{a}, {b}]).sum(0)",
]  # fmt: skip
EFFECTS = [
    "{o}.h = {a}", "{o}.n += 1", "{o}.bump()", "{o}.n = int({a}.sum() > 0) + {p}.n", "{o}.seen.add({p}.n)",
    "{o}.d['k'] = {a}", "{o}.d['c'] = {p}.d.get('c', 0) + 1", "{o}.kids.append({p}.n)", "{a}[0] = 2.0",
    "{a}[:] = {b}", "{o}.v[0] += 1", "{o}.v = {p}.v + 1", "np.asarray({a})[0] = 1.0", "{o}.d.pop('k', None)",
    "out.append({o}.n)", "out.append({o}.h)", "float({a}.max())", "setattr({o}, 'n', 5)", "{o}.seen.clear()",
    "q.append({a})", "q[0] = q[0] + 1", "{o}.d.update(j={p}.n)",
]  # fmt: skip


class _Writer:
    def __init__(self, choices):
        self.choices = choices
        self.arrays = ["x", "y"]

    def fill(self, forms):
        pick, objects = self.choices.choice, ("o", "o.kids[0]", "s")
        return pick(forms).format(a=pick(self.arrays), b=pick(self.arrays), o=pick(objects), p=pick(objects))

    def statement(self, depth):
        kind, pad = self.choices.random(), "    " * (depth + 1)
        if kind < 0.22 and depth < 2:
            out = [f"{pad}if {self.fill(CONDITIONS)}:", *self.statement(depth + 1)]
            return [*out, f"{pad}else:", *self.statement(depth + 1)] if self.choices.random() < 0.4 else out
        if kind < 0.3 and depth < 2:
            return [f"{pad}for _ in range(2):", *self.statement(depth + 1)]
        if kind < 0.42 and not depth:
            line = f"{pad}z{len(self.arrays)} = {self.fill(ARRAYS)}"
            self.arrays.append(f"z{len(self.arrays)}")
            return [line]
        return [pad + self.fill(EFFECTS)]


def write(seed):
    """The source of one function, which may raise ValueError."""
    writer = _Writer(choices := random.Random(seed))
    lines = ["def chain(o, x, q, s, w):", "    out = []", "    y = np.tanh(x) * w"]
    for _ in range(choices.randrange(2, 7)):
        lines += writer.statement(0)
    if choices.random() < 0.2:
        lines.append("    if float(x.sum()) > 1.5:\n        raise ValueError('too much')")
    return "\n".join([*lines, f"    return out, {', '.join(writer.arrays)}", ""])


def _given(seed):
    """Examples, and what they share."""
    choices, numbers = random.Random(-seed - 1), np.random.default_rng(seed)
    kind, common, floats = choices.choice([Node, Slotted, Record]), choices.random() < 0.4, choices.random() < 0.6

    def made(kids):
        return kind(numbers.normal(size=3) if floats else numbers.integers(0, 3, 3), kids)

    kid, count = made([]), choices.choice([1, 2, 4])
    objects = [made([kid if common else made([])]) for _ in range(count)]
    return objects, numbers.normal(size=(count, 3)).copy(), [[numbers.normal(size=3)] for _ in range(count)], made([])


def _told(value, seen):
    """What is in a structure, with what is the same object."""
    if type(value) is np.ndarray:
        return value.dtype.str, value.round(9).tolist()
    if value is None or isinstance(value, int | float | str):
        return repr(value)
    if id(value) in seen:
        return "again", seen[id(value)]
    seen[id(value)] = len(seen)
    if isinstance(value, list | tuple):
        return [type(value).__name__, *(_told(each, seen) for each in value)]
    if isinstance(value, set):
        return sorted(map(repr, value))
    if isinstance(value, dict):
        return {key: _told(each, seen) for key, each in value.items()}
    return {name: _told(getattr(value, name), seen) for name in _FIELDS}


def outcome(run, seed):
    """What `run(objects, arrays, lists, shared)` gives or raises, and what becomes of what it was given."""
    objects, arrays, lists, shared = _given(seed)
    arrays = [array.copy() for array in arrays]
    try:
        found = run(objects, arrays, lists, shared)
    except ValueError as error:
        found = repr(error)
    left = [arrays, lists, shared, objects] if type(found) is list else shared
    return _told([found, left], {})


def check(seed):
    """Compare what the map leaves with what the loop leaves, of one function; raises AssertionError."""
    scope = {"np": np, "__name__": "tests.chain"}
    exec(write(seed), scope)
    chain = scope["chain"]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        found = outcome(lambda o, x, q, s: ab.map(chain, o, x, q, s=s, w=2.0), seed)
        want = outcome(lambda o, x, q, s: [chain(*each, s=s, w=2.0) for each in zip(o, x, q, strict=True)], seed)
    assert found == want, write(seed)


FUZZERS = {"effects": by_seed(check)}

if __name__ == "__main__":
    sys.exit(main(FUZZERS))
