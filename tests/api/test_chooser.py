"""The rule that picks the way, driven by a clock of the test's own: nothing here runs or waits for anything."""

import dataclasses
import itertools
import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from autobatch.api.chooser import FEW, LOOP, Expectation, History, Spent

NOTHING_SURE = Expectation(price=0.0, call=0.0, share=1.0)
GAIN = Expectation(share=0.1)


class Costs:
    """Ways with costs: the loop takes `loop` for an example, another way what a function of its run and count says.

    Attributes:
        spent: seconds of each call; ways: those that ran examples of it.
    """

    def __init__(self, expected, loop=1.0, **ways):
        expectations = expected if isinstance(expected, dict) else dict.fromkeys(ways, expected)
        self.kind = History(tuple(ways), expectations.__getitem__)
        self.loop = loop
        self.costs = ways
        self.runs = dict.fromkeys(ways, 0)
        self.spent = []
        self.ways = []

    def call(self, count):
        turn = self.kind.turn(count)
        spent, used = 0.0, []
        while turn.left:
            step = turn.next()
            assert 0 < step.count <= turn.left
            looped = step.count * self.loop
            seconds = looped if step.way == LOOP else self.costs[step.way](self.runs[step.way], step.count)
            if seconds is None:
                turn.refused(step.way, 0.1 * self.loop, "no")
                spent += 0.1 * self.loop
            elif step.limit is not None and seconds > step.limit:
                turn.stopped(step.way, step.limit)
                spent += step.limit
            else:
                turn.ran(step.way, step.count, seconds)
                spent += seconds
                used.append(step.way)
                if step.way != LOOP:
                    self.runs[step.way] += 1
        self.spent.append(spent)
        self.ways.append(used)

    def over_the_loop(self, first, last, count):
        return sum(self.spent[first:last]) / ((last - first) * count * self.loop)


@dataclasses.dataclass(frozen=True)
class Table:
    """What a way costs: once, for each call, for each example; and what it is expected to cost.

    Attributes:
        price, call, example: in the loop's seconds of one example; refuses: it cannot run this function.
    """

    price: float
    call: float
    example: float
    refuses: bool
    expected: Expectation

    def cost(self, loop):
        def seconds(run, count):
            return None if self.refuses else loop * (self.price * (run == 0) + self.call + self.example * count)

        return seconds


_PARTS = st.one_of(st.just(0.0), st.floats(1e-3, 1e6))
_TABLES = st.builds(
    Table,
    price=_PARTS,
    call=_PARTS,
    example=st.floats(1e-3, 1e4),
    refuses=st.integers(0, 9).map(lambda n: n == 0),
    expected=st.builds(
        Expectation,
        price=st.floats(0.0, 1.0),
        call=st.floats(0.0, 1e-2),
        steps=st.floats(0.0, 100.0),
        share=st.floats(0.0, 5.0),
        divides=st.booleans(),
    ),
)


@settings(max_examples=150, deadline=None, derandomize=True, database=None)
@given(
    tables=st.lists(_TABLES, min_size=1, max_size=3),
    loop=st.floats(1e-6, 10.0),
    count=st.sampled_from([1, 2, 4, 16, 64, 512]),
)
def test_whatever_the_costs_are_thirty_calls_or_more_lose_at_most_a_fifth(tables, loop, count):
    named = {f"way {number}": table for number, table in enumerate(tables)}
    expected = {name: table.expected for name, table in named.items()}
    costs = Costs(expected, loop, **{name: table.cost(loop) for name, table in named.items()})
    for _ in range(120):
        costs.call(count)
    refusals = 0.1 / count * len(tables) / 21
    assert costs.over_the_loop(0, 1, count) <= 2.6
    assert all(costs.over_the_loop(0, last, count) <= 1.2 + refusals for last in range(30, 121))


def constant(seconds):
    return lambda run, count: seconds * count


@pytest.mark.parametrize("count", [1, 4, 64, 512])
@pytest.mark.parametrize("factor", [0.01, 0.3, 0.9, 1.0, 1.1, 2.0, 10.0, 1e6])
@pytest.mark.parametrize("price", [0.0, 0.5, 5.0, 1e4], ids="price {}".format)
@pytest.mark.parametrize("expected", [NOTHING_SURE, Expectation(share=0.01)], ids=["as the loop", "a gain"])
def test_thirty_calls_cost_hardly_more_than_the_loop(count, factor, price, expected):
    costs = Costs(expected, way=lambda run, n: n * factor + (price * count if run == 0 else 0.0))
    for _ in range(30):
        costs.call(count)
    assert costs.over_the_loop(0, 30, count) <= 1.2


