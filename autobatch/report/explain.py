"""`ab.explain`: which operations were launched together, where values were waited for, and what fell back to a loop."""

import dataclasses
import re
import warnings
from collections.abc import Callable, Iterable, Sequence
from typing import Any

from autobatch.api.batch import BatchFunction, batch
from autobatch.api.call_ways import NAMES, Ran, ran_ways
from autobatch.api.transforms import map_with_stats
from autobatch.batches.any_batch import Batch
from autobatch.core.diagnostics import noted_fallbacks
from autobatch.core.pytree import leaves
from autobatch.errors import FallbackWarning
from autobatch.lazy.launching import Stats
from autobatch.lockstep.run import has_batch

__all__ = ["Forced", "Launch", "Report", "explain"]

_SHOWN = 30  # rows of a printed table
_OWN_SHAPE = re.compile(r"(?<=[a-z0-9]\[)[\d, .]+(?=\](?!s))")  # of an operand that is not shared
_SIZE = re.compile(r"\d+(?:\.\.\d+)?")  # or the range of a launch of several


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
    """What a call did with some examples. Printed, signatures that differ in sizes of the examples only are one row.

    Attributes:
        way: how they ran: "on the fly", "lock-step" (which has no launches to report), "compiled", or "the loop over
            the examples".
        examples: how many; rounds: how often everything recorded was launched.
        bound: the fewest launches that any schedule of what was recorded takes; 0 where that was not computed.
        rows: one `Launch` per signature, the most expensive first.
        forced: where a value was needed; fallbacks: {what ran call by call, and why: how often}.
        replayed: examples whose Python did not run, since what an equal one recorded was kept.
        why: what decided about the way.
        costs: {way: seconds per example} of those that have run on inputs of this kind; refusals: {way: why not}.
    """

    examples: int
    rounds: int
    rows: tuple[Launch, ...]
    forced: tuple[Forced, ...]
    fallbacks: dict[str, int]
    bound: int = 0
    replayed: int = 0
    way: str = "on the fly"
    why: str = ""
    costs: dict[str, float] = dataclasses.field(default_factory=dict)
    refusals: dict[str, str] = dataclasses.field(default_factory=dict)

    @property
    def launches(self) -> int:
        return sum(row.launches for row in self.rows)

    @property
    def calls(self) -> int:
        return sum(row.calls for row in self.rows)

    @classmethod
    def of(cls, ran: Ran, examples: int) -> "Report":
        stats, way = ran.stats, NAMES[ran.way]
        rows = [Launch(op, text, *figures) for (op, text), figures in stats.by_signature.items()]
        rows.sort(key=lambda row: -row.seconds)
        forced = [Forced(file, line, times) for (file, line), times in stats.forced.most_common()]
        fallbacks, bound, replayed = dict(stats.fallbacks), stats.bound, stats.replayed
        costs = {NAMES[each]: cost.seconds for each, cost in ran.costs.items() if cost.seconds is not None}
        refusals = {NAMES[each]: cost.refused for each, cost in ran.costs.items() if cost.refused}
        figures = examples, stats.rounds, tuple(rows), tuple(forced), fallbacks, bound, replayed
        return cls(*figures, way, ran.why, costs, refusals)

    def __str__(self) -> str:
        rows = _folded(self.rows)
        lines = [self._head(), *self._choice()]
        if self.way == "on the fly":
            figures = [
                (r.op, r.signature, str(r.calls), str(r.launches), f"{r.mean_group:.1f}", f"{r.seconds * 1e3:.2f}")
                for r in rows[:_SHOWN]
            ]
            lines += ["", *_table(("op", "signature", "calls", "launches", "mean group", "ms"), figures)]
        if rows[_SHOWN:]:
            lines.append(f"and {len(rows) - _SHOWN} more, {sum(r.seconds for r in rows[_SHOWN:]) * 1e3:.2f} ms")
        if self.forced:
            lines += ["", "values needed at once (each wait ends a round):"]
            lines += _table(("where", "times"), [(f"{f.file}:{f.line}", str(f.times)) for f in self.forced])
        if self.fallbacks:
            lines += ["", "not batched:"]
            lines += _table(("why", "times"), [(why, str(times)) for why, times in self.fallbacks.items()])
        return "\n".join(lines)

    def _choice(self) -> list[str]:
        """Why it ran so, and what is known of the other ways."""
        if len(self.costs) + len(self.refusals) < 2:
            return []
        known = [f"{way} {seconds * 1e6:.1f} µs an example" for way, seconds in self.costs.items()]
        known += [f"{way}: not possible ({why})" for way, why in self.refusals.items()]
        return [f"{self.way}, since {self.why}; {'; '.join(known)}"]

    def _head(self) -> str:
        if self.way != "on the fly":
            return f"{_many(self.examples, 'example')}: {self.way}"
        least = f" (at least {self.bound})" if self.bound else ""
        of = f" (of which {self.replayed} came before)" if self.replayed else ""
        return (
            f"{_many(self.examples, 'example')}{of}: {_many(self.calls, 'call')} in"
            f" {_many(self.launches, 'launch')}{least}"
            f" and {_many(self.rounds, 'round')}"
        )


