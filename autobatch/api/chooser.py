"""The rule that picks a way for the examples of a call, from measured costs, with a bound on the time lost to the loop.

Nothing here runs or times anything. A `History` holds the costs of one function on inputs of one kind. `History.turn`
begins a call; its `Turn` says which way takes how many examples next (`Portion`), and is told how long that took. So a
test can drive the rule with its own clock.

The rule
- The cost of a way is the median of its last few timed runs, per example, at first the least of them: the first runs
  also make what later ones use again. The cheapest way that has run is used.
- The loop runs the first examples of the first call, so that its cost is known first.
- Setting a way up (reading, rewriting, typing, loading) has a price of its own, which is known before it begins. The
  first run of a way pays it; what that run takes beyond the loop is lost, but it is no cost of the way.
- Each kind of input has an account: `work`, the loop's seconds for all examples so far, and `lost`, the seconds that
  other ways took beyond the loop's, less the seconds that they saved; what other kinds lost beyond their share counts,
  too. A try is affordable if the promise below holds even when all of its time is lost. It is stopped
  (`Portion.limit`) when the affordable seconds are spent.
- A try may lose `_PART` of the loop's time so far, in the first calls of what `_CALLS` such calls will take, as soon as
  the loop has taken that time itself. When no try is affordable, nothing is looked at until one will be.
- Compiling takes another process: what waits for it costs nothing, and is used as soon as it is ready.
- A way that is expected to cost many times as much as the way in use is not tried, but for code that has been compiled.
- A way gets `_RUNS` tries, since later ones reuse what the first ones set up. Then its cost counts, and it is tried
  as often again each time that the work of all calls has doubled, if affordable and not far behind; so is the loop,
  whose few runs may have been disturbed. A way in use that is stopped is tried again as soon as that is affordable.
  Costs that were measured while code for the way was still compiling in the background are forgotten when that code is
  ready.

The promise (`tests/api/test_chooser.py`): whatever the costs are, if each try ends at its limit and a way in use costs
what it did before, then thirty or more calls take at most 1.2 times the loop's time.

Source: Karlin, Manasse, Rudolph and Sleator, Competitive snoopy caching (1988): when the number of future calls is
unknown, spend at most a fixed share of the time spent so far.
"""

import collections
import dataclasses
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any, Final

LOOP: Final = "loop"
_CALLS, _PART = 30, 0.1  # after so many calls, at most this share of the loop's time is lost
_RUNS = 3  # tries of a way, and runs whose median counts: those of 54 functions in lock-step differed by a tenth
_FAR = 8.0  # a way is not tried if it is expected to cost this many times the way in use, and stopped after this many
# times the loop's time; traced and in lock-step, the runs of functions on numbers spread from 2 to 50 times
EACH = 50  # instructions whose set-up every function pays, however short
READING = 8e-5  # seconds that the cheapest set-up took for each instruction, before any was measured
FEW = 8  # the loop runs so many examples of a kind first, in at most two calls, to know its cost: the first example
# takes two to three times as long, on cold caches; a part of a call has at least so many


@dataclasses.dataclass(frozen=True, slots=True)
class Expectation:
    """The cost that is expected of a way before it has run.

    Attributes:
        price: seconds to set it up, once; loading: seconds to load, once, what was compiled in the background.
        call: fixed seconds per call; steps: further cost per call, as a multiple of the loop's seconds per example.
        example: seconds per example; share: further cost per example, as a multiple of the loop's.
        divides: True if a try may take only some of the examples, since the cost grows with their number.
    """

    price: float = 0.0
    loading: float = 0.0
    call: float = 0.0
    steps: float = 0.0
    example: float = 0.0
    share: float = 1.0
    divides: bool = False

    def seconds(self, count: int, loop: float) -> float:
        """Seconds of a call of `count` examples once the way is set up; `loop`: the loop's seconds per example."""
        return self.call + self.steps * loop + count * (self.example + self.share * loop)


