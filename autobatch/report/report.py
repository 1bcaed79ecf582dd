"""The `Report` of `ab.explain`: the user's source with how each line ran, as text, HTML, a Chrome trace and a graph."""

import dataclasses
import html
import json
import os
import re
from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple

from autobatch.core.formatting import columns, html_table, shown_bytes, wrapped
from autobatch.errors import shown_file
from autobatch.program.scopes import target_names
from autobatch.report.line_profile import LaunchNode, Span
from autobatch.report.source_lines import names_read, source_of

_SHOWN = 30  # rows of the table of operations
_FIRST = 3  # lines shown first
_STYLE = ":root { color-scheme: light dark } body > * { overflow-x: auto }"
_HEAD = f'<meta charset="utf-8"><meta name="viewport" content="width=device-width"><style>{_STYLE}</style>'
_SAYS = '<div style="padding-left:{}ch;text-indent:-2ch">{}</div>'
_TRACKS = ("python", "launch", "compiled", "library")  # of a Chrome trace
_OWN_SHAPE = re.compile(r"(?<=[a-z0-9]\[)[\d, .]+(?=\](?!s))")  # the shape of an operand that differs by example
_SIZE = re.compile(r"\d+(?:\.\.\d+)?")  # a size, or the range of sizes


class Launch(NamedTuple):
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


class Forced(NamedTuple):
    """A line of the user's code that forced a value, and how often."""

    file: str
    line: int
    times: int


