"""The tape of compiled code: what each number was computed from, with the partial derivatives, in flat arrays.

A number that carries a gradient has a place beside it: 0 for a constant, else its own in the tape. The leaves have the
places from 1 on; after them each operation appends a node with at most two parents. A product of matrices is one
operation: its elements have places one after the other, and its operands lie beside the tape. A tape is `(parents,
partials, state, values, operands)`: (n, 2) int64 and float64; [next place, place of the first node, whether it was too
small, whether it is as large as may be, how much of `values` and of `operands` is used]; the numbers of operands, and
their places. `walk` goes back over the nodes, and leaves `adjoints` and `seen` clean but for the leaves.

Source: Wengert, A simple automatic derivative evaluation program (1964); the flat layout as in CppAD and Stan.
"""

import math

import numpy as np

from autobatch.kernels.jit import jit

_PRODUCT = -(2**62)  # the second parent of elements of products; the first: where the operands are, of the first one


@jit
def push_2(tape, a, da, b, db):
    """The place of a number with these parents and partial derivatives; a constant if both are."""
    if a == 0 and b == 0:
        return np.int64(0)
    parents, partials, state, _, _ = tape
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
    parents, partials, state, values, operands = tape
    first = state[1]
    for place in range(state[0] - 1, first - 1, -1):
        node = place - first
        if parents[node, 1] == _PRODUCT:  # the first of its elements is the last that is met here
            if parents[node, 0] >= 0:
                walk_product(values, operands, parents[node, 0], adjoints, seen, place)
            continue
        if seen[place] == 0:
            continue
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
def push_product(tape, a, a_places, b, b_places):
    """The places of the elements of a product of two matrices; constants where nothing in either carries a gradient."""
    parents, _, state, values, operands = tape
    rows, inner, columns = a.shape[0], a.shape[1], b.shape[1]
    out = np.zeros((rows, columns), np.int64)
    if not (a_places.any() or b_places.any()) or out.size == 0 or inner == 0:
        return out
    node, at, used = state[0] - state[1], state[4], state[5]
    many = rows * inner + inner * columns
    if node + out.size > parents.shape[0] or at + many > values.size or used + 4 + many > operands.size:
        state[2] = 1
        return out
    operands[used], operands[used + 1], operands[used + 2], operands[used + 3] = rows, inner, columns, at
    parents[node : node + out.size, 0] = -1
    parents[node : node + out.size, 1] = _PRODUCT
    parents[node, 0] = used
    used += 4
    for i in range(rows * inner):
        values[at + i], operands[used + i] = a.flat[i], a_places.flat[i]
    at, used = at + rows * inner, used + rows * inner
    for i in range(inner * columns):
        values[at + i], operands[used + i] = b.flat[i], b_places.flat[i]
    at, used = at + inner * columns, used + inner * columns
    for k in range(out.size):
        out.flat[k] = state[0] + k
    state[0] += out.size
    state[4], state[5] = at, used
    return out


@jit
def walk_product(values, operands, at, adjoints, seen, place):
    """Carry the cotangents of a product's elements to those of its operands."""
    rows, inner, columns = operands[at], operands[at + 1], operands[at + 2]
    a, a_place = operands[at + 3], at + 4
    b, b_place = a + rows * inner, a_place + rows * inner
    for i in range(rows):
        for j in range(columns):
            out = place + i * columns + j
            if seen[out] == 0:
                continue
            ct = adjoints[out]
            adjoints[out] = 0.0
            seen[out] = 0
            for k in range(inner):
                one, two = operands[a_place + i * inner + k], operands[b_place + k * columns + j]
                if one > 0:
                    adjoints[one] += ct * values[b + k * columns + j]
                    seen[one] = 1
                if two > 0:
                    adjoints[two] += ct * values[a + i * inner + k]
                    seen[two] = 1


@jit
def taped_product_11(tape, a, a_places, b, b_places):
    """The place of the inner product of two vectors."""
    return taped_product_21(tape, np.expand_dims(a, 0), np.expand_dims(a_places, 0), b, b_places)[0]


@jit
def taped_product_21(tape, a, a_places, b, b_places):
    """The places of a matrix times a vector."""
    return push_product(tape, a, a_places, np.expand_dims(b, 1), np.expand_dims(b_places, 1))[:, 0].copy()


@jit
def taped_product_12(tape, a, a_places, b, b_places):
    """The places of a vector times a matrix."""
    return push_product(tape, np.expand_dims(a, 0), np.expand_dims(a_places, 0), b, b_places)[0]


@jit
def taped_product_22(tape, a, a_places, b, b_places):
    """The places of a matrix times a matrix."""
    return push_product(tape, a, a_places, b, b_places)
