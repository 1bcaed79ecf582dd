"""The rule that picks a way for the examples of a call, from measured costs, with a bound on the time lost to the loop.

Nothing here runs or times anything. A `History` holds the costs of one function on inputs of one kind. `History.turn`
begins a call; its `Turn` says which way takes how many examples next (`Portion`), and is told how long that took. So a
test can drive the rule with its own clock.

The rule
- The cost of a way is the median of its last few runs, in seconds per example. The cheapest way that has run is used.
- The loop runs the first examples of the first call, so that its cost is known first.
- Each kind of input has one account: `work`, the loop's seconds for all examples so far, and `lost`, the seconds that
  other ways took beyond the loop's, less the seconds that they saved. A try is affordable if the promise below holds
  even when all of its time is lost. It is stopped (`Portion.limit`) when the affordable seconds are spent.
- If its gain is a guess, a try may lose `_EARLY` of the loop's time so far. If a gain is expected, it may already lose
  what `_HORIZON` calls will allow, since most gains are found in the first calls. From the tenth call on, a try may
  lose `_LATE` of the time since then; after thirty calls, `_PART` of the time of all calls.
- The first try includes setting the way up (rewriting, tracing, compiling).
- A way that is expected to cost many times as much as the way in use is not tried.
- A way gets three tries, since later ones reuse what the first ones set up. Then its cost counts, and it is tried again
  each time that the work of all calls has doubled, if affordable. Costs that were measured while code for the way was
  still compiling in the background are forgotten when that code is ready.

The promise (`tests/api/test_chooser.py`): whatever the costs are, if each try ends at its limit and a way in use costs
what it did before, then thirty or more calls take at most 1.2 times the loop's time, and the tenth to the thirtieth
call at most 1.04 times.

Source: Karlin, Manasse, Rudolph and Sleator, Competitive snoopy caching (1988): when the number of future calls is
unknown, spend at most a fixed share of the time spent so far.
"""

import collections
import dataclasses
import math
from collections.abc import Callable, Collection, Sequence
from typing import Final

LOOP: Final = "loop"

_KEPT = 5  # runs per way whose costs are kept; their median counts
_FEW_CALLS, _HORIZON = 9, 30  # most tries fall in the first calls; the loss is spread over the second number of calls
_PART = 0.18  # the share of the loop's time of `_HORIZON` calls, and of all calls from then on, that may be lost
_EARLY, _LATE = 0.6, 0.03  # the share of the first `_FEW_CALLS` (as many seconds as `_PART`), and of the calls after
_FIRST = 1.5  # calls' worth of the loop's time that sure tries may lose in the first call; 3 calls' in the first two
_TRIES = 3  # tries of a way before its cost counts, since later tries reuse what the first ones set up
_BETTER = 0.95  # another way replaces the way in use if it costs less than this share of it
_GUARD, _TRUST = 8.0, 0.5  # the way in use is stopped after (1 + `_TRUST` per run so far), at most `_GUARD`, times the
# loop's time
_HOPELESS = 10.0  # do not try a way that is expected to cost this many times the way in use
_LEAST = 5e-4  # seconds; a try that may take no longer is not begun
_SOONEST = 3e-3  # seconds of the loop's work before any way is set up
_PAUSE = 5e-3  # seconds of the loop's work between two searches for a better way, since a search takes time too
_ASKING = 50.0  # between two questions whether a way is ready lies this many times the time of a question
_SHORT, _MOST_UNTIMED = 1e-3, 15  # calls below so many seconds need not all be timed; the most untimed ones in a row
_TOGETHER = 4  # the loop runs the examples of the very first call at once if they are so few; else one first
_SHARE = 16  # the fewest examples to try a way on whose cost grows with their number; a divisor of the loop's sample


@dataclasses.dataclass(frozen=True, slots=True)
class Expectation:
    """The cost that is expected of a way before it has run.

    Attributes:
        price: seconds to set it up, once; loading: seconds to load, once, what was compiled in the background.
        call: fixed seconds per call; steps: further cost per call, as a multiple of the loop's seconds per example.
        example: seconds per example; share: further cost per example, as a multiple of the loop's.
        sure: True if a gain is expected, not guessed: a try may then lose more than the calls so far allow.
        divides: True if a try may take only some of the examples, since the cost grows with their number.
    """

    price: float = 0.0
    loading: float = 0.0
    call: float = 0.0
    steps: float = 0.0
    example: float = 0.0
    share: float = 1.0
    sure: bool = False
    divides: bool = False

    def seconds(self, count: int, loop: float) -> float:
        """Seconds of a call of `count` examples once the way is set up; `loop`: the loop's seconds per example."""
        return self.call + self.steps * loop + count * (self.example + self.share * loop)