class Line(NamedTuple):
    """A line of the user's source, and how the statement that begins there ran.

    Attributes:
        file, line, text: its place and its source.
        function: the name of its function.
        how: "one launch", "launches", "block", "compiled", "one by one", "loop", "all examples" (control flow of all at
            once), "Python" (run for each example); "" if it did not run, or is part of the line above.
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
        way: the execution mode: "tracing", "lock-step", "compiled", or "the loop".
        examples: their number, None if not known; watched: how many of a loop's the lines are of, 0 for all.
        rounds: how often everything recorded was launched.
        bound: a lower bound of the launches in any schedule of the recorded calls; 0 if not computed.
        rows: of tracing, one `Launch` per signature, the most expensive first.
        forced: the lines that needed a value at once; fallbacks: {what ran call by call, and why: how often}.
        why: the reason for the mode.
        costs: {mode: seconds per example} of those that have run on inputs of this kind; refusals: {mode: why not}.
        untried: the modes that have not run on such inputs yet.
        called: {mode: number of calls}, if several calls were watched.
        name: the function's name; lines: the source of the functions that ran, one `Line` each.
        overheads: what belongs to no line (`file` is ""), as the backward pass, in the form of a `Line`.
        warm: the seconds of a call after warm-up, unwatched; first: those of the first call. 0 if it was called once.
        seconds: the time of the watched call, without that of the profiler. Parts of it are: `preparing`, rewriting
            and loading code, once; `backward`, the backward pass; `library`, other work that belongs to no line.
        nbytes: the size of all results of launches.
        spans: the timeline; nodes: the traced launches and what they read.
        stages: {what it is: text} of the function's life, if `ab.explain` was asked for it.
    """

    examples: int | None
    rounds: int
    rows: tuple[Launch, ...]
    forced: tuple[Forced, ...]
    fallbacks: dict[str, int]
    bound: int = 0
    watched: int = 0
    way: str = "tracing"
    why: str = ""
    costs: dict[str, float] = dataclasses.field(default_factory=dict)
    refusals: dict[str, str] = dataclasses.field(default_factory=dict)
    untried: tuple[str, ...] = ()
    called: dict[str, int] = dataclasses.field(default_factory=dict)
    name: str = ""
    lines: tuple[Line, ...] = ()
    overheads: tuple[Line, ...] = ()
    warm: float = 0.0
    first: float = 0.0
    seconds: float = 0.0
    preparing: float = 0.0
    library: float = 0.0
    backward: float = 0.0
    nbytes: int = 0
    spans: tuple[Span, ...] = ()
    nodes: tuple[LaunchNode, ...] = ()
    stages: dict[str, str] = dataclasses.field(default_factory=dict)

    @property
    def launches(self) -> int:
        return sum([row.launches for row in self.rows] or [line.times for line in self.lines if line.calls])

    @property
    def calls(self) -> int:
        return sum(row.calls for row in self.rows) if self.rows else sum(line.calls for line in self.lines)

    @property
    def slowest(self) -> tuple[Line, ...]:
        """The lines that took time, the most expensive first."""
        return tuple(sorted((line for line in self.lines if line.seconds > 0.0), key=lambda line: -line.seconds))

    @property
    def shares(self) -> tuple[Line, ...]:
        """The lines and overheads with the largest shares of the time, the largest first."""
        found = [*self.overheads, *self.slowest]
        # A line with a smaller share of the time is not shown first.
        return tuple(sorted((each for each in found if each.share >= 0.02), key=lambda each: -each.share))

    def __repr__(self) -> str:
        return f"<Report of {self.name}: {self.head()}>"

    def summary(self) -> str:
        """The execution modes, and what takes the time, as text."""
        said = [wrapped(" " * at + text, " " * (at + 2)) or [""] for at, text in self._paragraphs()]
        return "\n".join(line for lines in said for line in lines)

    def __str__(self) -> str:
        stages = [part for name, text in self.stages.items() for part in ("", f"── {name}", text.rstrip())]
        return "\n".join([self.summary(), *self._source(), *self._operations(), *self._others(), *stages])

    def _repr_html_(self) -> str:
        """HTML for notebooks: what takes the time, and a table of the lines."""
        rows: list[Sequence[str]] = []
        for line in (*self.lines, *self.overheads) if self.lines else ():
            time, share = (self.time_of(line), f"{line.share:.0%}") if line.how or not line.file else ("", "")
            rows.append((str(line.line or ""), time, share, str(line.times or ""), line.how, line.text))
            if line.reason:
                rows.append(("", "", "", "", "", f"^ {line.reason}{f' → {line.remedy}' if line.remedy else ''}"))
        caption = f"{self.name} ({shown_file(self.lines[0].file)})" if rows else ""
        table = html_table(caption, ("line", "time", "%", "times", "how", "source"), rows) if rows else ""
        says = [_SAYS.format(at + 2, html.escape(text) or "&nbsp;") for at, text in self._paragraphs()]
        return f'<div style="font-family:monospace;white-space:pre-wrap">{"".join(says)}</div><br>{table}'

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write the report as a page of its own, which loads nothing: the table of lines, and the text that follows it.

        Args:
            path: of the file, as "report.html". What is there is replaced.
        """
        head = f"{_HEAD}<title>{html.escape(self.name or 'ab.explain')}</title>"
        text = str(self).removeprefix("\n".join([self.summary(), *self._source()]))
        body = f"{self._repr_html_()}<pre>{html.escape(text)}</pre>"
        with open(path, "w", encoding="utf-8") as file:
            file.write(f'<!doctype html><html lang="en"><head>{head}</head><body>{body}</body></html>')

    def chrome_trace(self, path: str | os.PathLike[str]) -> None:
        """Write the timeline in the format that chrome://tracing and https://ui.perfetto.dev read.

        Args:
            path: of the file, as "trace.json". What is there is replaced.
        """
        with open(path, "w", encoding="utf-8") as file:
            json.dump(_trace_events(self.spans, self.name), file)

    def to_networkx(self) -> Any:
        """A `networkx.DiGraph`: of tracing a node for each launch, else one for each line that ran.

        Nodes have the attributes `label`, `file`, `line`, `calls` and `seconds`; an edge leads from what makes a value
        to what reads it.
        """
        import networkx  # noqa: PLC0415 - heavy, and only for what a person looks at

        graph = networkx.DiGraph()
        if not self.nodes:
            return _line_graph(self, graph)
        for at, node in enumerate(self.nodes):
            file, line = node.place
            graph.add_node(at, label=node.op, file=file, line=line, calls=node.calls, seconds=node.seconds)
            graph.add_edges_from((read, at) for read in node.reads)
        return graph

    # As text.

    def _paragraphs(self) -> list[tuple[int, str]]:
        """(indent, text) of what a report says first: text of any length, "" for an empty line."""
        return [(0, self.head()), *self._largest_shares(), *self._modes()]

    def head(self) -> str:
        """One line of text: examples, execution mode, time, launches."""
        if self.examples is None or sum(self.called.values()) > 1:
            text = ", ".join(f"{_plural(count, 'call')} {_BY[way]}" for way, count in self.called.items())
            text = text or f"1 call {_BY[self.way]}"
        else:
            text = f"{_plural(self.examples, 'example')}: {self.way}"
        if self.warm:
            text += f"; {shown_time(self.warm)} a call after warm-up, {shown_time(self.first)} the first call"
        elif self.seconds:
            once = f", {shown_time(self.preparing)} of it once" if self.preparing > 0.05 * self.seconds else ""
            text += f"; {shown_time(self.seconds)} watched{once}"
        text += f"; the first {_plural(self.watched, 'example')} watched" if self.watched else ""
        if self.rows:
            least = f" (at least {self.bound})" if self.bound else ""
            text += f"; {_plural(self.calls, 'operation')} in {_plural(self.launches, 'launch')}{least}"
            text += f" and {_plural(self.rounds, 'round')}"
        elif self.launches:
            text += f"; {_plural(self.launches, 'launch')}"
        return text + (f"; {shown_bytes(self.nbytes)}" if self.nbytes else "")

    def time_of(self, line: Line) -> str:
        """A line's share of the time of a call, with its unit: of one after warm-up, or else of the watched one."""
        return shown_time(line.share * self.warm if self.warm else line.seconds)

    def modes(self) -> list[tuple[str, str]]:
        """(execution mode, what it costs or why it did not run), the one that ran first."""
        costs = {way: f"{seconds * 1e6:,.1f} µs an example" for way, seconds in self.costs.items()}
        why = [text for text in (costs.pop(self.way, ""), self.why and f"chosen: {self.why}") if text]
        refused = ((way, f"not possible: {why}") for way, why in self.refusals.items() if way not in self.costs)
        out = [*([(self.way, "; ".join(why))] if why else []), *costs.items(), *refused]
        return out + [(way, "not run on such inputs yet") for way in self.untried]

    def _modes(self) -> list[tuple[int, str]]:
        out = [(0, ""), (0, "execution modes:")] if self.modes() else []
        out += [(2, f"{way}: {says}") for way, says in self.modes()]
        if self.way == "tracing" and self.examples and not self.rows:
            says = "nothing was recorded, so nothing runs together: pass arrays in the examples, and parameters by "
            out.append((2, f"{says}keyword, ab.map(f, examples, params=params): operations on them are recorded"))
        return out

    def _largest_shares(self) -> list[tuple[int, str]]:
        """What takes most of the time, and what to do about it."""
        out = [(0, ""), (0, "where the time goes:")] if self.shares else []
        said: set[str] = set()
        for line in self.shares[:_FIRST]:
            where = f"{os.path.basename(shown_file(line.file))}:{line.line}  " if line.file else ""
            says = f"{line.share:4.0%}  {self.time_of(line):>8}  {where}{line.text.strip()}"
            out.append((2, _cut(says, min(columns(), 100) - 2)))
            times = f"{line.how}, {line.times} times" if line.times > 1 else line.how
            says = "; ".join(each for each in (times, line.reason) if each and each not in said)
            said.add(line.reason)
            out += [(8, says)] if says else []
            if line.remedy and line.remedy not in said:
                said.add(line.remedy)
                out.append((8, f"→ {line.remedy}"))
        return out

    def _source(self) -> list[str]:
        out: list[str] = []
        said = {line.remedy for line in self.shares[:_FIRST]}
        before: tuple[str, str] | None = None
        for line in self.lines:
            if (line.file, line.function) != before:
                before = line.file, line.function
                room = columns() - len(line.function) - 4
                out += ["", f"{line.function}  ({_location(shown_file(line.file), line.line, room)})"]
                out.append("   line     time    %  times  how")
            time = f"{self.time_of(line):>8} {line.share:4.0%}" if line.how else " " * 13
            times = f"{line.times:6d}" if line.times else " " * 6
            out.append(_cut(f"{line.line:7d} {time} {times}  {line.how:<12}  {line.text}".rstrip()))
            if line.reason and line.remedy not in said:
                said.add(line.remedy)
                says = f"{line.reason} → {line.remedy}" if line.remedy else line.reason
                out += wrapped(f"{' ' * 24}^ {says}", " " * 26)
        for each in self.overheads if self.lines else ():
            out += ["", f"{self.time_of(each):>16} {each.share:4.0%}  {each.text}"]
        return out

    def _operations(self) -> list[str]:
        if not (rows := _folded(self.rows)):
            return []
        figures = [
            (r.op, r.signature, str(r.calls), str(r.launches), f"{r.mean_group:.1f}", f"{r.seconds * 1e3:.2f}")
            for r in rows[:_SHOWN]
        ]
        out = ["", *_table(("op", "signature", "calls", "launches", "group", "ms"), figures)]
        if rows[_SHOWN:]:
            out.append(f"and {len(rows) - _SHOWN} more, {sum(r.seconds for r in rows[_SHOWN:]) * 1e3:.2f} ms")
        return out

    def _others(self) -> list[str]:
        out: list[str] = []
        if self.forced:
            out += ["", "values needed at once (each wait ends a round):"]
            rows = [(str(f.times), _location(shown_file(f.file), f.line, columns() - 7)) for f in self.forced]
            out += _table(("times", "where"), rows)
        if self.fallbacks:
            out += ["", "not batched:"]
            for why, times in self.fallbacks.items():
                out += wrapped(f"  {times} times: {why}" if times > 1 else f"  {why}", "    ")
        return out


