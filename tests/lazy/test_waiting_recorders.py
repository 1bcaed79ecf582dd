"""Recorders that wait for values: decoding, search and parsing give what the loop gives, example by example.

To see these tests fail: in `Rounds.launch` keep constants that may be written into, in `plans.take_calls` leave out
what outputs hand to their node, or let `GraphSegment.numbers_of` answer for exact numbers on a tape.
"""

import collections
import dataclasses

import numpy as np
import pytest

import autobatch as ab
from autobatch.lazy.launching import GraphSegment
from autobatch.lazy.recorders.generated_recorders import forget_recorders
from tests.inspect import map_with_stats
from tests.law import assert_same, normal

SIZE, WORDS = 6, 9


@pytest.fixture(autouse=True)
def _fresh():
    forget_recorders()


def weights(seed=0, dtype=np.float64):
    shapes = {"emb": (WORDS, SIZE), "w": (2 * SIZE, SIZE), "out": (SIZE, WORDS), "move": (SIZE,), "u": (SIZE, SIZE)}
    return {name: normal(*shape, seed=seed + at).astype(dtype) * 2 for at, (name, shape) in enumerate(shapes.items())}


def greedy(word, p):
    h, out = np.tanh(p["emb"][word]), []
    while len(out) < 7:
        h = np.tanh(np.concatenate([p["emb"][word], h]) @ p["w"])
        word = int(np.argmax(h @ p["out"]))
        out.append(word)
        if word % 4 == 3:
            break
    return out, h


def greedy_by_item(word, p):
    h, score, steps = p["emb"][word] * 1.0, 0.0, 0
    for _ in range(6):
        h = np.tanh(h @ p["u"] + p["emb"][word])
        best = (h @ p["out"]).max().item()
        if best < 1.5:
            continue
        score += best
        steps += 1
        word = (word + 1) % 9
    return score, steps, h


def parser(words, p):
    left, stack = 0, []
    while left < len(words) or len(stack) > 1:
        shift = left < len(words)
        if shift and len(stack) > 1:
            shift = bool(np.tanh(stack[-1] + stack[-2]) @ p["move"] > 0)
        if shift:
            stack.append(p["emb"][words[left]])
            left += 1
        else:
            right = stack.pop()
            stack.append(np.tanh(np.concatenate([stack.pop(), right]) @ p["w"]))
    return stack[0]


def parser_of_tuples(words, p):
    stack, buffer, moves = (), tuple(words), []
    while buffer or len(stack) > 1:
        if len(stack) > 1 and (not buffer or stack[0] @ p["move"] > 0):
            stack = (np.tanh(stack[0] @ p["u"] + stack[1]), *stack[2:])
            moves.append("reduce")
        else:
            stack = (p["emb"][buffer[0]], *stack)
            buffer = buffer[1:]
            moves.append("shift")
    return moves, stack[0]


def parser_of_deques(words, p):
    buffer, stack = collections.deque(words), []
    while buffer:
        stack.append(p["emb"][buffer.popleft()])
        while len(stack) > 1 and float(stack[-1] @ p["move"]) > 0.0:
            top = stack.pop()
            stack[-1] = np.tanh(stack[-1] @ p["u"] + top)
    return sum(stack)


@dataclasses.dataclass
class State:
    h: np.ndarray
    word: int
    total: float


def step(state, p):
    h = np.tanh(state.h @ p["u"] + p["emb"][state.word])
    return State(h, pick(h, p), state.total + float(h.sum()))


def pick(h, p):
    return int(np.argmax(h @ p["out"]))


def of_dataclasses(word, p):
    state = State(p["emb"][word] * 0.5, word, 0.0)
    while state.total < 3.0 and state.word != 2:
        state = step(state, p)
        if state.total < -2.0:
            return state.h, state.total
    return state.h, state.total


def beam(word, p):
    beams = [(0.0, np.tanh(p["emb"][word]), [word])]
    for _ in range(3):
        grown = []
        for score, h, words in beams:
            h = np.tanh(h @ p["u"] + p["emb"][words[-1]])
            scores = ab.nn.log_softmax(h @ p["out"]).tolist()
            for at in range(WORDS):
                grown.append((score + scores[at], h, [*words, at]))
        grown.sort(key=lambda each: -each[0])
        beams = grown[: 1 + word % 3]
    return [words for _, _, words in beams], beams[0][0]