def test_ways_that_cost_more_than_anybody_expects_lose_no_more():
    draws = random.Random(0)
    for _ in range(300):
        count = draws.choice([1, 3, 17, 64])
        ways = {f"way {i}": (lambda run, n: n * draws.choice([0.1, 1.5, 3.0, 50.0])) for i in range(3)}
        costs = Costs(draws.choice([NOTHING_SURE, Expectation(share=0.01, divides=True)]), **ways)
        for _ in range(9):
            costs.call(count)
        assert costs.over_the_loop(0, 1, count) <= 3.5
        assert costs.over_the_loop(0, 9, count) <= 3.0


def test_the_cheapest_way_is_found_and_kept():
    costs = Costs(NOTHING_SURE, slow=constant(1.5), quick=constant(0.1), middle=constant(0.5))
    for _ in range(40):
        costs.call(64)
    assert costs.ways[-1] == ["quick"]
    assert costs.over_the_loop(10, 40, 64) < 0.2


def test_a_price_is_paid_once_all_calls_have_earned_it():
    expected = Expectation(price=1000.0, share=0.1)
    costs = Costs(expected, way=lambda run, n: n * 0.1 + (1000.0 if run == 0 else 0.0))
    for _ in range(1500):
        costs.call(10)
    first = next(i for i, used in enumerate(costs.ways) if "way" in used)
    assert 1000 <= first <= 1150  # of 10 seconds each, of which a tenth is earned; looked at every eighth of the calls
    assert costs.over_the_loop(first + 1, 1500, 10) < 0.15
    assert all(costs.over_the_loop(0, last, 10) < 1.11 for last in range(30, 1500))


def test_what_is_cheap_in_its_third_run_is_used():
    costs = Costs(Expectation(share=0.2), way=lambda run, n: n * (0.35, 1.4, 0.1)[min(run, 2)])
    for _ in range(12):
        costs.call(64)
    assert costs.ways[-1] == ["way"]
    assert costs.over_the_loop(11, 12, 64) == pytest.approx(0.1)


@pytest.mark.parametrize("dear", [(0,), (0, 1), (1,), (2,)])
def test_what_is_dear_in_its_first_runs_is_used_beside_a_way_that_is_not(dear):
    """A gradient's tape grows in the first runs, and their results are compared with Python's."""
    costs = Costs(
        Expectation(share=0.2),
        steady=lambda run, count: 0.2 * count,
        better=lambda run, count: (0.6 if run in dear else 0.05) * count,
    )
    for _ in range(12):
        costs.call(16)
    assert costs.ways[-1] == ["better"]


def test_what_is_dear_in_its_first_run_is_tried_again_beside_another_way_in_use():
    """The first run of compiled code is compared with the loop; it may cost more than another way, later ones less."""
    costs = Costs(
        GAIN, first=lambda run, count: 0.3 * count, other=lambda run, count: (0.6 if run < 1 else 0.1) * count
    )
    for _ in range(30):
        costs.call(16)
    assert costs.ways[-1] == ["other"]
    assert costs.runs["first"] <= 12


def test_a_way_in_long_use_is_timed_at_every_third_call_and_is_left_when_it_becomes_dear():
    costs = Costs(GAIN, fast=lambda run, count: (0.1 if run < 40 else 1.5) * count)
    timed = []
    for _ in range(40):
        turn = costs.kind.turn(100)
        while turn.left:
            step = turn.next()
            timed.append(step.timed)
            turn.ran(step.way, step.count, (1.0 if step.way == LOOP else 0.1) * step.count)
    assert all(timed[:6])
    assert sum(timed[-30:]) == 10
    costs.runs["fast"] = 40
    for _ in range(40):
        costs.call(100)
    assert costs.ways[-30:].count([LOOP]) >= 28