_BY = {"tracing": "by tracing", "lock-step": "in lock-step", "compiled": "compiled", "the loop": "as a loop"}


def _plural(count: int, what: str) -> str:
    return f"{count:,} {what}" if count == 1 else f"{count:,} {what}{'es' if what.endswith('h') else 's'}"


def _location(file: str, line: int, width: int) -> str:
    """file:line, shortened from the left."""
    text = f"{file}:{line}"
    return text if len(text) <= width else f"…{text[1 - width :]}"


def _cut(text: str, width: int = 0) -> str:
    width = width or columns()
    return text if len(text) <= width else text[: width - 1] + "…"


def _folded(rows: Iterable[Launch]) -> list[Launch]:
    """Merge rows of one op that differ only in sizes of examples, with ranges of sizes; most expensive first."""
    alike: dict[tuple[str, str], list[Launch]] = {}
    for row in rows:
        pattern = _OWN_SHAPE.sub(lambda shape: _SIZE.sub("\0", shape[0]), row.signature)
        alike.setdefault((row.op, pattern), []).append(row)
    out = []
    for (op, text), same in alike.items():
        shapes = zip(*(_SIZE.findall(",".join(_OWN_SHAPE.findall(row.signature))) for row in same), strict=True)
        for several in shapes:
            sizes = sorted({int(size) for each in several for size in each.split("..")})
            text = text.replace("\0", "..".join(map(str, dict.fromkeys((sizes[0], sizes[-1])))), 1)
        calls, launches, seconds = (sum(getattr(r, n) for r in same) for n in ("calls", "launches", "seconds"))
        out.append(Launch(op, text, calls, launches, seconds))
    return sorted(out, key=lambda row: -row.seconds)


