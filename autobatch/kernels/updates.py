"""Optimiser steps on rows: weights[ids[i]] from gradient rows[i], in place.

Weights, state and gradient rows are C-contiguous (rows, width) arrays of one float dtype, and the numbers are scalars
of that dtype. Ids are trusted and distinct. A dense parameter is one row, so one loop serves both.
"""

import math

from autobatch.kernels.jit import jit

__all__ = ["adagrad_rows", "adam_rows", "momentum_rows", "sgd_rows"]


@jit
def sgd_rows(weights, ids, rows, lr, decay):
    for i in range(ids.shape[0]):
        row = ids[i]
        for j in range(rows.shape[1]):
            weights[row, j] -= lr * (rows[i, j] + decay * weights[row, j])


@jit
def momentum_rows(weights, velocity, ids, rows, lr, decay, momentum, nesterov):
    for i in range(ids.shape[0]):
        row = ids[i]
        for j in range(rows.shape[1]):
            g = rows[i, j] + decay * weights[row, j]
            v = momentum * velocity[row, j] + g
            velocity[row, j] = v
            if nesterov:
                v = g + momentum * v
            weights[row, j] -= lr * v


@jit
def adagrad_rows(weights, sums, ids, rows, lr, decay, eps):
    for i in range(ids.shape[0]):
        row = ids[i]
        for j in range(rows.shape[1]):
            g = rows[i, j] + decay * weights[row, j]
            s = sums[row, j] + g * g
            sums[row, j] = s
            weights[row, j] -= lr * g / (math.sqrt(s) + eps)


@jit
def adam_rows(weights, mean, square, ids, rows, step, decay, beta1, beta2, rest1, rest2, scale, eps):
    """`step` is lr / (1 - beta1**t), `scale` is 1 / sqrt(1 - beta2**t), `rest1` is 1 - beta1, `rest2` 1 - beta2."""
    for i in range(ids.shape[0]):
        row = ids[i]
        for j in range(rows.shape[1]):
            g = rows[i, j] + decay * weights[row, j]
            m = beta1 * mean[row, j] + rest1 * g
            v = beta2 * square[row, j] + rest2 * g * g
            mean[row, j] = m
            square[row, j] = v
            weights[row, j] -= step * m / (math.sqrt(v) * scale + eps)
