"""`ab.explain`: which operations were launched together, where values were waited for, and what fell back to a loop."""

import dataclasses
import warnings
from collections.abc import Callable, Sequence
from typing import Any

from autobatch.api.mapping import map_with_stats
from autobatch.errors import FallbackWarning
from autobatch.lazy.stats import Stats

__all__ = ["Forced", "Launch", "Report", "explain"]


@dataclasses.dataclass(frozen=True)
class Launch:
    """One line of a report: what the calls of one signature took.

    Attributes:
        op: the operation; signature: the kinds of its operands and its attributes ("s": shared by all examples).
        calls: how often the examples called it; launches: how often it ran; seconds: the time of all launches.
    """

    op: str
    signature: str
    calls: int
    launches: int
    seconds: float

    @property
    def mean_group(self) -> float:
        """Calls per launch."""
        return self.calls / self.launches


@dataclasses.dataclass(frozen=True)
class Forced:
    """A line of the user's code that needed a value at once, and how often."""

    file: str
    line: int
    times: int


@dataclasses.dataclass(frozen=True)
class Report:
    """What `ab.map` did with some examples.

    Attributes:
        examples: how many; rounds: how often everything recorded was launched.
        bound: the fewest launches that any schedule of what was recorded takes; 0 where that was not computed.
        rows: one `Launch` per signature, the most expensive first.
        forced: where a value was needed; fallbacks: {what ran call by call, and why: how often}.
    """

    examples: int
    rounds: int
    rows: tuple[Launch, ...]
    forced: tuple[Forced, ...]
    fallbacks: dict[str, int]
    bound: int = 0

    @property
    def launches(self) -> int:
        return sum(row.launches for row in self.rows)

    @property
    def calls(self) -> int:
        return sum(row.calls for row in self.rows)

    @classmethod
    def of(cls, stats: Stats, examples: int) -> "Report":
        rows = [Launch(op, text, *figures) for (op, text), figures in stats.by_signature.items()]
        rows.sort(key=lambda row: -row.seconds)
        forced = [Forced(file, line, times) for (file, line), times in stats.forced.most_common()]
        return cls(examples, stats.rounds, tuple(rows), tuple(forced), dict(stats.fallbacks), stats.bound)

    def __str__(self) -> str:
        least = f" (at least {self.bound})" if self.bound else ""
        lines = [
            f"{self.examples} examples: {self.calls} calls in {self.launches} launches{least} and {self.rounds} rounds",
            "",
            *_table(
                ("op", "signature", "calls", "launches", "mean group", "ms"),
                [
                    (r.op, r.signature, str(r.calls), str(r.launches), f"{r.mean_group:.1f}", f"{r.seconds * 1e3:.2f}")
                    for r in self.rows
                ],
            ),
        ]
        if self.forced:
            lines += ["", "values needed at once (each wait ends a round):"]
            lines += _table(("where", "times"), [(f"{f.file}:{f.line}", str(f.times)) for f in self.forced])
        if self.fallbacks:
            lines += ["", "not batched:"]
            lines += _table(("why", "times"), [(why, str(times)) for why, times in self.fallbacks.items()])
        return "\n".join(lines)


def _table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> list[str]:
    """Lines of an aligned table: the first column and any text to the left, numbers to the right."""
    cells = [tuple(head), *(tuple(text if len(text) <= 60 else text[:57] + "..." for text in row) for row in rows)]
    if head[0] in ("where", "why"):
        cells = [tuple(head), *map(tuple, rows)]
    widths = [max(map(len, column)) for column in zip(*cells, strict=True)]
    left = [all(not _is_number(row[k]) for row in cells[1:]) for k in range(len(head))]
    lines = []
    for row in cells:
        texts = [row[k].ljust(widths[k]) if left[k] else row[k].rjust(widths[k]) for k in range(len(head))]
        lines.append("  ".join(texts).rstrip())
    return lines


def _is_number(text: str) -> bool:
    return text.replace(".", "", 1).isdigit()


def explain(f: Callable[..., Any], *example_sequences: Any, **shared: Any) -> Report:
    """Run `ab.map(f, *example_sequences, **shared)` once and report what was launched; `print` it to read it.

    A straight-line run of the user's code is one row, `block FILE:LINES`; with `ab.options(blocks=False)` each
    operation has its own. Raises what `ab.map` raises; warnings about loops are left out, the report has them under
    `fallbacks`.

    >>> import numpy as np
    >>> report = explain(lambda x: x * 2.0 + 1.0, [np.ones(3), np.zeros(3)])
    >>> report.calls, report.launches
    (2, 1)
    """
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", FallbackWarning)
        results, stats = map_with_stats(f, *example_sequences, **shared)
    return Report.of(stats, len(results))