def beam_by_elements(word, p):
    beams = [(0.0, p["emb"][word] * 1.0, [word])]
    for _ in range(3):
        grown = []
        for score, h, words in beams:
            h = np.tanh(h @ p["u"] + p["emb"][words[-1]])
            scores = ab.nn.log_softmax(h @ p["out"])
            for at in np.argsort(-scores)[:3].tolist():
                grown.append((score + float(scores[at]), h, [*words, at]))
        beams = sorted(grown, key=lambda each: (each[0], len(each[2])), reverse=True)[:2]
    best = max(beams, key=lambda each: each[0])
    worst = min(beams, key=lambda each: float(each[1][0]))
    return best[2], best[0], worst[1]


def in_a_comprehension(words, p):
    kept = [p["emb"][word] for word in words if p["emb"][word] @ p["move"] > 0]
    signs = [bool(row.sum() > 0) for row in kept]
    return signs, sum(kept) if kept else None


def in_conditions(words, p):
    h, n = p["emb"][words[0]] * 1.0, 0
    while n < 5 and h @ p["move"] < 2.0:
        h = h + np.abs(p["emb"][words[n % len(words)]]) * 0.5
        n += 1
    sign = 1.0 if h[0] > 0 and h[1] > 0 else -1.0
    return h * sign, n, not h @ p["move"] > 0


def tree(part, p):
    if isinstance(part, int):
        return p["emb"][part]
    left, right = tree(part[0], p), tree(part[1], p)
    if left @ p["move"] > right @ p["move"]:
        left, right = right, left
    return np.tanh(np.concatenate([left, right]) @ p["w"])


def length_before_pop(words, p):
    stack = [p["emb"][word] for word in words]
    total = []
    while len(stack) > 1:
        total.append(len(stack) + (10 if stack.pop() @ p["move"] > 0 else 20))
    return total, stack[0]


IDS = [3, 0, 5, 8, 1, 7, 2, 4, 6, 3]
SENTENCES = [[1, 2, 3], [4], [5, 6, 7, 8, 0], [2, 2], [8, 1, 0, 3, 4, 4, 2], [7, 3], [0, 5, 6], [6], [1, 1, 2, 0]]
TREES = [((1, 2), 3), 4, ((5, (6, 7)), 8), (0, 0), ((1, (2, (3, 4))), (5, 6)), (7, 8), ((2, 1), 0)]
COVERED = [
    (greedy, IDS),
    (greedy_by_item, IDS),
    (parser, SENTENCES),
    (of_dataclasses, IDS),
    (beam, IDS),
    (beam_by_elements, IDS),
    (in_a_comprehension, SENTENCES),
    (in_conditions, SENTENCES),
    (tree, TREES),
    (length_before_pop, SENTENCES),
]
OTHERS = [(parser_of_tuples, SENTENCES), (parser_of_deques, SENTENCES)]


def mapped(f, xs, p):
    found, stats = map_with_stats(f, xs, p=p)
    assert_same(found, [f(x, p) for x in xs], precision=p["w"].dtype.itemsize)
    assert stats.looped is None
    return stats


@pytest.mark.parametrize("decorated", [False, True])
@pytest.mark.parametrize(("f", "xs"), [*COVERED, *OTHERS], ids=lambda each: getattr(each, "__name__", ""))
def test_results_are_those_of_the_loop(f, xs, decorated):
    if decorated:
        f = ab.batch(f)
    for seed in range(4):
        mapped(f, xs, weights(seed))
    mapped(f, xs[::-1], weights(7, np.float32))
    mapped(f, xs[:1], weights(8))


@pytest.mark.parametrize(("f", "xs"), COVERED, ids=lambda each: getattr(each, "__name__", ""))
def test_examples_wait_without_running(f, xs):
    mapped(f, xs, weights())  # until an example has ended, blocks at its end have seen no inputs
    forget_recorders()
    first = mapped(f, xs, weights())
    assert 0 < first.recorded < len(xs)
    again = mapped(f, xs, weights(1))
    assert again.recorded == len(xs)
    assert sum(again.forced.values())
    assert {file for file, _ in again.forced} == {__file__}


@pytest.mark.parametrize(("f", "xs"), COVERED, ids=lambda each: getattr(each, "__name__", ""))
def test_a_small_memory_budget_launches_more_often(f, xs):
    mapped(f, xs, weights())
    rounds = mapped(f, xs, weights()).rounds
    with ab.options(memory_budget=600):
        for _ in range(2):
            assert mapped(f, xs, weights()).rounds >= rounds


