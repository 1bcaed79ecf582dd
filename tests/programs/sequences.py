"""Models over sequences: recurrent cells, attention, normalisation, ragged products."""

from typing import NamedTuple

import numpy as np

import autobatch as ab
from tests.programs.registry import program, vectors, weights

LENGTHS = (3, 5, 1, 4, 5, 2)


@program(vectors(*LENGTHS, 0, width=4), grad=True, params=weights(w=(4, 6), u=(6, 6), out=(6, 2)))
def rnn(xs, params):
    h = np.zeros(params["u"].shape[0], np.float32)
    for x in xs:
        h = np.tanh(x @ params["w"] + h @ params["u"])
    return h @ params["out"]


@program(
    [np.array(ids) for ids in ([1, 2, 3], [4], [0, 9, 9, 2], [5, 5])],
    grad=True,
    params=weights(emb=(10, 4), w=(4, 6), u=(6, 6), out=(6, 2)),
)
def sentiment(words, params):
    h = np.zeros(params["u"].shape[0], np.float32)
    for x in params["emb"][words]:
        h = np.tanh(x @ params["w"] + h @ params["u"])
    return h @ params["out"]


class State(NamedTuple):
    h: np.ndarray
    c: np.ndarray


def lstm_cell(x, state, params):
    gates = x @ params["w"] + state.h @ params["u"] + params["b"]
    i, f, o, g = np.split(gates, 4)
    c = ab.nn.sigmoid(f) * state.c + ab.nn.sigmoid(i) * np.tanh(g)
    return State(ab.nn.sigmoid(o) * np.tanh(c), c)


@program(vectors(*LENGTHS, width=3, seed=1), grad=True, params=weights(w=(3, 16), u=(4, 16), b=(16,)))
def lstm_with_a_named_state(xs, params):
    state = State(np.zeros(4, np.float32), np.zeros(4, np.float32))
    for x in xs:
        state = lstm_cell(x, state, params)
    return state


@program(vectors(*LENGTHS, width=3, seed=2), grad=True, params=weights(w=(3, 12), u=(4, 8), v=(4, 4)))
def gru(xs, params):
    h = np.zeros(4, np.float32)
    for x in xs:
        wx = x @ params["w"]
        zr = ab.nn.sigmoid(wx[:8] + h @ params["u"])
        z, r = zr[:4], zr[4:]
        h = (1 - z) * h + z * np.tanh(wx[8:] + (r * h) @ params["v"])
    return h


@program(vectors(*LENGTHS, width=3, seed=3), grad=True, params=weights(w=(3, 4), u=(4, 4), v=(4, 4)))
def birnn(xs, params):
    h = h0 = np.zeros(4, np.float32)
    forward, backward = [], []
    for x in xs:
        h = np.tanh(x @ params["w"] + h @ params["u"])
        forward.append(h)
    h = h0
    for x in reversed(xs):
        h = np.tanh(x @ params["w"] + h @ params["v"])
        backward.append(h)
    return np.concatenate([np.stack(forward), np.stack(list(reversed(backward)))], axis=1)


@program(vectors(*LENGTHS, width=4, seed=4), grad=True, params=weights(q=(4, 4), k=(4, 4), v=(4, 4)))
def self_attention(x, params):
    q, k, v = (x @ params[name] for name in ("q", "k", "v"))
    return ab.nn.softmax(q @ k.T / np.float32(2.0)) @ v


@program(vectors(*LENGTHS, width=4, seed=5), grad=True, params=weights(q=(4, 4), k=(4, 4)))
def causal_attention(x, params):
    scores = ab.nn.causal_mask((x @ params["q"]) @ (x @ params["k"]).T)
    return ab.nn.softmax(scores) @ x


@program(vectors(*LENGTHS, width=4, seed=6), vectors(2, 1, 6, 3, 5, 4, width=4, seed=7), grad=True)
def cross_attention(x, memory):
    return ab.nn.softmax(x @ memory.T) @ memory


@program(vectors(*LENGTHS, width=6, seed=8), grad=True, heads=3, params=weights(q=(6, 6), k=(6, 6), v=(6, 6), o=(6, 6)))
def multi_head_attention(x, heads, params):
    def split(y):
        return y.reshape(y.shape[0], heads, -1).transpose(1, 0, 2)

    q, k, v = (split(x @ params[name]) for name in ("q", "k", "v"))
    mixed = ab.nn.softmax(q @ k.transpose(0, 2, 1)) @ v
    return mixed.transpose(1, 0, 2).reshape(x.shape[0], -1) @ params["o"]


@program(
    vectors(*LENGTHS, width=4, seed=9),
    [np.arange(n) % 3 for n in LENGTHS],
    grad=True,
    params=weights(q=(4, 4), k=(4, 4), a=(4, 8), b=(8, 4), out=(4, 3), g=(4,), c=(4,)),
)
def transformer_token_loss(x, labels, params):
    y = ab.nn.layer_norm(x, params["g"], params["c"])
    x = x + ab.nn.softmax((y @ params["q"]) @ (y @ params["k"]).T) @ y
    x = x + ab.nn.relu(ab.nn.layer_norm(x) @ params["a"]) @ params["b"]
    return ab.nn.cross_entropy(x @ params["out"], labels)


@program(vectors(*LENGTHS, width=4, seed=10), grad=True)
def layer_norm_by_hand(x):
    mean = x.mean(axis=-1, keepdims=True)
    return (x - mean) / np.sqrt(x.var(axis=-1, keepdims=True) + 1e-5)


@program(vectors(*LENGTHS, width=4, seed=11), grad=True)
def softmax_down_the_ragged_axis(x):
    e = np.exp(x - x.max(axis=0))
    return (e / e.sum(axis=0)).T


@program(vectors(*LENGTHS, width=4, seed=12), vectors(*LENGTHS, width=3, seed=13), grad=True)
def ragged_products_in_both_orders(a, b):
    return a.T @ b, (b @ b.T).sum(axis=1)


@program(vectors(4, 2, 6, 3, width=3, seed=14), grad=True, h0=None, params=weights(u=(3, 3)))
def optional_initial_state(xs, h0, params):
    h = np.zeros(3, np.float32) if h0 is None else h0
    outputs = []
    for t, x in enumerate(xs):
        h = np.tanh(x + h @ params["u"]) * (t + 1)
        outputs.append(h)
    return {"last": h, "all": np.stack(outputs)}


@program(vectors(3, 1, 4, width=2, seed=15), vectors(4, 2, 1, width=2, seed=16), grad=True)
def zip_stopst_the_shorter(xs, ys):
    total = np.float32(0.0)
    for x, y in zip(xs, ys):
        total = total + (x * y).sum()
    return total
