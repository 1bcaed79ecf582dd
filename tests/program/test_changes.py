"""Random functions: one that is said to change nothing changes nothing that it was given."""

import contextlib
import copy
import linecache
import random

import numpy as np
import pytest

from autobatch.program.purity import is_pure, may_change

NAMES = ["a", "b", "c"]
VALUES = [
    "[]", "[{n}, {n}]", "[[0] * 2 for _ in range(2)]", "{n}", "{n}[0]", "{n}[-1]", "list({n})", "{n} + {n}",
    "{n} * 2", "[{n}] * 2", "{n}[:1]", "sorted({n}, key=str)", "({n}, {n})[0]", "{n} if {n} else {n}", "{n} or {n}",
    "copy.copy({n})", "copy.deepcopy({n})", "np.array([1, 2])", "np.asarray({n})", "np.reshape({n}, -1)",
    "max({n}, {n})", "{{0: {n}}}", "[*{n}]", "[row for row in {n}]", "[list(row) for row in {n}]", "{n}.copy()",
    "next(iter({n}))", "np.ravel({n})", "list(zip({n}, {n}))", "list(reversed({n}))", "dict(enumerate({n}))",
    "functools.reduce(lambda p, q: q, {n})",
]  # fmt: skip
WRITES = [
    "{n}.append({n})", "{n}[0] = {n}", "{n}[0][0] = 7", "{n} += [7]", "{n}.extend({n})", "{n}[0].append(7)",
    "{n}.pop()", "{n}[0] += 1", "{n}.sort(key=str)", "np.multiply({n}, 2, {n})", "heapq.heappush({n}, 7)",
    "{n}.insert(0, {n})", "for row in {n}: row[0] = 7", "for i, row in enumerate({n}): row[0] = i", "{n}[:] = [7]",
    "del {n}[0]", "[row.append(7) for row in {n}]", "list(map(lambda row: row.append(7), {n}))",
    "operator.setitem({n}, 0, 7)", "p, q = {n}; p[0] = 7", "p, *q = {n}; q[0] = 7", "({n}).reverse()",
    "np.copyto({n}, 7)", "{n}.setdefault(0, []).append(7)",
]  # fmt: skip


def write(seed):
    rng = random.Random(seed)

    def filled(text):
        while "{n}" in text:
            text = text.replace("{n}", rng.choice(["x", *NAMES, *NAMES]), 1)
        return text.replace("{{", "{").replace("}}", "}")

    lines = [f"a, b, c = {rng.choice(VALUES).replace('{n}', 'x').replace('{{', '{').replace('}}', '}')}, list(x), x[0]"]
    for _ in range(rng.randint(2, 5)):
        if rng.random() < 0.6:
            lines.append(f"{rng.choice(NAMES)} = {filled(rng.choice(VALUES))}")
        else:
            lines.append(filled(rng.choice(WRITES)))
    lines.append(filled(rng.choice(WRITES)))
    return "def f(x):\n    " + "\n    ".join(lines) + "\n    return a, b, c\n"


def made(seed):
    text = write(seed)
    name = f"<changes {seed}>.py"
    linecache.cache[name] = len(text), None, text.splitlines(keepends=True), name
    names = {"__name__": "changes", "np": np}
    exec("import copy, functools, heapq, operator", names)
    exec(compile(text, name, "exec"), names)
    return names["f"], text


@pytest.mark.parametrize("first", range(0, 1000, 500))
def test_what_is_local_changes_nothing(first):
    local = 0
    for seed in range(first, first + 500):
        f, text = made(seed)
        if not is_pure(f):
            continue
        local += 1
        assert not may_change([f], []), text
        for x in ([[1, 2], [3]], [1, 2], np.array([1, 2]), np.ones((2, 2)), {0: [1]}, [np.ones(2), np.ones(2)]):
            given = copy.deepcopy(x)
            with contextlib.suppress(Exception):  # what it changed before counts
                f(given)
            assert repr(given) == repr(x), text
    assert local > 15
