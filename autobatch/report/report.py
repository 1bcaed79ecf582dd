"""The `Report` of `ab.explain`: the user's source with how each line ran, as text, HTML, a timeline and a graph."""

import dataclasses
import json
import os
import re
import textwrap
from collections.abc import Iterable, Sequence
from typing import Any

from autobatch.core.formatting import shown_bytes
from autobatch.report.graph import to_networkx
from autobatch.report.line_profile import LaunchNode, Span
from autobatch.report.page import notebook_table, page
from autobatch.report.timeline import trace_events

_WIDTH = 100  # columns of a printed report
_LONGEST_PLACE = 80
_SHOWN = 30  # rows of the table of operations
_DEAREST = 3  # lines shown first
_LEAST_SHARE = 0.02  # share of the time from which on a line may be shown first
_OWN_SHAPE = re.compile(r"(?<=[a-z0-9]\[)[\d, .]+(?=\](?!s))")  # the shape of an operand that differs by example
_SIZE = re.compile(r"\d+(?:\.\.\d+)?")  # a size, or the range of sizes


@dataclasses.dataclass(frozen=True)
class Launch:
    """The cost of all recorded calls of one signature.

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
    """A line of the user's code that forced a value, and how often."""

    file: str
    line: int
    times: int


@dataclasses.dataclass(frozen=True)
class Line:
    """A line of the user's source, and how the statement that begins there ran.

    Attributes:
        file, line, text: its place and its source.
        function: the name of its function.
        how: "one launch", "launches", "block", "compiled", "lane by lane", "loop", "all lanes" (control flow of all
            examples at once), "Python" (run for each example); "" if it did not run, or is part of the line above.
        seconds, share: its time, and that as a fraction of the call's time without `preparing`.
        times: the number of launches; if there were none, how often it ran.
        calls: the number of examples' calls that the launches ran.
        reason: why it is slow, if it could be faster; remedy: what to write instead, in one sentence.
    """

    file: str
    line: int
    text: str
    function: str
    how: str = ""
    seconds: float = 0.0
    share: float = 0.0
    times: int = 0
    calls: int = 0
    reason: str = ""
    remedy: str = ""


