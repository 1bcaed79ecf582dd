"""Adaptive computation time (Graves 2016): the network decides by itself how many steps an example gets.

The parity of some bits. Held-out accuracy: at least 0.95; thinking costs, and no example takes all the steps.
"""

from typing import Any

import numpy as np

import autobatch as ab
from examples.fitting import fit, normal

BAR = 0.95
BITS, MOST, PRICE = 4, 10, 0.02


@ab.batch
def think(bits: np.ndarray, params: Any) -> tuple[Any, Any]:
    """ONE example: (BITS,) -> logits, and the ponder cost: steps and what was left over."""
    h, total, answer = (np.zeros(shape, np.float32)[()] for shape in (32, (), 32))
    steps = 0
    x = bits @ params["w"]
    while True:
        h = np.tanh(x + h @ params["u"] + params["b"])
        halt = ab.nn.sigmoid((h * params["halt"]).sum() + 1)
        steps += 1
        if total + halt > 0.99 or steps == MOST:
            rest = 1 - total
            return (answer + rest * h) @ params["out"], steps + rest
        total, answer = total + halt, answer + halt * h


@ab.batch
def loss(bits: np.ndarray, label: int, params: Any) -> Any:
    logits, cost = think(bits, params)
    return ab.nn.cross_entropy(logits, label) + PRICE * cost


def sample(rng: np.random.Generator) -> tuple[Any, ...]:
    bits = rng.integers(0, 2, BITS)
    return (2 * bits - 1).astype(np.float32), int(bits.sum() % 2)


def init(rng: np.random.Generator) -> Any:
    shapes = {"w": (BITS, 32), "u": (32, 32), "b": (32,), "halt": (32,), "out": (32, 2)}
    return {name: normal(rng, *shape) for name, shape in shapes.items()}


def run(count: int = 640, epochs: int = 15) -> float:
    rng = np.random.default_rng(0)
    params = fit(loss, [sample(rng) for _ in range(count)], init(rng), epochs, size=64)
    bits, labels = ab.collate([sample(rng) for _ in range(200)])
    logits, costs = zip(*ab.examples(think(bits, params)), strict=True)
    assert max(costs) < MOST
    return float(np.mean(np.stack(logits).argmax(-1) == np.array(labels.examples())))


if __name__ == "__main__":
    print(f"held-out accuracy {run():.1%}")
