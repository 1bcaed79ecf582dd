"""`ab.explain`: runs a call under observation and reports how each line of the user's code ran, as a `Report`."""

import contextlib
import dataclasses
import itertools
import math
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from types import CodeType
from typing import Any

from autobatch.api.batch import BatchFunction, batch
from autobatch.api.call_ways import NOT_NEEDED
from autobatch.api.measured_costs import functions, is_array_code
from autobatch.api.run_record import NAMES, Ran, ran_ways
from autobatch.api.transforms import map_with_stats
from autobatch.batches.any_batch import Batch, has_batch
from autobatch.batches.data.collate import collate
from autobatch.batches.objects import ObjectBatch
from autobatch.blocks.kernel_cache import wait_for_kernels
from autobatch.core.config import config, options
from autobatch.core.current_region import clock
from autobatch.core.diagnostics import hiding_frames, noted_fallbacks
from autobatch.core.pytree import children_of, is_node, leaves
from autobatch.core.snapshot import Snapshot
from autobatch.errors import Reason, Unsupported, UnsupportedError
from autobatch.lazy.example_state import shows_order
from autobatch.lazy.launching import Stats
from autobatch.lockstep.lockstep_forms import block_lines
from autobatch.program.purity import may_change
from autobatch.report.advice import Facts, advice, general_advice, mended, overhead
from autobatch.report.line_profile import BACKWARD, LIBRARY, PREPARING, Figures, LineProfile, Place, is_users_code
from autobatch.report.report import Forced, Launch, Line, Report
from autobatch.report.source_lines import Section, code_of, compiled_text, source_of
from autobatch.report.source_lines import stages as stages_of

_PARTS = ("_ab_body", "<genexpr>", "<listcomp>", "<setcomp>", "<dictcomp>")  # nested code, shown with its function
_WORTH = 0.04  # share of the time from which on a line gets advice
_FLY, _LOOP, _COMPILED, _LOCKSTEP = NAMES["fly"], NAMES["loop"], NAMES["compiled"], NAMES["lockstep"]
_OVERHEADS = {
    _FLY: "recording, scheduling and packing", _LOCKSTEP: "entering the call and packing its result",
    _COMPILED: "entering the call and packing its result", _LOOP: "the loop itself",
}  # fmt: skip
_WARM_CALLS, _WARM = 5, 0.02  # before the one that is watched: at most; for so many seconds, if they are short
_COMPILING, _WAITED = 2.0, 4  # to wait for compiled code: at most these seconds, and times those of the first call
_SHORT, _MOST = 0.03, 6  # to watch a short call again: at most these seconds; all takes so many times a call
_CHEAP = 5e-6  # seconds that other modes add to an example at the least, on any machine of today
_TIMES = 4  # times a call to watch examples of a loop

_USAGE = "ab.explain(f, examples, name=shared), ab.explain(f, batch, …), or ab.explain(ab.value_and_grad(loss), params)"


@hiding_frames
def explain(f: Callable[..., Any], *args: object, stages: bool = False, **shared: Any) -> Report:
    """Run `ab.map(f, *args, **shared)` and report how each line of `f` ran; `print` the report to read it.

    With a `MaskedBatch` or `PackedBatch` among the arguments, or inside of one, `ab.batch(f)(*args, **shared)` runs
    instead. A function made by `ab.grad` or `ab.value_and_grad` is called as it is; the report covers the calls in it.

    First the call runs a few times unobserved, until its mode is chosen and its code is compiled; what these runs
    change is undone. A function with outside effects (it prints, or draws random numbers) runs only once. A short call
    is then measured several times, and the least disturbed run is reported; in the loop, only the first examples are
    measured. So a report takes at most about ten times as long as a warm call. It runs in the mode that such calls
    take after warm-up (`ab.options(way=...)` pins one). The report says which mode ran, why, and what the other modes
    cost. A straight-line run of the user's code is one row, `block FILE:LINES`; with `ab.options(blocks=False)` each
    operation has its own row.

    Args:
        f: a function of one example.
        args: as for `ab.map`, sequences of examples; or as for `ab.batch(f)`, batches and what examples share.
        stages: also show what the function becomes: its normal form, its blocks, and the code of each mode. A call is
            traced for this.
        shared: keyword arguments, the same for all examples (or, for `ab.batch(f)`, a batch).

    Returns:
        A `Report`. Warnings about slower modes are not shown; they are in its `fallbacks`. Times of lines exclude the
        cost of measuring.
        A debugger or coverage tool that traces this thread does not see the measured call.

    Raises:
        Exception: what the call raises.

    >>> import numpy as np
    >>> from autobatch import options
    >>> with options(way="fly"):
    ...     report = explain(lambda x: x * 2.0 + 1.0, [np.ones(3), np.zeros(3), np.ones(2)])
    >>> report.calls, report.launches
    (3, 1)
    >>> print(report)  # doctest: +ELLIPSIS
    3 examples: tracing; ...
    """
    call = _Explained(f, args, shared)
    whole = not call.batched and call.function is f and any(type(arg) is dict for arg in args)
    if whole or not callable(f) or not (args or shared):
        given = f"{type(f).__name__} first" if not callable(f) else "a dict of parameters" if whole else "no arguments"
        raise UnsupportedError(f"ab.explain takes a function and what to call it with; got {given}: write {_USAGE}")
    watched = call.watched()
    report = watched.report(f)
    return dataclasses.replace(report, stages=call.stages(bool(watched.times))) if stages else report


