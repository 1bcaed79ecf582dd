"""Objects that hold objects of their own classes are one type at any depth: a recursion is compiled once."""

import dataclasses
from typing import Any, NamedTuple

import numpy as np
import pytest

import autobatch as ab
from autobatch.compiled import compiled_map as run
from autobatch.compiled.compiled_map import compiled_map
from autobatch.errors import Unsupported
from tests.compiled.law import outcome, same, wait_until_compiled


@dataclasses.dataclass
class Node:
    word: Any
    children: Any = ()

    def is_leaf(self):
        return not self.children


@dataclasses.dataclass(slots=True)
class Pair:
    left: "Pair | None"
    right: "Pair | None"
    weight: Any
    tag: str = ""


class Leaf:
    def __init__(self, x):
        self.x = x


class Inner:
    def __init__(self, one, two, scale):
        self.one, self.two, self.scale = one, two, scale


WORDS = [Node(1, [Node(2), Node(3, [Node(4), Node(5), Node(0, [Node(1)])])]), Node(3), Node(2, [Node(5)])]
PAIRS = [
    Pair(Pair(None, Pair(None, None, 2.0, "é"), 0.5), None, 1.5, "root"),
    Pair(None, None, -1.0),
    Pair(Pair(None, None, 3.0, "b"), Pair(None, None, 4.0, "ab"), 0.25, "b"),
]
VECTORS = [np.arange(3.0), np.ones(1), np.zeros(0), np.array([2.0, -1.0])]
LEAVES = [
    Leaf(VECTORS[0]),
    Inner(Leaf(VECTORS[1]), Inner(Leaf(VECTORS[2]), Leaf(VECTORS[3]), np.float32(2)), np.float32(3)),
]
WEIGHTS = np.random.default_rng(0).normal(size=(6, 3))
MIXING = np.random.default_rng(1).normal(size=(3, 3))


def total(node):
    return node.word + sum([total(child) for child in node.children])


def depth(node):
    return 0 if node.is_leaf() else 1 + max(depth(child) for child in node.children)


def first_word(node):
    while node.children:
        node = node.children[0]
    return node.word, len(node.children)


def last_of_three(node):
    one, two = node.children  # of another number Python raises
    return one.word - two.word


def beyond(node):
    return node.children[1].word  # of fewer Python raises


def weigh(pair):
    if pair is None:
        return 0.0
    own = pair.weight if pair.tag != "b" else -pair.weight
    return own + 0.5 * weigh(pair.left) + 0.25 * weigh(pair.right)


def leftmost(pair):
    while pair.left:
        pair = pair.left
    return pair.tag, pair.weight, pair.right is None


def longest(tree):
    if isinstance(tree, Leaf):
        return tree.x.sum() + tree.x.size
    return tree.scale * max(longest(tree.one), longest(tree.two))


def scale_of_any(tree):
    return tree.scale  # of a leaf Python raises


NUMBERS = [Node(1, [Node(None), Node(2.5, [Node(True)])]), Node(None, [])]


def known_words(node):
    own = 0 if node.word is None else node.word * 2
    return own + sum([known_words(child) for child in node.children])


MATRICES = [Node(np.eye(2), [Node(np.ones((1, 3)))]), Node(np.zeros((0, 2)))]


def areas(node):
    rows, columns = node.word.shape
    return node.word.sum() + rows * 10 + columns + sum([areas(child) for child in node.children])


def twice(node):
    node.word = node.word * 2  # nodes are only read
    return node.word


class Branch(NamedTuple):
    weight: float
    left: Any
    right: Any


BRANCHES = [
    Branch(1.0, Branch(2.0, None, None), None), Branch(0.5, None, None), Branch(3.0, None, Branch(-1.0, None, None)),
]  # fmt: skip


def weight_of(branch):
    own = branch.weight
    for each in (branch.left, branch.right):
        if each is not None:
            own += weight_of(each)
    return own


PARSED = [
    {"word": "no", "score": 1.5},
    {"word": "ab", "parts": [{"word": "a", "score": 2.0}, {"word": "b", "parts": [{"word": "ä", "score": 0.25}]}]},
    {"word": "", "parts": []},
]


def score(parsed):
    if "parts" not in parsed:
        return parsed["score"] if parsed["word"] != "no" else -parsed["score"]
    return sum([score(part) for part in parsed["parts"]]) + len(parsed["word"])


def score_or_nothing(parsed):
    return parsed.get("score", 0.0) + parsed.get("length", 1)


def always_scored(parsed):
    return parsed["score"]  # of an inner node Python raises


