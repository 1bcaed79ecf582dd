"""Sessions as MovieLens has them, made up: each user goes through the films of a series, and now and then jumps."""

import numpy as np

__all__ = ["ITEMS", "session"]

ITEMS, SERIES = 60, 10


def session(rng: np.random.Generator) -> tuple[np.ndarray]:
    """ONE user's films, (n,) ids; what comes next is predictable nine times of ten."""
    film, films = int(rng.integers(ITEMS)), []
    for _ in range(rng.integers(5, 16)):
        films.append(film)
        series, part = divmod(film, SERIES)
        film = int(rng.integers(ITEMS)) if rng.random() < 0.1 else series * SERIES + (part + 1) % SERIES
    return (np.array(films),)
