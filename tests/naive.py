"""Slow oracles: each says what a kernel, a table function or an optimiser computes in the plainest Python there is."""

import itertools

import numpy as np


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


def segment(data, ids, count, mode, weights=None, k=0):
    """One segment function in float64 (integers stay), each segment by itself; an empty one is 0 (1 for prod)."""
    data = np.asarray(data)
    own = mode in ("mean", "sqrtn", "logsumexp", "logmeanexp", "var", "std", "softmax", "log_softmax", "count")
    x = data.astype(np.float64) if data.dtype.kind == "f" or weights is not None or own else data
    w = np.ones(len(x)) if weights is None else np.asarray(weights, np.float64)
    if weights is not None and not own:
        x = x * w.reshape(-1, *(1,) * (x.ndim - 1))
    members = [np.array([i for i in range(len(ids)) if ids[i] == s], np.int64) for s in range(count)]
    rowwise = mode in ("softmax", "log_softmax", "cumsum", "sort")
    results = [_one_segment(x[at], mode, w[at].reshape(-1, *(1,) * (x.ndim - 1)), k, at) for at in members]
    if rowwise:
        out = np.zeros(x.shape, results[0].dtype if results else x.dtype)
        for at, rows in zip(members, results, strict=True):
            out[at] = rows
        return out
    if mode == "topk":
        shape = (count, k, *x.shape[1:])
        return tuple(np.array([r[i] for r in results]).reshape(shape) for i in (0, 1))
    return np.array(results).reshape(count, *(() if mode == "count" else x.shape[1:]))


def _one_segment(x, mode, w, k, at):
    n, zero = len(x), np.zeros(x.shape[1:], x.dtype)
    with np.errstate(all="ignore"):
        if mode in ("softmax", "log_softmax"):
            out = w * np.exp(x) / (w * np.exp(x)).sum(0)
            return out if mode == "softmax" else np.log(out)
        if mode in ("cumsum", "sort"):
            return getattr(np, mode)(x, axis=0)
        if mode == "topk":
            order = np.argsort(-x.astype(np.float64), axis=0, kind="stable")[:k]
            fill = np.zeros((k - len(order), *x.shape[1:]), np.int64)
            return np.concatenate([np.take_along_axis(x, order, 0), fill]), np.concatenate([at[order], fill - 1])
        if mode == "count":
            return w.sum()
        if mode in ("any", "all", "prod", "sum"):
            return getattr(np, mode)(x, axis=0)
        if not n:
            return np.full(zero.shape, -1) if mode in ("argmax", "argmin") else zero
        if mode in ("argmax", "argmin"):
            return at[getattr(np, mode)(x, axis=0)]
        if mode in ("max", "min"):
            return getattr(np, mode)(x, axis=0)
        if mode in ("first", "last"):
            return x[0 if mode == "first" else -1]
        mean = (w * x).sum(0) / w.sum(0)
        var = (w * (x - mean) ** 2).sum(0) / w.sum(0)
        return {
            "mean": mean,
            "sqrtn": (w * x).sum(0) / np.sqrt((w * w).sum(0)),
            "logsumexp": np.log((w * np.exp(x)).sum(0)),
            "logmeanexp": np.log((w * np.exp(x)).sum(0) / w.sum(0)),
            "var": var,
            "std": np.sqrt(var),
        }[mode]


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


def sgd(p, grads, lr, momentum=0.0, nesterov=False, weight_decay=0.0, real=np.float64):
    """`torch.optim.SGD`, step by step, in one dtype."""
    p, buffer = np.array(p, real), 0.0
    for g in grads:
        g = g + weight_decay * p if weight_decay else g
        if momentum:
            buffer = momentum * buffer + g
            g = g + momentum * buffer if nesterov else buffer
        p = p - lr * g
    return p


def adagrad(p, grads, lr, eps=1e-10, weight_decay=0.0, initial=0.0, real=np.float64):
    p, total = np.array(p, real), initial
    for g in grads:
        g = g + weight_decay * p if weight_decay else g
        total = total + g * g
        p = p - lr * g / (np.sqrt(total) + eps)
    return p


def row_wise_adagrad(p, grads, lr, eps=1e-10, weight_decay=0.0, initial=0.0, real=np.float64):
    """One accumulator for each row: the sum of the mean squares of its gradients, each added up in float64."""
    p, total = np.array(p, real), initial
    for g in grads:
        g = g + weight_decay * p if weight_decay else g
        squares = (g * g).mean(axis=tuple(range(1, p.ndim)), keepdims=True, dtype=np.float64)
        total = total + squares.astype(real)
        p = p - lr / (np.sqrt(total) + eps) * g
    return p


def rmsprop(p, grads, lr, alpha=0.99, eps=1e-8, weight_decay=0.0, momentum=0.0, centered=False, real=np.float64):
    p, s, a, v = np.array(p, real), 0.0, 0.0, 0.0
    for g in grads:
        g = g + weight_decay * p if weight_decay else g
        s = alpha * s + (1 - alpha) * g * g
        a = alpha * a + (1 - alpha) * g
        step = g / (np.sqrt(s - a * a if centered else s) + eps)
        v = momentum * v + step if momentum else step
        p = p - lr * v
    return p


def ftrl(p, grads, lr, beta=1.0, l1=0.0, l2=0.0, weight_decay=0.0, initial=0.0, real=np.float64):
    """Algorithm 1 of McMahan et al. 2013."""
    p = np.array(p, real)
    n, z = np.full(p.shape, initial, real), np.zeros(p.shape, real)
    for g in grads:
        g = g + weight_decay * p if weight_decay else g
        z = z + g - (np.sqrt(n + g * g) - np.sqrt(n)) / lr * p
        n = n + g * g
        p = np.where(np.abs(z) <= l1, 0.0, (np.sign(z) * l1 - z) / ((beta + np.sqrt(n)) / lr + l2))
    return p


def adam(p, grads, lr, betas=(0.9, 0.999), eps=1e-8, weight_decay=0.0, decoupled=0.0, real=np.float64):
    p, m, v = np.array(p, real), 0.0, 0.0
    for t, g in enumerate(grads, 1):
        g = g + weight_decay * p if weight_decay else g
        p = p - lr * decoupled * p if decoupled else p
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
