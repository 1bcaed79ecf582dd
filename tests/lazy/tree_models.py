"""Models over trees and sequences as people write them: each form of nodes, states, recursion and losses once.

`CASES` has for each the function and what makes an example of so many leaves or words.
"""

import dataclasses
from typing import Any, NamedTuple

import numpy as np

import autobatch as ab

V, H = 50, 6


def weights(seed=0):
    r = np.random.default_rng(seed)
    return {
        k: (r.normal(size=s) * 0.3).astype(np.float32)
        for k, s in {"emb": (V, H), "w": (H, H), "u": (2 * H, H), "us": (H, H), "b": (H,), "out": (H, 5)}.items()
    }


def pairs(r, n):
    if n == 1:
        return int(r.integers(V))
    k = int(r.integers(1, n))
    return pairs(r, k), pairs(r, n - k)


@dataclasses.dataclass
class Node:
    word: int
    children: list
    label: int = 0


class Pair:
    def __init__(self, word, left=None, right=None, label=0):
        self.word = word
        self.left = left
        self.right = right
        self.label = label

    @property
    def nothing(self):
        return 1

    def is_leaf(self):
        return self.left is None


def children(r, n):
    ks = []
    left = n - 1
    while left > 0:
        k = int(r.integers(1, left + 1))
        ks.append(children(r, k))
        left -= k
    return Node(int(r.integers(V)), ks, int(r.integers(5)))


def objects(r, n):
    if n == 1:
        return Pair(int(r.integers(V)), label=int(r.integers(5)))
    k = int(r.integers(1, n))
    return Pair(-1, objects(r, k), objects(r, n - k), int(r.integers(5)))


def dicts(r, n):
    if n == 1:
        return {"word": int(r.integers(V)), "label": int(r.integers(5))}
    k = int(r.integers(1, n))
    return {"left": dicts(r, k), "right": dicts(r, n - k), "label": int(r.integers(5))}


def vectors_at_leaves(r, n):
    if n == 1:
        return r.normal(size=H).astype(np.float32)
    k = int(r.integers(1, n))
    return vectors_at_leaves(r, k), vectors_at_leaves(r, n - k)


class State(NamedTuple):
    h: Any
    c: Any


@dataclasses.dataclass
class DState:
    h: Any
    c: Any


def _encode_helper(t, p):
    if isinstance(t, int):
        return np.tanh(p["emb"][t] @ p["w"])
    a, b = t
    return np.tanh(np.concatenate([_encode_helper(a, p), _encode_helper(b, p)]) @ p["u"] + p["b"])


def helper(t, p):
    return _encode_helper(t, p) @ p["out"]


def no_block_of_its_own(t, p):
    return _encode_helper(t, p)


def list_of_losses(t, p):
    losses = []

    def rec(t):
        if t.left is None:
            h = np.tanh(p["emb"][t.word] @ p["w"])
        else:
            h = np.tanh(np.concatenate([rec(t.left), rec(t.right)]) @ p["u"] + p["b"])
        losses.append(ab.nn.cross_entropy(h @ p["out"], t.label))
        return h

    rec(t)
    return sum(losses) / len(losses)


def _encode_children_added_in_a_loop(n, p):
    x = p["emb"][n.word] @ p["w"] + p["b"]
    if not n.children:
        return np.tanh(x)
    hs = [_encode_children_added_in_a_loop(c, p) for c in n.children]
    total = hs[0]
    for h in hs[1:]:
        total = total + h
    return np.tanh(x + total @ p["us"])


def children_added_in_a_loop(n, p):
    return _encode_children_added_in_a_loop(n, p) @ p["out"]


def _encode_children_summed(n, p):
    x = p["emb"][n.word] @ p["w"] + p["b"]
    if n.children:
        x = x + sum(_encode_children_summed(c, p) for c in n.children) @ p["us"]
    return np.tanh(x)


def children_summed(n, p):
    return _encode_children_summed(n, p) @ p["out"]


def _encode_dataclass_states(d, p):
    if "word" in d:
        h = np.tanh(p["emb"][d["word"]] @ p["w"])
        return DState(h=h, c=h * 2)
    l = _encode_dataclass_states(d["left"], p)
    r = _encode_dataclass_states(d["right"], p)
    c = np.tanh(np.concatenate([l.h, r.h]) @ p["u"]) + l.c * 0.5 + r.c
    return DState(h=np.tanh(c), c=c)


def dataclass_states(d, p):
    return _encode_dataclass_states(d, p).h @ p["out"]


def _encode_named_tuple_states(d, p):
    if "word" in d:
        h = np.tanh(p["emb"][d["word"]] @ p["w"])
        return State(h, h * 2)
    l, r = _encode_named_tuple_states(d["left"], p), _encode_named_tuple_states(d["right"], p)
    c = np.tanh(np.concatenate([l.h, r.h]) @ p["u"]) + l.c * 0.5 + r.c
    return State(np.tanh(c), c)


def named_tuple_states(d, p):
    return _encode_named_tuple_states(d, p).h @ p["out"]


