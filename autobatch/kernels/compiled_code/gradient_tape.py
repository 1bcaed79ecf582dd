"""The gradient tape of compiled code: each number's parents and partial derivatives, in flat arrays.

A number that carries a gradient has a place, its index in the tape; constants have place 0. The leaves have the places
from 1 on, and each operation takes the next ones. A scalar operation has a node with at most two parents. An array
operation has a place for each element but one node, at its last place, which says where its operands are stored beside
the tape. `walk` goes back over the nodes, and leaves `adjoints` and `seen` zero except for the leaves.

Only a window of the tape is stored. If the whole tape does not fit, the function runs again for each window, the last
one first, so memory is bounded at the cost of recomputation.

A tape is `(parents, partials, state, values, operands, leaves)`. `parents` (int64) and `partials` (float64) are (n, 2),
for the window's nodes; `values` and `operands` belong to array operations; `leaves` are the numbers of the arguments by
place, which nothing writes, so a product with an argument stores only where it lies. `state` is [next place, first
node, 1 if one of them exceeds the buffers, 1 if the tape has its maximum length, used parts of `values` and `operands`,
the window's bounds, the addresses between which the arguments' places lie].

Sources: Wengert, A simple automatic derivative evaluation program (1964); the flat layout of CppAD and Stan; one level
of the recomputation in Griewank, Achieving logarithmic growth of temporal and spatial complexity (1992).
"""

import numpy as np

from autobatch.kernels.jit import jit

_ARRAY_OP = -(2**62)  # second parent of an array operation; the first is the index of its record in `operands`
_ELEMENTS, _OF_ROOT, _SUM, _PRODUCT = 0, 1, 2, 3  # what an array operation is


@jit
def start_tape(tape):
    """Empty the tape; its window begins at the first node."""
    parents, _, state, _, _, _ = tape
    state[0] = state[6] = state[1]
    state[7] = state[1] + parents.shape[0]
    state[4] = state[5] = 0


@jit
def moves_window(tape, end):
    """If the node before `end` is not in the window, move the window and return True: the function must run again."""
    parents, _, state, _, _, _ = tape
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
    parents, partials, state, _, _, _ = tape
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
def push_array_op(tape, operation, count, numbers, places):
    """Record an array operation with `count` results, and reserve space for `numbers` values and `places` operands.

    Returns (first place, index in `values`, index in `operands`); the indices are -1 if it is outside the window.
    """
    state, values, operands = tape[2], tape[3], tape[4]
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
    tape[0][node, 0] = used
    tape[0][node, 1] = _ARRAY_OP
    operands[used], operands[used + 1], operands[used + 2] = operation, count, first
    state[4], state[5] = at + numbers, used + places
    return first, at, used + 3


@jit
def list_length(places):
    """The number of places to store as a list: 0 if they are consecutive, or only one."""
    if places.size < 2:
        return 0
    strays = np.int64(places[0] <= 0)
    for k in range(places.size):
        strays |= places[k] ^ (places[0] + k)
    return places.size if strays else 0


@jit
def write_operand(operands, at, many, list_at, places, numbers_at, wide):
    """Write one operand of an element-wise operation: the indices of its places and its partial derivatives.

    Four words: the first place, or the index in `operands` of a list of places; the step to the next place (0 or 1), or
    2 for a list; the index in `values` of the first partial derivative; the step to the next (0 or 1).
    """
    operands[at], operands[at + 1] = places[0] if places.size else 0, 1 if places.size > 1 else 0
    operands[at + 2], operands[at + 3] = numbers_at, 1 if wide else 0
    if many:
        operands[at], operands[at + 1] = list_at, 2
        operands[list_at : list_at + many] = places


