"""GRU4Rec (Hidasi et al. 2016): the next item of a session, by a GRU over those before.

Hits among the five best of the held-out next items: at least 0.7 of all.
"""

from typing import Any

import numpy as np

import autobatch as ab
from examples.fitting import fit
from examples.recommend.sessions import ITEMS, session

BAR = 0.7
sample = session


class Recommender:
    def __init__(self, seed: int = 0, dim: int = 32) -> None:
        self.items = ab.nn.Embedding(ITEMS, dim, seed=seed)
        self.read = ab.nn.GRU(dim, dim, seed=seed + 1)
        self.out = ab.nn.Linear(dim, ITEMS, seed=seed + 2)


@ab.batch
def next_scores(films: np.ndarray, params: Recommender) -> Any:
    """ONE session: (n,) ids -> (n, ITEMS), scores of what follows each."""
    states, _ = params.read(params.items(films))
    return params.out(states)


@ab.batch
def loss(films: np.ndarray, params: Recommender) -> Any:
    return ab.nn.cross_entropy(next_scores(films, params)[:-1], films[1:])


@ab.batch
def hits(films: np.ndarray, params: Recommender) -> Any:
    """(n - 1,): whether what followed is among the five best."""
    best = np.argsort(-next_scores(films, params)[:-1])[:, :5]
    return (best == films[1:, None]).any(-1)


def init(rng: np.random.Generator) -> Recommender:
    return Recommender(int(rng.integers(100)))


def run(count: int = 500, epochs: int = 6) -> float:
    rng = np.random.default_rng(0)
    params = fit(loss, [sample(rng) for _ in range(count)], init(rng), epochs)
    held_out = ab.collate([sample(rng)[0] for _ in range(200)])
    return float(ab.mean(hits(held_out, params)))


if __name__ == "__main__":
    print(f"hits among the five best: {run():.1%}")
