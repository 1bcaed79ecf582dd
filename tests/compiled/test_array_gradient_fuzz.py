"""Random array programs whose gradients are compiled give the gradients of the loop.

python -m tests.compiled.test_array_gradient_fuzz --seed 5000 --count 1000
"""

import linecache
import random
import sys
from typing import Any

import numpy as np
import pytest

import autobatch as ab
from autobatch.compiled.compiled_map import KernelForm
from autobatch.compiled.taping import backward
from tests.compiled.interpreted import interpreted
from tests.fuzz import by_seed, main
from tests.inspect import ran_ways

pytestmark = pytest.mark.fuzz

N = 3  # every vector has three elements, every matrix has as many rows and columns


class Grammar:
    """One random function of ids, a vector x of the example and parameters `p`; it returns a number."""

    def __init__(self, seed: int) -> None:
        self.random = random.Random(seed)
        self.lines: list[str] = []
        self.names = ["a", "b"]
        self.matrices = ["m"]

    def vector(self, depth: int) -> str:
        pick = self.random.choice
        if depth <= 0:
            return pick([*self.names, *self.names, "p['w']", "x", "p['emb'][ids[0]]"])
        v, w, m = self.vector(depth - 1), self.vector(depth - 2), self.matrix(depth - 2)
        return pick([
            f"({v} + {w})", f"({v} * {w})", f"({v} - 0.5)", f"np.tanh({v})", f"({m} @ {v})", f"({v} @ {m})", f"{m}[i]",
            f"{m}[:, i]", f"np.where({v} > 0, {w}, {v})", f"np.concatenate([{v}[:1], {w}[1:]])", f"{v}[::-1]",
            f"np.maximum({v}, {w})", f"{m}.sum(axis=0)", f"{m}.mean(axis=1)", f"np.sin({v}).copy()", f"({v} * 1.0)",
            f"{v}[np.array([2, 0, i])]",
        ])  # fmt: skip

    def matrix(self, depth: int) -> str:
        pick = self.random.choice
        if depth <= 0:
            return pick([*self.matrices, "p['m']", "p['emb'][ids]"])
        v, m, n = self.vector(depth - 1), self.matrix(depth - 1), self.matrix(depth - 2)
        return pick([
            f"({m} @ {n})", f"{m}.T", f"np.tanh({m})", f"({m} + {v})", f"np.stack([{v}, x, {v}])", f"({m} * {n})",
        ])  # fmt: skip

    def statement(self) -> list[str]:
        pick = self.random.choice
        v, m, name = self.vector(2), self.matrix(1), pick(["a", "b", "c"])
        made = pick([
            [f"{name} = {v}"], [f"{name} = {v}"], [f"m = np.tanh({m})", f"m[i] = {v}"],
            ["for i in range(2):", f"    a = {v} / 2", f"    s = s + a[i] * {v}[0]"],
            [f"m = {m} / 3"], [f"s = s + ({v} * {self.vector(1)}).sum()"], [f"b = {v}.copy()", f"b[i] = {v}[0]"],
            [f"a = {v} + 0.1", "a[1:] = x[1:]"], [f"a = {v} + 0.25", "b = a", "b[0] = s"], ["a += b"],
            [f"if {v}[0] > 0.1:", f"    a = {v}", "else:", f"    b = {v}"], [f"l.append({v})", "a = l[-1] * l[0]"],
            [f"o = np.zeros({N})", "for i in range(2):", f"    o[i] = {v}[i]", "b = o"],
        ])  # fmt: skip
        self.names += [name] if f"{name} = {v}" == made[0] and name not in self.names else []
        return made

    def text(self) -> str:
        body = [line for _ in range(self.random.randint(2, 6)) for line in self.statement()]
        start = ["i, s, l = 1, x.sum(), [x]", "a, b, m = x * 2, p['w'] * 1.0, p['m'] / 2"]
        lines = [*start, *body, f"return s + ({self.vector(1)}).sum() + m.sum()"]
        return "\n    ".join(["def f(ids, x, p):", *lines]) + "\n"


