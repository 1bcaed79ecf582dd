"""`ab.explain`: runs a call under observation and reports how each line of the user's code ran, as a `Report`."""

import contextlib
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from types import CodeType
from typing import Any

from autobatch.api.batch import BatchFunction, batch
from autobatch.api.call_ways import NOT_NEEDED
from autobatch.api.run_record import NAMES, Ran, ran_ways
from autobatch.api.transforms import map_with_stats
from autobatch.batches.any_batch import Batch, has_batch
from autobatch.core.diagnostics import Fallback, hide_frames, noted_fallbacks
from autobatch.core.pytree import leaves
from autobatch.lazy.launching import Stats
from autobatch.report.advice import Facts, advice
from autobatch.report.line_profile import BACKWARD, LIBRARY, PREPARING, Figures, LineProfile, Place, is_users_code
from autobatch.report.report import Forced, Launch, Line, Report
from autobatch.report.source_lines import Section, source_of

_PARTS = ("_ab_body", "<genexpr>", "<listcomp>", "<setcomp>", "<dictcomp>")  # nested code, shown with its function
_WORTH = 0.04  # share of the time from which on a line gets advice
_FLY, _LOOP, _COMPILED, _LOCKSTEP = NAMES["fly"], NAMES["loop"], NAMES["compiled"], NAMES["lockstep"]


def explain(f: Callable[..., Any], *args: Any, **shared: Any) -> Report:
    """Run `ab.map(f, *args, **shared)` once and report how each line of `f` ran; `print` the report to read it.

    With a `MaskedBatch` or `PackedBatch` among the arguments, or inside of one, `ab.batch(f)(*args, **shared)` runs
    instead. What `ab.grad` and `ab.value_and_grad` give is called as it is: the report is of the calls in it.

    It runs by the way that calls of its kind take now, and by the one that it names before there was any
    (`ab.options(way=...)` pins one). The report says which it was, why, and what the others have cost. A straight-line
    run of the user's code is one row, `block FILE:LINES`; with `ab.options(blocks=False)` each operation has its own.

    Args:
        f: a function of one example.
        args: as for `ab.map`, sequences of examples; or as for `ab.batch(f)`, batches and what examples share.
        shared: by keyword, the same for all examples (or, for `ab.batch(f)`, a batch).

    Returns:
        A `Report`. Warnings about slower ways are left out; it has them under `fallbacks`. Times are without what it
        took to look; `preparing` is what only a first call takes. Where a debugger or a coverage tool traces this
        thread, it does not see this call.

    Raises:
        Exception: what the call raises.

    >>> import numpy as np
    >>> report = explain(lambda x: x * 2.0 + 1.0, [np.ones(3), np.zeros(3), np.ones(2)])
    >>> report.calls, report.launches
    (3, 1)
    >>> print(report)  # doctest: +ELLIPSIS
    3 examples: on the fly; 3 calls in 1 launch (at least 1) and 1 round; ...
    """
    batched = has_batch(args, shared)
    with watching() as watched:
        try:
            if hasattr(f, "_ab_differentiated"):
                f(*args, **shared)
            elif batched:
                (f if isinstance(f, BatchFunction) else batch(f))(*args, **shared)
            else:
                watched.examples = len(map_with_stats(f, *args, **shared)[0])
        except Exception as error:
            hide_frames(error)
            raise
    watched.batched = batched
    if batched:
        watched.examples = next(x.batch_size for x in leaves([*args, *shared.values()]) if isinstance(x, Batch))
    return watched.report(f)


