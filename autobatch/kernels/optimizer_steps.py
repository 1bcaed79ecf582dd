"""The arithmetic of each optimiser (SGD, Adagrad, Adam …) on rows: a row's gradient is summed and applied in place.

Weights and state are C-contiguous (rows, width) arrays; unique row k is their row ids[k], or row k if `ids` is None.
`g` is (starts, positions, sources, segments, factors, scale, limit) of `sparse_gradients.row_gradient`, then the lanes
for non-temporal stores of the weights, or None; with lanes, rows must start and end at multiples of 16 bytes. `acc` is
scratch for one row: its gradient, then its new weights. Ids are distinct and not checked, so [lo, hi) can be split
between threads with bit-identical results.
"""

import math

from autobatch.kernels.jit import jit
from autobatch.kernels.simd_rows import AHEAD, load, prefetch_row, put_nontemporal, width
from autobatch.kernels.sparse_gradients import row_gradient


@jit
def _store_row(weights, row, acc, lanes):
    """weights[row] = acc"""
    if lanes is None:
        for j in range(acc.shape[0]):
            weights[row, j] = acc[j]
    else:
        place = weights.ctypes.data + row * weights.strides[0]
        for column in range(0, acc.shape[0], width(lanes)):
            put_nontemporal(place, column, load(lanes, acc.ctypes.data, column, acc.shape[0]))


@jit
def add_weight_decay(gradient, decay, weight):
    """gradient + decay * weight; if decay is 0, an infinite weight does not make it NaN."""
    return gradient + decay * weight if decay != 0 else gradient


@jit
def sgd_rows(weights, ids, lo, hi, acc, g, lr, decay):
    for k in range(lo, hi):
        if ids is not None and k + AHEAD < hi:
            prefetch_row(weights, ids[k + AHEAD])
        row = k if ids is None else ids[k]
        row_gradient(acc, k, g[0], g[1], g[2], g[3], g[4], g[5], g[6])
        for j in range(acc.shape[0]):
            acc[j] = weights[row, j] - lr * add_weight_decay(acc[j], decay, weights[row, j])
        _store_row(weights, row, acc, g[7])


@jit
def momentum_rows(weights, velocity, ids, lo, hi, acc, g, lr, decay, momentum, nesterov):
    for k in range(lo, hi):
        if ids is not None and k + AHEAD < hi:
            prefetch_row(weights, ids[k + AHEAD])
            prefetch_row(velocity, ids[k + AHEAD])
        row = k if ids is None else ids[k]
        row_gradient(acc, k, g[0], g[1], g[2], g[3], g[4], g[5], g[6])
        for j in range(acc.shape[0]):
            d = add_weight_decay(acc[j], decay, weights[row, j])
            v = momentum * velocity[row, j] + d
            velocity[row, j] = v
            acc[j] = weights[row, j] - lr * (d + momentum * v if nesterov else v)
        _store_row(weights, row, acc, g[7])


@jit
def adagrad_rows(weights, sums, ids, lo, hi, acc, g, lr, decay, eps):
    for k in range(lo, hi):
        if ids is not None and k + AHEAD < hi:
            prefetch_row(weights, ids[k + AHEAD])
            prefetch_row(sums, ids[k + AHEAD])
        row = k if ids is None else ids[k]
        row_gradient(acc, k, g[0], g[1], g[2], g[3], g[4], g[5], g[6])
        for j in range(acc.shape[0]):
            d = add_weight_decay(acc[j], decay, weights[row, j])
            s = sums[row, j] + d * d
            sums[row, j] = s
            acc[j] = weights[row, j] - lr * d / (math.sqrt(s) + eps)
        _store_row(weights, row, acc, g[7])


