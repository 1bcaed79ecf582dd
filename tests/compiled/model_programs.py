"""Models as people write them first: layers by number, parameters by name, objects that hold them; with gradients."""

import dataclasses

import numpy as np

from tests.compiled.gradient_programs import GRADIENTS, differentiated

_BEFORE = set(GRADIENTS)


def _layers(rng, count=3):
    named = {f"w{k}": rng.normal(size=(3, 3)) for k in range(count)}
    return {**named, **{f"b{k}": rng.normal(size=3) for k in range(count)}}


def _with_layers(rng):
    return rng.normal(size=3), _layers(rng)


@differentiated(0, 1, examples=_with_layers)
def layers_by_number(x, p):
    depth, prefix = 3, "w"
    for k in range(depth):
        x = np.tanh(x @ p[f"{prefix}{k:d}"] + p["b" + str(k)])
        if k == 1:
            x = x * 2.0
    return np.sum(x * p["b%d" % (depth - 1)])  # noqa: UP031


@differentiated(0, 1, examples=_with_layers)
def layers_by_function(x, p):
    def activated(h, k):
        return np.tanh(h) if k < 2 else np.maximum(h, 0.1 * h)

    def layer(h, k, name="w{}"):
        return activated(h @ p[name.format(k)], k) + p[f"b{k}"]

    total = 0.0
    for k, (w, scale) in enumerate([("w2", 1.0), ("w0", 0.5), ("b1", 2.0)], start=-1):
        x = layer(x, k + 1)
        total = total + scale * np.sum(p[w]) * x[k]
    return total


def one_layer(h, p, k, last):
    return h @ p[f"w{k}"] if last else np.tanh(h @ p[f"w{k}"])


@differentiated(0, 1, examples=_with_layers)
def layers_by_a_helper(x, p):
    for k in reversed(range(2)):
        x = one_layer(x, p, k, last=k == 0)
    return np.sum(np.stack([one_layer(x, p, k, False) for k in (0, 2)]))


@differentiated(0, 1, examples=_with_layers)
def parameters_by_name(x, p):
    total = sum(np.sum(w * w) for w in p.values())
    for name, w in p.items():
        if name.startswith("w"):
            total = total + 0.1 * np.sum((x @ w) ** 2)
    if any(np.sum(p[f"b{k}"]) > 2.0 for k in range(3)):
        total = total * 0.5
    for name in p:
        if name == "b1":
            x = x * p[name]
    return total + sum(np.sum(x @ p[f"w{k}"]) for k in (0, 2))


@differentiated(0, 1, examples=_with_layers)
def functions_in_a_loop(x, p):
    for f, g in zip((np.tanh, np.exp, np.abs), reversed(("w0", "b1", "w2")), strict=True):
        x = f(0.3 * (x @ p[g] + 0.1)) + x * 0.5
        if f is np.exp:
            x = np.array([x[0], x[1] + 1.0, np.sum(x)])
    return np.sum(x)


@differentiated(0, 1, examples=_with_layers)
def methods_of_numbers(x, p):
    losses = [np.sum(x @ p[f"w{k}"]) for k in range(2)]
    mean = losses[0].mean() + losses[1].sum().squeeze() * np.mean(losses[0] * 0.5) + (x[0] * p["b0"][1]).max()
    mean = mean * x[1].copy().min().astype(np.float64) + np.sum(losses[0]) * np.max(x[2]) + losses[1].prod()
    return (mean * (2 + losses[0].argmax()) * (x[0] > 0.0).sum()).astype("float64")


@dataclasses.dataclass
class Cell:
    w: np.ndarray
    scale: float = 0.5

    def __call__(self, x, h):
        return np.tanh(np.hstack([x, h]) @ np.concatenate([self.w, self.w * self.scale]))


@differentiated(0, 1, examples=lambda rng: (rng.normal(size=(rng.integers(1, 4), 3)), _layers(rng)))
def heads_and_a_cell(x, p):
    cell, h = Cell(p["w0"]), np.zeros(3)
    for row in x:
        h = cell(row, h)
    heads = [np.tanh(x @ p[f"w{k}"]) for k in range(3)]
    beside, above = np.concatenate(heads, axis=-1), np.concatenate(heads[: len(x)], axis=0)
    both = (np.hstack([heads[0], x]) @ beside[:, :6].T) @ np.hstack(heads)
    return np.sum(both * both) + np.sum(above @ above.T) + np.sum(np.hstack([h, np.tanh(h[:1])]) ** 2)


def attention(x, w, heads):
    q, k, v = (np.transpose((x @ each).reshape(len(x), heads, -1), (1, 0, 2)) for each in (w, w.T, w * 0.5))
    scores = q @ k.swapaxes(1, 2)
    weights = np.exp(scores - scores.max(axis=-1, keepdims=True))
    return ((weights / weights.sum(axis=-1, keepdims=True)) @ v).transpose(1, 0, 2).reshape(len(x), -1)


@differentiated(0, 1, examples=lambda rng: (rng.normal(size=(rng.integers(1, 5), 4)), rng.normal(size=(4, 4))))
def several_heads(x, w):
    return np.sum(np.square(attention(x, w, 2) @ w)) + np.sum(attention(x, w, 1) * x)


@differentiated(0, 1, examples=lambda rng: (rng.normal(size=(rng.integers(1, 5), 4)), rng.normal(size=(4, 4))))
def products_of_several_ranks(x, w):
    three = np.stack([x * k for k in range(1, 4)])
    four = np.stack([three, np.tanh(three)], axis=1)
    total = np.sum(np.tanh(three @ w) @ w[0]) + np.sum(w[1] @ np.moveaxis(np.tanh(three), 0, 2)[:1])
    apart = np.expand_dims(x, 1) - np.expand_dims(x, axis=0)
    return total + np.sum(np.matmul(four @ w, four.transpose((0, 1, 3, 2)))) + np.sum(np.square(apart))


MODELS = sorted(set(GRADIENTS) - _BEFORE)
"""Their names."""
