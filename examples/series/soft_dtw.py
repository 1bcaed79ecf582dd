"""Soft dynamic time warping (Cuturi and Blondel 2017): a distance of two series of any lengths, with a gradient.

A barycentre of shifted bumps, found by gradient descent, is nearer to them than their mean: at most 0.6 of its
distance. As gamma goes to 0 the distance is that of ordinary time warping.
"""

from typing import Any

import numpy as np

import autobatch as ab

BAR = 0.4  # how much nearer


@ab.batch
def soft_dtw(x: np.ndarray, y: np.ndarray, gamma: float = 0.1) -> Any:
    """ONE pair: (n,), (m,)."""
    cost = (x[:, None] - y) ** 2
    above = [0.0] + [np.inf] * len(y)
    for i in range(len(x)):
        row = [np.inf]
        for j in range(len(y)):
            near = np.stack([above[j], above[j + 1], row[j]])
            low = near.min()
            row.append(cost[i, j] + low - gamma * np.log(np.exp((low - near) / gamma).sum()))
        above = row
    return above[-1]


def loss(x: np.ndarray, params: Any) -> Any:
    return soft_dtw(x, params["y"])


def dtw(x: np.ndarray, y: np.ndarray) -> float:
    d = np.full((len(x) + 1, len(y) + 1), np.inf)
    d[0, 0] = 0.0
    for i in range(len(x)):
        for j in range(len(y)):
            d[i + 1, j + 1] = (x[i] - y[j]) ** 2 + min(d[i, j + 1], d[i + 1, j], d[i, j])
    return float(d[-1, -1])


def sample(rng: np.random.Generator) -> tuple[np.ndarray]:
    n = int(rng.integers(7, 10))
    return (np.exp(-((np.arange(n) - rng.uniform(1, n - 2)) ** 2)),)


def init(rng: np.random.Generator) -> Any:
    return {"y": rng.normal(size=6)}


def run(count: int = 8, steps: int = 30) -> float:
    rng = np.random.default_rng(0)
    series = [sample(rng)[0] for _ in range(count)]
    for x in series[:2]:
        assert np.isclose(soft_dtw(x, series[0], 1e-3), dtw(x, series[0]), atol=1e-2)
    start = y = np.mean([each[:7] for each in series], 0)

    def far(y: np.ndarray) -> Any:
        distances = ab.map(soft_dtw, series, y=y)  # rows that grow, and differ in length: traced
        return sum(distances[1:], distances[0]) / len(distances)

    with ab.options(way="fly"):
        for _ in range(steps):
            y = y - 0.1 * ab.grad(far)(y)
    return 1 - float(np.mean([dtw(x, y) for x in series]) / np.mean([dtw(x, start) for x in series]))


if __name__ == "__main__":
    print(f"the barycentre is {run():.0%} nearer than the mean")