@dataclasses.dataclass(frozen=True, repr=False)
class Report:
    """The report of a call with some examples: print it, look at it in a notebook, or `save` it as a page.

    Attributes:
        way: how they ran: "on the fly", "lock-step", "compiled", or "the loop over the examples".
        examples: their number, None if not known; rounds: how often everything recorded was launched.
        bound: a lower bound of the launches in any schedule of the recorded calls; 0 if not computed.
        rows: on the fly, one `Launch` per signature, the most expensive first.
        forced: the lines that needed a value at once; fallbacks: {what ran call by call, and why: how often}.
        why: the reason for the way.
        costs: {way: seconds per example} of those that have run on inputs of this kind; refusals: {way: why not}.
        untried: the ways that have not run on such inputs yet.
        called: {way: number of calls}, if several calls were watched.
        name: the function's name; lines: the source of the functions that ran, one `Line` each.
        seconds: the time of the call, without that of the profiler. Parts of it are: `preparing`, rewriting, tracing
            and loading code, once; `backward`, the backward pass; `library`, other work that belongs to no line.
        nbytes: the size of all results of launches.
        spans: the timeline; nodes: the launches on the fly and what they read.
    """

    examples: int | None
    rounds: int
    rows: tuple[Launch, ...]
    forced: tuple[Forced, ...]
    fallbacks: dict[str, int]
    bound: int = 0
    way: str = "on the fly"
    why: str = ""
    costs: dict[str, float] = dataclasses.field(default_factory=dict)
    refusals: dict[str, str] = dataclasses.field(default_factory=dict)
    untried: tuple[str, ...] = ()
    called: dict[str, int] = dataclasses.field(default_factory=dict)
    name: str = ""
    lines: tuple[Line, ...] = ()
    seconds: float = 0.0
    preparing: float = 0.0
    library: float = 0.0
    backward: float = 0.0
    nbytes: int = 0
    spans: tuple[Span, ...] = ()
    nodes: tuple[LaunchNode, ...] = ()

    @property
    def launches(self) -> int:
        if self.rows:
            return sum(row.launches for row in self.rows)
        return sum(line.times for line in self.lines if line.calls)

    @property
    def calls(self) -> int:
        return sum(row.calls for row in self.rows) if self.rows else sum(line.calls for line in self.lines)

    @property
    def dearest(self) -> tuple[Line, ...]:
        """The lines that took time, the most expensive first."""
        lines = [line for line in self.lines if line.seconds > 0.0]
        return tuple(sorted(lines, key=lambda line: -line.seconds))

    def __repr__(self) -> str:
        return f"<Report of {self.name}: {self.head()}>"

    def summary(self) -> str:
        """The ways that ran, and the most expensive lines, as text."""
        return "\n".join([*_wrapped(self.head(), "  "), *self._ways(), *self._most_expensive()])

    def __str__(self) -> str:
        return "\n".join([self.summary(), *self._source(), *self._operations(), *self._others()])

    def _repr_html_(self) -> str:
        """HTML for notebooks."""
        return notebook_table(self)

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write the report as a page of its own: the source, the timeline and the graph.

        Args:
            path: of the file, as "report.html". What is there is replaced.
        """
        with open(path, "w", encoding="utf-8") as file:
            file.write(page(self))

    def chrome_trace(self, path: str | os.PathLike[str]) -> None:
        """Write the timeline in the format that chrome://tracing and https://ui.perfetto.dev read.

        Args:
            path: of the file, as "trace.json". What is there is replaced.
        """
        with open(path, "w", encoding="utf-8") as file:
            json.dump(trace_events(self.spans, self.name), file)

    def to_networkx(self) -> Any:
        """A `networkx.DiGraph`: on the fly a node for each launch, else one for each line that ran.

        Nodes have the attributes `label`, `file`, `line`, `calls` and `seconds`; an edge leads from what makes a value
        to what reads it.
        """
        return to_networkx(self)

    # As text.

    def head(self) -> str:
        """One line of text: examples, way, launches and time."""
        if self.examples is None or sum(self.called.values()) > 1:
            text = ", ".join(f"{_plural(count, 'call')} {way}" for way, count in self.called.items())
        else:
            text = f"{_plural(self.examples, 'example')}: {self.way}"
        if self.rows:
            least = f" (at least {self.bound})" if self.bound else ""
            text += f"; {_plural(self.calls, 'call')} in {_plural(self.launches, 'launch')}{least}"
            text += f" and {_plural(self.rounds, 'round')}"
        elif self.launches:
            text += f"; {_plural(self.launches, 'launch')}"
        if self.seconds:
            once = f", {_time(self.preparing)} of it once" if self.preparing > 0.05 * self.seconds else ""
            text += f"; {_time(self.seconds)} watched{once}"
        return text + (f"; {shown_bytes(self.nbytes)}" if self.nbytes else "")

    def _ways(self) -> list[str]:
        """Text: why the call ran by this way, and the costs or refusals of the others."""
        out = [f"{self.way}, since {self.why}"] if self.why else []
        for way, seconds in self.costs.items():
            out.append(f"  {way}: {seconds * 1e6:.1f} µs an example{' (taken)' if way == self.way else ''}")
        out += [f"  {way}: not possible ({why})" for way, why in self.refusals.items() if way not in self.costs]
        if self.way == "on the fly" and self.examples and not self.rows:
            out.append(
                "  nothing was recorded, so nothing runs together: only arrays of the examples and of what is given by "
                "keyword are (ab.map(f, examples, params=params)), not those of globals or of the model itself"
            )
        if self.untried:
            out.append(f"  not run on such inputs yet: {', '.join(self.untried)}")
        return [part for line in out for part in _wrapped(line, "    ")]

    def _most_expensive(self) -> list[str]:
        """The most expensive lines, and what to write instead."""
        found = [line for line in self.dearest if line.share >= _LEAST_SHARE][:_DEAREST]
        if not found:
            return []
        out = ["", "costs most:"]
        for line in found:
            where = f"{os.path.basename(line.file)}:{line.line}"
            out.append(_cut(f"  {line.share:4.0%}  {_time(line.seconds):>8}  {where}  {line.text.strip()}"))
            times = f", {line.times} times" if line.times > 1 else ""
            out += _wrapped(f"        {line.how}{times}{f'; {line.reason}' if line.reason else ''}", "        ")
            out += _wrapped(f"        → {line.remedy}", "          ") if line.remedy else []
        return out

    def _source(self) -> list[str]:
        out: list[str] = []
        said = {line.remedy for line in self.dearest[:_DEAREST] if line.share >= _LEAST_SHARE}
        before: tuple[str, str] | None = None
        for line in self.lines:
            if (line.file, line.function) != before:
                before = line.file, line.function
                out += ["", _cut(f"{line.function}  ({_location(line.file, line.line)})")]
                out.append("   line       ms    %  times  how")
            time = f"{line.seconds * 1e3:8.2f} {line.share:4.0%}" if line.how else " " * 13
            times = f"{line.times:6d}" if line.times else " " * 6
            out.append(_cut(f"{line.line:7d} {time} {times}  {line.how:<12}  {line.text}".rstrip()))
            if line.reason and line.remedy not in said:
                said.add(line.remedy)
                says = f"{line.reason} → {line.remedy}" if line.remedy else line.reason
                out += _wrapped(f"{' ' * 24}^ {says}", " " * 26)
        beside = (self.library, "recording, packing and the like"), (self.backward, "walking back for the gradient")
        found = [each for each in beside if each[0] > 0.01 * self.seconds] if self.lines else []
        for seconds, what in found:
            out += ["", f"{seconds * 1e3:16.2f} {seconds / (self.seconds - self.preparing):4.0%}  {what}"]
        return out

    def _operations(self) -> list[str]:
        if not self.rows:
            return []
        rows = _folded(self.rows)
        figures = [
            (r.op, r.signature, str(r.calls), str(r.launches), f"{r.mean_group:.1f}", f"{r.seconds * 1e3:.2f}")
            for r in rows[:_SHOWN]
        ]
        out = ["", *_table(("op", "signature", "calls", "launches", "mean group", "ms"), figures)]
        if rows[_SHOWN:]:
            out.append(f"and {len(rows) - _SHOWN} more, {sum(r.seconds for r in rows[_SHOWN:]) * 1e3:.2f} ms")
        return out

    def _others(self) -> list[str]:
        out: list[str] = []
        if self.forced:
            out += ["", "values needed at once (each wait ends a round):"]
            out += _table(("times", "where"), [(str(f.times), _location(f.file, f.line)) for f in self.forced])
        if self.fallbacks:
            out += ["", "not batched:"]
            for why, times in self.fallbacks.items():
                out += _wrapped(f"  {times} times: {why}" if times > 1 else f"  {why}", "    ")
        return out


def _plural(count: int, what: str) -> str:
    return f"{count:,} {what}" if count == 1 else f"{count:,} {what}{'es' if what.endswith('h') else 's'}"


def _time(seconds: float) -> str:
    return (
        f"{seconds:.2f} s"
        if seconds >= 1
        else f"{seconds * 1e3:.1f} ms"
        if seconds >= 1e-3
        else f"{seconds * 1e6:.0f} µs"
    )


def _location(file: str, line: int) -> str:
    """file:line, shortened from the left."""
    text = f"{file}:{line}"
    return text if len(text) <= _LONGEST_PLACE else f"…{text[1 - _LONGEST_PLACE :]}"


def _cut(text: str) -> str:
    return text if len(text) <= _WIDTH else text[: _WIDTH - 1] + "…"


def _wrapped(text: str, indent: str) -> list[str]:
    return textwrap.wrap(text, _WIDTH, subsequent_indent=indent, break_on_hyphens=False, drop_whitespace=True)


def _folded(rows: Iterable[Launch]) -> list[Launch]:
    """Merge rows of one op that differ only in sizes of examples, with ranges of sizes; most expensive first."""
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


_WIDEST = (24, 42)  # of an op's name and its signature


def _table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> list[str]:
    """The lines of a table with text aligned left and numbers aligned right."""
    limits = [*_WIDEST, *[_WIDTH] * len(head)] if len(head) > 2 else [_WIDTH] * 2
    cells = [
        [text if len(text) <= most else text[: most - 1] + "…" for text, most in zip(row, limits, strict=False)]
        for row in (head, *rows)
    ]
    widths = [max(map(len, column)) for column in zip(*cells, strict=True)]
    left = [all(not _is_number(row[k]) for row in cells[1:]) for k in range(len(head))]
    lines = []
    for row in cells:
        texts = [row[k].ljust(widths[k]) if left[k] else row[k].rjust(widths[k]) for k in range(len(head))]
        lines.append(_cut("  ".join(texts).rstrip()))
    return lines


def _is_number(text: str) -> bool:
    return text.replace(".", "", 1).isdigit()