def _table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> list[str]:
    """The lines of a table: texts first, aligned left and cut where they do not fit, then numbers, aligned right."""
    numbers = [all(row[k].replace(".", "", 1).isdigit() for row in rows) for k in range(len(head))]
    cells = [list(row) for row in (head, *rows)]
    widths = [max(map(len, column)) for column in zip(*cells, strict=True)]
    room = columns() - sum(width + 2 for width, number in zip(widths, numbers, strict=True) if number)
    for k in (k for k, number in enumerate(numbers) if not number):
        last = not any(not number for number in numbers[k + 1 :])
        widths[k] = min(widths[k], room if last else 24)
        room -= widths[k] + 2
    lines = []
    for row in cells:
        placed = zip(row, widths, numbers, strict=True)
        texts = [text.rjust(width) if number else _cut(text, width).ljust(width) for text, width, number in placed]
        lines.append("  ".join(texts).rstrip())
    return lines


def _trace_events(spans: Sequence[Span], name: str) -> dict[str, Any]:
    """The timeline in the Trace Event Format of Chrome's tracing, as complete events ("X"); `name` is the process's."""
    events: list[Any] = [{"name": "process_name", "ph": "M", "pid": 1, "args": {"name": name or "autobatch"}}]
    for at, track in enumerate(_TRACKS):
        events.append({"name": "thread_name", "ph": "M", "pid": 1, "tid": at, "args": {"name": track}})
    for span in spans:
        where = {"file": span.place[0], "line": span.place[1]} if span.place[0] else {}
        label = f"{os.path.basename(shown_file(span.place[0]))}:{span.place[1]}" if where else span.kind
        event = {"name": span.name or label, "cat": span.kind, "ph": "X", "pid": 1, "tid": _TRACKS.index(span.kind)}
        events.append(event | {"ts": round(span.start * 1e6, 3), "dur": round(span.seconds * 1e6, 3), "args": where})
    return {"traceEvents": events, "displayTimeUnit": "ms"}


