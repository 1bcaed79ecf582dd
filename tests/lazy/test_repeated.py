"""Maps that are repeated: the results of the loop, whatever changed since the last one."""

import dataclasses

import numpy as np
import pytest

import autobatch as ab
from tests.lazy.repeated import TREES, again, check, encode, params

SCALE = 2.0


@dataclasses.dataclass(frozen=True)
class Node:
    word: int
    children: tuple = ()


@dataclasses.dataclass(slots=True)
class Slotted:
    word: int
    children: list


class Plain:
    def __init__(self, word, *children):
        self.word = word
        self.children = children


def node(tree, params):
    out = params["emb"][tree.word] * 0.5
    for child in tree.children:
        out = out + np.tanh(node(child, params) @ params["w"])
    return out


def a_loop(words, params):
    states, h = [], np.zeros(4)
    for word in words:
        h = np.tanh(params["emb"][word] + h @ params["u"])
        states.append(h)
    total = 0.0
    for state in states[::2]:
        total += state
    return {"h": h, "total": total, "length": len(words), "last": [h, h]}


def annotated(words, params):
    states: list[np.ndarray] = [np.zeros(4)]
    for word in words:
        state: np.ndarray = np.tanh(params["emb"][word] + states[-1] @ params["u"])
        states.append(state)
    return states[-1]


def a_match(tree, params):
    match tree:
        case int(word):
            return params["emb"][word] * 2
        case [first, *rest]:
            out = a_match(first, params)
            for part in rest:
                out = out - a_match(part, params) @ params["w"]
            return out


def functions_inside(tree, params):
    def walk(part, depth=0):
        if isinstance(part, int):
            return params["emb"][part] * (depth + 1)
        parts = map(lambda each: walk(each, depth + 1), part)  # noqa: C417
        return sum(parts) @ params["w"]

    return walk(tree)


def by_kind(items, params):
    h = np.ones(4)
    for name, word in items.items():
        h = np.tanh(h @ params[name] + params["emb"][word])
    return h


WORDS = [[1, 2, 3], [4], [5, 6, 7, 8, 0]]


@pytest.mark.parametrize("blocks", [True, False])
@pytest.mark.parametrize(
    ("f", "examples"),
    [
        (encode, TREES),
        (a_match, TREES),
        (functions_inside, TREES),
        (a_loop, WORDS),
        (annotated, WORDS),
        (a_loop, [np.array(words) for words in WORDS]),
        (by_kind, [{"w": 1, "u": 2}, {"u": 2, "w": 1}, {"w": 3}]),
        (node, [Node(1, (Node(2), Node(3))), Node(4)]),
        (node, [Slotted(1, [Slotted(2, [])]), Slotted(4, [])]),
        (node, [Plain(1, Plain(2), Plain(3)), Plain(4)]),
    ],
)
def test_an_example_that_comes_again_is_recorded_without_its_python(f, examples, blocks):
    with ab.options(blocks=blocks):
        again(f, examples, params=params())
        check(f, examples[::-1] + [examples[0]] * 3, params=params(1))
        check(f, examples, params=params(dtype=np.float32))


def test_what_an_example_holds_counts_not_which_object_it_is():
    tree = [[1, 2], 3]
    again(encode, [tree], params=params())
    tree[0][0] = 5
    check(encode, [tree], params=params())
    plain = Plain(1, Plain(2))
    again(node, [plain], params=params())
    plain.children[0].word = 3
    check(node, [plain], params=params())


@pytest.mark.parametrize(
    ("first", "second"),
    [
        ([1, True], [1, 1]),
        ([2, 1], [2, 1.0]),
        ([2, 0.0], [2, -0.0]),
        ([2, np.int64(1)], [2, 1]),
        ([2, np.float32(1)], [2, np.float64(1)]),
        ([2, float("nan")], [2, 1.0]),
        ([2, "a"], [2, b"a"]),
        ([2, (1,)], [2, [1]]),
        ([2, np.array(3)], [2, np.array([3])]),
        ([2, np.array([3.0])], [2, np.array([3])]),
        ([2, np.array(3.0)], [2, np.array(4.0)]),
        ([2, np.array([1, 2])], [2, np.array([1, 2], np.int32)]),
    ],
)
def test_examples_that_look_alike_are_told_apart(first, second):
    def kinds(example, params):
        name = str(example[1:])
        return params["emb"][example[0]] * len(name), name, isinstance(example[1], float)

    for _ in range(4):
        check(kinds, [first, second], params=params())


