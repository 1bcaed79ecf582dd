"""Features of series that were sampled at irregular times: means weighted by time, gaps, slopes, fading memory.

Which of two kinds a series is shows in its decay only. Held-out accuracy of a linear model of them: at least 0.9.
"""

from typing import Any

import numpy as np

import autobatch as ab
from examples.fitting import fit, normal

BAR = 0.9


@ab.batch
def features(t: np.ndarray, v: np.ndarray) -> Any:
    """ONE series: (n,) times, (n,) values, n at least 2 -> 6 numbers."""
    gaps = np.diff(t)
    weighted = (gaps * (v[1:] + v[:-1]) / 2).sum() / (t[-1] - t[0])
    centred = t - t.mean()
    slope = (centred * v).sum() / (centred**2).sum()
    memory = v[0]
    for gap, value in zip(gaps, v[1:]):  # noqa: B905  (of one series, they are equally long)
        kept = np.exp(-gap / 2)
        memory = kept * memory + (1 - kept) * value
    late = v[t > t[-1] / 2]
    ratio = late.mean() / v.max() if len(late) > 0 else 0.0
    return np.stack([weighted, slope, memory, gaps.max(), v.std(), ratio])


@ab.batch
def loss(t: np.ndarray, v: np.ndarray, label: int, params: Any) -> Any:
    return ab.nn.cross_entropy(features(t, v) @ params["w"] + params["b"], label)


def sample(rng: np.random.Generator) -> tuple[Any, ...]:
    label = int(rng.integers(2))
    t = np.sort(rng.uniform(0, 10, rng.integers(5, 30)))
    return t, np.exp(-t / (8 if label else 2)) + rng.normal(0, 0.05, len(t)), label


def init(rng: np.random.Generator) -> Any:
    return {"w": normal(rng, 6, 2), "b": np.zeros(2, np.float32)}


def run(count: int = 400, epochs: int = 15) -> float:
    rng = np.random.default_rng(0)
    params = fit(loss, [sample(rng) for _ in range(count)], init(rng), epochs, lr=0.1)
    t, v, label = ab.collate([sample(rng) for _ in range(300)])
    rows = np.stack(features(t, v).examples())
    return float(np.mean((rows @ params["w"] + params["b"]).argmax(-1) == np.array(label.examples())))


if __name__ == "__main__":
    print(f"held-out accuracy {run():.1%}")