@dataclasses.dataclass(slots=True)
class Cost:
    """The measured cost of one way.

    Attributes:
        recent: seconds per example of the last runs.
        runs: the number of completed runs; stops: the number of stopped runs since the last completed one.
        refused: why this way cannot run the function; "" if it can.
        stopped: seconds after which the last run was stopped; 0.0 if it completed.
        pending: code for it is being compiled in the background; cold: it ran while kernels were still being compiled.
        waits: the way is not tried again until `History.work` reaches this.
    """

    recent: collections.deque[float] = dataclasses.field(default_factory=lambda: collections.deque(maxlen=_KEPT))
    runs: int = 0
    stops: int = 0
    refused: str = ""
    stopped: float = 0.0
    pending: bool = False
    cold: bool = False
    waits: float = 0.0

    @property
    def seconds(self) -> float | None:
        """The median (the lower one) of the recent seconds per example; None if it has not run."""
        recent = sorted(self.recent)
        return recent[(len(recent) - 1) // 2] if recent else None

    def add(self, count: int, seconds: float) -> None:
        self.recent.append(seconds / count)
        self.runs += 1
        self.stopped, self.stops = 0.0, 0


@dataclasses.dataclass(frozen=True, slots=True)
class Portion:
    """The way that runs next, the number of examples it takes, and the seconds after which to stop it (None: never)."""

    way: str
    count: int
    limit: float | None = None


class History:
    """The costs of one function on inputs of one kind.

    Args:
        ways: the ways to choose from, beside the loop.
        expected: gives a way's expected cost; called when that is needed.

    Attributes:
        calls: the number of calls so far.
        costs: the `Cost` of each way.
        work: the loop's seconds for all calls so far; lost: the seconds that other ways took beyond that, less what
            they saved since, and not below 0.
        looks: no other way is considered before call `looks`; sleeps: nor before `work` reaches `sleeps`.
        last: the way that ran the last examples of the last call.
        untimed: how many of the next settled calls need not be timed.
    """

    __slots__ = (
        "_expected", "_gap", "_later_lost", "_later_work", "_typical", "calls", "costs", "last", "looks", "lost",
        "sleeps", "untimed", "work",
    )  # fmt: skip

    def __init__(self, ways: Sequence[str], expected: Callable[[str], Expectation]) -> None:
        self.calls = self.looks = 0
        self.costs = {way: Cost() for way in (LOOP, *ways)}
        self.work = self.lost = self.sleeps = self._later_work = self._later_lost = 0.0
        self._typical = 0.0  # the loop's seconds per example
        self._gap = self.untimed = 0
        self.last = LOOP
        self._expected = expected

    def turn(self, count: int) -> "Turn":
        """Begin a call of `count` examples."""
        self.calls += 1
        return Turn(self, count)

    def is_settled(self, count: int) -> bool:
        """True if a call of `count` examples runs as the loop, without a `Turn`; else `turn` decides."""
        if self.last != LOOP:
            return False
        calls, work = self.calls, self.work
        if work < self.sleeps or calls < self.looks:
            return True
        if not calls:
            return count <= _TOGETHER
        return work * (calls + 1) < _SOONEST * calls  # the work after one more average call

    def sleep(self, needs: float) -> None:
        """Consider no other way until the work allows half of `needs` seconds; half, as inputs of one kind differ."""
        part = _FIRST if self.calls < 4 else _EARLY if self.calls < _FEW_CALLS else _PART
        until = 0.0 if needs == math.inf else (0.5 * max(needs, _LEAST) + self.lost) / part
        self.sleeps = max(until, self.work + _PAUSE)

    def record_timed(self, count: int, seconds: float) -> None:
        """Account for a timed settled call. While short calls take as long as before, fewer and fewer are timed."""
        self.calls += 1
        cost, each = self.costs[LOOP], seconds / count
        cost.recent.append(each)
        cost.runs += 1
        alike = seconds < _SHORT and 0.5 * each <= self._typical <= 2.0 * each
        self._gap = self.untimed = min(2 * self._gap + 1, _MOST_UNTIMED) if alike else 0
        self._typical = cost.seconds or each
        self.add_work(seconds)

    def record_untimed(self, count: int) -> None:
        """Account for an untimed settled call, by the typical cost."""
        self.untimed -= 1
        self.calls += 1
        self.add_work(count * self._typical)

    def add_backward_time(self, way: str, run: int, count: int, seconds: float) -> None:
        """Add `seconds` to the cost of an earlier run: the tape walked back over the run's nodes for a gradient.

        Args:
            run: the number of runs of the way up to and with that one.
        """
        cost = self.costs[way]
        place = cost.runs - run
        if 0 <= place < len(cost.recent):
            cost.recent[-1 - place] += seconds / count
        if way == LOOP:
            self.add_work(seconds)
        else:
            self.add_loss(seconds)

    def expected(self, way: str) -> Expectation:
        return self._expected(way)

    def best(self, without: Collection[str] = ()) -> str:
        """The cheapest way that has completed a run; one that is not in use must be cheaper by `_BETTER`."""
        best, least = LOOP, self.costs[LOOP].seconds or 0.0
        for way, cost in self.costs.items():
            seconds = cost.seconds
            if seconds is None or cost.refused or cost.stopped or way == LOOP or way in without:
                continue
            if seconds < least * (1.0 if way == self.last else _BETTER):
                best, least = way, seconds
        return best

    def reason(self, best: str) -> str:
        """Why `best` was chosen, in words for a report."""
        return "it has cost least" if self.costs[best].runs else "nothing else was worth a try"

    def add_loss(self, seconds: float) -> None:
        """Account for a way that took this many seconds more than the loop; fewer, if negative."""
        if self.calls > _FEW_CALLS:
            self._later_lost = max(0.0, self._later_lost + seconds)
        self.lost = max(0.0, self.lost + seconds)

    def compilation_ended(self) -> None:
        """Background compilation has ended: a way that ran without its kernels, and is not in use, is tried anew."""
        for way, cost in self.costs.items():
            if cost.cold and way != self.last:
                least = min(cost.recent, default=None)
                self.costs[way] = Cost(refused=cost.refused)
                if least is not None:
                    self.costs[way].recent.append(least)
            cost.cold = False

    def add_work(self, seconds: float) -> None:
        """Account for examples for which the loop takes this many seconds."""
        self.work += seconds
        if self.calls > _FEW_CALLS:
            self._later_work += seconds

    def allowance(self, now: float, sure: bool) -> float:
        """Seconds that a try may lose.

        Args:
            now: the loop's seconds for the examples at hand; sure: a gain is expected (`Expectation.sure`).
        """
        work, calls = self.work + now, self.calls
        if calls > _HORIZON:
            return _PART * work - self.lost
        if calls > _FEW_CALLS:
            return _LATE * (self._later_work + now) - self._later_lost
        if sure:
            return min(_FIRST * calls, _PART * _HORIZON) * work / calls - self.lost
        return _EARLY * work - self.lost


class Turn:
    """One call: `next` says what runs; the caller then reports by `ran`, `stopped`, `refused` or `not_ready`.

    Attributes:
        left: the number of examples that have not run.
    """

    __slots__ = ("_failed", "_gave_up", "_kind", "_least", "_loop", "_surprised", "_tried", "_trying", "left")

    def __init__(self, kind: History, count: int) -> None:
        self._kind = kind
        self._trying = False
        self._tried: set[str] = set()
        self._failed: set[str] = set()
        self._gave_up = False  # the way in use gave up on these examples, and stays in use
        self._surprised = False  # the way in use was stopped or failed: its known costs no longer hold
        self._least = math.inf  # seconds that the cheapest unaffordable try needs
        self._loop = kind.costs[LOOP].seconds
        self.left = count

    def next(self) -> Portion:
        """The next portion; call it only while examples are left."""
        kind, left = self._kind, self.left
        self._trying = False
        if self._loop is None:
            return Portion(LOOP, left if left <= _TOGETHER else 1)
        if kind.costs[LOOP].runs == 1 and left > 2:  # the first example also paid for imports and cold caches
            return Portion(LOOP, min(left, max(_TOGETHER, left // _SHARE)))
        found = self._trial(self._loop)
        if found is not None:
            self._trying = True
            self._tried.add(found.way)
            return found
        best = LOOP if self._surprised else kind.best(self._failed)
        if best == LOOP:
            kind.looks = kind.calls + (0 if self._gave_up else kind.calls // 8)
            return Portion(LOOP, left)
        guard = min(_GUARD, 1.0 + _TRUST * kind.costs[best].runs)
        return Portion(best, left, max(guard * self._loop * left, _LEAST))

    def ran(self, way: str, count: int, seconds: float, cold: bool = False) -> None:
        """A portion of `count` examples completed; `cold`: kernels were still being compiled in the background."""
        kind = self._kind
        cost = kind.costs[way]
        if way == LOOP and cost.runs <= 2:  # cold runs cost more than later ones will
            cost.recent.clear()
        cost.add(count, seconds)
        if way == LOOP:
            self._loop = cost.seconds
        loop = self._loop or 0.0
        if way != LOOP:
            cost.cold = cold
            kind.add_loss(seconds - count * loop)
        if self._trying and cost.runs >= _TRIES and seconds > count * loop:
            cost.waits = 2.0 * (kind.work + count * loop)
        kind.add_work(count * loop)
        if not self._gave_up:
            kind.last = way
        self.left -= count

    def stopped(self, way: str, seconds: float, reason: str = "") -> None:
        """A way was stopped at its limit, or failed; its effects are undone.

        If the way in use gave up within the loop's time (padding, on one long example), that may be due to these
        examples only: it counts as a run that took the loop's time as well.
        """
        cost, loop = self._kind.costs[way], self._loop or 0.0
        self._failed.add(way)
        self._kind.add_loss(seconds)
        if not self._trying and seconds <= self.left * loop:
            cost.add(self.left, seconds + self.left * loop)
            self._gave_up = True
            return
        cost.stopped = seconds
        cost.stops += 1
        if cost.runs + cost.stops >= _TRIES:
            cost.waits = 2.0 * self._kind.work
        if not self._trying:
            self._surprised = True
            cost.recent.clear()
            cost.runs = _TRIES

    def refused(self, way: str, seconds: float, reason: str) -> None:
        """A way cannot run this function; its effects are undone."""
        self._failed.add(way)
        self._kind.add_loss(seconds)
        self._kind.costs[way].refused = reason

    def not_ready(self, way: str, seconds: float) -> None:
        """A way is not ready: its code is being compiled. Ask again after enough work that asking costs little.

        The first question took longer than later ones will, since it read the code.
        """
        self._failed.add(way)
        self._kind.add_loss(seconds)
        cost = self._kind.costs[way]
        cost.waits = self._kind.work + (_ASKING if cost.pending else 1.0) * seconds
        cost.pending = True

    def _trial(self, loop: float) -> Portion | None:
        """The most promising affordable try; None, and `sleep`, if there is none."""
        kind = self._kind
        now = loop * self.left
        if kind.work + now < _SOONEST:
            return None
        self._least = math.inf
        found = [self._try(way, cost, loop) for way, cost in kind.costs.items() if self._may_try(way, cost)]
        tries = [each for each in found if each is not None]
        if tries:
            return min(tries, key=lambda each: each[0])[1]
        waiting = [cost.waits for cost in kind.costs.values() if cost.waits > kind.work and not cost.refused]
        kind.sleep(self._least)
        kind.sleeps = min(kind.sleeps, max(kind.work + _PAUSE, min(waiting))) if waiting else kind.sleeps
        if any(cost.cold for cost in kind.costs.values()):
            kind.sleeps = kind.work + _PAUSE
        return None

    def _in_use(self, loop: float, count: int) -> float:
        """Seconds per example of the cheapest way; with fewer than `_TRIES` runs, at most its expected cost."""
        way = self._kind.best()
        cost = self._kind.costs[way]
        seconds = cost.seconds or loop
        if way == LOOP or cost.runs >= _TRIES:
            return seconds
        return min(seconds, self._kind.expected(way).seconds(count, loop) / count)

    def _may_try(self, way: str, cost: Cost) -> bool:
        gone = way in self._tried or way in self._failed
        return not (way == LOOP or cost.refused or gone or self._kind.work < cost.waits)

    def _try(self, way: str, cost: Cost, loop: float) -> tuple[float, Portion] | None:
        """A try of a way, with its rank: expected cost relative to the loop, times (1 + tries so far); lower is better.

        None if the way needs no try or is not affordable.
        """
        kind, left, seconds = self._kind, self.left, cost.seconds
        now = loop * left
        if seconds is not None and seconds <= loop and not cost.stopped:
            return None  # it already beats the loop, so `best` considers it
        expected = kind.expected(way)
        allowed = kind.allowance(now, expected.sure)
        count = min(left, max(_SHARE, left // 8)) if expected.divides and cost.runs < _TRIES else left
        warm = expected.seconds(count, loop)
        if seconds is None and warm > _HOPELESS * count * self._in_use(loop, count):
            return None
        if cost.stops and cost.runs + cost.stops >= _TRIES:
            needs = 2.0 * cost.stopped
        elif seconds is not None and cost.runs >= _TRIES:
            needs = warm = seconds * left
        else:  # its cost so far may have been set-up
            needs = min(warm, now)
            if seconds is None and not cost.stops:  # include setting up, and a second run to measure the warm cost
                needs += warm + (expected.loading if cost.pending else expected.price)
        if needs > allowed or allowed <= _LEAST:
            self._least = min(self._least, needs)
            return None
        return warm / (loop * count) * (1 + cost.runs + cost.stops), Portion(way, count, allowed)