class _Explained:
    """The call that is reported on.

    Attributes:
        batched: batches are given; function: what is called, or of a gradient, what is differentiated.
    """

    def __init__(self, f: Any, args: tuple[Any, ...], shared: dict[str, Any]) -> None:
        self.f, self.args, self.shared = f, args, shared
        self.batched = has_batch(args, shared)
        self.function = f._ab_differentiated.function if hasattr(f, "_ab_differentiated") else f

    def run(self) -> Any:
        """Call the function; returns its results."""
        if self.function is not self.f:
            return self.f(*self.args, **self.shared)
        if self.batched:
            return (self.f if isinstance(self.f, BatchFunction) else batch(self.f))(*self.args, **self.shared)
        return map_with_stats(self.f, *self.args, **self.shared)[0]

    def watched(self) -> "WatchedCalls":
        """The least disturbed of some observed calls, after calls that nobody observes."""
        begun, is_map = clock(), not self.batched and self.function is self.f
        times, spent, restore = self._warm_up()
        most = max(_TIMES * min(times[1:]), _SHORT) if times and self.function is self.f else math.inf
        warm = min(spent, default=0.0)
        looks: list[WatchedCalls] = []
        look, begun = 0.0, begun + max(spent[0] - warm, 0.0) if times else begun  # the first call may have compiled
        while not looks or (times and len(looks) < 5 and clock() + look - begun < min(_SHORT, _MOST * warm)):
            if looks:
                restore()
            look = clock()
            with watching(most) as watched:
                results = self.run()
            look = clock() - look
            looks.append(watched)
        batches = (x.batch_size for x in leaves([self.args, self.shared]) if isinstance(x, Batch))
        count = len(results) if is_map else next(batches, None)
        # what the machine did meanwhile is not the call's
        watched = min(looks, key=lambda each: each.profile.seconds / (each.profile.seen or count or 1))
        watched.times, watched.batched, watched.examples = times, self.batched, count
        if not self.batched:
            watched.no_batch = "its examples are not known" if count is None else _why_no_batch(self.f, self.args)
            watched.numbers = count is not None and all(isinstance(each, int | float) for each in leaves(self.args))
        if count:
            watched.compiling = lambda: compiled_text(self.f, self.args, self.shared, self.batched)
        return watched

    def _warm_up(self) -> tuple[list[float], list[float], Callable[[], None]]:
        """The seconds of a few calls, on the wall and computed by this thread, and what undoes a call's changes.

        There are none if it has effects that cannot be undone.
        """
        roots = [self.function, self.args, self.shared]
        kinds = {type(value) for value in leaves(roots[1:])}
        before = Snapshot(roots, most=2_000)  # the first of many examples show what the function may change
        if shows_order(before, kinds):
            return [], [], before.restore
        changing = may_change(before.functions or roots[:1], [*before.classes, *kinds])
        if changing and not before.complete:
            before = Snapshot(roots)
        times, spent = list[float](), list[float]()
        most = _WARM_CALLS
        histories = (kind for costs in functions.copy().values() for kind in costs.kinds.copy().values())
        counts = [(kind, kind.calls) for kind in histories]
        with noted_fallbacks():
            while len(times) < 2 or (len(times) < most and sum(times[1:]) < max(0.8 * times[0], _WARM)):
                began, before_call = time.perf_counter(), clock()
                self.run()
                now = time.perf_counter()
                times.append(now - began)
                spent.append(clock() - before_call)
                if len(times) == 1:
                    if min((before for kind, before in counts if kind.calls != before), default=0) >= most:
                        most = 2  # of what was called as often, the mode is chosen
                    end = now + min(_COMPILING, _WAITED * times[0])
                elif config.way != "auto" and times[0] < 2 * times[1]:  # there is nothing to choose, or to set up
                    most = 2
                wait_for_kernels(max(end - now, 0.0))
                if changing:
                    before.restore()
        return times, spent, before.restore if changing else lambda: None

    def stages(self, warm: bool) -> Any:
        """What the function becomes; `warm`: it may be called again."""
        before = Snapshot([self.function, self.args, self.shared])
        with options(way="fly"), noted_fallbacks():
            for _ in range(3 if warm else 0):  # the first examples run, so that the recorder knows their blocks' inputs
                self.run()
                before.restore()
        return stages_of(self.function, self.args, self.shared, self.batched)