def has_parts(tree):
    return hasattr(tree, "one"), hasattr(tree, "three"), isinstance(tree, (Leaf, Node))


CASES = [
    (total, WORDS), (depth, WORDS), (first_word, WORDS), (last_of_three, WORDS), (beyond, WORDS),
    (weigh, PAIRS), (leftmost, PAIRS), (longest, LEAVES), (scale_of_any, LEAVES), (known_words, NUMBERS),
    (areas, MATRICES), (weight_of, BRANCHES), (score, PARSED), (score_or_nothing, PARSED), (always_scored, PARSED),
    (has_parts, LEAVES),
]  # fmt: skip


@pytest.mark.parametrize(("f", "values"), CASES, ids=lambda each: getattr(each, "__name__", ""))
def test_a_recursion_over_objects(f, values, text_or_compiled):
    wait_until_compiled(f, [values], {})
    for own in (values[k:] + values[:k] for k in range(len(values))):
        expected = outcome(lambda own=own: [f(value) for value in own])
        assert same(outcome(lambda own=own: compiled_map(f, [own], {})), expected)
    (_, forms) = next(each for each in run._forms.values() if each[0] is f)
    assert len(set(forms.values())) == 1  # whatever the depths


def meaning(node, p):
    h = np.zeros(3)
    for child in node.children:
        h = h + meaning(child, p)
    return np.tanh(p["words"][node.word] + h @ p["mixing"])


def test_gradients_of_a_recursion_over_objects(text_or_compiled):
    params = {"words": WEIGHTS, "mixing": MIXING}

    def loss(p):
        return sum(ab.map(lambda node, p: ab.nn.cross_entropy(meaning(node, p), 1), WORDS, p=p))

    with ab.options(way="compiled"):
        value, found = ab.value_and_grad(loss)(params)
    expected = sum(ab.nn.cross_entropy(meaning(node, params), 1) for node in WORDS)
    assert value == pytest.approx(expected, rel=1e-12)
    with ab.options(way="loop"):
        (_, slopes) = ab.value_and_grad(loss)(params)
    for name, each in slopes.items():
        np.testing.assert_allclose(found[name], each, rtol=1e-12, atol=1e-15)


def test_trees_of_other_types_are_other_forms(text_or_compiled):
    for words in ((1, 2), (0.5, -0.0), (True, 2), (np.float32(3), np.float32(4)), (1, 2)):
        trees = [Node(words[0], [Node(words[1])]), Node(words[1])]
        wait_until_compiled(total, [trees], {})
        assert same(compiled_map(total, [trees], {}), [total(tree) for tree in trees])


def is_its_parent(pair):
    return pair is pair.left, pair.left is pair.right, pair.left is None


def test_identity_of_nodes_is_that_of_the_objects():
    shared = Pair(None, None, 1.0)
    pairs = [Pair(shared, shared, 1.0), Pair(None, shared, 1.0), Pair(Pair(None, None, 1.0), shared, 2.0)]
    pairs.append(Pair(pairs[0], None, 1.0))
    with ab.options(way="compiled", warn=False):
        assert ab.map(is_its_parent, pairs) == [is_its_parent(pair) for pair in pairs]


def test_what_was_changed_between_two_calls_is_read_again(text_or_compiled):
    trees = [Node(1, [Node(2)]), Node(3, [Node(4), Node(5)])]
    wait_until_compiled(total, [trees], {})
    assert compiled_map(total, [trees], {}) == [3, 12]
    trees[0].children.append(Node(10, [Node(20)]))
    trees[1].word = 100
    assert compiled_map(total, [trees], {}) == [33, 109]


@pytest.mark.parametrize(
    ("f", "values", "why"),
    [
        (twice, WORDS, "assignment to an attribute"),
        (total, [Node(1, [Node("a")])], "several types"),
        (total, [Node(1, [Node(2)]), Node(1, [Node(2), 3])], "something else than nodes"),
        (total, [Node({}, [Node({})])], "a dict in a node"),
        (total, [Node({f"k{i}": 1}, [Node({"k": 1})]) for i in range(20)], "22 sets of attributes"),
    ],
)
def test_what_nodes_cannot_hold_has_no_form(f, values, why):
    with pytest.raises(Unsupported, match=why):
        wait_until_compiled(f, [values], {})


def test_nodes_that_lie_within_each_other_recur_without_end_as_in_python(text_or_compiled):
    node = Node(1, [Node(2)])
    node.children[0].children = [node]
    wait_until_compiled(total, [[node]], {})
    assert isinstance(outcome(lambda: compiled_map(total, [[node]], {})), RecursionError)