def _many(count: int, what: str) -> str:
    return f"{count} {what}" if count == 1 else f"{count} {what}{'es' if what.endswith('h') else 's'}"


def _folded(rows: Iterable[Launch]) -> list[Launch]:
    """Rows of one op that differ in sizes of the examples only, as one, with the range of each size; ms descending."""
    alike: dict[tuple[str, str], list[Launch]] = {}
    for row in rows:
        kind = _OWN_SHAPE.sub(lambda shape: _SIZE.sub("\0", shape[0]), row.signature)
        alike.setdefault((row.op, kind), []).append(row)
    out = []
    for (op, text), same in alike.items():
        shapes = zip(*(_SIZE.findall(",".join(_OWN_SHAPE.findall(row.signature))) for row in same), strict=True)
        for sizes in shapes:
            text = text.replace("\0", _range([int(size) for several in sizes for size in several.split("..")]), 1)
        calls, launches, seconds = (sum(getattr(r, n) for r in same) for n in ("calls", "launches", "seconds"))
        out.append(Launch(op, text, calls, launches, seconds))
    return sorted(out, key=lambda row: -row.seconds)


def _range(sizes: Sequence[int]) -> str:
    low, high = min(sizes), max(sizes)
    return str(low) if low == high else f"{low}..{high}"


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


def explain(f: Callable[..., Any], *args: Any, **shared: Any) -> Report:
    """Run `ab.map(f, *args, **shared)` once and report what was launched; `print` it to read it.

    With a `MaskedBatch` or `PackedBatch` among the arguments, or inside of one, `ab.batch(f)(*args, **shared)` runs
    instead. The report's `way` says whether it ran in lock-step, and `fallbacks` what it could not do so, and why.

    A straight-line run of the user's code is one row, `block FILE:LINES`; with `ab.options(blocks=False)` each
    operation has its own. Times of a first call include what it loads and compiles: explain twice to time.

    It runs by the way that has cost least on inputs of this kind, as any call does; by the way that it names, until the
    costs of that one and of the loop are known. The report says which it was, why, and what the others have cost.

    Args:
        f: a function of one example.
        args: as for `ab.map`, sequences of examples; or as for `ab.batch(f)`, batches and what examples share.
        shared: by keyword, the same for all examples (or, for `ab.batch(f)`, a batch).

    Returns:
        A `Report`. Warnings about slower ways are left out; it has them under `fallbacks`.

    Raises:
        Exception: what the call raises.

    >>> import numpy as np
    >>> report = explain(lambda x: x * 2.0 + 1.0, [np.ones(3), np.zeros(3), np.ones(2)])
    >>> report.calls, report.launches
    (3, 2)
    >>> print(report)  # doctest: +ELLIPSIS
    3 examples: 3 calls in 2 launches (at least 2) and 1 round
    <BLANKLINE>
    op ...
    """
    if has_batch(args, shared):
        return _of_batches(f, args, shared)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", FallbackWarning)
        with ran_ways() as ran:
            results, _ = map_with_stats(f, *args, **shared)
    return Report.of(ran[-1] if ran else Ran("fly", "", Stats(), {}), len(results))


def _of_batches(f: Callable[..., Any], args: Sequence[Any], shared: dict[str, Any]) -> Report:
    """The report of a lock-step call."""
    count = next(leaf.batch_size for leaf in leaves([*args, *shared.values()]) if isinstance(leaf, Batch))
    with noted_fallbacks() as notes, ran_ways() as ran:
        (f if isinstance(f, BatchFunction) else batch(f))(*args, **shared)
    for note in notes:
        ran[-1].stats.fallbacks[note] += 1
    return Report.of(ran[-1], count)