@dataclasses.dataclass
class Model:
    emb: Any
    w: Any
    u: Any
    us: Any
    b: Any
    out: Any

    def cell(self, l, r):
        return np.tanh(np.concatenate([l, r]) @ self.u + self.b)

    def encode(self, t):
        if t.is_leaf():
            return np.tanh(self.emb[t.word] @ self.w)
        return self.cell(self.encode(t.left), self.encode(t.right))

    def forward(self, t):
        return self.encode(t) @ self.out


def methods(t, p):
    return p.forward(t)


def _encode_losses_threaded(t, p):
    if t.left is None:
        h = np.tanh(p["emb"][t.word] @ p["w"])
        return h, ab.nn.cross_entropy(h @ p["out"], t.label)
    hl, ll = _encode_losses_threaded(t.left, p)
    hr, lr = _encode_losses_threaded(t.right, p)
    h = np.tanh(np.concatenate([hl, hr]) @ p["u"] + p["b"])
    return h, ll + lr + ab.nn.cross_entropy(h @ p["out"], t.label)


def losses_threaded(t, p):
    return _encode_losses_threaded(t, p)[1]


def total_from_zero(t, p):
    total = 0.0
    for w in t:
        total = total + ab.nn.cross_entropy(np.tanh(p["emb"][w] @ p["w"]) @ p["out"], w % 5)
    return total


def _encode_floats_at_leaves(t, p):
    if isinstance(t, np.ndarray):
        return np.tanh(t @ p["w"])
    l, r = t
    return np.tanh(np.concatenate([_encode_floats_at_leaves(l, p), _encode_floats_at_leaves(r, p)]) @ p["u"])


def floats_at_leaves(t, p):
    return _encode_floats_at_leaves(t, p) @ p["out"]


def recurrent(ws, p):
    h = np.zeros(H, np.float32)
    for w in ws:
        h = np.tanh(p["emb"][w] @ p["w"] + h @ p["us"])
    return h @ p["out"]


class Cell:
    def __init__(self, w, kids=()):
        self.w = w
        self.kids = list(kids)

    def enc(self, p):
        x = p["emb"][self.w] @ p["w"]
        if self.kids:
            x = x + np.mean([k.enc(p) for k in self.kids], axis=0) @ p["us"]
        return np.tanh(x)


def nodes_with_method(r, n):
    ks = []
    left = n - 1
    while left > 0:
        k = int(r.integers(1, left + 1))
        ks.append(nodes_with_method(r, k))
        left -= k
    return Cell(int(r.integers(V)), ks)


def method_of_nodes(t, p):
    return t.enc(p) @ p["out"]


def stack_machine(ex, p):
    words, acts = ex
    stack = []
    i = 0
    for a in acts:
        if a == 0:
            stack.append(np.tanh(p["emb"][words[i]] @ p["w"]))
            i += 1
        else:
            r = stack.pop()
            l = stack.pop()
            stack.append(np.tanh(np.concatenate([l, r]) @ p["u"]))
    return stack[-1] @ p["out"]


def actions(r, n):
    words = [int(w) for w in r.integers(V, size=n)]
    acts = []
    k = 0
    i = 0
    while i < n or k > 1:
        if k >= 2 and (i == n or r.random() < 0.5):
            acts.append(1)
            k -= 1
        else:
            acts.append(0)
            k += 1
            i += 1
    return words, acts


def states_by_key(ex, p):
    states = {}
    for i, (w, parents) in enumerate(ex):
        z = p["emb"][w] @ p["w"]
        for q in parents:
            z = z + states[q] @ p["us"]
        states[i] = np.tanh(z)
    return states[len(ex) - 1] @ p["out"]


def graph(r, n):
    return [(int(r.integers(V)), [int(q) for q in range(i) if r.random() < 0.4]) for i in range(n)]


def words(r, n):
    return [int(x) for x in r.integers(V, size=n)]


CASES = {
    "helper": (helper, pairs),
    "no_block_of_its_own": (no_block_of_its_own, pairs),
    "list_of_losses": (list_of_losses, objects),
    "children_added_in_a_loop": (children_added_in_a_loop, children),
    "children_summed": (children_summed, children),
    "dataclass_states": (dataclass_states, dicts),
    "named_tuple_states": (named_tuple_states, dicts),
    "methods": (methods, objects),
    "losses_threaded": (losses_threaded, objects),
    "total_from_zero": (total_from_zero, words),
    "floats_at_leaves": (floats_at_leaves, vectors_at_leaves),
    "recurrent": (recurrent, words),
    "method_of_nodes": (method_of_nodes, nodes_with_method),
    "stack_machine": (stack_machine, actions),
    "states_by_key": (states_by_key, graph),
}


def shared_of(name):
    """What the examples of a case share."""
    return Model(**weights()) if name == "methods" else weights()


def examples_of(name, count, seed=0, least=2, most=9):
    """New examples of a case."""
    r = np.random.default_rng(seed)
    return [CASES[name][1](r, int(r.integers(least, most))) for _ in range(count)]