def test_what_a_function_relies_on_may_change(monkeypatch):
    def scaled(tree, params):
        return encode(tree, params) * SCALE + helper(params["emb"][0])

    again(scaled, TREES, params=params())
    monkeypatch.setitem(globals(), "SCALE", 3.0)
    again(scaled, TREES, params=params())
    monkeypatch.setitem(globals(), "helper", lambda x: x * 7)
    again(scaled, TREES, params=params())
    monkeypatch.setattr(helper_of_helper, "__defaults__", (4,))
    check(scaled, TREES, params=params())
    monkeypatch.undo()
    again(scaled, TREES, params=params())
    monkeypatch.setattr(helper_of_helper, "__defaults__", (4,))
    check(scaled, TREES, params=params())
    monkeypatch.setattr(np, "tanh", np.sinh)
    check(scaled, TREES, params=params())


def helper(x):
    return helper_of_helper(x)


def helper_of_helper(x, factor=1):
    return x * factor


def test_what_all_examples_share_may_change():
    def f(tree, params, factor, tied):
        return encode(tree, params) * factor + tied["a"] - tied["b"]

    a, b = np.ones(4), np.full(4, 3.0)
    again(f, TREES, params=params(), factor=2.0, tied={"a": a, "b": a})
    check(f, TREES, params=params(), factor=3.0, tied={"a": a, "b": a})
    check(f, TREES, params=params(), factor=2, tied={"a": a, "b": a})
    check(f, TREES, params=params(), factor=2.0, tied={"a": a, "b": b})
    check(f, TREES, params=params(), factor=2.0, tied={"b": a, "a": a})
    a += 1
    check(f, TREES, params=params(3), factor=2.0, tied={"a": a, "b": a})


def looks_at_a_parameter(tree, params):
    return encode(tree, params) if params["w"][0, 0] > 0 else -encode(tree, params)


def counts_in_a_parameter(tree, params):
    return encode(tree, params) * int(np.argmax(params["u"]))


def looks_at_a_sum(tree, params):
    h = encode(tree, params)
    return h if h.sum() > 0 else h * 2


def shows_a_parameter(tree, params):
    return encode(tree, params), f"{params['w'].sum():.3f}"


def asks_for_the_layout(tree, params):
    return encode(tree, params), bool(params["w"].flags.c_contiguous)


@pytest.mark.parametrize(
    "f",
    [looks_at_a_parameter, counts_in_a_parameter, looks_at_a_sum, shows_a_parameter, asks_for_the_layout],
    ids=lambda f: f.__name__,
)
def test_no_recording_is_kept_where_a_value_decided(f):
    again(f, TREES, params=params())
    other = params(5)
    other["w"] = np.asfortranarray(-other["w"])
    again(f, TREES, params=other)


class Stateful:
    size = 2

    def __init__(self, word):
        self.word = word

    @property
    def children(self):
        return [Stateful(1)] * self.size if self.word == 2 else []


class Counted(Plain):
    def __len__(self):
        return 3


class Lists(Plain):
    def items(self):
        return self.children


class Defaults:
    children = ()

    def __init__(self, word):
        self.word = word


def of_items(tree, params):
    return params["emb"][tree.word] + len(list(tree.items()))


def of_length(tree, params):
    return params["emb"][tree.word] * len(tree)


def test_no_code_of_a_class_is_taken_for_what_is_stored(monkeypatch):
    again(node, [Stateful(2)], params=params())
    monkeypatch.setattr(Stateful, "size", 3)
    again(node, [Stateful(2)], params=params())
    again(of_length, [Counted(1)], params=params())
    again(of_items, [Lists(1, 2)], params=params())
    again(node, [Defaults(2)], params=params())
    monkeypatch.setattr(Defaults, "children", (Plain(1),))
    check(node, [Defaults(2)], params=params())


def test_a_class_of_the_same_name_is_another_class(monkeypatch):
    again(node, [Plain(1, Plain(2))], params=params())

    class Other(Plain):
        @property
        def word(self):
            return 5

        @word.setter
        def word(self, value):
            pass

    Other.__qualname__, Other.__module__ = "Plain", __name__
    monkeypatch.setitem(globals(), "Plain", Other)
    check(node, [Other(1, Other(2))], params=params())


MINUS = -2


def powers_of_negative_constants(x, k):
    a = -3
    signs = [(-1) ** i for i in range(k)]
    return (-2) ** k, MINUS**k, -(MINUS**k), a**k % 5, x * (-1) ** k, MINUS // k, signs, abs(-2) ** k, (-2.0) ** k


def test_a_negative_constant_is_one_operand():
    again(powers_of_negative_constants, [np.arange(2.0), np.ones(1), np.arange(3.0)] * 2, [2, 3, 4] * 2)
