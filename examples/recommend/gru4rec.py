"""GRU4Rec (Hidasi et al. 2016): the next item of a session, by a GRU over those before.

Hits among the five best of the held-out next items: at least 0.7 of all.
"""

from typing import Any

import numpy as np

import autobatch as ab
from examples.recommend.sessions import ITEMS, hits_after_training, loss, session

__all__ = ["BAR", "GRU4Rec", "init", "loss", "run", "sample"]

BAR = 0.7
sample = session


class GRU4Rec:
    def __init__(self, seed: int = 0, dim: int = 32) -> None:
        self.items = ab.nn.Embedding(ITEMS, dim, seed=seed)
        self.read = ab.nn.GRU(dim, dim, seed=seed + 1)
        self.out = ab.nn.Linear(dim, ITEMS, seed=seed + 2)

    def __call__(self, films: np.ndarray) -> Any:
        """ONE session: (n,) ids -> (n, ITEMS), scores of what follows each."""
        states, _ = self.read(self.items(films))
        return self.out(states)


def init(rng: np.random.Generator) -> GRU4Rec:
    return GRU4Rec(int(rng.integers(100)))


def run() -> float:
    return hits_after_training(GRU4Rec(), epochs=6)


if __name__ == "__main__":
    print(f"hits among the five best: {run():.1%}")
