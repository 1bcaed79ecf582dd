"""A pointer network (Vinyals et al. 2015): points at places of its own input, here at numbers from the smallest up.

Held-out lists that come out sorted: at least 0.8.
"""

from typing import Any

import numpy as np

import autobatch as ab
from examples.fitting import fit, normal

BAR = 0.8


@ab.batch
def point(numbers: np.ndarray, params: Any, order: Any = None) -> tuple[Any, Any]:
    """ONE list of n numbers -> the places that it points at (or `order`, if given), and their log-probability."""
    keys = np.tanh(numbers[:, None] * params["w"] + params["b"]) @ params["key"]
    query, open_, places, total = params["start"], np.zeros(len(numbers), np.float32), [], 0.0
    for step in range(len(numbers)):
        log_p = ab.nn.log_softmax(np.tanh(keys + query @ params["query"]) @ params["v"] + open_)
        place = log_p.argmax() if order is None else order[step]
        total = total + log_p[place]
        places.append(place)
        open_ = np.where(np.arange(len(numbers)) == place, np.float32(-1e4), open_)
        query = keys[place]
    return places, total


@ab.batch
def loss(numbers: np.ndarray, order: np.ndarray, params: Any) -> Any:
    return -point(numbers, params, order)[1] / len(order)


def sample(rng: np.random.Generator) -> tuple[np.ndarray, np.ndarray]:
    numbers = rng.permutation(10)[: rng.integers(2, 6)].astype(np.float32) / 5 - 1
    return numbers, np.argsort(numbers)


def init(rng: np.random.Generator, dim: int = 32) -> Any:
    shapes = {"w": (1, dim), "b": (1, dim), "key": (dim, dim), "query": (dim, dim), "v": (dim,), "start": (dim,)}
    return {name: normal(rng, *shape) for name, shape in shapes.items()}


def run(count: int = 600, epochs: int = 12) -> float:
    rng = np.random.default_rng(0)
    params = fit(loss, [sample(rng) for _ in range(count)], init(rng), epochs)
    numbers, orders = zip(*[sample(rng) for _ in range(100)], strict=True)
    found = ab.examples(point(ab.MaskedBatch.from_examples(numbers), params))
    return float(np.mean([list(places) == list(order) for (places, _), order in zip(found, orders, strict=True)]))


if __name__ == "__main__":
    print(f"lists sorted: {run():.1%}")