def test_a_way_that_became_cheaper_later_is_found_beside_another_one_in_use():
    """Lock-step makes kernels behind the work, so its first runs cost more than its later ones."""
    costs = Costs(
        GAIN, first=lambda run, count: (0.4 if run < 4 else 0.1) * count, other=lambda run, count: 0.3 * count
    )
    for _ in range(40):
        costs.call(16)
    assert costs.ways[-1] == ["first"]
    assert sum(used != ["first"] for used in costs.ways) <= 20


def test_a_way_that_stays_dearer_than_the_one_in_use_is_seldom_tried():
    costs = Costs(GAIN, first=lambda run, count: 0.4 * count, other=lambda run, count: 0.3 * count)
    for _ in range(200):
        costs.call(16)
    assert 6 <= costs.runs["first"] <= 24  # three runs each time that the work has doubled


def test_a_way_that_becomes_dear_is_left():
    dear = [False]
    costs = Costs(NOTHING_SURE, way=lambda run, n: n * (0.9 + 10.0 * dear[0]))
    for _ in range(12):
        costs.call(16)
    assert costs.ways[-1][-1] == "way"
    dear[0] = True
    for _ in range(12):
        costs.call(16)
    assert costs.ways[-1] == [LOOP]
    assert costs.over_the_loop(12, 24, 16) < 2.0


def test_a_way_that_gives_up_early_on_some_examples_stays_in_use_until_most_calls_are_like_that():
    costs = Costs(GAIN, lockstep=lambda run, count: 0.1 * count)
    for _ in range(8):
        costs.call(100)
    assert costs.ways[-1] == ["lockstep"]

    def gives_up():
        turn = costs.kind.turn(100)
        step = turn.next()
        if step.way == LOOP:
            return False
        turn.stopped(step.way, 5.0)
        assert turn.next().way == LOOP
        turn.ran(LOOP, turn.left, 100.0)
        return True

    for _ in range(5):
        assert gives_up()
        for _ in range(4):
            costs.call(100)
            assert costs.ways[-1] == ["lockstep"]
    assert sum(gives_up() for _ in range(20)) < 6


@pytest.mark.parametrize("accident", ["the loop", "way"])
@pytest.mark.parametrize("seconds", [3.0, 30.0, 3000.0])
def test_an_accident_in_one_run_is_no_reason_to_leave_the_best_way_for_long(accident, seconds):
    """One of 200 calls is disturbed: the processor had other work, say."""

    def disturbed(number, tries):
        return lambda run, n: n * (seconds if accident == "way" and next(tries) == number else 0.4)

    for number in (0, 6, 27, 60, 90, 120):
        costs = Costs(GAIN, way=disturbed(number, itertools.count()), other=constant(0.6))
        for call in range(200):
            costs.loop = seconds if accident == "the loop" and call == number // 60 else 1.0
            costs.call(16)
        assert sum("way" not in used for used in costs.ways) <= 60, number
        assert sum("way" in used for used in costs.ways[-20:]) >= 16, number


def test_the_loop_is_found_again_where_its_first_runs_were_disturbed():
    costs = Costs(GAIN, loop=3.0, way=constant(1.5))
    costs.call(16)
    costs.loop = 1.0
    for _ in range(60):
        costs.call(16)
    assert costs.ways[-1] == [LOOP]
    assert costs.over_the_loop(10, 61, 16) < 1.2


def test_a_way_that_becomes_cheap_is_found():
    cheap = [False]
    costs = Costs(NOTHING_SURE, way=lambda run, n: n * (0.1 if cheap[0] else 3.0))
    for _ in range(12):
        costs.call(16)
    cheap[0] = True
    for _ in range(400):
        costs.call(16)
    assert costs.ways[-1] == ["way"]


@pytest.mark.parametrize("cold", [False, True])
def test_what_a_way_cost_without_its_kernels_is_forgotten(cold):
    kind = History(("way",), lambda way: Expectation(share=0.2))
    ran = []
    for call in range(60):
        if call == 13:
            kind.compilation_ended()
        turn = kind.turn(64)
        while turn.left:
            step = turn.next()
            ran += [call] * (step.way == "way")
            slow = 1.3 if call < 13 else 0.1
            turn.ran(step.way, step.count, step.count * (1.0 if step.way == LOOP else slow), cold and call < 13)
    assert min(ran) < 3
    assert (13 <= min(call for call in ran if call >= 13) <= 15) == cold
    assert ran[-1] == 59


