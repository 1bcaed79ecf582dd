"""SASRec (Kang and McAuley 2018): the next item of a session, by causal self-attention over those before.

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
        self.items, self.places = ab.nn.Embedding(ITEMS, dim, seed=seed), ab.nn.Embedding(20, dim, seed=seed + 1)
        self.attend, self.norm = ab.nn.MultiHeadAttention(dim, heads=2, seed=seed + 2), ab.nn.LayerNorm(dim)
        self.widen, self.narrow = ab.nn.Linear(dim, 2 * dim, seed=seed + 3), ab.nn.Linear(2 * dim, dim, seed=seed + 4)
        self.out = ab.nn.Linear(dim, ITEMS, seed=seed + 5)


@ab.batch
def next_scores(films: np.ndarray, params: Recommender) -> Any:
    """ONE session: (n,) ids -> (n, ITEMS), scores of what follows each."""
    x = params.items(films) + params.places(np.arange(len(films)))
    x = params.norm(x + params.attend(x, causal=True))
    x = x + params.narrow(ab.nn.relu(params.widen(x)))
    return params.out(x)


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


def run(count: int = 500, epochs: int = 5) -> float:
    rng = np.random.default_rng(0)
    params = fit(loss, [sample(rng) for _ in range(count)], init(rng), epochs)
    held_out = ab.collate([sample(rng)[0] for _ in range(200)])
    return float(ab.mean(hits(held_out, params)))


if __name__ == "__main__":
    print(f"hits among the five best: {run():.1%}")