@jit
def row_adagrad_rows(weights, sums, ids, lo, hi, acc, g, lr, decay, eps):
    """`sums` is (rows, 1): one accumulator for each row, the sum over steps of its gradient's mean square."""
    width = acc.shape[0]
    for k in range(lo, hi):
        if ids is not None and k + AHEAD < hi:
            prefetch_row(weights, ids[k + AHEAD])
            prefetch_row(sums, ids[k + AHEAD])
        row = k if ids is None else ids[k]
        row_gradient(acc, k, g[0], g[1], g[2], g[3], g[4], g[5], g[6])
        total = 0.0 * decay
        for j in range(width):
            d = add_weight_decay(acc[j], decay, weights[row, j])
            total += d * d
        s = sums[row, 0] + total / width
        sums[row, 0] = s
        rate = lr / (math.sqrt(s) + eps)
        for j in range(width):
            acc[j] = weights[row, j] - rate * add_weight_decay(acc[j], decay, weights[row, j])
        _store_row(weights, row, acc, g[7])


@jit
def adam_rows(weights, mean, square, ids, lo, hi, acc, g, step, decay, shrink, beta1, beta2, rest1, rest2, scale, eps):
    """`step` is lr / (1 - beta1**t), `scale` is 1 / sqrt(1 - beta2**t), `shrink` is lr times the decoupled decay."""
    for k in range(lo, hi):
        if ids is not None and k + AHEAD < hi:
            prefetch_row(weights, ids[k + AHEAD])
            prefetch_row(mean, ids[k + AHEAD])
            prefetch_row(square, ids[k + AHEAD])
        row = k if ids is None else ids[k]
        row_gradient(acc, k, g[0], g[1], g[2], g[3], g[4], g[5], g[6])
        for j in range(acc.shape[0]):
            w = weights[row, j]
            d = add_weight_decay(acc[j], decay, w)
            m = beta1 * mean[row, j] + rest1 * d
            v = beta2 * square[row, j] + rest2 * d * d
            mean[row, j] = m
            square[row, j] = v
            acc[j] = add_weight_decay(w, -shrink, w) - step * m / (math.sqrt(v) * scale + eps)
        _store_row(weights, row, acc, g[7])


@jit
def rms_rows(weights, square, average, velocity, ids, lo, hi, acc, g, lr, decay, alpha, rest, eps, momentum):
    """`average` is None unless centered, `velocity` is None without momentum; `rest` is 1 - alpha."""
    for k in range(lo, hi):
        if ids is not None and k + AHEAD < hi:
            prefetch_row(weights, ids[k + AHEAD])
            prefetch_row(square, ids[k + AHEAD])
            if average is not None:
                prefetch_row(average, ids[k + AHEAD])
            if velocity is not None:
                prefetch_row(velocity, ids[k + AHEAD])
        row = k if ids is None else ids[k]
        row_gradient(acc, k, g[0], g[1], g[2], g[3], g[4], g[5], g[6])
        for j in range(acc.shape[0]):
            d = add_weight_decay(acc[j], decay, weights[row, j])
            s = alpha * square[row, j] + rest * d * d
            square[row, j] = s
            if average is not None:
                a = alpha * average[row, j] + rest * d
                average[row, j] = a
                s -= a * a
            step = d / (math.sqrt(s) + eps)
            if velocity is not None:
                step += momentum * velocity[row, j]
                velocity[row, j] = step
            acc[j] = weights[row, j] - lr * step
        _store_row(weights, row, acc, g[7])


@jit
def ftrl_rows(weights, squares, linear, ids, lo, hi, acc, g, alpha, decay, beta, l1, l2):
    for k in range(lo, hi):
        if ids is not None and k + AHEAD < hi:
            prefetch_row(weights, ids[k + AHEAD])
            prefetch_row(squares, ids[k + AHEAD])
            prefetch_row(linear, ids[k + AHEAD])
        row = k if ids is None else ids[k]
        row_gradient(acc, k, g[0], g[1], g[2], g[3], g[4], g[5], g[6])
        for j in range(acc.shape[0]):
            w = weights[row, j]
            d = add_weight_decay(acc[j], decay, w)
            n = squares[row, j] + d * d
            root = math.sqrt(n)
            z = linear[row, j] + d - (root - math.sqrt(squares[row, j])) / alpha * w
            squares[row, j] = n
            linear[row, j] = z
            acc[j] = 0 if abs(z) <= l1 else ((l1 if z > 0 else -l1) - z) / ((beta + root) / alpha + l2)
        _store_row(weights, row, acc, g[7])