def test_what_is_left_to_the_loop_without_a_turn_is_counted_by_what_the_loop_costs():
    spent, kinds = Spent(), {}
    kind, other = (kinds.setdefault(name, History((), spent=spent, kinds=kinds)) for name in ("kind", "other kind"))
    for _ in range(3):
        spent.add(4, spent.limit)  # another process ran in between
    assert spent.seconds >= spent.limit
    for _ in range(3):
        turn = kind.turn(4)
        while turn.left:
            step = turn.next()
            turn.ran(step.way, step.count, 1e-5 * step.count)
    assert (kind.calls, spent.calls, spent.seconds) == (6, 0, 0.0)
    assert kind.work == pytest.approx(6 * 4e-5)
    assert spent.limit == pytest.approx(kind.sleeps - kind.work)
    assert kind.sleeps > kind.work
    other.last = "way"
    kind.rest()
    assert spent.limit == 0.0  # that one needs its turns


def test_a_refusal_is_for_good():
    costs = Costs(NOTHING_SURE, way=lambda run, n: None)
    for _ in range(50):
        costs.call(8)
    assert costs.kind.costs["way"].refused == "no"
    assert sum(costs.spent) == pytest.approx(400.1)


def test_the_loop_runs_a_few_examples_first():
    costs = Costs(NOTHING_SURE, way=constant(0.1))
    turn = costs.kind.turn(64)
    first = turn.next()
    assert (first.way, first.count, first.limit) == (LOOP, FEW, None)


def test_a_share_of_the_examples_says_what_all_of_them_cost():
    costs = Costs(Expectation(share=0.5, divides=True), way=constant(2.0))
    costs.call(512)
    assert costs.over_the_loop(0, 1, 512) < 1.2  # 64 examples were tried


def test_what_is_made_behind_the_work_is_asked_for_seldom_and_taken_when_it_is_worth_it():
    kind = History(("way",), lambda way: Expectation(price=2.0, loading=30.0, share=0.01))
    asked, ran = [], []
    for call in range(300):
        if call == 100:
            kind.compilation_ended()
        turn = kind.turn(10)
        while turn.left:
            step = turn.next()
            if step.way == "way" and call < 100:
                asked.append(call)
                turn.not_ready("way", 1.0)
            else:
                ran += [call] * (step.way == "way")
                turn.ran(step.way, step.count, step.count * (1.0 if step.way == LOOP else 0.01))
    assert min(asked) <= 2
    assert 2 <= len(asked) <= 8  # each time that the work has doubled
    assert ran[0] == 100
    assert ran[-1] == 299


def test_what_waits_for_code_is_asked_whenever_some_code_is_ready():
    """Code of other functions may be compiled for minutes behind it."""
    kind = History(("way",), lambda way: Expectation(share=0.01))
    asked = []
    for call in range(100):
        if call in (40, 50):
            kind.compilation_ended(3)
        turn = kind.turn(10)
        while turn.left:
            step = turn.next()
            if step.way == "way" and call < 50:
                asked.append(call)
                turn.not_ready("way", 0.1)
            else:
                turn.ran(step.way, step.count, step.count * (1.0 if step.way == LOOP else 0.01))
    assert 40 in asked
    assert len(asked) <= 9
    assert kind.costs["way"].runs == 50


def test_a_way_that_waits_again_is_not_asked_twice_in_a_call():
    costs = Costs(NOTHING_SURE, way=constant(0.01))
    for _ in range(10):
        costs.call(10)
    turn = costs.kind.turn(10)
    assert turn.next().way == "way"
    turn.not_ready("way", 0.1)
    assert turn.next().way == LOOP


def test_what_was_compiled_is_tried_however_dear_it_was_expected_to_be():
    kind = History(("quick", "compiled"), {"quick": Expectation(share=0.5), "compiled": Expectation(share=0.3)}.get)
    asked, used = 0, []
    for number in range(40):
        turn = kind.turn(64)
        while turn.left:
            step = turn.next()
            if step.way == "compiled" and number < 10:
                asked += 1
                turn.not_ready("compiled", 0.1)
            else:
                used.append(step.way)
                turn.ran(step.way, step.count, step.count * {LOOP: 1.0, "quick": 0.02, "compiled": 0.01}[step.way])
        if number == 10:
            kind.compilation_ended()
    assert asked
    assert used[-1] == "compiled"