@jit
def push_elements(tape, out, a, a_wide, b, b_wide, is_root):
    """Record an element-wise operation with operands at places a and b; the results' places are written to `out`.

    Args:
        out: (n,) zeros; unchanged if all operands are constants.
        a, b: places: (n,), (1,) for an operand that is broadcast, or (0,) for one without a gradient.
        a_wide, b_wide: True if there is one partial derivative for each element, False if one for all.

    Returns the indices in `values` at which to write the partial derivatives of a and of b; -1 if they are not needed.
    """
    count = out.size
    if count == 0 or not (a.any() or b.any()):
        return np.int64(-1), np.int64(-1)
    a_many, b_many = list_length(a), list_length(b)
    a_numbers = count if a_wide else 1
    numbers = a_numbers + (count if b_wide else 1)
    first, at, used = push_array_op(tape, _OF_ROOT if is_root else _ELEMENTS, count, numbers, 8 + a_many + b_many)
    for k in range(count):
        out[k] = first + k
    if at < 0:
        return np.int64(-1), np.int64(-1)
    operands = tape[4]
    write_operand(operands, used, a_many, used + 8, a, at, a_wide)
    write_operand(operands, used + 4, b_many, used + 8 + a_many, b, at + a_numbers, b_wide)
    return at, at + a_numbers


@jit
def walk(tape, adjoints, seen, end):
    """Propagate the cotangents of the window's nodes before `end` to their parents; returns the first place visited.

    Nodes that no cotangent has reached are skipped.
    """
    parents, partials, state, values, operands, _ = tape
    low = state[6]
    place = end - 1
    while place >= low:
        node = place - low
        if parents[node, 1] == _ARRAY_OP:
            at = parents[node, 0]
            if operands[at] == _PRODUCT:
                walk_product(tape, at, adjoints, seen)
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
def took(adjoints, seen, first, count):
    """The cotangents of an operation's results, which are left zero; none if no cotangent has reached them."""
    reached = False
    for k in range(first, first + count):
        reached |= seen[k] != 0
    if not reached:
        return np.empty(0)
    cts = adjoints[first : first + count].copy()
    adjoints[first : first + count] = 0.0
    seen[first : first + count] = 0
    return cts


@jit
def walk_elements(values, operands, at, adjoints, seen):
    """Propagate the cotangents of an element-wise operation's results to its operands."""
    is_root, count = operands[at] == _OF_ROOT, operands[at + 1]
    cts = took(adjoints, seen, operands[at + 2], count)
    for side in (at + 3, at + 7):
        start, step, partial, wide = operands[side], operands[side + 1], operands[side + 2], operands[side + 3]
        if (start == 0 and step == 0) or cts.size == 0:
            continue
        more = np.full(count, values[partial])
        if wide:
            more[:] = values[partial : partial + count]
        for k in range(count):
            more[k] = cts[k] * more[k] if cts[k] != 0.0 or not is_root else 0.0
        if step == 0:
            adjoints[start] += more.sum()
            seen[start] = 1
        else:
            give(operands, start, step == 2, more, adjoints, seen)


@jit
def give(operands, start, is_list, cts, adjoints, seen):
    """Add cotangents at consecutive places from `start` on, or at those of a list that starts in `operands`."""
    if not is_list:
        seen[start : start + cts.size] = 1
        own = adjoints[start : start + cts.size]
        for k in range(cts.size):
            own[k] += cts[k]
        return
    for k in range(cts.size):
        place = operands[start + k]
        if place > 0:
            adjoints[place] += cts[k]
            seen[place] = 1


@jit
def walk_sum(operands, at, adjoints, seen):
    """Propagate the cotangent of a sum to its terms."""
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
    """Add cts[at], cts[at + 1] ... to the adjoints of places[first:last]; does nothing if `at` is negative."""
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
    return x if x != x else 1.0 if x > 0 else -1.0 if x < 0 else 0.0  # Numba does not convert a bool to a float


@jit
def taped_sum(tape, start, places):
    """The place of a sum: the number at `start` plus the numbers at `places`."""
    flat = places.ravel()
    if not flat.any():
        return start
    first, _, used = push_array_op(tape, _SUM, 1, 0, 1 + flat.size)
    if used >= 0:
        tape[4][used] = flat.size
        tape[4][used + 1 : used + 1 + flat.size] = flat
    return first if start == 0 else push_2(tape, start, 1.0, first, 1.0)


@jit
def taped_product(tape, start, value, places, values):
    """The place of a product: `value`, at place `start`, times `values`."""
    for k in range(values.size):
        start = push_2(tape, start, values[k], places[k], value)
        value *= values[k]
    return start