def _why_no_batch(f: Any, columns: Sequence[Any]) -> str:
    """Why these examples cannot be collated for lock-step, or it does not support the function; "" if neither is so."""
    try:
        # A few examples are collated to see whether a batch can be made of them.
        firsts = [list(itertools.islice(column, 8)) for column in columns]
        collated = [collate(each) for each in firsts]
        if any(isinstance(leaf, ObjectBatch) for leaf in leaves(collated)) or any(map(_lists_records, firsts)):
            return "no batch can be made of the examples"
        code = code_of(f)
        if code is not None and is_users_code(code):
            block_lines(f)
    except Exception as error:
        return str(error)
    return ""


def _lists_records(examples: list[Any]) -> bool:
    """True if an example has a list of records, as a tree has; a batch has a record of lists instead."""
    stack = [(each, False) for each in examples]
    while stack:
        tree, listed = stack.pop()
        if is_node(tree):
            if listed and type(tree) is not list:
                return True
            stack += [(each, type(tree) is list) for each in children_of(tree)[1]]
    return False


@dataclasses.dataclass
class WatchedCalls:
    """The observations of the calls in a block of code.

    Attributes:
        ran: how calls ran, in the order of their ends; notes: what fell back; profile: where the time went.
        examples: how many the outermost call had, where that is known; batched: whether it was given batches.
        no_batch: why the examples cannot run in lock-step; times: the seconds of the calls before.
        compiling: raises `Unsupported` where they cannot be compiled; numbers: they are single numbers.
    """

    ran: list[Ran]
    notes: list[Reason]
    profile: LineProfile
    examples: int | None = None
    batched: bool = False
    no_batch: str = ""
    times: Sequence[float] = ()
    compiling: Callable[[], object] = str
    numbers: bool = False

    def report(self, f: object = None) -> Report:
        """A report of all observations; by default of the function that was called last."""
        last = self.ran[-1] if self.ran else Ran("fly" if self.examples == 0 else "loop", "", f, Stats(), {})
        stats = _summed_stats([each.stats for each in self.ran]) if len(self.ran) > 1 else last.stats
        way, profile = NAMES[last.way], self.profile
        if way == _LOOP and self.times:  # watching slows Python code of the library, much more than the user's lines
            library = profile.lines[LIBRARY]
            lines = profile.seconds - library.seconds
            seen = min(self.times[1:]) * (profile.seen / self.examples if profile.seen and self.examples else 1.0)
            library.seconds = min(library.seconds, max(seen - lines, 0.0))
            profile.seconds = lines + library.seconds
        costs, refusals, untried, cheap = self._other_modes(last, way)
        ordered = last.stats.looped if last.stats.looped == last.why else ""  # why no other mode can run them
        function = last.function if f is None or hasattr(f, "_ab_differentiated") else f
        code = code_of(function)
        mend = next(map(mended, self.notes), "") if way == _FLY and self.batched else Reason(ordered).instead
        facts = Facts(
            way, self.examples or 0, {"lock-step": Reason(self.no_batch), **refusals}, self.batched, mend,
            tuple(each for each in costs if each != way), untried, stats.calls, stats.launches, bool(self.ran),
            _COMPILED not in {*refusals, *costs} and isinstance(code, CodeType) and (
                self.numbers or not is_array_code(code)
            ), cheap,
        )  # fmt: skip
        rows = (Launch(op, text, *figures) for (op, text), figures in stats.by_signature.items())
        others = Counter(note.placed for note in self.notes if not any(why in note for why in stats.fallbacks))
        return Report(
            examples=self.examples,
            watched=profile.seen,
            rounds=stats.rounds,
            rows=tuple(sorted(rows, key=lambda row: -row.seconds)),
            forced=tuple(Forced(file, line, times) for (file, line), times in stats.forced.most_common()),
            fallbacks=dict(stats.fallbacks + others),
            bound=stats.bound,
            way=way,
            why=Reason(last.why).placed,
            costs=costs,
            refusals={way: why.placed for way, why in refusals.items()},
            untried=untried,
            called=dict(Counter(NAMES[each.way] for each in self.ran)),
            name=getattr(function, "__qualname__", "") or getattr(code, "co_qualname", type(function).__name__),
            **_shares(self, facts, code, stats),  # type: ignore[arg-type]
            first=self.times[0] if self.times else 0.0,
            warm=min(self.times[1:], default=0.0),
            seconds=profile.seconds,
            preparing=profile.lines[PREPARING].seconds,
            library=profile.lines[LIBRARY].seconds,
            backward=profile.lines[BACKWARD].seconds,
            nbytes=0 if way == _LOOP else sum(each.nbytes for each in profile.lines.values()),
            spans=tuple(profile.spans),
            nodes=tuple(profile.nodes),
        )

    def _other_modes(self, last: Ran, way: str) -> tuple[dict[str, float], dict[str, Reason], tuple[str, ...], bool]:
        """Seconds of timed modes, why modes cannot run, modes not tried, and whether none can pay beside the loop."""
        modes = {NAMES[each]: cost for each, cost in last.costs.items()}
        costs = {name: cost.seconds for name, cost in modes.items() if cost.seconds is not None}
        refusals = {name: Reason(cost.refused) for name, cost in modes.items() if cost.refused not in ("", NOT_NEEDED)}
        known = {way, *costs, *refusals, *(name for name, cost in modes.items() if cost.runs)}
        untried = tuple(name for name in modes if name not in known)
        cheap = way == _LOOP and 0 < costs.get(_LOOP, 0) < _CHEAP
        if last.why and last.stats.looped == last.why:
            return costs, refusals | dict.fromkeys(untried, Reason(last.why)), (), cheap
        if way == _LOOP and _COMPILED in untried and not cheap:
            try:
                self.compiling()
            except Unsupported as error:
                refusals[_COMPILED], untried = error.reason, tuple(each for each in untried if each != _COMPILED)
        return costs, refusals, untried, cheap


