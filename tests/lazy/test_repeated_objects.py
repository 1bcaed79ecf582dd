"""Repeated maps of examples made of objects and lists, which may change."""

import dataclasses

import numpy as np
import pytest

import autobatch as ab
from tests.lazy.repeated import same_as_loop
from tests.lazy.repeated import tables as params


@dataclasses.dataclass(frozen=True)
class Node:
    word: int
    children: "tuple[Node, ...]" = ()


class Pair:
    def __init__(self, left, right):
        self.left, self.right = left, right


def encode_node(node, p):
    x = p["emb"][node.word]
    states = []
    for child in node.children:
        states.append(encode_node(child, p))
    return np.tanh(x + sum(states) * 0.5 if states else x)


def encode_pair(pair, p):
    if isinstance(pair, Pair):
        return np.tanh(np.concatenate([encode_pair(pair.left, p), encode_pair(pair.right, p)]) @ p["w"])
    return p["emb"][pair]


def encode_list(words, p):
    h = p["emb"][words[0]]
    for word in words[1:]:
        h = np.tanh(h + p["emb"][word])
    return h


def test_objects_and_lists_are_copied_while_they_are_the_same():
    nodes = [Node(1, (Node(2), Node(3, (Node(1),)))), Node(0), Node(4, (Node(2),))]
    pairs = [Pair(1, Pair(2, 3)), Pair(4, 4)]
    lists = [[1, 2, 3], [0], [4, 4]]
    for epoch in range(4):
        same_as_loop(encode_node, nodes, p=params(seed=epoch))
        same_as_loop(encode_pair, pairs, p=params(seed=epoch))
        same_as_loop(encode_list, lists, p=params(seed=epoch))


def change_word(nodes):
    object.__setattr__(nodes[0].children[1], "word", 0)


def change_children(nodes):
    vars(nodes[0])["children"] = (Node(4),)


def change_class(nodes):
    object.__setattr__(nodes[0].children[0], "__class__", Tenth)


class Tenth(Node):
    @property
    def children(self):
        return (Node(0),)


@pytest.mark.parametrize("change", [change_word, change_children, change_class])
def test_objects_that_change(change):
    nodes = [Node(1, (Node(2), Node(3, (Node(1),)))), Node(4, (Node(2),))]
    for _ in range(3):
        same_as_loop(encode_node, nodes, p=params())
    change(nodes)
    for _ in range(4):
        same_as_loop(encode_node, nodes, p=params())


def test_an_attribute_that_goes():
    pairs = [Pair(1, Pair(2, 3)), Pair(4, 4)]
    for _ in range(3):
        same_as_loop(encode_pair, pairs, p=params())
    del pairs[1].right
    with pytest.raises(AttributeError, match="right"):
        ab.map(encode_pair, pairs, p=params())


@pytest.mark.parametrize("change", [lambda x: x.append(1), lambda x: x.__setitem__(1, 0), lambda x: x.pop()])
def test_lists_that_change(change):
    lists = [[1, 2, 3], [0, 1], [4, 4]]
    for _ in range(3):
        same_as_loop(encode_list, lists, p=params())
    change(lists[1])
    for _ in range(4):
        same_as_loop(encode_list, lists, p=params())


def test_lists_that_change_what_is_equal():
    words = [1, 2.0]
    for _ in range(3):
        same_as_loop(times, [words], p=params())
    for other in (2, True, np.float32(2), -0.0, 0.0):
        words[1] = other
        same_as_loop(times, [words], p=params())


def test_a_class_that_changes(monkeypatch):
    words = [Word(1), Word(2)]
    for _ in range(3):
        same_as_loop(of_word, words, p=params())
    monkeypatch.setattr(Word, "number", property(lambda self: 0), raising=False)
    same_as_loop(of_word, words, p=params())
    monkeypatch.undo()


class Word:
    def __init__(self, number):
        self.number = number


def of_word(word, p):
    return np.tanh(p["emb"][word.number])


def test_a_class_that_derives_from_another():
    class Base:
        number = 1

    class Other:
        number = 3

    class Word(Base):
        pass

    words = [Word(), Word()]
    for _ in range(3):
        same_as_loop(of_word, words, p=params())
    Word.__bases__ = (Other,)
    same_as_loop(of_word, words, p=params())


def times(pair, p):
    return p["w"][0] * pair[0] * pair[1]
