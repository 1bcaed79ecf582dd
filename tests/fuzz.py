"""Fuzzers by one command line: random programs and values, as many as wanted, from a first seed on.

    python -m tests.fuzz --list
    python -m tests.fuzz --seed 5000 --count 100                  every fuzzer
    python -m tests.fuzz programs blocks --count 1000             two of them
    python -m tests.lockstep.fuzz --seed 5000 --count 100         those of one module

A module has fuzzers where it has a `FUZZERS`: for each name a function of a range of seeds, made by `by_seed` or
`by_strategy`, which returns what it saw and raises AssertionError on a difference. The exit status is the number of
fuzzers that found one. Tests marked `fuzz` run the same functions on a few fixed seeds.
"""

import argparse
import contextlib
import importlib
import io
import pathlib
import sys
import time
from collections.abc import Callable, Sequence
from typing import Any

import hypothesis

import autobatch as ab

Fuzzer = Callable[[range], str]

_TESTS = pathlib.Path(__file__).resolve().parent


def by_seed(compare: Callable[[int], Any], summary: Callable[[list[Any]], str] | None = None) -> Fuzzer:
    """The fuzzer that calls `compare(seed)`, which raises on a difference, for each seed, past those that differ.

    Args:
        compare: what to do for one seed.
        summary: what to say of the list of what `compare` returned.
    """

    def run(seeds: range) -> str:
        seen, wrong = [], []
        for seed in seeds:
            try:
                with contextlib.redirect_stdout(io.StringIO()):  # what the programs print
                    seen.append(compare(seed))
            except Exception as error:
                print(f"seed {seed}: {type(error).__name__}: {error}", flush=True)
                wrong.append(seed)
        said = summary(seen) if summary and seen else ""
        assert not wrong, f"{len(wrong)} of {len(seeds)} differ, seeds {wrong}; {said}"
        return f"{len(seeds)} without a difference; {said}".rstrip("; ")

    return run


def by_strategy(check: Callable[..., None], *strategies: hypothesis.strategies.SearchStrategy[Any]) -> Fuzzer:
    """The fuzzer that has hypothesis call `check` with values of these strategies, from a seed, as often as asked."""

    def run(seeds: range) -> str:
        settings = hypothesis.settings(
            max_examples=len(seeds), database=None, deadline=None, suppress_health_check=list(hypothesis.HealthCheck)
        )
        hypothesis.seed(seeds.start)(settings(hypothesis.given(*strategies)(_positional(check, len(strategies)))))()
        return f"{len(seeds)} without a difference"

    return run


def _positional(check: Callable[..., None], count: int) -> Callable[..., None]:
    """`check` by a signature that hypothesis can fill, whatever it is called with otherwise."""
    names = ", ".join(f"value_{i}" for i in range(count))
    made: Callable[..., None] = eval(f"lambda {names}: check({names})", {"check": check})
    return made


def every_fuzzer() -> dict[str, Fuzzer]:
    """The fuzzers of all modules below this folder, by name."""
    found: dict[str, Fuzzer] = {}
    for path in sorted(_TESTS.rglob("*.py")):
        if "\nFUZZERS = " in path.read_text(encoding="utf-8"):
            name = ".".join(path.relative_to(_TESTS.parent).with_suffix("").parts)
            for key, fuzzer in importlib.import_module(name).FUZZERS.items():
                assert key not in found, f"two fuzzers are called {key}"
                found[key] = fuzzer
    return found


def main(fuzzers: dict[str, Fuzzer], arguments: Sequence[str] | None = None) -> int:
    """Run what a command line asks for. Returns how many fuzzers found a difference."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("name", nargs="*", help="fuzzers to run; all without a name")
    parser.add_argument("--seed", type=int, default=0, help="the first seed (0)")
    parser.add_argument("--count", type=int, default=100, help="how many programs or values (100)")
    parser.add_argument("--list", action="store_true", help="say which there are")
    asked = parser.parse_args(arguments)
    if unknown := [name for name in asked.name if name not in fuzzers]:
        parser.error(f"no fuzzer is called {', '.join(unknown)}; there are {', '.join(fuzzers)}")
    if asked.list:
        print(*fuzzers, sep="\n")
        return 0
    failed = 0
    for name in asked.name or fuzzers:
        start = time.perf_counter()
        try:
            with ab.options(way="lockstep"):  # what a call names runs, as in the tests
                said = fuzzers[name](range(asked.seed, asked.seed + asked.count))
        except Exception as error:
            failed += 1
            said = f"FAILED: {type(error).__name__}: {error}"
        print(f"{name}: {said} ({time.perf_counter() - start:.0f} s)", flush=True)
    return failed


if __name__ == "__main__":
    sys.exit(main(every_fuzzer()))
