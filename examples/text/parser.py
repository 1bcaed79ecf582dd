"""A transition parser (Nivre 2004; arc-standard): shift, or take one of the two topmost words under the other.

The grammar: an adjective's head is the noun after it, a noun's the verb, the verb is the root. Held-out words that get
the right head: at least 0.9.
"""

from typing import Any

import numpy as np

import autobatch as ab
from examples.fitting import fit, normal

BAR = 0.9
SHIFT, LEFT, RIGHT = 0, 1, 2
Word = tuple[int, int]  # its id; the place of its head, -1 for the root


def parse(words: list[Word], params: Any, learn: bool) -> Any:
    """ONE sentence -> its loss over the right moves, or the heads by the model's own moves."""
    stack: list[int] = []
    heads, left, losses = [-1] * len(words), list(range(len(words))), []
    while left or len(stack) > 1:
        near = [words[i][0] for i in (*stack[-2:], *left[:1])]
        near = [0] * (2 - len(stack)) + near + [0] * (not left)
        hidden = np.tanh(params["emb"][np.array(near)].reshape(-1) @ params["w"])
        moves = ab.nn.log_softmax(hidden @ params["out"])
        legal = [move for move in (SHIFT, LEFT, RIGHT) if (left if move == SHIFT else len(stack) > 1)]
        move = right_move(words, stack, left) if learn else max(legal, key=lambda each: float(moves[each]))
        losses.append(-moves[move])
        if move == SHIFT:
            stack.append(left.pop(0))
        else:
            child = stack.pop(-2 if move == LEFT else -1)
            heads[child] = stack[-1]
    return sum(losses[1:], losses[0]) / len(losses) if learn else heads


def right_move(words: list[Word], stack: list[int], left: list[int]) -> int:
    if len(stack) > 1 and words[stack[-2]][1] == stack[-1]:
        return LEFT
    waits = any(words[i][1] == stack[-1] for i in left) if stack else True
    return RIGHT if len(stack) > 1 and words[stack[-1]][1] == stack[-2] and not waits else SHIFT


def loss(words: list[Word], params: Any) -> Any:
    return parse(words, params, learn=True)


def sample(rng: np.random.Generator) -> tuple[list[Word]]:
    sizes = rng.integers(0, 3, rng.integers(1, 5))  # of the adjectives before each noun
    before = int(rng.integers(len(sizes) + 1))  # nouns that stand before the verb
    verb, words = int(before + sizes[:before].sum()), []
    for noun, size in enumerate([*sizes, 0]):
        words += [(22 + int(rng.integers(10)), -1)] if noun == before else []
        if noun < len(sizes):
            words += [(2 + int(rng.integers(10)), len(words) + int(size))] * int(size)
            words.append((12 + int(rng.integers(10)), verb))
    return (words,)


def init(rng: np.random.Generator) -> Any:
    shapes = {"emb": (32, 16), "w": (48, 32), "out": (32, 3)}
    return {name: normal(rng, *shape) for name, shape in shapes.items()}


def run(count: int = 150, epochs: int = 4) -> float:
    rng = np.random.default_rng(0)
    params = fit(loss, [sample(rng) for _ in range(count)], init(rng), epochs, lr=0.02)
    held_out = [sample(rng)[0] for _ in range(40)]
    heads = ab.map(parse, held_out, params=params, learn=False)
    right = [[head for _, head in words] for words in held_out]
    return float(np.mean(np.concatenate(heads) == np.concatenate(right)))


if __name__ == "__main__":
    print(f"words with the right head: {run():.1%}")