@contextlib.contextmanager
def watching(seconds: float = math.inf) -> Iterator[WatchedCalls]:
    """Watch all calls of the library in a block of code, in this thread; fallbacks give no warning.

    Args:
        seconds: after which no further example of a loop is watched.

    >>> import numpy as np
    >>> import autobatch as ab
    >>> with watching() as watched:
    ...     _ = ab.map(np.tanh, [np.ones(2), np.ones(3)])
    >>> len(watched.ran)
    1
    """
    with noted_fallbacks() as notes, ran_ways(lines=True) as ran, LineProfile(seconds) as profile:
        yield WatchedCalls(ran, notes, profile)


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


def _sections(watched: WatchedCalls, code: Any) -> list[Section]:
    """The functions to show: the called one, then the most expensive; no function nested in another one."""
    own = [code] if code is not None and is_users_code(code) else []
    found = [*(each for each in watched.profile.codes.values() if each.co_name not in _PARTS), *own]
    sections = [source_of(each.co_filename, each).section(each.co_firstlineno, each.co_name) for each in found]
    outer = [each for each in sections if not any(other is not each and each.is_inside(other) for other in sections)]
    outer = list({(each.file, each.first, each.last): each for each in outer if source_of(each.file).lines}.values())

    def rank(section: Section) -> tuple[bool, float]:
        seconds = sum(each.seconds for place, each in watched.profile.lines.items() if place in section)
        return not any((each.co_filename, each.co_firstlineno) in section for each in own), -seconds

    return sorted(outer, key=rank)


