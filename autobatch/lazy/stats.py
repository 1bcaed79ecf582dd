"""What a trace did: launches, groups, times, forced values and fallbacks."""

from collections import Counter
from typing import Any

__all__ = ["Stats"]


class Stats:
    """Counts of one trace.

    Attributes:
        launches: batched calls made; bound: the fewest that any schedule takes, 0 for one that was not compared.
        calls: ops recorded (one call of the plain loop each).
        rounds: times that everything recorded was launched together.
        by_signature: {(op, signature): [calls, launches, seconds]}.
        forced: {(file, line): times} a value was needed at once.
        fallbacks: {reason: times} what ran call by call, or as a loop.
        group_sizes: how many calls each launch covered, in order.
        reads: how often an example saw the value of an array, or what was computed from shared ones.
        looped: why the examples ran in a loop after all; None where they did not.
        replayed: examples whose Python did not run, since what an equal one recorded was kept.
    """

    __slots__ = (
        "bound",
        "by_signature",
        "calls",
        "fallbacks",
        "forced",
        "group_sizes",
        "launches",
        "looped",
        "reads",
        "replayed",
        "rounds",
    )

    def __init__(self) -> None:
        self.launches = 0
        self.bound = 0
        self.calls = 0
        self.rounds = 0
        self.reads = 0
        self.replayed = 0
        self.looped: str | None = None
        self.by_signature: dict[tuple[str, str], list[Any]] = {}
        self.forced: Counter[tuple[str, int]] = Counter()
        self.fallbacks: Counter[str] = Counter()
        self.group_sizes: list[int] = []

    def launched(self, name: str, signature: str, calls: int, seconds: float) -> None:
        self.launches += 1
        self.calls += calls
        self.group_sizes.append(calls)
        row = self.by_signature.setdefault((name, signature), [0, 0, 0.0])
        row[0] += calls
        row[1] += 1
        row[2] += seconds

    def __repr__(self) -> str:
        return f"Stats({self.calls} calls in {self.launches} launches, {self.rounds} rounds)"
