"""The rule that picks the way, driven by a clock of the test's own: nothing here runs or waits for anything."""

import random

import pytest

from autobatch.api.chooser import LOOP, Expectation, History

NOTHING_SURE = Expectation(price=0.0, call=0.0, share=1.0)


class Costs:
    """Ways with costs: the loop takes a second for an example, another way `first` and then `later` for a call.

    Attributes:
        spent: seconds of each call; ways: those that ran examples of it.
    """

    def __init__(self, expected, **ways):
        self.kind = History(tuple(ways), lambda way: expected)
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
            seconds = step.count * 1.0 if step.way == LOOP else self.costs[step.way](self.runs[step.way], step.count)
            if seconds is None:
                turn.refused(step.way, 0.1, "no")
                spent += 0.1
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
        return sum(self.spent[first:last]) / ((last - first) * count)


def constant(seconds):
    return lambda run, count: seconds * count


@pytest.mark.parametrize("count", [1, 4, 64, 512])
@pytest.mark.parametrize("factor", [0.01, 0.3, 0.9, 1.0, 1.1, 2.0, 10.0, 1e6])
@pytest.mark.parametrize("price", [0.0, 0.5, 5.0, 1e4], ids="price {}".format)
@pytest.mark.parametrize("expected", [NOTHING_SURE, Expectation(sure=True, share=0.01)], ids=["guess", "sure"])
def test_thirty_calls_cost_hardly_more_than_the_loop(count, factor, price, expected):
    costs = Costs(expected, way=lambda run, n: n * factor + (price * count if run == 0 else 0.0))
    for _ in range(30):
        costs.call(count)
    assert costs.over_the_loop(0, 30, count) <= 1.2
    assert costs.over_the_loop(9, 30, count) <= 1.05


def test_ways_that_cost_more_than_anybody_expects_lose_no_more():
    draws = random.Random(0)
    for _ in range(300):
        count = draws.choice([1, 3, 17, 64])
        ways = {f"way {i}": (lambda run, n: n * draws.choice([0.1, 1.5, 3.0, 50.0])) for i in range(3)}
        costs = Costs(draws.choice([NOTHING_SURE, Expectation(sure=True, share=0.01, divides=True)]), **ways)
        for _ in range(9):
            costs.call(count)
        assert costs.over_the_loop(0, 1, count) <= 3.0
        assert costs.over_the_loop(0, 9, count) <= 3.0


def test_the_cheapest_way_is_found_and_kept():
    costs = Costs(NOTHING_SURE, slow=constant(1.5), quick=constant(0.1), middle=constant(0.5))
    for _ in range(40):
        costs.call(64)
    assert costs.ways[-1] == ["quick"]
    assert costs.over_the_loop(10, 40, 64) < 0.15


def test_a_price_is_paid_once_what_it_would_have_saved_is_half_of_it():
    expected = Expectation(price=1000.0, share=0.1, sure=True)
    costs = Costs(expected, way=lambda run, n: n * 0.1 + (1000.0 if run == 0 else 0.0))
    for _ in range(400):
        costs.call(10)
    first = next(i for i, used in enumerate(costs.ways) if "way" in used)
    assert 200 <= first <= 240  # 10 seconds a call, of which it saves 9
    assert costs.over_the_loop(first + 1, 400, 10) < 0.15


def test_what_is_cheap_in_its_third_run_is_used():
    costs = Costs(Expectation(share=0.2), way=lambda run, n: n * (0.35, 1.4, 0.1)[min(run, 2)])
    for _ in range(12):
        costs.call(64)
    assert costs.ways[-1] == ["way"]
    assert costs.over_the_loop(11, 12, 64) == pytest.approx(0.1)