class WatchedCalls:
    """The observations of the calls in a block of code.

    Attributes:
        ran: how calls ran, in the order of their ends; notes: what fell back; profile: where the time went.
        examples: how many the outermost call had, where that is known; batched: whether it was given batches.
    """

    def __init__(self, ran: list[Ran], notes: list[Fallback], profile: LineProfile) -> None:
        self.ran, self.notes, self.profile = ran, notes, profile
        self.examples: int | None = None
        self.batched = False

    def report(self, f: Any = None) -> Report:
        """A report of all observations; by default of the function that was called last."""
        last = self.ran[-1] if self.ran else Ran("fly", "", f, Stats(), {})
        stats = _summed_stats([each.stats for each in self.ran]) if len(self.ran) > 1 else last.stats
        way, profile = NAMES[last.way], self.profile
        rows = [Launch(op, text, *figures) for (op, text), figures in stats.by_signature.items()]
        forced = [Forced(file, line, times) for (file, line), times in stats.forced.most_common()]
        fallbacks = dict(stats.fallbacks)
        for note in self.notes:
            if not any(why in note.reason for why in stats.fallbacks):
                fallbacks[note] = fallbacks.get(note, 0) + 1
        function = last.function if f is None or hasattr(f, "_ab_differentiated") else f
        return Report(
            examples=self.examples,
            rounds=stats.rounds,
            rows=tuple(sorted(rows, key=lambda row: -row.seconds)),
            forced=tuple(forced),
            fallbacks=fallbacks,
            bound=stats.bound,
            way=way,
            why=last.why,
            costs={NAMES[each]: cost.seconds for each, cost in last.costs.items() if cost.seconds is not None},
            refusals=_refusals(last),
            untried=tuple(
                NAMES[each] for each, cost in last.costs.items() if not (cost.runs or cost.refused) and each != last.way
            ),
            called=dict(Counter(NAMES[each.way] for each in self.ran)),
            name=_name(function),
            lines=tuple(_lines(self, way, _code(function), stats)),
            seconds=profile.seconds,
            preparing=profile.figures_of(PREPARING).seconds,
            library=profile.figures_of(LIBRARY).seconds,
            backward=profile.figures_of(BACKWARD).seconds,
            nbytes=0 if way == _LOOP else profile.nbytes,
            spans=tuple(profile.spans),
            nodes=tuple(profile.nodes),
        )


@contextlib.contextmanager
def watching() -> Iterator[WatchedCalls]:
    """Watch all calls of the library in a block of code, in this thread; fallbacks give no warning.

    >>> import numpy as np
    >>> import autobatch as ab
    >>> with watching() as watched:
    ...     _ = ab.map(np.tanh, [np.ones(2), np.ones(3)])
    >>> len(watched.ran)
    1
    """
    profile = LineProfile()
    with noted_fallbacks() as notes, ran_ways(lines=True) as ran:
        watched = WatchedCalls(ran, notes, profile)
        with profile:
            yield watched


def _refusals(ran: Ran) -> dict[str, str]:
    found = {NAMES[each]: cost.refused for each, cost in ran.costs.items() if cost.refused}
    return {way: why for way, why in found.items() if why != NOT_NEEDED}


def _summed_stats(found: Sequence[Stats]) -> Stats:
    """The statistics of several calls, added."""
    out = Stats()
    for stats in {id(each): each for each in found}.values():
        for name in ("launches", "bound", "calls", "rounds", "reads"):
            setattr(out, name, getattr(out, name) + getattr(stats, name))
        for key, (calls, launches, seconds) in stats.by_signature.items():
            row = out.by_signature.setdefault(key, [0, 0, 0.0])
            row[:] = row[0] + calls, row[1] + launches, row[2] + seconds
        out.forced += stats.forced
        out.fallbacks += stats.fallbacks
    return out


def _name(function: Any) -> str:
    while hasattr(function, "func"):  # a partial
        function = function.func
    return str(getattr(function, "__qualname__", type(function).__name__))


def _code(function: Any) -> Any:
    """The code object of the user's function, or None."""
    while True:
        inner = getattr(function, "__wrapped__", None) or getattr(function, "func", None)
        inner = inner or getattr(function, "__func__", None)
        if inner is None:
            break
        function = inner
    if not hasattr(function, "__code__"):
        function = getattr(type(function), "__call__", None)  # noqa: B004  (its value is needed)
    return getattr(function, "__code__", None)


