"""The gradient tape of compiled code: each number's parents and partial derivatives, in flat arrays.

A number that carries a gradient has a place, its index in the tape; constants have place 0. The leaves have the places
from 1 on, and each operation takes the next ones. A scalar operation has a node with at most two parents. An array
operation has a place for each element but one node, at its last place, which says where its operands are stored beside
the tape. `walk` goes back over the nodes, and leaves `adjoints` and `seen` zero except for the leaves.

Only a window of the tape is stored. If the whole tape does not fit, the function runs again for each window, the last
one first, so memory is bounded at the cost of recomputation.

A tape is `(parents, partials, state, values, operands)`: (n, 2) int64 and float64 for the window; [next place, place of
the first node, whether an operation never fits, whether the tape is as long as may be, how much of `values` and of
`operands` is used, first place of the window, place after its last]; the numbers and the places of operands.

Source: Wengert, A simple automatic derivative evaluation program (1964); the flat layout as in CppAD and Stan;
computing again: Griewank, Achieving logarithmic growth of temporal and spatial complexity (1992), of one level only.
"""

import math

import numpy as np

from autobatch.kernels.jit import jit

_WHOLE = -(2**62)  # the second parent of an operation on arrays; the first: where its operands are
_ELEMENTS, _OF_ROOT, _SUM, _PRODUCT = 0, 1, 2, 3


@jit
def start_tape(tape):
    """Empty the tape; its window begins at the first node."""
    parents, _, state, _, _ = tape
    state[0] = state[6] = state[1]
    state[7] = state[1] + parents.shape[0]
    state[4] = state[5] = 0


@jit
def moves_window(tape, end):
    """If the node before `end` is not in the window, move the window and return True: the function must run again."""
    parents, _, state, _, _ = tape
    low, high, size = state[6], state[7], parents.shape[0]
    if low < end <= high:
        return False
    start_tape(tape)
    state[6] = max(state[1], end - size) if low >= end else max(high, end - size)
    state[7] = state[6] + size
    return True


@jit
def push_2(tape, a, da, b, db):
    """Record a number with two parents and partial derivatives; returns its place, 0 if both are constants."""
    if a == 0 and b == 0:
        return np.int64(0)
    parents, partials, state, _, _ = tape
    place = state[0]
    state[0] = place + 1
    if state[6] <= place < state[7]:
        node = place - state[6]
        parents[node, 0] = a
        parents[node, 1] = b
        partials[node, 0] = da
        partials[node, 1] = db
    return place


@jit
def push_1(tape, a, da):
    """Like `push_2`, with one parent."""
    return push_2(tape, a, da, np.int64(0), 0.0)


@jit
def push_root(tape, a, da):
    """Like `push_1`, but a zero cotangent stays zero if `da` is infinite, like the derivative of a root at zero."""
    return push_2(tape, -a, da, np.int64(0), 0.0)


@jit
def push_whole(tape, kind, count, numbers, places):
    """Places for the results of an operation on arrays, and room for so many numbers and places of its operands.

    Returns the first place, and where in `values` and in `operands` there is room: nowhere, -1, outside of the window.
    """
    parents, _, state, values, operands = tape
    first, at, used = state[0], state[4], state[5]
    state[0] += count
    places += 3
    if numbers > values.size or places > operands.size:
        state[2] = 1
    last = state[0] - 1
    if not state[6] <= last < state[7]:
        return first, np.int64(-1), np.int64(-1)
    if at + numbers > values.size or used + places > operands.size:
        state[7] = first  # the window is full
        return first, np.int64(-1), np.int64(-1)
    node = last - state[6]
    parents[node, 0] = used
    parents[node, 1] = _WHOLE
    operands[used], operands[used + 1], operands[used + 2] = kind, count, first
    state[4], state[5] = at + numbers, used + places
    return first, at, used + 3


@jit
def listed(places):
    """How many places have to be listed: none where they follow one another, or there is but one."""
    in_a_row = places.size == 0 or places[0] > 0
    for k in range(1, places.size):
        in_a_row &= places[k] == places[0] + k
    return 0 if in_a_row or places.size == 1 else places.size


@jit
def push_side(operands, at, many, list_at, places, numbers_at, wide):
    """Write one operand of an element-wise operation: where its places and its partial derivatives are.

    Four words: the first place, or where in `operands` they are listed; how far it is to the next place, 2 if they are
    listed; the first partial derivative, and how far it is to the next.
    """
    operands[at], operands[at + 1] = places[0] if places.size else 0, 1 if places.size > 1 else 0
    operands[at + 2], operands[at + 3] = numbers_at, 1 if wide else 0
    if many:
        operands[at], operands[at + 1] = list_at, 2
        operands[list_at : list_at + many] = places


