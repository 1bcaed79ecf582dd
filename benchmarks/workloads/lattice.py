"""A lattice LSTM (Zhang and Yang 2018): an LSTM over characters into which the words of a lexicon lead as well."""

import dataclasses
from typing import Any

import numpy as np

import autobatch as ab
from benchmarks import common
from benchmarks.declare import LOOP, OURS, Case, Way, Workload
from benchmarks.trees import VOCABULARY

__all__ = ["MODEL", "WORKLOAD", "Lattice", "data", "forward", "loss"]


@dataclasses.dataclass(frozen=True)
class Lattice:
    """Character ids; and for each character the words that end there, as (where the word begins, its id)."""

    characters: tuple[int, ...]
    words: tuple[tuple[tuple[int, int], ...], ...]


@ab.batch
def forward(lattice: Lattice, params: dict[str, Any]) -> np.ndarray:
    """The scores of a sentence's five classes, from its last state."""
    p = params
    size = p["out"].shape[0]
    h = c = np.zeros(size, np.float32)
    states: list[tuple[np.ndarray, np.ndarray]] = []
    for character, words in zip(lattice.characters, lattice.words, strict=True):
        x = p["emb"][character]
        z = np.concatenate([x, h]) @ p["w"] + p["b"]
        gates, new = ab.nn.sigmoid(z[: 2 * size]), np.tanh(z[2 * size :])
        if words:
            cells = [word_cell(p["emb"][word], *states[start], p) for start, word in words]
            shares = [np.exp(ab.nn.sigmoid(np.concatenate([x, cell]) @ p["w_gate"])) for cell in cells]
            own = np.exp(gates[:size])
            c = (own * new + sum(s * cell for s, cell in zip(shares, cells, strict=True))) / (own + sum(shares))
        else:
            c = gates[:size] * new + (1 - gates[:size]) * c
        h = gates[size:] * np.tanh(c)
        states.append((h, c))
    return h @ p["out"]


def word_cell(x: np.ndarray, h: np.ndarray, c: np.ndarray, p: dict[str, Any]) -> np.ndarray:
    """What a word brings along from the state where it begins."""
    size = p["out"].shape[0]
    z = np.concatenate([x, h]) @ p["w_word"] + p["b_word"]
    gates = ab.nn.sigmoid(z[: 2 * size])
    return gates[:size] * np.tanh(z[2 * size :]) + gates[size:] * c


@ab.batch
def loss(lattice: Lattice, label: int, params: dict[str, Any]) -> np.ndarray:
    return ab.nn.cross_entropy(forward(lattice, params), label)


def random_lattice(rng: np.random.Generator, length: int) -> Lattice:
    words = []
    for end in range(length):
        starts = [start for start in range(max(0, end - 3), end) if rng.random() < 0.25]
        words.append(tuple((start, int(rng.integers(VOCABULARY))) for start in starts))
    return Lattice(tuple(rng.integers(0, VOCABULARY, length).tolist()), tuple(words))


def data(case: Case) -> common.Data:
    rng = np.random.default_rng(14)
    size = case["hidden"]
    lengths = rng.integers(5, 41 if case["batch"] > 8 else 9, case["batch"])
    lattices = [random_lattice(rng, int(n)) for n in lengths]
    labels = [int(label) for label in rng.integers(0, 5, len(lattices))]
    params = common.weights(
        rng,
        emb=(VOCABULARY, size),
        w=(2 * size, 3 * size),
        b=(3 * size,),
        w_word=(2 * size, 3 * size),
        b_word=(3 * size,),
        w_gate=(2 * size, size),
        out=(size, 5),
    )
    params["emb"] *= np.float32(VOCABULARY**0.5)
    return common.Data((lattices, labels) if case.train else (lattices,), params, tables=("emb",))


MODEL = common.Model(forward, loss, data)

WORKLOAD = Workload(
    "lattice",
    "lattice LSTM over 5-40 characters and the words among them, batch 64",
    common.sizes(small=(8,), full=(64, 256)),
    ways=[
        Way(OURS, "benchmarks.workloads.lattice:MODEL.on_the_fly"),
        Way(LOOP, "benchmarks.workloads.lattice:MODEL.loop"),
        Way("DyNet agenda", "benchmarks.peers.graphs_dynet:lattice", needs="dynet", settings={"autobatch": 1}),
        Way("DyNet depth", "benchmarks.peers.graphs_dynet:lattice", needs="dynet", settings={"autobatch": 2}),
    ],
)