def _shares(watched: WatchedCalls, facts: Facts, code: object, stats: Stats) -> dict[str, tuple[Line, ...]]:
    """The report's `lines` and `overheads`; the largest of them has a reason."""
    profile = watched.profile
    total = profile.seconds - profile.lines[PREPARING].seconds or 1.0
    lines = list(_lines(watched, facts, code, stats, total))
    overheads = []
    for part, place in (("library", LIBRARY), ("backward", BACKWARD)):
        seconds = profile.lines[place].seconds
        if seconds > 0.01 * total:  # of overhead that is shown
            what = "the backward pass" if part == "backward" else _OVERHEADS[facts.way]
            reason, remedy = overhead(part, facts) if seconds >= _WORTH * total else ("", "")
            overheads.append(Line("", 0, what, "", "", seconds, seconds / total, reason=reason, remedy=remedy))
    at, most = max(enumerate(lines), key=lambda each: each[1].seconds, default=(0, None))
    if most is not None and not most.reason and most.seconds and most.seconds >= max(
        [each.seconds for each in overheads], default=0.0
    ):  # fmt: skip
        figures = Figures(runs=most.times, calls=most.calls)
        reason, remedy = general_advice(figures, facts)
        lines[at] = most._replace(reason=reason, remedy=remedy or most.remedy)
    return {"lines": tuple(lines), "overheads": tuple(overheads)}


def _lines(watched: WatchedCalls, facts: Facts, code: object, stats: Stats, total: float) -> Iterator[Line]:
    """The lines of the report, of each function that ran."""
    way = facts.way
    profile = watched.profile
    sections = _sections(watched, code)
    figures = _by_statement(profile.lines, sections)
    notes: dict[Place, list[Reason]] = {}
    for note in watched.notes:
        file, line = note.where or ("", 0)
        notes.setdefault(_start((file, line), sections), []).append(note)
    waits: Counter[Place] = Counter()
    for place, times in stats.forced.items():
        waits[_start(place, sections)] += times
    for section in sections:
        source, last = source_of(section.file), 0
        for number, text in source.shown(section):
            place = section.file, number
            found = figures.get(place)
            begins = _start(place, sections) == place
            if found is None or not begins:
                how = "block" if number <= last and text.strip() and begins else ""
                if way == _COMPILED and not how and begins and number > section.first:
                    how = "compiled" if source.statement(number) is not None else ""
                yield Line(section.file, number, text, section.name, how)
                continue
            last = max(last, found.last)
            own_notes = tuple(dict.fromkeys(notes.get(place, ())))
            expensive = found.seconds >= _WORTH * total
            reason, remedy = advice(source, number, found, facts, waits[place], own_notes, expensive)
            launched = way != _LOOP and found.launches
            yield Line(
                section.file, number, text, section.name, _how(found, way, own_notes), found.seconds,
                found.seconds / total, launched or found.runs, found.calls if launched else 0, reason, remedy,
            )  # fmt: skip


def _start(place: Place, sections: Sequence[Section]) -> Place:
    """Where the statement at a place begins; in a lambda within a longer statement, where the lambda does."""
    return place[0], max([source_of(place[0]).start(place[1]), *[each.first for each in sections if place in each]])


def _by_statement(lines: dict[Place, Figures], sections: Sequence[Section]) -> dict[Place, Figures]:
    """The figures by statement: those of its lines are merged."""
    out: dict[Place, Figures] = {}
    for place, each in lines.items():
        if not place[0]:
            continue
        start = _start(place, sections)
        into = out.setdefault(start, Figures())
        into.runs = max(into.runs, each.runs) if place != start else each.runs
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
        return "one by one"
    if figures.last:
        return "block"
    if figures.launches:
        return "one launch" if figures.launches == 1 else "launches"
    return "Python" if way == _FLY else "all examples"