@jit
def push_elements(tape, out, a, a_wide, b, b_wide, is_root):
    """An element-wise operation: its results get places in `out`, those of its operands being a and b.

    Args:
        out: (n,) to be filled; left as zeros where all operands are constants.
        a, b: (n,) places, of one element that is that element throughout, or of none of what carries no gradient.
        a_wide, b_wide: whether there is a partial derivative for each element, or one for all.

    Returns where in `values` to write those of a, and those of b; -1 where they are not wanted.
    """
    count = out.size
    if count == 0 or not (a.any() or b.any()):
        return np.int64(-1), np.int64(-1)
    a_many, b_many = listed(a), listed(b)
    a_numbers = count if a_wide else 1
    numbers = a_numbers + (count if b_wide else 1)
    first, at, used = push_whole(tape, _OF_ROOT if is_root else _ELEMENTS, count, numbers, 8 + a_many + b_many)
    for k in range(count):
        out[k] = first + k
    if at < 0:
        return np.int64(-1), np.int64(-1)
    operands = tape[4]
    push_side(operands, used, a_many, used + 8, a, at, a_wide)
    push_side(operands, used + 4, b_many, used + 8 + a_many, b, at + a_numbers, b_wide)
    return at, at + a_numbers


@jit
def walk(tape, adjoints, seen, end):
    """Carry the cotangents of nodes before `end` back, over the window; the place of the first that it has met.

    A node that no cotangent has reached is passed over.
    """
    parents, partials, state, values, operands = tape
    low = state[6]
    place = end - 1
    while place >= low:
        node = place - low
        if parents[node, 1] == _WHOLE:
            at = parents[node, 0]
            if operands[at] == _PRODUCT:
                walk_product(values, operands, at, adjoints, seen)
            elif operands[at] == _SUM:
                walk_sum(operands, at, adjoints, seen)
            else:
                walk_elements(values, operands, at, adjoints, seen)
            place -= operands[at + 1]
            continue
        if seen[place] != 0:
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
        place -= 1
    return place + 1


@jit
def walk_elements(values, operands, at, adjoints, seen):
    """Carry the cotangents of an element-wise operation's results to its operands."""
    is_root, count, first = operands[at] == _OF_ROOT, operands[at + 1], operands[at + 2]
    for side in (at + 3, at + 7):
        start, step, partial, wide = operands[side], operands[side + 1], operands[side + 2], operands[side + 3]
        if start == 0 and step == 0:
            continue
        for k in range(count):
            parent = operands[start + k] if step == 2 else start + k * step
            if parent > 0 and seen[first + k] != 0:
                ct = adjoints[first + k]
                if ct != 0.0 or not is_root:
                    adjoints[parent] += ct * values[partial + k * wide]
                seen[parent] = 1
    adjoints[first : first + count] = 0.0
    seen[first : first + count] = 0


@jit
def walk_sum(operands, at, adjoints, seen):
    """Carry the cotangent of a sum to what is added up."""
    place = operands[at + 2]
    if seen[place] == 0:
        return
    ct = adjoints[place]
    adjoints[place] = 0.0
    seen[place] = 0
    for k in range(operands[at + 3]):
        parent = operands[at + 4 + k]
        if parent > 0:
            adjoints[parent] += ct
            seen[parent] = 1


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
    return x if x != x else 1.0 if x > 0 else -1.0 if x < 0 else 0.0  # Numba makes no float of a bool


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
    flat = places.ravel()
    if not flat.any():
        return start
    first, _, used = push_whole(tape, _SUM, 1, 0, 1 + flat.size)
    if used >= 0:
        tape[4][used] = flat.size
        tape[4][used + 1 : used + 1 + flat.size] = flat
    return first if start == 0 else push_2(tape, start, 1.0, first, 1.0)


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
    chosen = condition.ravel()
    one, two = push_elements(tape, out.ravel(), x.ravel(), True, y.ravel(), True, False)
    for k in range(condition.size if one >= 0 else 0):
        tape[3][one + k] = 1.0 if chosen[k] else 0.0
        tape[3][two + k] = 0.0 if chosen[k] else 1.0
    return out


@jit
def taped_product_22(tape, a, a_places, b, b_places):
    """The places of the elements of a product of two matrices; constants where nothing in either carries a gradient."""
    rows, inner, columns = a.shape[0], a.shape[1], b.shape[1]
    out = np.zeros((rows, columns), np.int64)
    if not (a_places.any() or b_places.any()) or out.size == 0 or inner == 0:
        return out
    many = rows * inner + inner * columns
    first, at, used = push_whole(tape, _PRODUCT, out.size, many, 4 + many)
    for k in range(out.size):
        out.flat[k] = first + k
    if used < 0:
        return out
    values, operands = tape[3], tape[4]
    operands[used], operands[used + 1], operands[used + 2], operands[used + 3] = rows, inner, columns, at
    used += 4
    for i in range(rows * inner):
        values[at + i], operands[used + i] = a.flat[i], a_places.flat[i]
    at, used = at + rows * inner, used + rows * inner
    for i in range(inner * columns):
        values[at + i], operands[used + i] = b.flat[i], b_places.flat[i]
    return out


@jit
def walk_product(values, operands, at, adjoints, seen):
    """Carry the cotangents of a product's elements to those of its operands."""
    place, rows, inner, columns = operands[at + 2], operands[at + 3], operands[at + 4], operands[at + 5]
    a, a_place = operands[at + 6], at + 7
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
    return taped_product_22(tape, a, a_places, np.expand_dims(b, 1), np.expand_dims(b_places, 1))[:, 0].copy()


@jit
def taped_product_12(tape, a, a_places, b, b_places):
    """The places of a vector times a matrix."""
    return taped_product_22(tape, np.expand_dims(a, 0), np.expand_dims(a_places, 0), b, b_places)[0]