@pytest.mark.parametrize(("price", "first"), [(9.0, 0), (20.0, 2), (28.0, 2)])
def test_what_is_expected_to_gain_is_tried_in_the_first_calls(price, first):
    expected = Expectation(price=price, share=0.01)
    costs = Costs(expected, way=lambda run, n: n * 0.01 + (price if run == 0 else 0.0))
    for _ in range(30):
        costs.call(10)
    assert next(i for i, used in enumerate(costs.ways) if "way" in used) == first
    assert costs.over_the_loop(0, 30, 10) < 0.5


def test_what_comes_later_is_part_of_what_a_run_cost():
    kind = History((), lambda way: Expectation())

    def looped(calls):
        for _ in range(calls):
            kind.turn(10).ran(LOOP, 10, 1.0)

    looped(4)
    kind.add_backward_time(LOOP, 4, 10, 3.0)  # the walks back come in the opposite order
    kind.add_backward_time(LOOP, 3, 10, 5.0)
    assert list(kind.costs[LOOP].recent) == [0.6, 0.4]
    assert kind.work == 12.0
    looped(10)
    kind.add_backward_time(LOOP, 1, 10, 50.0)  # of a run that is forgotten
    assert set(kind.costs[LOOP].recent) == {0.1}


class Priced:
    """A way that is set up for `price` before its first run, and then costs `warm` times the loop.

    Attributes:
        begun: the call in which its set-up began; ran: the calls in which it ran; learned: what was reported of it.
    """

    def __init__(self, price, warm, loop=1e-3, count=4, **expected):
        self.learned, self.ran, self.begun, self.spent = [], [], None, 0.0
        self.price, self.warm, self.seconds, self.count = price, warm, loop * count, count
        expectation = Expectation(price=price, share=warm, **expected)
        self.kind = History(("way",), lambda way: expectation, lambda *given: self.learned.append(given))

    def call(self):
        turn = self.kind.turn(self.count)
        while turn.left:
            step = turn.next()
            part = self.seconds * step.count / self.count
            if step.way != LOOP:
                part *= self.warm
                self.ran.append(self.kind.calls)
                if self.begun is None:
                    self.begun, part = self.kind.calls, part + self.price
            turn.ran(step.way, step.count, part)
            self.spent += part


@pytest.mark.parametrize("loop", [1e-5, 1e-3, 1e-1])
@pytest.mark.parametrize("calls_worth", [0.3, 1.0, 3.0, 5.0, 6.0, 20.0, 1000.0])
def test_no_set_up_is_begun_that_thirty_calls_cannot_pay(calls_worth, loop):
    way = Priced(calls_worth * 4 * loop, 0.9, loop)
    for _ in range(30):
        way.call()
    assert way.spent <= 1.2 * 30 * way.seconds
    if calls_worth > 5.4:  # a fifth of thirty calls
        assert way.begun is None


def test_setting_up_is_no_cost_of_the_way_and_is_learned():
    way = Priced(0.5, 0.1, loop=0.1)
    for _ in range(12):
        way.call()
    assert way.kind.costs["way"].seconds == pytest.approx(0.01)
    assert way.kind.costs["way"].runs == len(way.ran) - 1
    ((name, seconds, loaded),) = way.learned
    assert (name, loaded) == ("way", False)
    assert seconds == pytest.approx(0.5)


def test_a_way_that_loaded_slowly_once_is_used_where_it_pays():
    kind = History(("way",), lambda way: Expectation(price=0.01, loading=0.01, share=0.1))
    learned, ran = [], []
    kind.learned = lambda *given: learned.append(given)
    for call in range(60):
        turn = kind.turn(8)
        while turn.left:
            step = turn.next()
            if step.way == "way" and call < 4:
                turn.not_ready("way", 0.01)
                continue
            looped = 0.01 * step.count
            slow = 0.2 if step.way == "way" and not ran else 0.0  # 25 ms an example beside 10 of the loop
            ran += [call] * (step.way == "way")
            turn.ran(step.way, step.count, looped if step.way == LOOP else slow + 0.1 * looped)
    assert learned == [("way", 0.01, False), ("way", pytest.approx(0.2), True)]
    assert ran[-20:] == list(range(40, 60))
    assert kind.costs["way"].seconds == pytest.approx(0.001)
