"""Random trees: binary ones as nested tuples of word ids, and nodes with a word and any number of children."""

import dataclasses
from typing import Any

import numpy as np

VOCABULARY = 1000


@dataclasses.dataclass(frozen=True)
class Node:
    """A word and its dependents."""

    word: int
    children: "tuple[Node, ...]" = ()


def binary_tree(rng: np.random.Generator, leaves: int) -> Any:
    """A leaf is an id; a node is a pair."""
    if leaves == 1:
        return int(rng.integers(VOCABULARY))
    left = int(rng.integers(1, leaves))
    return binary_tree(rng, left), binary_tree(rng, leaves - left)


def binary_trees(rng: np.random.Generator, count: int) -> list[Any]:
    """Trees of 20 to 40 leaves."""
    return [binary_tree(rng, int(rng.integers(20, 41))) for _ in range(count)]


def tree_of_words(rng: np.random.Generator, size: int) -> Node:
    """A tree of so many nodes with up to four children each."""
    children: list[Node] = []
    left = size - 1
    while left:
        part = left if len(children) == 3 else int(rng.integers(1, left + 1))
        children.append(tree_of_words(rng, part))
        left -= part
    return Node(int(rng.integers(VOCABULARY)), tuple(children))


def trees_of_words(rng: np.random.Generator, count: int) -> list[Node]:
    """Trees of 20 to 60 nodes."""
    return [tree_of_words(rng, int(rng.integers(20, 61))) for _ in range(count)]