def compare(seed: int) -> str:
    """One program, with the gradients of the sum of its results, and of each: "compiled", or the way that ran."""
    text = Grammar(seed).text()
    filename = f"<array gradients {seed}>"
    linecache.cache[filename] = (len(text), None, text.splitlines(True), filename)
    names: dict[str, Any] = {"np": np}
    exec(compile(text, filename, "exec"), names)
    f = names["f"]
    rng = np.random.default_rng(seed)
    dtype = np.float32 if seed % 3 == 0 else np.float64
    params: dict[str, Any] = {"w": rng.normal(size=N), "m": rng.normal(size=(N, N))}
    params = {name: value.astype(dtype) for name, value in params.items()}
    params["emb"] = ab.EmbeddingTable(rng.normal(size=(7, N)).astype(dtype))
    before = {name: np.array(value) for name, value in params.items()}
    ids, xs = [rng.integers(0, 7, N) for _ in range(3)], list(rng.normal(size=(3, N)).astype(dtype))
    with np.errstate(all="ignore"):
        try:
            wanted = [ab.value_and_grad(f, 2)(one, x.copy(), params) for one, x in zip(ids, xs, strict=True)]
        except (ab.errors.ForcedValueError, ab.errors.UnsupportedError):  # written into a plain array
            return "refused"
        if not all(np.array_equal(value, before[name]) for name, value in params.items()):
            return "writes into its parameters"
        with (
            interpreted(), ab.options(way="compiled", warn=False), ran_ways() as ran,
            pytest.MonkeyPatch.context() as patch,
        ):  # fmt: skip
            patch.setattr(KernelForm, "refuse", _refuse)
            patch.setattr(backward, "_LEAST", 2)
            _, total = ab.value_and_grad(lambda p: sum(ab.map(f, ids, [x.copy() for x in xs], p=p)))(params)
            each = ab.map(ab.value_and_grad(f, 2), ids, [x.copy() for x in xs], ab.shared(params))
    for (value, own), (want, other) in zip(each, wanted, strict=True):
        assert _is_close(value, want, dtype), text
        for name in params:
            assert _is_close(_dense(own[name]), _dense(other[name]), dtype), f"{name} of one example\n{text}"
    for name in params:
        expected = sum(_dense(other[name]) for _, other in wanted)
        assert _is_close(_dense(total[name]), expected, dtype), f"{name} of all\n{text}"
    return ran[0].way


def _refuse(form: KernelForm, name: str, given: Any, expected: Any) -> Any:
    """Where a form would be retired, since it gave something else than Python for the first or last example."""
    raise AssertionError(f"{name}: {given!r} for {expected!r}")


def _dense(gradient: Any) -> np.ndarray:
    return gradient.to_dense() if isinstance(gradient, ab.SparseRows) else np.asarray(gradient)


def _is_close(one: Any, two: Any, dtype: Any) -> bool:
    one, two = np.asarray(one), np.asarray(two)
    scale = float(np.abs(two[np.isfinite(two)]).max(initial=1.0))
    tolerance = 1e-3 if dtype is np.float32 else 1e-8
    same = np.allclose(one, two, rtol=tolerance, atol=tolerance * scale, equal_nan=True)
    return one.dtype == two.dtype and one.shape == two.shape and bool(same)


def summary(seen: list[str]) -> str:
    """How many were compiled."""
    return f"{seen.count('compiled')} compiled"


FUZZERS = {"array_gradients": by_seed(compare, summary)}


@pytest.mark.parametrize("first", range(0, 20, 10))
def test_gradients_of_random_array_programs(first):
    assert [compare(seed) for seed in range(first, first + 10)].count("compiled") >= 5


if __name__ == "__main__":
    sys.exit(main(FUZZERS))
