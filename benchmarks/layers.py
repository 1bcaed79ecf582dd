"""The layers of `ab.nn` inside of a larger model, beside the same lines by hand with their arrays in a dict.

    python -m benchmarks.layers [WAY ...]

Each model looks words up, runs one layer over their rows, and multiplies the sum of what that gives by a matrix: 64
sentences of 3 to 30 words, 32 wide. Ways: `batch`, a call on a batch; `map`, traced; `choice`, a map by whichever
way the library takes. Printed are milliseconds of processor time of the layer's model, and over those of the lines by
hand, forward and with the gradient of all parameters. The results are compared first.
"""

import sys
import time
from collections.abc import Callable
from typing import Any

import numpy as np

import autobatch as ab
from autobatch.blocks.kernel_cache import wait_for_kernels
from benchmarks.workloads.lstm import lstm as states_of

nn = ab.nn
_SIZE, _ROUNDS = 32, 7
_WAYS = ("batch", "map", "choice")


def lstm(xs: Any, p: Any) -> Any:
    return np.stack(states_of(xs, p))


def gru(xs: Any, p: Any) -> Any:
    size = p["u"].shape[0]
    h = np.zeros(size, np.float32)
    states = []
    for x in xs:
        y, z = x @ p["w"] + p["b"], h @ p["u"] + p["d"]
        r = nn.sigmoid(y[:size] + z[:size])
        keep = nn.sigmoid(y[size : 2 * size] + z[size : 2 * size])
        n = np.tanh(y[2 * size :] + r * z[2 * size :])
        h = (1 - keep) * n + keep * h
        states.append(h)
    return np.stack(states)


def attention(x: Any, p: Any) -> Any:
    q, k, v = (
        (x @ p[name]).reshape(x.shape[0], 4, _SIZE // 4).transpose(1, 0, 2) for name in ("query", "key", "value")
    )
    weights = nn.softmax(q @ k.transpose(0, 2, 1) * (_SIZE // 4) ** -0.5)
    return (weights @ v).transpose(1, 0, 2).reshape(x.shape[0], _SIZE) @ p["out"]


def convolution(x: Any, p: Any) -> Any:
    y = x @ p["weight"].transpose(1, 0, 2).reshape(_SIZE, 3 * _SIZE)
    count = max(x.shape[0] - 2, 0)
    out = y[:count, :_SIZE]
    for k in range(1, 3):
        out = out + y[k : k + count, k * _SIZE : (k + 1) * _SIZE]
    return out + p["bias"]


Lines = Callable[[Any, Any], Any]
LAYERS: dict[str, tuple[Callable[[], Any], Lines]] = {
    "Embedding": (lambda: None, lambda x, p: x),  # that of the words
    "Linear": (lambda: nn.Linear(_SIZE, _SIZE, seed=0), lambda x, p: x @ p["weight"] + p["bias"]),
    "LayerNorm": (lambda: nn.LayerNorm(_SIZE), lambda x, p: nn.layer_norm(x, eps=1e-5) * p["scale"] + p["shift"]),
    "Dropout": (lambda: nn.Dropout(0.1), lambda x, p: nn.dropout(x, 0.1)),
    "Conv1d": (lambda: nn.Conv1d(_SIZE, _SIZE, 3, seed=0), convolution),
    "MultiHeadAttention": (lambda: nn.MultiHeadAttention(_SIZE, 4, seed=0), attention),
    "LSTM": (lambda: nn.LSTM(_SIZE, _SIZE, seed=0), lstm),
    "GRU": (lambda: nn.GRU(_SIZE, _SIZE, seed=0), gru),
}


class Model:
    """A layer between an embedding and a product."""

    def __init__(self, layer: Any) -> None:
        self.words, self.layer, self.out = nn.Embedding(1000, _SIZE, seed=1), layer, nn.Linear(_SIZE, 4, seed=2)


def of_layer(ids: Any, model: Any) -> Any:
    return model.out(model.layer(model.words(ids)).sum(0))


def of_recurrent_layer(ids: Any, model: Any) -> Any:
    return model.out(model.layer(model.words(ids))[0].sum(0))


def of_embedding(ids: Any, model: Any) -> Any:
    return model.out(model.words(ids).sum(0))


def by_hand(lines: Lines) -> Callable[[Any, Any], Any]:
    """The model with these lines in the place of the layer, as code of its own."""

    def run(ids: Any, model: Any) -> Any:
        return lines(model["words"][ids], model["layer"]).sum(0) @ model["out"] + model["bias"]

    return run


def calls(f: Any, sentences: Any, model: Any, way: str) -> dict[str, Callable[[], Any]]:
    """What is timed, forward and with the gradient; each gives results to compare."""
    batched, batch = ab.batch(f), ab.collate(sentences)

    def forward(model: Any) -> Any:
        if way == "batch":
            return batched(batch, model)
        with ab.options(way="fly" if way == "map" else "auto", seed=0):
            return ab.map(f, sentences, model=model)

    def loss(model: Any) -> Any:
        out = forward(model)
        return ab.sum(out * out) if way == "batch" else sum((each * each).sum() for each in out)

    def plain() -> Any:
        out = forward(model)
        return ab.examples(out) if way == "batch" else out

    return {"forward": plain, "training": lambda: ab.value_and_grad(loss)(model)[:1]}


def least(runs: list[Callable[[], Any]]) -> list[float]:
    """The least milliseconds of each, in turn."""
    found = [float("inf")] * len(runs)
    for _ in range(_ROUNDS):
        for at, run in enumerate(runs):
            begin = time.process_time()
            run()
            found[at] = min(found[at], 1e3 * (time.process_time() - begin))
    return found


def main() -> None:
    rng = np.random.default_rng(0)
    sentences = [rng.integers(0, 1000, n) for n in rng.integers(3, 31, 64)]
    for name, (make, lines) in LAYERS.items():
        model = Model(make())
        f = of_embedding if model.layer is None else of_recurrent_layer if name in ("LSTM", "GRU") else of_layer
        parts = vars(model.layer) if model.layer else {}
        arrays = {
            "words": model.words.weight,
            "layer": {key: each for key, each in parts.items() if isinstance(each, np.ndarray)},
            "out": model.out.weight,
            "bias": model.out.bias,
        }
        row = [f"{name:20}"]
        for way in sys.argv[1:] or _WAYS:
            ours, hand = calls(f, sentences, model, way), calls(by_hand(lines), sentences, arrays, way)
            for what in ours:
                with ab.options(seed=0):
                    for a, b in zip(ours[what](), hand[what](), strict=True):
                        np.testing.assert_allclose(a, b, rtol=1e-3, atol=1e-4)
                wait_for_kernels(30.0)
                for _ in range(4):
                    ours[what](), hand[what]()
                layer, own = least([ours[what], hand[what]])
                row.append(f"{way} {what} {layer:6.2f} ({layer / own:.2f})")
        print("  ".join(row), flush=True)


if __name__ == "__main__":
    main()