def shown_time(seconds: float) -> str:
    """Seconds in the unit that suits them, as text."""
    digits, scale, unit = (2, 1, "s") if seconds >= 1 else (1, 1e3, "ms") if seconds >= 1e-3 else (0, 1e6, "µs")
    return f"{seconds * scale:.{digits}f} {unit}"


def _line_graph(report: Report, graph: Any) -> Any:
    """A graph of the lines that ran, with edges from the lines that bind a name to those that read it."""
    bound: dict[tuple[str, str, str], list[int]] = {}
    ran = [line for line in report.lines if line.how and line.seconds > 0.0]
    reads: list[tuple[int, tuple[str, str, str], bool]] = []
    for at, line in enumerate(ran):
        label = line.text.strip()
        graph.add_node(at, label=label, file=line.file, line=line.line, calls=line.calls, seconds=line.seconds)
        source = source_of(line.file)
        if (node := source.statement(line.line)) is None:
            continue
        head = [getattr(node, name) for name in ("test", "iter", "target") if hasattr(node, name)]
        parts = head if hasattr(node, "body") else [node]
        looped = bool(source.enclosing_loops(node))
        for part in parts:
            reads += [(at, (line.file, line.function, name), looped) for name in sorted(names_read(part))]
            for name in target_names(part):
                bound.setdefault((line.file, line.function, name), []).append(at)
    for at, key, looped in reads:
        makers = bound.get(key, [])
        if before := [maker for maker in makers if maker < at]:
            graph.add_edge(before[-1], at)
        later = [maker for maker in makers if maker > at]
        if looped and later:  # from the previous step
            graph.add_edge(later[-1], at)
    return graph