@pytest.mark.parametrize("f", [greedy, parser, tree, in_conditions])
def test_gradients(f):
    xs = {each.__name__: xs for each, xs in COVERED}[f.__name__]

    def total(p, run):
        results = run(p)
        arrays = [each if isinstance(each, np.ndarray) or hasattr(each, "_ab_rank") else each[0] for each in results]
        if f is greedy:
            arrays = [each[1] for each in results]
        return sum([(each * each).sum() for each in arrays])

    for seed in range(3):
        p = weights(seed)
        found = ab.grad(lambda p: total(p, lambda p: ab.map(f, xs, p=p)))(p)
        expected = ab.grad(lambda p: total(p, lambda p: [f(x, p) for x in xs]))(p)
        assert_same(found, expected)


def greedy_by_appending(word, p):
    h, words = p["emb"][word], [word]
    while len(words) < 5:
        h = np.tanh(p["emb"][words[-1]] @ p["u"] + h @ p["u"])
        words.append(int((h @ p["out"]).argmax()))
    return words


def beam_by_parts(word, p):
    beams = [(0.0, p["emb"][word], [word])]
    for _ in range(4):
        found = []
        for score, h, words in beams:
            h = np.tanh(p["emb"][words[-1]] @ p["u"] + h @ p["u"])
            scores = ab.nn.log_softmax(h @ p["out"])
            for k in np.argsort(-scores)[:2].tolist():
                found.append((score + float(scores[k]), h, [*words, k]))
        found.sort(key=lambda each: -each[0])
        beams = found[:1]
    return beams[0][2]


@pytest.mark.parametrize("f", [greedy_by_appending, beam_by_parts])
def test_a_round_is_one_launch_and_what_is_known_is_not_waited_for(f):
    decorated = ab.batch(f)
    for seed in range(3):
        stats = mapped(decorated, IDS, weights(seed))
    assert stats.recorded == len(IDS)
    assert (stats.rounds, stats.launches) == (4, 5), "the rows that they begin with, and a block for each word"
    assert sum(stats.forced.values()) == 4 * len(IDS)


def test_a_number_that_carries_a_gradient_is_none_that_is_waited_for():
    def f(word, p):
        h = np.tanh(p["emb"][word])
        return float(h @ p["move"]) * h if h[0] > 0 else h

    for seed in range(3):
        p = weights(seed)
        found = ab.grad(lambda p: sum([y.sum() for y in ab.map(f, IDS, p=p)]))(p)
        assert_same(found, ab.grad(lambda p: sum([f(x, p).sum() for x in IDS]))(p))


@pytest.mark.parametrize("bad", [3, 9, -20])
def test_an_exception_in_the_middle_of_a_round_is_that_of_the_first_example(bad):
    def f(word, p):
        h, seen = p["emb"][word], []
        for _ in range(4):
            word = int(np.argmax(h @ p["out"])) + word // 5
            seen.append(word)
            if word == bad % 9:
                seen[bad]
            h = np.tanh(h @ p["u"]) + p["emb"][min(word, 8)]
        return h

    for seed in range(4):
        p = weights(seed)
        expected = None
        for at, word in enumerate(IDS):
            try:
                f(word, p)
            except Exception as error:
                expected = at, type(error), str(error)
                break
        if expected is None:
            mapped(f, IDS, p)
            continue
        with pytest.raises(expected[1]) as caught:
            ab.map(f, IDS, p=p)
        assert str(caught.value) == expected[2]
        assert any(f"example {expected[0]}" in note for note in caught.value.__notes__)


def test_examples_that_do_not_fit_run_beside_those_that_wait():
    odd = [*IDS[:5], np.int64(4), *IDS[5:], np.int32(2), np.uint8(1)]
    for seed in range(3):
        mapped(greedy, odd, weights(seed))


def test_what_others_change_while_an_example_waits_is_seen_as_in_the_loop():
    shared = {"count": 0}

    def f(word, p):
        h = np.tanh(p["emb"][word])
        if h @ p["move"] > 0:
            shared["count"] += 1
        return h * shared["count"]

    for _ in range(3):
        shared["count"] = 0
        with ab.options(warn=False):
            found = ab.map(f, IDS, p=weights())
        shared["count"] = 0
        assert_same(found, [f(x, weights()) for x in IDS])


def test_values_that_nobody_names_any_more_are_let_go(monkeypatch):
    kept = []
    drop = GraphSegment.drop

    def noted(self, live):
        kept.append((len(live), len(self.buffer_of)))
        return drop(self, live)

    mapped(greedy_by_item, IDS, weights())
    monkeypatch.setattr(GraphSegment, "drop", noted)
    with ab.options(memory_budget=2000):
        mapped(greedy_by_item, IDS, weights())
    assert kept
    assert all(live < begun for live, begun in kept)