@jit
def taped_extreme(start, value, places, values, sign):
    """The place of the first maximum (minimum if sign is -1) of `value` and `values`; a NaN wins."""
    for k in range(values.size):
        if value == value and (values[k] != values[k] or sign * values[k] > sign * value):
            start, value = places[k], values[k]
    return start


@jit
def taped_where(tape, condition, x, y):
    """The places of `np.where`; elements not chosen get a cotangent of zero."""
    out = np.zeros(condition.shape, np.int64)
    chosen = condition.ravel()
    one, two = push_elements(tape, out.ravel(), x.ravel(), True, y.ravel(), True, False)
    for k in range(condition.size if one >= 0 else 0):
        tape[3][one + k] = 1.0 if chosen[k] else 0.0
        tape[3][two + k] = 0.0 if chosen[k] else 1.0
    return out


_NOWHERE, _GIVEN, _CONSECUTIVE, _LISTED = 0, 1, 2, 3  # where the places of a factor of a product are


@jit
def places_of_factor(state, places, by_column):
    """Where the places of a matrix are, if results are stored by row or by column. An argument's are at known steps."""
    if state[8] <= places.ctypes.data < state[9]:
        return _GIVEN
    rows, columns = places.shape
    row, column = (1, rows) if by_column else (columns, 1)
    first = places[0, 0]
    carries, strays = np.int64(0), np.int64(first <= 0)
    for i in range(rows):
        for j in range(columns):
            carries |= places[i, j]
            strays |= places[i, j] ^ (first + i * row + j * column)
    return (_LISTED if strays else _CONSECUTIVE) if carries else _NOWHERE


@jit
def write_factor(tape, at, kind, by_column, x, places, used, numbers):
    """Write a matrix of a product, six words: what its places are, the first, and the steps to the next row and column,
    of places or in their list; the index of the first number, and whether the numbers are those of arguments.

    Args:
        used: where a list of places goes; numbers: where the numbers go, -1 if nobody reads them.
    """
    values, operands = tape[3], tape[4]
    rows, columns = x.shape
    first, row, column = places[0, 0], 1 if by_column else columns, rows if by_column else 1
    if kind == _GIVEN:
        row, column, numbers = places.strides[0] // 8, places.strides[1] // 8, first
    elif kind == _LISTED:
        first = used
        for i in range(rows):
            for j in range(columns):
                operands[used + i * row + j * column] = places[i, j]
    if kind != _GIVEN and numbers >= 0:
        for i in range(rows):
            for j in range(columns):
                values[numbers + i * row + j * column] = x[i, j]
    operands[at], operands[at + 1], operands[at + 2] = kind, first, row
    operands[at + 3], operands[at + 4], operands[at + 5] = column, numbers, kind == _GIVEN


@jit
def taped_product_22(tape, a, a_places, b, b_places):
    """The places of the elements of a matrix product; zeros (constants) if no operand carries a gradient."""
    rows, inner, columns = a.shape[0], a.shape[1], b.shape[1]
    count = rows * columns
    if count == 0 or inner == 0:
        return np.zeros((rows, columns), np.int64)
    by_column = b_places.strides[0] < b_places.strides[1]  # as in `keys.T`
    a_kind, b_kind = places_of_factor(tape[2], a_places, False), places_of_factor(tape[2], b_places, by_column)
    if a_kind == _NOWHERE and b_kind == _NOWHERE:
        return np.zeros((rows, columns), np.int64)
    a_numbers = 0 if a_kind == _GIVEN or b_kind == _NOWHERE else a.size
    b_numbers = 0 if b_kind == _GIVEN or a_kind == _NOWHERE else b.size
    a_list, b_list = a.size if a_kind == _LISTED else 0, b.size if b_kind == _LISTED else 0
    first, at, used = push_array_op(tape, _PRODUCT, count, a_numbers + b_numbers, 15 + a_list + b_list)
    out = np.empty(count, np.int64)
    for k in range(count):
        out[k] = first + k
    if used < 0:
        return out.reshape(rows, columns)
    operands = tape[4]
    operands[used], operands[used + 1], operands[used + 2] = rows, inner, columns
    lists = used + 15
    write_factor(tape, used + 3, a_kind, False, a, a_places, lists, at if a_numbers else -1)
    at, lists = at + a_numbers, lists + a_list
    write_factor(tape, used + 9, b_kind, by_column, b, b_places, lists, at if b_numbers else -1)
    return out.reshape(rows, columns)


