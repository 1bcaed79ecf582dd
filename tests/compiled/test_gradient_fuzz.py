"""Random numeric programs: the compiled gradients are those that Python takes on a tape, or its exceptions.

python -m tests.compiled.test_gradient_fuzz --seed 5000 --count 1000
"""

import sys
import warnings
from typing import Any

import numpy as np
import pytest

import autobatch as ab
from autobatch.api.call_ways import why_not_compiled
from tests.compiled.interpreted import interpreted
from tests.compiled.test_fuzz import Grammar, made, observed, summary
from tests.fuzz import by_seed, main

pytestmark = pytest.mark.fuzz

_RESULTS = (
    "a * 1.0 + b * 0.5", "a + c * y.sum()", "y.sum() * 1.5 + b", "float(a) + d + x.sum()", "sum(z) * 0.5 + c",
    "(y * y).sum() + a * b",
)  # fmt: skip


def text_of(seed: int) -> str:
    """A program with one number as its result."""
    grammar = Grammar(seed)
    lines = grammar.text().splitlines()
    lines[-1] = f"    return {grammar.random.choice(_RESULTS)}"
    return "\n".join(line.replace(", n, y, z, r", "") for line in lines) + "\n"


def close(found: Any, expected: Any) -> bool:
    """True of equal types and exceptions, and of numbers within rounding."""
    if isinstance(expected, list | tuple):
        return type(found) is type(expected) and len(found) == len(expected) and all(map(close, found, expected))
    if isinstance(expected, Exception):
        return type(found) is type(expected) and str(found) == str(expected)
    a, b = np.asarray(found), np.asarray(expected)
    if type(found) is not type(expected) or (a.dtype, a.shape) != (b.dtype, b.shape):
        return False
    return bool(np.allclose(a, b, rtol=1e-4 if a.dtype == np.float32 else 1e-7, atol=1e-7, equal_nan=True))


def compare(seed: int) -> str:
    """Whether the gradient was compiled, to text that Python runs."""
    text, rng = text_of(seed), np.random.default_rng(seed)
    gradient = ab.value_and_grad(made(text, seed), argnums=(0, 1) if seed % 2 else 0)
    examples: list[tuple[Any, ...]] = []
    for _ in range(6):
        x = rng.normal(size=rng.integers(1, 5)).astype(np.float64 if seed % 3 else np.float32)
        if rng.random() < 0.2:
            x[0] = rng.choice([0.0, -0.0, 1.0, np.inf, np.nan])
        examples.append((x, float(np.round(rng.normal(), 2)), int(rng.integers(0, 4))))

    def run(way: Any, *chosen: tuple[Any, ...]) -> Any:
        columns = [
            [np.copy(each) if isinstance(each, np.ndarray) else each for each in column]
            for column in zip(*chosen, strict=True)
        ]
        with ab.options(way=way, warn=False):
            return why_not_compiled(gradient, columns, {}) if way == "auto" else ab.map(gradient, *columns), columns

    with interpreted(), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        if why := run("auto", *examples)[0]:
            return str(why)
        for example in examples:
            found, expected = (
                observed(lambda way=way, example=example: run(way, example))[0] for way in ("compiled", "loop")
            )
            assert close(found, expected), f"{example}: {found!r}, expected {expected!r}\n{text}"
    return "compiled"


FUZZERS = {"compiled-gradients": by_seed(compare, summary)}


def test_random_gradients():
    for seed in range(8):
        compare(seed)


if __name__ == "__main__":
    sys.exit(main(FUZZERS))
