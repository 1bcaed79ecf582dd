"""A shift-reduce parser whose next move comes from the model: the stack's and the buffer's states decide it."""

from typing import Any

import numpy as np

import autobatch as ab
from benchmarks import common
from benchmarks.declare import LOOP, Bar, Case, Way, Workload, by_choice, dynet
from benchmarks.trees import VOCABULARY


@ab.batch
def forward(words: list[int], params: dict[str, Any]) -> np.ndarray:
    """The state of the tree that the model builds over a sentence."""
    left = 0
    stack: list[np.ndarray] = []
    while left < len(words) or len(stack) > 1:
        if len(stack) < 2:
            shift = True
        elif left == len(words):
            shift = False
        else:
            seen = np.concatenate([stack[-2], stack[-1], params["emb"][words[left]]])
            shift = bool(np.tanh(seen @ params["w_move"]) @ params["move"] > 0)
        if shift:
            stack.append(params["emb"][words[left]])
            left += 1
        else:
            right = stack.pop()
            stack.append(np.tanh(np.concatenate([stack.pop(), right]) @ params["w"]))
    return stack[0]


@ab.batch
def loss(words: list[int], params: dict[str, Any]) -> np.ndarray:
    return (forward(words, params) * params["out"]).sum()


def data(case: Case) -> common.Data:
    rng = np.random.default_rng(8)
    size = case["hidden"]
    lengths = rng.integers(5, 31 if case["batch"] > 8 else 9, case["batch"])
    sentences = [rng.integers(0, VOCABULARY, n).tolist() for n in lengths]
    params = common.weights(
        rng, emb=(VOCABULARY, size), w_move=(3 * size, size), move=(size,), w=(2 * size, size), out=(size,)
    )
    params["emb"] *= np.float32(VOCABULARY**0.5)
    return common.Data((sentences,), params, tables=("emb",))


MODEL = common.Model(forward, loss, data)
WORKLOAD = Workload(
    "parser",
    "shift-reduce parser over 5-30 words, moves from the model, batches of 64, 16 and 256",
    common.with_batches(common.sizes(small=(8,), full=(64, 256)), 16, 256),
    ways=[
        *by_choice("parser"),
        Way("torch loop", "benchmarks.peers.parser_torch:loop", needs="torch"),
        *dynet("parser_dynet:prepare", "agenda", "depth", "unbatched"),
    ],
    bars=[
        Bar(("DyNet", LOOP), 2.0, holds=lambda case: case["hidden"] >= 64 and not case["train"]),
        Bar(("DyNet",), 1.5, holds=lambda case: case["hidden"] >= 64 and case["train"]),
    ],
)