@jit
def numbers_of(source, at, shape, steps):
    """The numbers of a matrix that lies in `source` from `at` on, as a contiguous matrix; not copied if it is one."""
    rows, columns = shape
    if is_contiguous(shape, steps):
        return source[at : at + rows * columns].reshape(shape)
    out = np.empty(shape)
    for i in range(rows):
        for j in range(columns):
            out[i, j] = source[at + i * steps[0] + j * steps[1]]
    return out


@jit
def is_contiguous(shape, steps):
    """True if the rows of a matrix with these steps lie one after the other."""
    return (steps[1] == 1 or shape[1] == 1) and (steps[0] == shape[1] or shape[0] == 1)


@jit
def give_factor(operands, factor, shape, steps, cts, adjoints, seen):
    """Add the cotangents of a factor of a product, unless `cts` is where they belong already."""
    kind, first = operands[factor], operands[factor + 1]
    if kind == _LISTED:
        give(operands, first, True, cts.ravel(), adjoints, seen)
    elif kind == _CONSECUTIVE:
        seen[first : first + cts.size] = 1
    elif kind == _GIVEN and not is_contiguous(shape, steps):
        for i in range(shape[0]):
            for j in range(shape[1]):
                adjoints[first + i * steps[0] + j * steps[1]] += cts[i, j]


@jit(reorders=True)
def walk_product(tape, at, adjoints, seen):
    """Propagate the cotangents of a matrix product's elements to the elements of its operands.

    The matrices are read by rows, the second one by its columns if these are what lies in a row.
    """
    values, operands, leaves = tape[3], tape[4], tape[5]
    rows, inner, columns = operands[at + 3], operands[at + 4], operands[at + 5]
    cts = took(adjoints, seen, operands[at + 2], operands[at + 1])
    if cts.size == 0:
        return
    one, two = at + 6, at + 12
    to_a, to_b = operands[one] != _NOWHERE, operands[two] != _NOWHERE
    by_column = columns == 1 or operands[two + 2] < operands[two + 3]
    a_shape, a_steps = (rows, inner), (operands[one + 2], operands[one + 3])
    b_shape, b_steps = (inner, columns), (operands[two + 2], operands[two + 3])
    if by_column:
        b_shape, b_steps = (columns, inner), (operands[two + 3], operands[two + 2])
    none = np.zeros((1, 1))
    a, a_cts, b, b_cts = none, none, none, none
    if to_a:
        b = numbers_of(leaves if operands[two + 5] else values, operands[two + 4], b_shape, b_steps)
        if operands[one] != _LISTED and is_contiguous(a_shape, a_steps):
            a_cts = numbers_of(adjoints, operands[one + 1], a_shape, a_steps)
        else:
            a_cts = np.zeros(a_shape)
    if to_b:
        a = numbers_of(leaves if operands[one + 5] else values, operands[one + 4], a_shape, a_steps)
        if operands[two] != _LISTED and is_contiguous(b_shape, b_steps):
            b_cts = numbers_of(adjoints, operands[two + 1], b_shape, b_steps)
        else:
            b_cts = np.zeros(b_shape)
    for i in range(rows):
        ct = cts[i * columns : (i + 1) * columns]
        if by_column:
            for j in range(columns):
                for k in range(inner if to_a else 0):
                    a_cts[i, k] += ct[j] * b[j, k]
                for k in range(inner if to_b else 0):
                    b_cts[j, k] += ct[j] * a[i, k]
            continue
        for k in range(inner):
            if to_a:
                total = 0.0
                for j in range(columns):
                    total += ct[j] * b[k, j]
                a_cts[i, k] += total
            if to_b:
                factor = a[i, k]
                for j in range(columns):
                    b_cts[k, j] += factor * ct[j]
    if to_a:
        give_factor(operands, one, a_shape, a_steps, a_cts, adjoints, seen)
    if to_b:
        give_factor(operands, two, b_shape, b_steps, b_cts, adjoints, seen)


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
