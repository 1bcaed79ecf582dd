"""Decoding, where each word decides what is computed next: greedily, until the end comes, and by a beam."""

from typing import Any

import numpy as np

import autobatch as ab
from benchmarks import common
from benchmarks.declare import LOOP, OURS, Bar, Case, Runner, Way, Workload
from benchmarks.trees import VOCABULARY

_MOST = 20  # words
_WIDTH = 3
_END = 0


@ab.batch
def greedy(word: int, params: dict[str, Any]) -> list[int]:
    """The words that follow one, each the likeliest after those before it."""
    h, words = params["emb"][word], [word]
    while len(words) < _MOST:
        h = np.tanh(params["emb"][words[-1]] @ params["w"] + h @ params["u"])
        words.append(int((h @ params["out"]).argmax()))
        if words[-1] == _END:
            break
    return words


@ab.batch
def beam(word: int, params: dict[str, Any]) -> list[int]:
    """The likeliest words that follow one, of a few continuations at a time."""
    beams = [(0.0, params["emb"][word], [word])]
    for _ in range(_MOST // 2):
        found = []
        for score, h, words in beams:
            h = np.tanh(params["emb"][words[-1]] @ params["w"] + h @ params["u"])
            scores = ab.nn.log_softmax(h @ params["out"])
            for k in np.argsort(-scores)[:_WIDTH].tolist():
                found.append((score + float(scores[k]), h, [*words, k]))
        found.sort(key=lambda each: -each[0])
        beams = found[:_WIDTH]
    return beams[0][2]


def data(case: Case) -> common.Data:
    rng = np.random.default_rng(41)
    size = case["hidden"]
    params = common.weights(rng, emb=(VOCABULARY, size), w=(size, size), u=(size, size), out=(size, VOCABULARY // 10))
    params["emb"] *= np.float32(VOCABULARY**0.5)
    return common.Data(([int(word) for word in rng.integers(1, VOCABULARY // 10, case["batch"])],), params)


_MODELS = {name: common.Model(f, f, data) for name, f in (("greedy", greedy), ("beam", beam))}


def cases(size: str) -> list[Case]:
    """Both ways of decoding, at states of these sizes."""
    return [
        Case(f"{how} H={hidden}", {"how": how, "hidden": hidden, "batch": common.BATCH if size == "full" else 5})
        for how in _MODELS
        for hidden in ((64, 256) if size == "full" else (8,))
    ]


def by_choice(case: Case) -> Runner:
    return Runner(_MODELS[case["how"]].by_choice(case).run, _arrays)


def on_the_fly(case: Case) -> Runner:
    return Runner(_MODELS[case["how"]].on_the_fly(case).run, _arrays)


def loop(case: Case) -> Runner:
    return Runner(_MODELS[case["how"]].loop(case).run, _arrays)


def _arrays(results: list[list[int]]) -> list[np.ndarray]:
    return [np.array(each) for each in results]


WORKLOAD = Workload(
    "decoding",
    "greedy and beam decoding, each word read before the next, batch 64",
    cases,
    ways=[
        Way(OURS, f"{__name__}:by_choice"),
        Way(LOOP, f"{__name__}:loop"),
        Way("tracing", f"{__name__}:on_the_fly"),
    ],
    bars=[Bar((LOOP,), 2.0, holds=lambda case: case["hidden"] >= 64)],
)
