"""Models of one example that the tests and the load command serve."""

import dataclasses
from typing import Any

import numpy as np

import autobatch as ab


def weights(seed: int = 0, dim: int = 8, words: int = 50, tags: int = 5, layers: int = 0) -> dict[str, Any]:
    """Parameters of all the models here; of the tagger with as many layers."""
    rng = np.random.default_rng(seed)
    shapes = {
        "emb": (words, dim), "w": (dim, 4 * dim), "u": (dim, 4 * dim), "uf": (dim, dim), "b": (4 * dim,),
        "out": (dim, tags), "pair": (2 * dim, 5 * dim),
    }  # fmt: skip

    def drawn(*shape: int) -> np.ndarray:
        return (rng.standard_normal(shape) / np.sqrt(dim)).astype(np.float32)

    out: dict[str, Any] = {name: drawn(*shape) for name, shape in shapes.items()}
    if layers:
        inputs = [dim if layer == 0 else 2 * dim for layer in range(layers)]
        out["layers"] = [
            {side: (drawn(n, 4 * dim), drawn(dim, 4 * dim), drawn(4 * dim)) for side in ("ahead", "back")}
            for n in inputs
        ]
    return out


def tagger(words: np.ndarray, params: dict[str, Any]) -> dict[str, Any]:
    """An LSTM over a sentence: the tag of each word, and the scores of the last."""
    scores = scores_of_words(words, params)
    return {"tags": np.array([np.argmax(each) for each in scores], np.int64), "last": scores[-1]}


def scores_of_words(words: np.ndarray, params: dict[str, Any]) -> list[np.ndarray]:
    """The scores of each word's tags, of which `tagger` takes the greatest."""
    return [h @ params["out"] for h in _lstm(params["emb"][words], params["w"], params["u"], params["b"])]


def deep_tagger(words: np.ndarray, params: dict[str, Any]) -> dict[str, Any]:
    """Two layers of LSTMs over a sentence, each from left to right and from right to left."""
    scores = deep_scores(words, params)
    return {"tags": np.argmax(scores, axis=1), "last": scores[-1]}


def deep_scores(words: np.ndarray, params: dict[str, Any]) -> np.ndarray:
    """The scores of each word's tags, of which `deep_tagger` takes the greatest."""
    x = params["emb"][words]
    for layer in params["layers"]:
        ahead = _lstm(x, *layer["ahead"])
        back = _lstm(x[::-1], *layer["back"])[::-1]
        x = np.concatenate([np.stack(ahead), np.stack(back)], axis=1)
    scores: np.ndarray = x @ np.concatenate([params["out"], params["out"]])
    return scores


def _lstm(xs: Any, w: Any, u: Any, b: Any) -> list[Any]:
    """The hidden state after each step."""
    dim = u.shape[0]
    h, c = np.zeros(dim, np.float32), np.zeros(dim, np.float32)
    states = []
    for x in xs:
        gates = x @ w + h @ u + b
        i, f, o, g = gates[:dim], gates[dim : 2 * dim], gates[2 * dim : 3 * dim], gates[3 * dim :]
        c = ab.nn.sigmoid(f) * c + ab.nn.sigmoid(i) * np.tanh(g)
        h = ab.nn.sigmoid(o) * np.tanh(c)
        states.append(h)
    return states


@dataclasses.dataclass(eq=False)
class Tree:
    """A node with a word."""

    word: int
    children: "list[Tree]" = dataclasses.field(default_factory=list)


def random_tree(rng: np.random.Generator, leaves: int, words: int = 50) -> Tree:
    """A binary tree of so many leaves."""
    if leaves < 2:
        return Tree(int(rng.integers(words)))
    left = int(rng.integers(1, leaves))
    return Tree(int(rng.integers(words)), [random_tree(rng, left, words), random_tree(rng, leaves - left, words)])


def tree_lstm(tree: Tree, params: dict[str, Any]) -> np.ndarray:
    """The scores of a tree, from its root's state in a child-sum Tree-LSTM."""
    return _node(tree, params)[0] @ params["out"]


def _node(tree: Tree, params: dict[str, Any]) -> tuple[Any, Any]:
    dim = params["uf"].shape[0]
    states = [_node(child, params) for child in tree.children]
    h_sum = np.zeros(dim, np.float32)
    for h, _ in states:
        h_sum = h_sum + h
    gates = params["emb"][tree.word] @ params["w"] + h_sum @ params["u"] + params["b"]
    i, o, u, f = gates[:dim], gates[dim : 2 * dim], gates[2 * dim : 3 * dim], gates[3 * dim :]
    c = ab.nn.sigmoid(i) * np.tanh(u)
    for h, c_child in states:
        c = c + ab.nn.sigmoid(f + h @ params["uf"]) * c_child
    return ab.nn.sigmoid(o) * np.tanh(c), c


def binary_tree_lstm(tree: Any, params: dict[str, Any]) -> np.ndarray:
    """The scores of a binary tree of words in nested lists, from its root's state (Tai et al. 2015, with N = 2)."""
    return _pair(tree, params)[0] @ params["out"]


def _pair(tree: Any, params: dict[str, Any]) -> tuple[Any, Any]:
    dim = params["uf"].shape[0]
    if isinstance(tree, int):
        z = params["emb"][tree] @ params["w"] + params["b"]
        c = ab.nn.sigmoid(z[:dim]) * np.tanh(z[2 * dim : 3 * dim])
        return ab.nn.sigmoid(z[dim : 2 * dim]) * np.tanh(c), c
    (h1, c1), (h2, c2) = _pair(tree[0], params), _pair(tree[1], params)
    z = np.concatenate([h1, h2]) @ params["pair"]
    gates, update = ab.nn.sigmoid(z[: 4 * dim]), np.tanh(z[4 * dim :])
    c = gates[:dim] * update + gates[2 * dim : 3 * dim] * c1 + gates[3 * dim :] * c2
    return gates[dim : 2 * dim] * np.tanh(c), c


def decode(start: int, length: int, params: dict[str, Any]) -> list[int]:
    """A decoding loop: each step needs the value of the one before."""
    out = [start]
    h = params["emb"][start]
    while len(out) < length:
        h = np.tanh(h @ params["uf"] + params["emb"][(out[-1] + len(out)) % 50])
        out.append(int(np.argmax(h @ params["out"])))
    return out
