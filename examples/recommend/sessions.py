"""The next film of a session: data as MovieLens has it, made up, and the loss and measure of models that score films.

A model is an object that is called with ONE session, (n,) ids, and gives (n, ITEMS): scores of what follows each film.
"""

from typing import Any

import numpy as np

import autobatch as ab
from examples.fitting import fit

__all__ = ["ITEMS", "hits_after_training", "loss", "session"]

ITEMS, SERIES = 60, 10


def session(rng: np.random.Generator) -> tuple[np.ndarray]:
    """ONE user's films, (n,) ids: along a series, with a jump now and then, one time of ten."""
    film, films = int(rng.integers(ITEMS)), []
    for _ in range(rng.integers(5, 16)):
        films.append(film)
        series, part = divmod(film, SERIES)
        film = int(rng.integers(ITEMS)) if rng.random() < 0.1 else series * SERIES + (part + 1) % SERIES
    return (np.array(films),)


@ab.batch
def loss(films: np.ndarray, params: Any) -> Any:
    return ab.nn.cross_entropy(params(films)[:-1], films[1:])


@ab.batch
def hits(films: np.ndarray, params: Any) -> Any:
    """(n - 1,): whether what followed is among the five best."""
    best = np.argsort(-params(films)[:-1])[:, :5]
    return (best == films[1:, None]).any(-1)


def hits_after_training(model: Any, count: int = 500, epochs: int = 6) -> float:
    """Train on made-up sessions; the share of hits in others."""
    rng = np.random.default_rng(0)
    model = fit(loss, [session(rng) for _ in range(count)], model, epochs)
    return float(ab.mean(hits(ab.collate([session(rng)[0] for _ in range(200)]), model)))
