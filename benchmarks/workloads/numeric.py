"""Programs of numbers in loops: compiled as they are, beside the loop and an `@njit` loop over the same packed data."""

import inspect
import math
from collections.abc import Callable, Sequence
from typing import Any

import numba
import numpy as np

import autobatch as ab
from autobatch.compiled.compiled_map import compiled_map, prepared, wait_for
from benchmarks.declare import LOOP, OURS, Case, Runner, Way, Workload
from tests.compiled.language_programs import PROGRAMS

_HAND = "njit loop"
_SIZES = {"test": (4, 40), "small": (200, 2_000), "full": (2_000, 20_000)}


def _ragged(rng: np.random.Generator, count: int, make: Callable[[int], Any]) -> list[Any]:
    return [make(int(n)) for n in rng.integers(5, 31, count)]


def columns_of(name: str, count: int) -> list[Any]:
    """The examples of a program, as a batch for each of its arguments that examples have of their own."""
    rng = np.random.default_rng(3)
    words = lambda high: ab.PackedBatch.from_examples(_ragged(rng, count, lambda n: rng.integers(0, high, n)))
    lengths = rng.integers(5, 31, count)
    numbers = lambda make: ab.PackedBatch.from_lengths(make(int(lengths.sum())), lengths)
    match name:
        case "levenshtein" | "levenshtein_table" | "smith_waterman":
            return [words(4), words(4)]
        case "longest_run":
            return [words(2)]
        case "longest_increasing":
            return [words(50)]
        case "viterbi":
            return [words(3)]
        case "dtw":
            return [ab.PackedBatch.from_examples(_ragged(rng, count, lambda n: rng.normal(size=n))) for _ in range(2)]
        case "isolation":
            return [
                numbers(rng.standard_normal),
                numbers(lambda n: rng.uniform(-3, 3, n)),
                numbers(lambda n: rng.exponential(size=n)),
            ]
        case "anti_kt":
            exponential = lambda n: rng.exponential(size=n) + 0.01
            return [numbers(exponential), numbers(rng.standard_normal), numbers(lambda n: rng.uniform(-3, 3, n))]
        case "best_pair":
            return [ab.PackedBatch.from_lengths(rng.normal(size=(int(lengths.sum()), 4)), lengths)]
        case "decision_tree":
            return [ab.MaskedBatch(rng.normal(size=(count, 3)))]
        case "kalman":
            return [numbers(lambda n: np.where(rng.random(n) < 0.3, np.nan, rng.normal(size=n)))]
        case "adaptive_runge_kutta":
            return [ab.MaskedBatch(rng.normal(size=(count, 2))), rng.uniform(0.5, 2, count).tolist()]
        case "floyd":
            return [ab.MaskedBatch(np.where(rng.random((count, 12, 12)) < 0.5, np.inf, rng.random((count, 12, 12))))]
    raise KeyError(name)


_PROGRAMS = (
    "levenshtein", "levenshtein_table", "dtw", "smith_waterman", "longest_run", "best_pair", "isolation", "anti_kt",
    "longest_increasing",
    "decision_tree", "viterbi", "kalman", "adaptive_runge_kutta", "floyd",
)  # fmt: skip


def cases(size: str) -> list[Case]:
    """Each program with few and with many examples."""
    counts = _SIZES.get(size, _SIZES["small"])
    return [Case(f"{name} {count}", {"name": name, "count": count}) for name in _PROGRAMS for count in counts]


def _of(case: Case) -> tuple[str, int]:
    return case["name"], case["count"]


def _plain(results: Sequence[Any]) -> list[Any]:
    """Results as arrays, in the form that all ways share."""
    out: list[Any] = []
    for result in results:
        parts = result if isinstance(result, tuple) else (result,)
        out.append([np.asarray(part, np.float64) for part in parts])
    return out


def _examples(column: Any) -> list[Any]:
    return column if isinstance(column, list) else column.examples()


def ours(case: Case) -> Runner:
    """The compiled way."""
    function, _, shared = PROGRAMS[case["name"]]
    columns = columns_of(*_of(case))
    wait_for(prepared(function, columns, shared, None)[1])
    run = lambda: compiled_map(function, columns, shared, stacked=True)
    run()  # which is compared with Python, so its results are a list
    return Runner(run, lambda out: _plain(out if isinstance(out, list) else ab.examples(out)))


def loop(case: Case) -> Runner:
    """The function itself, called for each example."""
    function, _, shared = PROGRAMS[case["name"]]
    columns = [_examples(column) for column in columns_of(*_of(case))]
    return Runner(lambda: [function(*values, **shared) for values in zip(*columns, strict=True)], _plain)


_CHANGED = {"best_pair": ("best = None", "best = (-1, -1)"), "viterbi": ("dtype=int", "dtype=np.int64")}
"""What Numba does not take as it is written, and what a person writes there."""


def _as_numba_takes_it(name: str, function: Callable[..., Any]) -> Callable[..., Any]:
    if name not in _CHANGED:
        return function
    text = inspect.getsource(function)
    scope: dict[str, Any] = {"np": np, "math": math}
    exec(text[text.index("def ") :].replace(*_CHANGED[name]), scope)
    return scope[name]


_NUMBERS = ("levenshtein", "levenshtein_table", "dtw", "longest_run", "longest_increasing", "decision_tree")
"""What gives a number, which goes into an array, as our batch of results is one."""


def hand_written(case: Case) -> Runner:
    """What a person writes with Numba: the function under `@njit`, and an `@njit` loop over packed data."""
    function, _, shared = PROGRAMS[case["name"]]
    columns = columns_of(*_of(case))
    names, texts, data = [], [], []
    for number, column in enumerate(columns):
        if isinstance(column, ab.PackedBatch):
            names += [f"v{number}", f"o{number}"]
            texts.append(f"v{number}[o{number}[i]:o{number}[i + 1]]")
            data += [column.values, column.offsets]
        else:
            names.append(f"d{number}")
            texts.append(f"d{number}[i]")
            data.append(np.array(column) if isinstance(column, list) else column.data)
    given = [f"s{number}" for number in range(len(shared))]
    text = f"def run(n, {', '.join([*names, *given])}):\n"
    call = f"f({', '.join([*texts, *given])})"
    if case["name"] in _NUMBERS:
        text += f"    out = np.empty(n)\n    for i in range(n):\n        out[i] = {call}\n    return out\n"
    else:
        text += f"    return [{call} for i in range(n)]\n"
    scope: dict[str, Any] = {"np": np, "f": numba.njit(_as_numba_takes_it(case["name"], function), nogil=True)}
    exec(text, scope)
    run = numba.njit(scope["run"], nogil=True)
    arguments = (case["count"], *data, *shared.values())
    run(*arguments)
    return Runner(lambda: run(*arguments), _plain)


WORKLOAD = Workload(
    "numeric",
    "programs of numbers in loops, one example each: compiled as they are",
    cases,
    ways=[
        Way(OURS, "benchmarks.workloads.numeric:ours"),
        Way(LOOP, "benchmarks.workloads.numeric:loop"),
        Way(_HAND, "benchmarks.workloads.numeric:hand_written"),
    ],
)
