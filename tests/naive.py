"""Slow oracles: each says what a kernel, a table function or an optimiser computes in the plainest Python there is."""

import itertools

import numpy as np

__all__ = [
    "adagrad",
    "adam",
    "bag",
    "bags",
    "coalesce",
    "numeric_gradient",
    "scatter_add",
    "segments",
    "sgd",
]


def bag(rows, mode, weights=None):
    """One bag of rows reduced to one row; 0 for no rows."""
    rows = np.asarray(rows)
    if not len(rows):
        return np.zeros(rows.shape[1:], rows.dtype)
    if mode in ("max", "min"):
        return getattr(np, mode)(rows, axis=0)
    factors = np.ones(len(rows)) if weights is None else np.asarray(weights, np.float64)
    total = sum(factor * row.astype(np.float64) for factor, row in zip(factors, rows, strict=True))
    if mode == "mean":
        total = total / factors.sum()
    elif mode == "sqrtn":
        total = total / np.sqrt((factors**2).sum())
    return np.asarray(total).astype(rows.dtype)


def bags(table, ids, offsets, mode, weights=None):
    """Each bag ids[offsets[b]:offsets[b + 1]], one after the other."""
    out = [
        bag(table[ids[a:b]], mode, None if weights is None else weights[a:b]) for a, b in itertools.pairwise(offsets)
    ]
    return np.stack(out) if out else np.zeros((0, table.shape[1]), table.dtype)


def segments(data, ids, count, mode):
    """The rows of each segment, reduced; 0 for none."""
    out = np.zeros((count, *data.shape[1:]), data.dtype)
    for segment in range(count):
        rows = data[[i for i in range(len(ids)) if ids[i] == segment]]
        if len(rows):
            out[segment] = getattr(np, mode)(rows, axis=0)
    return out


def scatter_add(rows, ids, num_rows):
    out = np.zeros((num_rows, *np.shape(rows)[1:]), np.asarray(rows).dtype)
    for row, at in zip(rows, ids, strict=True):
        out[at] += row
    return out


def coalesce(ids, rows):
    """Distinct ids in the order of first occurrence, and the sums of their rows."""
    found = {}
    for at, row in zip(ids, rows, strict=True):
        found[int(at)] = found[int(at)] + row if int(at) in found else row.copy()
    return list(found), list(found.values())


def sgd(p, grads, lr, momentum=0.0, nesterov=False, weight_decay=0.0):
    """`torch.optim.SGD`, step by step, on float64."""
    p, buffer = np.array(p, np.float64), None
    for g in grads:
        g = g + weight_decay * p
        if momentum:
            buffer = g if buffer is None else momentum * buffer + g
            g = g + momentum * buffer if nesterov else buffer
        p = p - lr * g
    return p


def adagrad(p, grads, lr, eps=1e-10, weight_decay=0.0, initial=0.0):
    p, total = np.array(p, np.float64), initial
    for g in grads:
        g = g + weight_decay * p
        total = total + g * g
        p = p - lr * g / (np.sqrt(total) + eps)
    return p


def adam(p, grads, lr, betas=(0.9, 0.999), eps=1e-8, weight_decay=0.0):
    p, m, v = np.array(p, np.float64), 0.0, 0.0
    for t, g in enumerate(grads, 1):
        g = g + weight_decay * p
        m = betas[0] * m + (1 - betas[0]) * g
        v = betas[1] * v + (1 - betas[1]) * g * g
        p = p - lr * (m / (1 - betas[0] ** t)) / (np.sqrt(v / (1 - betas[1] ** t)) + eps)
    return p


def numeric_gradient(f, x, eps=1e-6):
    """Central differences of a scalar function of one float64 array."""
    x = np.array(x, np.float64)
    out = np.zeros_like(x)
    for at in np.ndindex(x.shape):
        up, down = x.copy(), x.copy()
        up[at] += eps
        down[at] -= eps
        out[at] = (float(f(up)) - float(f(down))) / (2 * eps)
    return out
