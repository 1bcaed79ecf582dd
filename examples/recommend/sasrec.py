"""SASRec (Kang and McAuley 2018): the next item of a session, by causal self-attention over those before.

Hits among the five best of the held-out next items: at least 0.7 of all.
"""

from typing import Any

import numpy as np

import autobatch as ab
from examples.recommend.sessions import ITEMS, hits_after_training, loss, session

__all__ = ["BAR", "SASRec", "init", "loss", "run", "sample"]

BAR = 0.7
sample = session


class SASRec:
    def __init__(self, seed: int = 0, dim: int = 32) -> None:
        self.items, self.places = ab.nn.Embedding(ITEMS, dim, seed=seed), ab.nn.Embedding(20, dim, seed=seed + 1)
        self.attend, self.norm = ab.nn.MultiHeadAttention(dim, heads=2, seed=seed + 2), ab.nn.LayerNorm(dim)
        self.widen, self.narrow = ab.nn.Linear(dim, 2 * dim, seed=seed + 3), ab.nn.Linear(2 * dim, dim, seed=seed + 4)
        self.out = ab.nn.Linear(dim, ITEMS, seed=seed + 5)

    def __call__(self, films: np.ndarray) -> Any:
        """ONE session: (n,) ids -> (n, ITEMS), scores of what follows each."""
        x = self.items(films) + self.places(np.arange(len(films)))
        x = self.norm(x + self.attend(x, causal=True))
        x = x + self.narrow(ab.nn.relu(self.widen(x)))
        return self.out(x)


def init(rng: np.random.Generator) -> SASRec:
    return SASRec(int(rng.integers(100)))


def run() -> float:
    return hits_after_training(SASRec(), epochs=5)


if __name__ == "__main__":
    print(f"hits among the five best: {run():.1%}")