def _sections(watched: WatchedCalls, code: Any) -> list[Section]:
    """The functions to show: the called one, then the most expensive; no function nested in another one."""
    found = [each for each in watched.profile.codes.values() if each.co_name not in _PARTS]
    own: Section | None = None
    if code is not None and is_users_code(code):
        found.append(code)
        own = _section(code)
    sections = list(map(_section, found))
    sections = [each for each in sections if source_of(each.file).lines]
    outer = [each for each in sections if not any(other is not each and _is_inside(each, other) for other in sections)]

    outer = list({(each.file, each.first, each.last): each for each in outer}.values())

    def rank(section: Section) -> tuple[bool, float]:
        seconds = sum(each.seconds for place, each in watched.profile.lines.items() if place in section)
        return own is None or (own.file, own.first) not in section, -seconds

    return sorted(outer, key=rank)


def _section(code: CodeType) -> Section:
    return source_of(code.co_filename, code).section(code.co_firstlineno, code.co_name)


def _is_inside(section: Section, other: Section) -> bool:
    within = section.file == other.file and other.first <= section.first and section.last <= other.last
    return within and (section.first, section.last) != (other.first, other.last)


def _lines(watched: WatchedCalls, way: str, code: Any, stats: Stats) -> Iterator[Line]:
    """The lines of the report, of each function that ran."""
    profile = watched.profile
    figures = _by_statement(profile.lines)
    total = profile.seconds - profile.figures_of(PREPARING).seconds or 1.0
    notes: dict[Place, list[str]] = {}
    for note in watched.notes:
        file, line = note.where
        notes.setdefault((file, source_of(file).start(line)), []).append(note.reason)
    refusals = _refusals(watched.ran[-1]) if watched.ran else {}
    gave_up = ", ".join(dict.fromkeys(f"line {line}" for _, line in list(notes)[:3])) if way == _FLY else ""
    facts = Facts(way, watched.examples or 0, refusals, watched.batched, gave_up if watched.batched else "")
    waits: Counter[Place] = Counter()
    for (file, line), times in stats.forced.items():
        waits[file, source_of(file).start(line)] += times
    for section in _sections(watched, code):
        source, last = source_of(section.file), 0
        first = source.text(section.first)
        indent = len(first) - len(first.lstrip())
        for number in range(section.first, section.last + 1):
            place = section.file, number
            text = source.text(number)[indent:] if not source.text(number)[:indent].strip() else source.text(number)
            found = figures.get(place)
            if found is None or source.start(number) != number:
                how = "block" if number <= last and text.strip() and source.start(number) == number else ""
                if way == _COMPILED and not how and source.start(number) == number and number > section.first:
                    how = "compiled" if source.statement(number) is not None else ""
                yield Line(section.file, number, text, section.name, how)
                continue
            last = max(last, found.last)
            own_notes = tuple(dict.fromkeys(notes.get(place, ())))
            dear = found.seconds >= _WORTH * total
            reason, remedy = advice(source, number, found, facts, waits[place], own_notes, dear)
            launched = way != _LOOP and found.launches
            yield Line(
                section.file, number, text, section.name, _how(found, way, own_notes), found.seconds,
                found.seconds / total, launched or found.runs, found.calls if launched else 0, reason, remedy,
            )  # fmt: skip


def _by_statement(lines: dict[Place, Figures]) -> dict[Place, Figures]:
    """The figures by statement: those of its lines are merged."""
    out: dict[Place, Figures] = {}
    for (file, line), each in lines.items():
        if not file:
            continue
        start = source_of(file).start(line)
        into = out.setdefault((file, start), Figures())
        into.runs = max(into.runs, each.runs) if line != start else each.runs
        into.seconds += each.seconds
        into.calls += each.calls
        into.launches += each.launches
        into.nbytes += each.nbytes
        into.last = max(into.last, each.last)
        into.compiled = into.compiled or each.compiled
    return out


def _how(figures: Figures, way: str, notes: Sequence[str]) -> str:
    """`Line.how`: one or two words on how the line ran."""
    if figures.compiled or way == _COMPILED:  # some examples also ran in Python, to compare the costs
        return "compiled"
    if way == _LOOP:
        return "loop"
    if notes and way in (_FLY, _LOCKSTEP):
        return "lane by lane"
    if figures.last:
        return "block"
    if figures.launches:
        return "one launch" if figures.launches == 1 else "launches"
    return "Python" if way == _FLY else "all lanes"
