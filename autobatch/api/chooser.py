"""The rule that picks a way for the examples of a call: from what each has cost, and never losing much to the loop.

Nothing here runs or times anything. `History` is what is known of one function on inputs of one kind; `History.turn`
begins a call, whose `Turn` says which way takes how many examples (`Portion`), and is told what that cost. So a test
can drive it with a clock of its own.

The rule
- Costs are seconds per example: the median of the last few. Of the ways that have run, the cheapest one runs.
- The loop runs the first examples of the first call, so that its own cost is known before anything else is.
- One account per kind of input: the loop's seconds for all examples so far, and what was lost on other ways (`lost`;
  what they saved is taken from it). A try is affordable where it would leave the account within the promise even if it
  is stopped, all of its time lost; it is stopped (`Portion.limit`) when what is left of that is spent.
- A guess is tried for what the calls so far have earned, `_EARLY` of the loop's time; what is expected to gain, for
  what `_HORIZON` calls will have earned: most of what there is to find is found in the first calls. From the tenth
  call on a try may take `_LATE` of the time since then, after thirty calls again what all of them have earned.
- Setting a way up (rewriting, tracing, compiling) is part of the first try.
- What is expected to cost many times as much as the way in use is not tried.
- A way gets three tries, since what it sets up in the first ones the later ones have; then its cost counts, and it is
  tried again each time that the work of all calls has doubled, if that is affordable. What it cost while code for it
  was still compiled behind the work is forgotten when that is there.

What is promised (`tests/api/test_chooser.py`): whatever the costs are, as long as a try ends at its limit and a way
that is used costs what it did before, thirty calls or more take at most 1.2 times the loop's time, and those from the
tenth to the thirtieth at most 1.04 times.

Source: Karlin, Manasse, Rudolph and Sleator, Competitive snoopy caching (1988): what may be paid when nobody knows how
long one goes on is a part of what has been spent so far.
"""

import collections
import dataclasses
import math
from collections.abc import Callable, Collection, Sequence
from typing import Final

LOOP: Final = "loop"

_KEPT = 5  # costs, of which the median counts
_FEW_CALLS, _HORIZON = 9, 30  # the calls in which to find out, and those that pay for it
_PART = 0.18  # of the loop's time of so many calls, and of all calls after them, that may be lost
_EARLY, _LATE = 0.6, 0.03  # the same of the first few calls alone, which is as much, and of those after them
_FIRST = 1.5  # calls' time that may be lost in the first call, twice as much in the first two
_TRIES = 3  # of a way, since what it sets up in the first ones the later ones have
_BETTER = 0.95  # of the cost of the way in use, what another one has to be below
_GUARD, _TRUST = 8.0, 0.5  # times what the loop takes, after which a way that was the cheapest is stopped: the first
# at most, and so much of it for each time that it ran
_HOPELESS = 10.0  # times the cost of the way in use: a way of which so much is expected is not tried
_LEAST = 5e-4  # seconds: a try that may take no longer is not worth its beginning
_SOONEST = 3e-3  # seconds of the loop, before which nothing can be worth being set up
_PAUSE = 5e-3  # the same, between one thought of other ways and the next: to think takes time too
_ASKING = 50.0  # times what it takes to ask whether a way is ready: so much work lies between two questions
_SHORT, _MOST_UNTIMED = 1e-3, 15  # seconds of a call that need not be timed, and how many follow each other
_TOGETHER = 4  # examples of the first call of all that the loop runs at once; of more it runs one
_SHARE = 16  # examples of a call that a way is tried on first whose cost grows with their number


