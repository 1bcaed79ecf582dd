"""Binary trees cut into levels by hand: what a person writes who batches a recursive model."""

import dataclasses
from collections.abc import Sequence
from typing import Any

import numpy as np


@dataclasses.dataclass
class Levels:
    """Where each node's operands are.

    Attributes:
        words: of all leaves, which come first in the buffer of states.
        levels: for each height, the places of the left and of the right states of its nodes, which follow.
        roots: the place of each tree's root.
    """

    words: np.ndarray
    levels: list[tuple[np.ndarray, np.ndarray]]
    roots: np.ndarray

    @classmethod
    def of(cls, trees: Sequence[Any]) -> "Levels":
        words: list[int] = []
        nodes: list[list[tuple[tuple[int, int], tuple[int, int]]]] = []

        def place(tree: Any) -> tuple[int, int]:
            """(height, position within it)"""
            if isinstance(tree, int):
                words.append(tree)
                return 0, len(words) - 1
            left, right = place(tree[0]), place(tree[1])
            height = max(left[0], right[0])
            if height == len(nodes):
                nodes.append([])
            nodes[height].append((left, right))
            return height + 1, len(nodes[height]) - 1

        roots = [place(tree) for tree in trees]
        starts = np.cumsum([0, len(words), *map(len, nodes)])
        levels = []
        for level in nodes:
            both = np.array(level)
            at = starts[both[:, :, 0]] + both[:, :, 1]
            levels.append((at[:, 0], at[:, 1]))
        found = np.array(roots)
        return cls(np.array(words), levels, starts[found[:, 0]] + found[:, 1])