@dataclasses.dataclass(slots=True)
class Cost:
    """The measured cost of one way.

    Attributes:
        recent: seconds per example of the last runs; seconds: their cost (`settle`), None if there are none.
        runs: the number of completed runs; timed: of timed ones; stops: of stopped ones since the last completed one.
        refused: why this way cannot run the function; "" if it can.
        stopped: seconds after which the last run was stopped; 0.0 if it completed.
        is_set_up: it has completed a run; pending: code for it is being compiled in the background.
        cold: it ran while kernels were still being compiled.
        waits: the way is not tried again until `History.work` reaches this.
    """

    recent: collections.deque[float] = dataclasses.field(default_factory=lambda: collections.deque(maxlen=_RUNS))
    seconds: float | None = None
    runs: int = 0
    timed: int = 0
    stops: int = 0
    refused: str = ""
    stopped: float = 0.0
    is_set_up: bool = False
    pending: bool = False
    cold: bool = False
    waits: float = 0.0

    @property
    def waits_for_code(self) -> bool:
        """True if code for it was being compiled in the background when it was asked for the last time."""
        return self.pending and not (self.is_set_up or self.refused)

    def settle(self) -> None:
        """Find the (lower) median of what was measured, of the first runs the least; called after each change."""
        recent = sorted(self.recent)
        self.seconds = recent[(len(recent) - 1) // 2 if self.timed > _RUNS else 0] if recent else None

    def add(self, count: int, seconds: float) -> None:
        self.recent.append(seconds / count)
        self.runs, self.timed = self.runs + 1, self.timed + 1
        self.settle()
        self.stopped, self.stops = 0.0, 0


@dataclasses.dataclass(slots=True)
class Portion:
    """The way that runs next, the number of examples it takes, the seconds after which to stop it (None: never), and
    whether to time it: reading the thread's clock is a system call, so most runs of a way in long use are not timed."""

    way: str
    count: int
    limit: float | None = None
    timed: bool = True


def _prospect(calls: int, seconds: float) -> float:
    """The loop's seconds for thirty calls like these, or for all of them where they are more."""
    return seconds * max(1.0, min(_CALLS / calls, 1.0 / _PART))


class Spent:
    """What the loop took for those calls of a function that were left to it without a turn, for inputs of all kinds.

    Args:
        size: instructions of the function.

    Attributes:
        seconds: of those calls since the last turn; calls, examples: how many there were.
        limit: seconds after which the next call gets a turn.
        prospect: seconds of thirty such calls (`_prospect`) that it takes for a turn, too; 0.0 after the first turn.
        most: examples of the largest call: of larger ones the first few run alone, as they may be too large.
        is_compiling: code for a way is being compiled in the background.
    """

    __slots__ = ("calls", "examples", "is_compiling", "limit", "most", "prospect", "seconds")

    def __init__(self, size: int = 0) -> None:
        self.calls = self.examples = 0
        self.seconds, self.limit, self.most = 0.0, READING * (EACH + size), FEW
        self.prospect = self.limit / _PART
        self.is_compiling = False

    def add(self, count: int, seconds: float) -> None:
        """Account for a call of `count` examples."""
        self.calls += 1
        self.examples += count
        self.seconds += seconds

    def may_pay(self, seconds: float = 0.0) -> bool:
        """True if another way may pay, with a call that takes `seconds` more."""
        seconds += self.seconds
        return seconds >= self.limit and _prospect(self.calls + 1, seconds) >= self.prospect


class History:
    """The costs of one function on inputs of one kind.

    Args:
        ways: the modes to choose from, besides the loop.
        expected: gives a way's expected cost; called when that is needed.
        learned: is told (way, seconds, whether it was loaded only) when a way was set up.
        spent: counts calls that are left to the loop without a turn; None if there are none.
        kinds: the histories of the same function, this one among them.

    Attributes:
        calls: the number of calls so far; seen: of examples that the loop has run in turns.
        costs: the `Cost` of each way.
        work: the loop's seconds for all calls so far; lost: the seconds that other ways took beyond that, less what
            they saved since, and not below 0.
        sleeps: no other way is considered before `work` reaches this.
        pending: how many pieces of code were being compiled in the background, for all functions; -1: none was, but a
            way waits for its code, or ran without its kernels.
        last: the way that ran the last examples of the last call.
    """

    __slots__ = (
        "calls", "costs", "expected", "kinds", "last", "learned", "lost", "pending", "seen", "sleeps", "spent", "work",
    )  # fmt: skip

    def __init__(
        self, ways: Sequence[str], expected: Callable[[str], Expectation] = lambda way: Expectation(),
        learned: Callable[[str, float, bool], None] = lambda way, seconds, loaded: None,
        spent: Spent | None = None, kinds: Mapping[Any, "History"] | None = None,
    ) -> None:  # fmt: skip
        self.calls = self.seen = self.pending = 0
        self.costs = {way: Cost() for way in (LOOP, *ways)}
        self.work = self.lost = self.sleeps = 0.0
        self.last = LOOP
        self.expected, self.learned, self.spent = expected, learned, spent
        self.kinds = {} if kinds is None else kinds

    def turn(self, count: int) -> "Turn":
        """Begin a call of `count` examples."""
        self.calls += 1
        return Turn(self, count)

    def count_small_calls(self, loop: float) -> None:
        """Take over the calls that were left to the loop without a turn; `loop`: its seconds per example, measured."""
        spent = self.spent
        if spent is not None and spent.calls:
            self.calls += spent.calls
            self.work += min(spent.seconds, spent.examples * loop)  # the former may count other processes
            spent.seconds, spent.calls, spent.examples = 0.0, 0, 0

    def rest(self) -> None:
        """Leave the next calls to the loop, without a turn, until the next search; not if a kind uses another way."""
        spent = self.spent
        if spent is not None:
            kinds = [each for each in list(self.kinds.values()) if each.spent is spent]  # other threads add some
            spent.limit = 0.0 if any(each.last != LOOP for each in kinds) else self.sleeps - self.work
            spent.prospect = 0.0
            spent.is_compiling = any(cost.waits_for_code for each in kinds for cost in each.costs.values())

    def add_backward_time(self, way: str, run: int, count: int, seconds: float) -> None:
        """Add `seconds` to the cost of an earlier run: the tape walked back over the run's nodes for a gradient.

        Args:
            run: the number of timed runs of the way up to and with that one.
        """
        cost = self.costs[way]
        place = cost.timed - run
        if 0 <= place < len(cost.recent):
            cost.recent[-1 - place] += seconds / count
            cost.settle()
        if way == LOOP:
            self.work += seconds
        else:
            self.add_loss(seconds)

    def best(self, without: Collection[str] = ()) -> str:
        """The cheapest way that has completed a run."""
        seconds = {LOOP: self.costs[LOOP].seconds or 0.0}
        for way, cost in self.costs.items():
            if cost.seconds is not None and not (cost.refused or cost.stopped or way == LOOP or way in without):
                seconds[way] = cost.seconds
        return min(seconds, key=seconds.__getitem__)

    def known_costs(self) -> dict[str, Cost]:
        """The costs, with what calls took that were left to the loop, if nothing else is known of it."""
        spent, cost = self.spent, self.costs[LOOP]
        if spent is not None and spent.calls and not cost.runs:
            cost = Cost(runs=spent.calls)
            cost.recent.append(spent.seconds / spent.examples)
            cost.settle()
        return self.costs | {LOOP: cost}

    def add_loss(self, seconds: float) -> None:
        """Account for a way that took this many seconds more than the loop; fewer, if negative."""
        self.lost = max(0.0, self.lost + seconds)

    def compilation_ended(self, pending: int = 0) -> None:
        """Background compilation has ended, but for so many pieces of code: ways that waited for it are asked again.
        After all of it, a way that ran without its kernels, and is not in use, is tried again."""
        self.pending = pending
        for way, cost in self.costs.items():
            if cost.pending and cost.waits_for_code:
                cost.waits = self.sleeps = 0.0
                self.pending = pending or -1
            if cost.cold and not pending and way != self.last:
                anew = self.costs[way] = Cost(refused=cost.refused, is_set_up=cost.is_set_up)
                anew.recent.extend(sorted(cost.recent)[:1])
                anew.settle()
                self.sleeps = 0.0
            cost.cold &= pending > 0


class Turn:
    """One call: `next` says what runs; the caller then reports by `ran`, `stopped`, `refused` or `not_ready`.

    Attributes:
        left: the number of examples that have not run.
    """

    __slots__ = ("_failed", "_kind", "_loop", "_timed", "_tried", "_trying", "left")

    def __init__(self, kind: History, count: int) -> None:
        self._kind = kind
        self._trying, self._timed = False, True
        self._tried: set[str] = set()
        self._failed: set[str] = set()
        self._loop = kind.costs[LOOP].seconds
        self.left = count

    def next(self) -> Portion:
        """The next portion; call it only while examples are left."""
        kind, left = self._kind, self.left
        self._trying, self._timed = False, True
        if self._loop is None or (kind.seen < FEW and kind.costs[LOOP].runs < 2):
            return Portion(LOOP, min(left, FEW))
        kind.count_small_calls(self._loop)
        found = None if kind.work + self._loop * left < kind.sleeps else self._trial(self._loop)
        if found is not None:
            self._trying = True
            self._tried.add(found.way)
            return found
        best = kind.best(self._failed)
        if best == LOOP:
            return Portion(LOOP, left)
        trust = min(_FAR, 1.0 + kind.costs[best].runs / 2)
        self._timed = kind.costs[best].runs < 2 * _RUNS or kind.calls % _RUNS == 0
        return Portion(best, left, max(trust * self._loop * left, READING * EACH), self._timed)

    def ran(self, way: str, count: int, seconds: float, cold: bool = False) -> None:
        """A portion of `count` examples completed; `cold`: kernels were still being compiled in the background."""
        kind = self._kind
        cost = kind.costs[way]
        seconds = seconds if self._timed else count * (cost.seconds or 0.0)  # as much as before
        if way == LOOP:
            if cost.runs <= 2:  # cold runs cost more than later ones will
                cost.recent.clear()
            cost.add(count, seconds)
            kind.seen += count
            self._loop = cost.seconds or 0.0
            cost.waits = 2.0 * kind.work
        loop = count * (self._loop or 0.0)
        if way != LOOP:
            cost.cold = cold
            kind.pending = -1 if cold and not kind.pending else kind.pending
            kind.lost = max(0.0, kind.lost + seconds - loop)
            if not self._timed:
                cost.runs += 1
            elif cost.is_set_up or seconds < loop:
                cost.add(count, seconds)
            if not cost.is_set_up:
                cost.is_set_up, cost.stopped, cost.stops = True, 0.0, 0
                warm = kind.expected(way).seconds(count, self._loop or 0.0)
                kind.learned(way, max(0.0, seconds - warm), cost.pending)
        if self._trying and cost.runs >= _RUNS and (seconds > loop or cost.runs % _RUNS == 0):
            cost.waits = 2.0 * (kind.work + loop)
        kind.work += loop
        kind.last = way
        self.left -= count
        if not self.left and kind.spent is not None:
            kind.rest()

    def stopped(self, way: str, seconds: float) -> None:
        """A way was stopped at its limit, or failed; its effects are undone."""
        cost = self._fail(way, seconds)
        cost.stopped = seconds
        cost.stops += self._trying
        if not self._trying:  # an accident, or padding for one long example: tried again as soon as that is affordable
            cost.recent.clear()
            cost.settle()
            cost.runs, self._kind.sleeps = 0, 0.0
        if cost.runs + cost.stops >= _RUNS:
            cost.waits = 2.0 * self._kind.work

    def refused(self, way: str, seconds: float, reason: str) -> None:
        """A way cannot run this function; its effects are undone."""
        self._fail(way, seconds).refused = reason

    def not_ready(self, way: str, seconds: float) -> None:
        """A way is not ready: its code was read, and is being compiled; then it is asked again."""
        cost = self._fail(way, seconds)
        if not cost.pending:
            self._kind.learned(way, seconds, False)
        cost.pending, self._kind.pending = True, self._kind.pending or -1
        cost.waits = 2.0 * self._kind.work

    def _fail(self, way: str, seconds: float) -> Cost:
        self._failed.add(way)
        self._kind.add_loss(seconds)
        return self._kind.costs[way]

    def _trial(self, loop: float) -> Portion | None:
        """The most promising affordable try; None if there is none, and until one may be affordable."""
        kind, work = self._kind, self._kind.work + loop * self.left
        gone = self._tried | self._failed
        ways = [each for each in kind.costs.items() if each[0] not in gone and not each[1].refused]
        tries = [self._try(way, cost, loop) for way, cost in ways if kind.work >= cost.waits]
        others = sum(each.lost - _PART * each.work for each in list(kind.kinds.values()) if each is not kind)
        lost = kind.lost + max(0.0, others)
        allowed = _PART * _prospect(kind.calls, work) - lost
        found = [each for each in tries if each is not None]
        affordable = [each for each in found if each[0] <= allowed]
        if affordable and allowed > 0.0:
            _, _, way, count = min(affordable, key=lambda each: each[1])
            return Portion(way, count, allowed)
        if gone:  # what those will need is seen in the next call
            return None
        all_needs = [needs + lost for needs, *_ in found]
        due = [each if each <= _PART * _CALLS * work / kind.calls else each / _PART for each in all_needs]
        due += [cost.waits for _, cost in ways if cost.waits > work]
        kind.sleeps = max(1.125 * work, min([*due, 2.0 * work]))  # later calls may be larger
        return None

    def _try(self, way: str, cost: Cost, loop: float) -> tuple[float, float, str, int] | None:
        """A try of a way: the seconds that it needs, its rank, the way, the number of examples; None if it needs none.

        The rank is the expected cost relative to the loop, times (1 + tries so far); lower is better.
        """
        kind, left, seconds = self._kind, self.left, cost.seconds
        now = loop * left
        if seconds is not None and seconds <= loop and not cost.stopped:  # so `best` considers it
            best = kind.best()  # kernels made behind the work made lock-step up to twice as fast after its third run
            if way == best or (cost.runs >= _RUNS and seconds > 2.0 * (kind.costs[best].seconds or 0.0)):
                return None
        if way == LOOP:  # its first runs may have met with an accident, too
            return 0.0, 1.0, way, min(left, max(FEW, left // 8))
        expected = kind.expected(way)
        count = min(left, max(FEW, left // 8)) if expected.divides and cost.runs < _RUNS else left
        warm = expected.seconds(count, loop)
        if seconds is None and not cost.pending and warm > _FAR * count * (kind.costs[kind.best()].seconds or loop):
            return None
        if not cost.is_set_up:  # then a second run measures the warm cost
            needs = min(warm, now) + warm + (expected.loading if cost.pending else expected.price)
        elif seconds is not None and cost.runs >= _RUNS:
            needs = warm = seconds * left
        else:
            needs = min(warm, now)
        needs, tries = max(needs, (1 + cost.stops) * cost.stopped), 1 + cost.runs + cost.stops
        return needs, warm / (loop * count) * tries, way, count