@dataclasses.dataclass(frozen=True, slots=True)
class Expectation:
    """What a way is expected to cost before it has run.

    Attributes:
        price: seconds, once, for setting it up; loading: once more, to take over what was made behind the work.
        call: seconds of a call, whatever it does; steps: the cost of a call in the loop's seconds of one example.
        example: seconds of an example; share: the same in the loop's seconds of one example.
        sure: this is more than a guess, so that it may be paid for before that is earned.
        divides: a try may take some of the examples only, and says what all of them cost.
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
        """What a call of so many examples takes once it is set up, the loop taking `loop` for each."""
        return self.call + self.steps * loop + count * (self.example + self.share * loop)


@dataclasses.dataclass(slots=True)
class Cost:
    """What one way has cost.

    Attributes:
        recent: seconds per example, of the last runs.
        runs: how many came to their end; stops: how many did not, since one did last.
        refused: why it cannot run this function, or "".
        stopped: the seconds after which it was stopped last, having not come to its end.
        pending: what it needs is being made, behind the work; cold: it ran without something that was.
        waits: the loop's seconds of all calls up to which it is not tried again.
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
        """Per example; None if it has not run."""
        recent = sorted(self.recent)
        return recent[(len(recent) - 1) // 2] if recent else None

    def add(self, count: int, seconds: float) -> None:
        self.recent.append(seconds / count)
        self.runs += 1
        self.stopped, self.stops = 0.0, 0


@dataclasses.dataclass(frozen=True, slots=True)
class Portion:
    """Which way takes how many of the examples next, and after how many seconds it is to be stopped."""

    way: str
    count: int
    limit: float | None = None


class History:
    """What is known of one function on inputs of one kind.

    Args:
        expected: by way, what it is expected to cost, given the loop's seconds per example; asked when first needed.

    Attributes:
        calls: how many there were.
        costs: by way.
        work: seconds that the loop would have taken for all of them; lost: more than that, which other ways took, less
            what they have saved since.
        looks: the number of the call in which other ways are thought of again; sleeps: the work up to which none of
            them can be affordable.
        last: the way of the last call's last examples.
        untimed: how many of the calls that are the loop anyway need not be timed, one after the other.
    """

    __slots__ = (
        "_expected", "_gap", "_later_lost", "_later_work", "_typical", "calls", "costs", "last", "looks", "lost",
        "sleeps", "untimed", "work",
    )  # fmt: skip

    def __init__(self, ways: Sequence[str], expected: Callable[[str], Expectation]) -> None:
        self.calls = self.looks = 0
        self.costs = {way: Cost() for way in (LOOP, *ways)}
        self.work = self.lost = self.sleeps = self._later_work = self._later_lost = 0.0
        self._typical = 0.0  # seconds that the loop takes for an example
        self._gap = self.untimed = 0
        self.last = LOOP
        self._expected = expected

    def turn(self, count: int) -> "Turn":
        """Begin a call of so many examples."""
        self.calls += 1
        return Turn(self, count)

    def is_settled(self, count: int) -> bool:
        """Whether a call of so many examples is to run as the loop, with nothing thought of; else `turn` decides."""
        if self.last != LOOP:
            return False
        calls, work = self.calls, self.work
        if work < self.sleeps or calls < self.looks:
            return True
        if not calls:
            return count <= _TOGETHER
        return work * (calls + 1) < _SOONEST * calls  # with a call like those there were

    def sleep(self, needs: float) -> None:
        """Nothing is to be tried that may lose less than so much; half of it, since inputs of one kind differ."""
        part = _FIRST if self.calls < 4 else _EARLY if self.calls < _FEW_CALLS else _PART
        until = 0.0 if needs == math.inf else (0.5 * max(needs, _LEAST) + self.lost) / part
        self.sleeps = max(until, self.work + _PAUSE)

    def took(self, count: int, seconds: float) -> None:
        """A settled call ran. As long as short calls take what they did, fewer and fewer are timed."""
        self.calls += 1
        cost, each = self.costs[LOOP], seconds / count
        cost.recent.append(each)
        cost.runs += 1
        alike = seconds < _SHORT and 0.5 * each <= self._typical <= 2.0 * each
        self._gap = self.untimed = min(2 * self._gap + 1, _MOST_UNTIMED) if alike else 0
        self._typical = cost.seconds or each
        self.did(seconds)

    def passed(self, count: int) -> None:
        """A settled call ran that nobody has timed."""
        self.untimed -= 1
        self.calls += 1
        self.did(count * self._typical)

    def later(self, way: str, run: int, count: int, seconds: float) -> None:
        """What a run set going took so much longer: the walk back of a gradient.

        Args:
            run: how many runs of the way there were, with that one.
        """
        cost = self.costs[way]
        place = cost.runs - run
        if 0 <= place < len(cost.recent):
            cost.recent[-1 - place] += seconds / count
        if way == LOOP:
            self.did(seconds)
        else:
            self.lose(seconds)

    def expected(self, way: str) -> Expectation:
        return self._expected(way)

    def best(self, without: Collection[str] = ()) -> str:
        """The cheapest of the ways that have come to their end; the one in use, where another is hardly better."""
        best, least = LOOP, self.costs[LOOP].seconds or 0.0
        for way, cost in self.costs.items():
            seconds = cost.seconds
            if seconds is None or cost.refused or cost.stopped or way == LOOP or way in without:
                continue
            if seconds < least * (1.0 if way == self.last else _BETTER):
                best, least = way, seconds
        return best

    def reason(self, best: str) -> str:
        """Why the best way is that, in words."""
        return "it has cost least" if self.costs[best].runs else "nothing else was worth a try"

    def lose(self, seconds: float) -> None:
        """Another way took so much more than the loop; so much less, where that is negative."""
        if self.calls > _FEW_CALLS:
            self._later_lost = max(0.0, self._later_lost + seconds)
        self.lost = max(0.0, self.lost + seconds)

    def warmed(self) -> None:
        """What was made behind the work is there: a way that ran without it, and is not in use, is tried anew."""
        for way, cost in self.costs.items():
            if cost.cold and way != self.last:
                least = min(cost.recent, default=None)
                self.costs[way] = Cost(refused=cost.refused)
                if least is not None:
                    self.costs[way].recent.append(least)
            cost.cold = False

    def did(self, seconds: float) -> None:
        """Examples have run that the loop takes so many seconds for."""
        self.work += seconds
        if self.calls > _FEW_CALLS:
            self._later_work += seconds

    def allowance(self, now: float, sure: bool) -> float:
        """Seconds that may be lost, with examples at hand that the loop takes `now` seconds for.

        Args:
            sure: on what is expected to gain.
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
    """One call: `next` says what runs, `ran`, `stopped` and `refused` what came of it.

    Attributes:
        left: how many examples have not run.
    """

    __slots__ = ("_failed", "_kind", "_least", "_loop", "_surprised", "_tried", "_trying", "left")

    def __init__(self, kind: History, count: int) -> None:
        self._kind = kind
        self._trying = False
        self._tried: set[str] = set()
        self._failed: set[str] = set()
        self._surprised = False  # the cheapest way has not come to its end: what is known is of another time
        self._least = math.inf  # seconds that the cheapest of the tries needs that were not affordable
        self._loop = kind.costs[LOOP].seconds
        self.left = count

    def next(self) -> Portion:
        """What runs next; asked only where examples are left."""
        kind, left = self._kind, self.left
        self._trying = False
        if self._loop is None:
            return Portion(LOOP, left if left <= _TOGETHER else 1)
        if kind.costs[LOOP].runs == 1 and left > 2:  # the first example pays for what is loaded and cached
            return Portion(LOOP, min(left, max(_TOGETHER, left // _SHARE)))
        found = self._trial(self._loop)
        if found is not None:
            self._trying = True
            self._tried.add(found.way)
            return found
        best = LOOP if self._surprised else kind.best(self._failed)
        if best == LOOP:
            kind.looks = kind.calls + kind.calls // 8
            return Portion(LOOP, left)
        guard = min(_GUARD, 1.0 + _TRUST * kind.costs[best].runs)
        return Portion(best, left, max(guard * self._loop * left, _LEAST))

    def ran(self, way: str, count: int, seconds: float, cold: bool = False) -> None:
        """So many examples ran to their end; `cold`: while what they might have used was made behind the work."""
        kind = self._kind
        cost = kind.costs[way]
        if way == LOOP and cost.runs <= 2:  # what is cold costs more than what there will be
            cost.recent.clear()
        cost.add(count, seconds)
        if way == LOOP:
            self._loop = cost.seconds
        loop = self._loop or 0.0
        if way != LOOP:
            cost.cold = cold
            kind.lose(seconds - count * loop)
        if self._trying and cost.runs >= _TRIES and seconds > count * loop:
            cost.waits = 2.0 * (kind.work + count * loop)
        kind.did(count * loop)
        kind.last = way
        self.left -= count

    def stopped(self, way: str, seconds: float, reason: str = "") -> None:
        """A way was stopped at its limit, or failed, and nothing it did is left."""
        cost = self._kind.costs[way]
        self._failed.add(way)
        self._kind.lose(seconds)
        cost.stopped = seconds
        cost.stops += 1
        if cost.runs + cost.stops >= _TRIES:
            cost.waits = 2.0 * self._kind.work
        if not self._trying:
            self._surprised = True
            cost.recent.clear()
            cost.runs = _TRIES

    def refused(self, way: str, seconds: float, reason: str) -> None:
        """A way cannot run this function, and nothing it did is left."""
        self._failed.add(way)
        self._kind.lose(seconds)
        self._kind.costs[way].refused = reason

    def waits(self, way: str, seconds: float) -> None:
        """A way is not ready yet: what it needs is made behind the work. To ask for it is to cost little of that.

        What it took to ask first says nothing of that: then the code was read.
        """
        self._failed.add(way)
        self._kind.lose(seconds)
        cost = self._kind.costs[way]
        cost.waits = self._kind.work + (_ASKING if cost.pending else 1.0) * seconds
        cost.pending = True

    def _trial(self, loop: float) -> Portion | None:
        """A way that has not shown what it costs, where its loss is affordable."""
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
        """Seconds per example of the cheapest way; of one that has hardly run, what is expected of it once set up."""
        way = self._kind.best()
        cost = self._kind.costs[way]
        seconds = cost.seconds or loop
        if way == LOOP or cost.runs >= _TRIES:
            return seconds
        return min(seconds, self._kind.expected(way).seconds(count, loop) / count)

    def _may_try(self, way: str, cost: Cost) -> bool:
        return not (way == LOOP or cost.refused or way in self._tried or self._kind.work < cost.waits)

    def _try(self, way: str, cost: Cost, loop: float) -> tuple[float, Portion] | None:
        """A try of a way, and its rank: what it is expected to take of the loop's time, more for each try so far.

        None if it is not affordable.
        """
        kind, left, seconds = self._kind, self.left, cost.seconds
        now = loop * left
        if seconds is not None and seconds <= loop and not cost.stopped:
            return None  # or it is used anyway
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
        else:  # what it has cost was for setting up, for all that is known
            needs = min(warm, now)
            if seconds is None and not cost.stops:  # and once more, to see what it costs then
                needs += warm + (expected.loading if cost.pending else expected.price)
        if needs > allowed or allowed <= _LEAST:
            self._least = min(self._least, needs)
            return None
        return warm / (loop * count) * (1 + cost.runs + cost.stops), Portion(way, count, allowed)