def test_a_way_that_becomes_dear_is_left():
    dear = [False]
    costs = Costs(NOTHING_SURE, way=lambda run, n: n * (0.9 + 10.0 * dear[0]))
    for _ in range(12):
        costs.call(16)
    assert costs.ways[-1] == ["way"]
    dear[0] = True
    for _ in range(12):
        costs.call(16)
    assert costs.ways[-1] == [LOOP]
    assert costs.over_the_loop(12, 24, 16) < 2.0


def test_a_way_that_becomes_cheap_is_found():
    cheap = [False]
    costs = Costs(NOTHING_SURE, way=lambda run, n: n * (0.1 if cheap[0] else 3.0))
    for _ in range(12):
        costs.call(16)
    cheap[0] = True
    for _ in range(400):
        costs.call(16)
    assert costs.ways[-1] == ["way"]


def test_a_refusal_is_for_good():
    costs = Costs(NOTHING_SURE, way=lambda run, n: None)
    for _ in range(50):
        costs.call(8)
    assert costs.kind.costs["way"].refused == "no"
    assert sum(costs.spent) == pytest.approx(400.1)


def test_one_example_at_a_time_first():
    costs = Costs(NOTHING_SURE, way=constant(0.1))
    turn = costs.kind.turn(64)
    first = turn.next()
    assert (first.way, first.count, first.limit) == (LOOP, 1, None)


def test_a_share_of_the_examples_says_what_all_of_them_cost():
    costs = Costs(Expectation(share=0.5, divides=True), way=constant(2.0))
    costs.call(512)
    assert costs.over_the_loop(0, 1, 512) < 1.2  # 64 examples were tried


def test_what_is_made_behind_the_work_is_asked_for_seldom_and_taken_when_it_is_worth_it():
    kind = History(("way",), lambda way: Expectation(price=2.0, loading=300.0, share=0.01, sure=True))
    asked, ran = [], []
    for call in range(300):
        turn = kind.turn(10)
        while turn.left:
            step = turn.next()
            if step.way == "way" and call < 100:
                asked.append(call)
                turn.waits("way", 1.0)
            else:
                ran += [call] * (step.way == "way")
                turn.ran(step.way, step.count, step.count * (1.0 if step.way == LOOP else 0.01))
    assert 2 <= len(asked) <= 30
    assert min(asked) <= 2
    assert 100 <= ran[0] <= 120
    assert ran[-1] == 299


def test_a_way_that_waits_again_is_not_asked_twice_in_a_call():
    costs = Costs(NOTHING_SURE, way=constant(0.01))
    for _ in range(10):
        costs.call(10)
    turn = costs.kind.turn(10)
    assert turn.next().way == "way"
    turn.waits("way", 0.1)
    assert turn.next().way == LOOP


@pytest.mark.parametrize(("price", "first"), [(50.0, 0), (500.0, 71)])
def test_a_certain_gain_is_paid_for_at_once_where_thirty_calls_earn_it_twice(price, first):
    expected = Expectation(price=price, share=0.01, sure=True, certain=True)
    costs = Costs(expected, way=lambda run, n: n * 0.01 + (price if run == 0 else 0.0))
    for _ in range(120):
        costs.call(10)
    assert abs(next(i for i, used in enumerate(costs.ways) if "way" in used) - first) <= first // 2
    assert costs.over_the_loop(0, 30, 10) <= 1.2


def test_what_comes_later_is_part_of_what_a_run_cost():
    kind = History(("way",), lambda way: Expectation())
    kind.took(LOOP, 10, 1.0)
    kind.took(LOOP, 10, 1.0)
    kind.later(LOOP, 2, 10, 3.0)  # the walks back come in the opposite order
    kind.later(LOOP, 1, 10, 5.0)
    assert list(kind.costs[LOOP].recent) == [0.6, 0.4]
    assert kind.work == 10.0
    for _ in range(10):
        kind.took(LOOP, 10, 1.0)
    kind.later(LOOP, 1, 10, 50.0)  # of a run that is forgotten
    assert set(kind.costs[LOOP].recent) == {0.1}
