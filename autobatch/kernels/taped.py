"""The tape of compiled code: what each number was computed from, with the partial derivatives, in flat arrays.

A number that carries a gradient has a place beside it: 0 for a constant, else its own in the tape. The leaves have the
places from 1 on; after them each operation appends a node with at most two parents. A tape is `(parents, partials,
state)`: (n, 2) int64 and float64, and [next place, place of the first node, whether it was too small, whether it is as
large as may be]. `walk` goes back over the nodes, and leaves `adjoints` and `seen` clean but for the leaves.

Source: Wengert, A simple automatic derivative evaluation program (1964); the flat layout as in CppAD and Stan.
"""

import math

import numpy as np

from autobatch.kernels.jit import jit


@jit
def push_2(tape, a, da, b, db):
    """The place of a number with these parents and partial derivatives; a constant if both are."""
    if a == 0 and b == 0:
        return np.int64(0)
    parents, partials, state = tape
    place = state[0]
    node = place - state[1]
    if node >= parents.shape[0]:
        state[2] = 1
        return np.int64(0)
    parents[node, 0] = a
    parents[node, 1] = b
    partials[node, 0] = da
    partials[node, 1] = db
    state[0] = place + 1
    return place


@jit
def push_1(tape, a, da):
    """The same with one parent."""
    return push_2(tape, a, da, np.int64(0), 0.0)


@jit
def push_root(tape, a, da):
    """One parent, from which no cotangent of zero becomes NaN: the derivative of a root is infinite at zero."""
    return push_2(tape, -a, da, np.int64(0), 0.0)


@jit
def walk(tape, adjoints, seen):
    """Carry the cotangents of nodes back to the leaves. A node that none has reached is passed over."""
    parents, partials, state = tape
    first = state[1]
    for place in range(state[0] - 1, first - 1, -1):
        if seen[place] == 0:
            continue
        node = place - first
        ct = adjoints[place]
        adjoints[place] = 0.0
        seen[place] = 0
        for k in range(2):
            parent = parents[node, k]
            if parent > 0:
                adjoints[parent] += ct * partials[node, k]
                seen[parent] = 1
            elif parent < 0:
                if ct != 0.0:
                    adjoints[-parent] += ct * partials[node, k]
                seen[-parent] = 1


@jit
def seed(adjoints, seen, places, first, last, cts, at):
    """Add the cotangents from `at` on to the numbers at places[first:last]; none if it is negative."""
    if at < 0:
        return
    for k in range(first, last):
        place = places[k]
        if place > 0:
            adjoints[place] += cts[at + k - first]
            seen[place] = 1


@jit
def sign_of(x):
    """`np.sign`."""
    return x if x != x else float((x > 0) - (x < 0))


@jit
def power_x(x, y):
    """The derivative of `x ** y` with respect to x."""
    return 0.0 if y == 0 else y * math.pow(x, y - 1.0)


@jit
def power_y(x, out):
    """The derivative of `x ** y`, which is `out`, with respect to y."""
    return 0.0 if x == 0 else out * math.log(x)


@jit
def taped_sum(tape, start, places):
    """The place of the sum of a number and others."""
    for place in places.ravel():
        start = push_2(tape, start, 1.0, place, 1.0)
    return start


@jit
def taped_sums(tape, places):
    """The places of `np.cumsum`."""
    out = np.zeros(places.size, np.int64)
    for k in range(places.size):
        out[k] = places[k] if k == 0 else push_2(tape, out[k - 1], 1.0, places[k], 1.0)
    return out


@jit
def taped_product(tape, start, value, places, values):
    """The place of the product of a number and others."""
    for k in range(values.size):
        start = push_2(tape, start, values[k], places[k], value)
        value *= values[k]
    return start


@jit
def taped_extreme(start, value, places, values, sign):
    """The place of the first of the largest numbers (of the smallest, the sign being -1), NaN being the most."""
    for k in range(values.size):
        if value == value and (values[k] != values[k] or sign * values[k] > sign * value):
            start, value = places[k], values[k]
    return start


@jit
def taped_choice(tape, condition, x, y):
    """The places of `np.where`; what is not chosen gets a cotangent of zero."""
    out = np.zeros(condition.shape, np.int64)
    for k in range(condition.size):
        taken = 1.0 if condition.flat[k] else 0.0
        out.flat[k] = push_2(tape, x.flat[k], taken, y.flat[k], 1.0 - taken)
    return out


@jit
def taped_counts(tape, x, places, size):
    """The places of `np.bincount` with weights."""
    out = np.zeros(size, np.int64)
    for k in range(x.size):
        out[x[k]] = push_2(tape, out[x[k]], 1.0, places[k], 1.0)
    return out


@jit
def taped_product_11(tape, a, a_places, b, b_places):
    """The place of the inner product of two vectors."""
    out = np.int64(0)
    for k in range(a.size):
        out = push_2(tape, out, 1.0, push_2(tape, a_places[k], float(b[k]), b_places[k], float(a[k])), 1.0)
    return out


@jit
def taped_product_21(tape, a, a_places, b, b_places):
    """The places of a matrix times a vector."""
    out = np.zeros(a.shape[0], np.int64)
    for i in range(a.shape[0]):
        out[i] = taped_product_11(tape, a[i], a_places[i], b, b_places)
    return out


@jit
def taped_product_12(tape, a, a_places, b, b_places):
    """The places of a vector times a matrix."""
    out = np.zeros(b.shape[1], np.int64)
    for j in range(b.shape[1]):
        out[j] = taped_product_11(tape, a, a_places, b[:, j], b_places[:, j])
    return out


@jit
def taped_product_22(tape, a, a_places, b, b_places):
    """The places of a matrix times a matrix."""
    out = np.zeros((a.shape[0], b.shape[1]), np.int64)
    for i in range(a.shape[0]):
        for j in range(b.shape[1]):
            out[i, j] = taped_product_11(tape, a[i], a_places[i], b[:, j], b_places[:, j])
    return out
