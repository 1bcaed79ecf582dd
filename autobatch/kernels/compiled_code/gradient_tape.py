"""The gradient tape of compiled code: each number's parents and partial derivatives, in flat arrays.

A number that carries a gradient has a place, its index in the tape; constants have place 0. The leaves have the places
from 1 on, and each operation takes the next ones. A scalar operation has a node with at most two parents. An array
operation has a place for each element but one node, at its last place, which says where its operands are stored beside
the tape. `walk` goes back over the nodes, and leaves `adjoints` and `seen` zero except for the leaves.

Only a window of the tape is stored. If the whole tape does not fit, the function runs again for each window, the last
one first, so memory is bounded at the cost of recomputation.

A tape is `(parents, partials, state, values, operands, leaves, found, found_rows, all_places)`. `parents` (int64) and
`partials` are (n, 2), for the nodes of the window; `values` and `operands` belong to array operations; `leaves` are the
numbers of the arguments by place, which nothing writes, so a product with an argument stores only where it lies. For
each row that was looked up in a table and that a cotangent reaches, `found` has (the table's number, id, example),
`found_rows` the cotangent; of one example the last row comes first. `all_places[k]` is k: the places of a new array are
a view of it, which costs nothing, and an array whose memory lies in it has places in a row. What is no int64 is float32
if all numbers that carry a gradient are, else float64.

`state` is [next place, first node, 1 if one of them exceeds the buffers, 1 if the tape has its maximum length, used
parts of `values` and `operands`, the window's bounds, the addresses between which `all_places` lies, rows found (more
than `found` holds if it is too short), example, 1 if the function may write into places that are views, the last
product whose cotangent of an argument is not added yet (-1: none)].

Sources: Wengert, A simple automatic derivative evaluation program (1964); the flat layout of CppAD and Stan; one level
of the recomputation in Griewank, Achieving logarithmic growth of temporal and spatial complexity (1992).
"""

import numpy as np

from autobatch.kernels.jit import jit

_ARRAY_OP = -(2**62)  # second parent of an array operation; the first is the index of its record in `operands`
_ELEMENTS, _OF_ROOT, _SUM, _ROW_SUM, _PRODUCT, _ROWS = range(6)  # what an array operation is


@jit
def start_tape(tape):
    """Empty the tape; its window begins at the first node."""
    parents, state = tape[0], tape[2]
    state[0] = state[6] = state[1]
    state[7] = state[1] + parents.shape[0]
    state[4] = state[5] = 0
    state[13] = -1


@jit
def moves_window(tape, end):
    """If the node before `end` is not in the window, move the window and return True: the function must run again."""
    parents, state = tape[0], tape[2]
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
    parents, partials, state = tape[0], tape[1], tape[2]
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
def row_of(tape, first, count):
    """The places from `first` on, as an array."""
    state, all_places = tape[2], tape[8]
    if first + count > all_places.size:
        state[2] = 1
        return np.zeros(count, np.int64)
    return all_places[first : first + count].copy() if state[12] else all_places[first : first + count]


@jit
def in_a_row(state, places):
    """True if a vector of places is a view of all places."""
    return state[8] <= places.ctypes.data < state[9] and (places.size < 2 or places.strides[0] == places.itemsize)


@jit
def carries(state, places):
    """True if an array has places of numbers that carry a gradient."""
    return places.size > 0 and (places[0] > 0 or (places.size > 1 and places.any()))


@jit
def list_length(state, places):
    """The number of places to store as a list: 0 if they are consecutive, or only one."""
    if places.size < 2 or in_a_row(state, places):
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
def push_elements(tape, count, a, a_wide, b, b_wide, is_root):
    """Record an element-wise operation with `count` results and operands at places a and b.

    Args:
        a, b: places: (count,), (1,) for an operand that is broadcast, or (0,) for one without a gradient.
        a_wide, b_wide: True if there is one partial derivative for each element, False if one for all.

    Returns the results' places, zeros if all operands are constants; and the indices in `values` at which to write the
    partial derivatives of a and of b, -1 if they are not needed.
    """
    state = tape[2]
    if count == 0 or not (carries(state, a) or carries(state, b)):
        return np.zeros(count, np.int64), np.int64(-1), np.int64(-1)
    a_many, b_many = list_length(state, a), list_length(state, b)
    a_numbers = count if a_wide else 1
    numbers = a_numbers + (count if b_wide else 1)
    first, at, used = push_array_op(tape, _OF_ROOT if is_root else _ELEMENTS, count, numbers, 8 + a_many + b_many)
    out = row_of(tape, first, count)
    if at < 0:
        return out, np.int64(-1), np.int64(-1)
    operands = tape[4]
    write_operand(operands, used, a_many, used + 8, a, at, a_wide)
    write_operand(operands, used + 4, b_many, used + 8 + a_many, b, at + a_numbers, b_wide)
    return out, at, at + a_numbers


@jit
def put_places(places, values):
    """Write places into an array of them, in C order."""
    for k, index in enumerate(np.ndindex(places.shape)):
        places[index] = values[k]


@jit
def walk(tape, adjoints, seen, end):
    """Propagate the cotangents of the window's nodes before `end` to their parents; returns the first place visited.

    Nodes that no cotangent has reached are skipped.
    """
    parents, partials, state, values, operands = tape[0], tape[1], tape[2], tape[3], tape[4]
    low = state[6]
    place = end - 1
    while place >= low:
        node = place - low
        if parents[node, 1] == _ARRAY_OP:
            at = parents[node, 0]
            if operands[at] == _PRODUCT:
                walk_product(tape, at, adjoints, seen)
            elif operands[at] == _ROW_SUM:
                walk_row_sum(operands, at, adjoints, seen)
            elif operands[at] == _SUM:
                walk_sum(operands, at, adjoints, seen)
            elif operands[at] == _ROWS:
                walk_rows(tape, at, adjoints, seen)
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
    add_products(tape, adjoints)
    return place + 1


@jit
def is_reached(seen, first, count):
    """True if a cotangent has reached one of an operation's results."""
    reached = np.uint8(0)
    for each in seen[first : first + count]:
        reached |= each
    return reached != 0


@jit
def took(adjoints, seen, first, count):
    """The cotangents of an operation's results, which are left zero; none if no cotangent has reached them."""
    if not is_reached(seen, first, count):
        return np.empty(0, adjoints.dtype)
    cts = adjoints[first : first + count].copy()
    adjoints[first : first + count] = 0.0
    seen[first : first + count] = 0
    return cts


@jit
def walk_elements(values, operands, at, adjoints, seen):
    """Propagate the cotangents of an element-wise operation's results to its operands."""
    is_root, count, first = operands[at] == _OF_ROOT, operands[at + 1], operands[at + 2]
    if not is_reached(seen, first, count):
        return
    cts = adjoints[first : first + count]
    for side in (at + 3, at + 7):
        start, step, partial, wide = operands[side], operands[side + 1], operands[side + 2], operands[side + 3]
        if start == 0 and step == 0:
            continue
        if step == 1 and not is_root:
            own = adjoints[start : start + count]
            seen[start : start + count] = 1
            if wide:
                factors = values[partial : partial + count]
                for k in range(count):
                    own[k] += cts[k] * factors[k]
            else:
                for k in range(count):
                    own[k] += cts[k] * values[partial]
            continue
        more = np.zeros(count, adjoints.dtype)
        for k in range(count):
            if cts[k] != 0.0 or not is_root:
                more[k] = cts[k] * values[partial + k * wide]
        if step == 0:
            adjoints[start] += more.sum()
            seen[start] = 1
        else:
            give(operands, start, step == 2, more, adjoints, seen)
    cts[:] = 0.0
    seen[first : first + count] = 0


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
    count, many = operands[at + 3], operands[at + 4]
    give(operands, at + 6 if many else operands[at + 5], many > 0, np.full(count, ct), adjoints, seen)


@jit
def walk_row_sum(operands, at, adjoints, seen):
    """Propagate the cotangents of sums of rows to the rows."""
    before, rows, after, many = operands[at + 3], operands[at + 4], operands[at + 5], operands[at + 6]
    cts = took(adjoints, seen, operands[at + 2], operands[at + 1])
    start = at + 8 if many else operands[at + 7]
    for i in range(before if cts.size else 0):
        for _ in range(rows):
            give(operands, start, many > 0, cts[i * after : (i + 1) * after], adjoints, seen)
            start += after


@jit
def taped_rows(tape, table, ids, width):
    """The places, (ids, width), of rows that are looked up in a table; zeros for a table that is not differentiated."""
    count = ids.size * width
    if table == 0 or count == 0:
        return np.zeros((ids.size, width), np.int64)
    first, _, used = push_array_op(tape, _ROWS, count, 0, 2 + ids.size)
    if used >= 0:
        tape[4][used], tape[4][used + 1] = table, ids.size
        for k, each in enumerate(ids.flat):
            tape[4][used + 2 + k] = each
    return row_of(tape, first, count).reshape(ids.size, width)


@jit
def walk_rows(tape, at, adjoints, seen):
    """Keep the cotangents of rows that were looked up, by table, id and example; the last row comes first."""
    state, operands, found, found_rows = tape[2], tape[4], tape[6], tape[7]
    table, count = operands[at + 3], operands[at + 4]
    cts = took(adjoints, seen, operands[at + 2], operands[at + 1])
    if cts.size == 0:
        return
    width = cts.size // count
    for k in range(count - 1, -1, -1):
        row = state[10]
        if row < found.shape[0]:
            found[row, 0], found[row, 1], found[row, 2] = table, operands[at + 5 + k], state[11]
            found_rows[row, :width] = cts[k * width : (k + 1) * width]
        state[10] = row + 1


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
    if not carries(tape[2], flat):
        return start
    many = list_length(tape[2], flat)
    first, _, used = push_array_op(tape, _SUM, 1, 0, 3 + many)
    if used >= 0:
        tape[4][used], tape[4][used + 1], tape[4][used + 2] = flat.size, many, flat[0]
        if many:
            tape[4][used + 3 : used + 3 + many] = flat
    return first if start == 0 else push_2(tape, start, 1.0, first, 1.0)


@jit
def taped_sum_rows(tape, places):
    """The places of the sums, over the second axis, of an array of three."""
    before, rows, after = places.shape
    flat, count = places.ravel(), before * after
    if not carries(tape[2], flat):
        return np.zeros((before, after), np.int64)
    many = list_length(tape[2], flat)
    first, _, used = push_array_op(tape, _ROW_SUM, count, 0, 5 + many)
    if used >= 0:
        operands = tape[4]
        operands[used], operands[used + 1], operands[used + 2], operands[used + 3] = before, rows, after, many
        operands[used + 4] = flat[0]
        if many:
            operands[used + 5 : used + 5 + many] = flat
    return row_of(tape, first, count).reshape(before, after)


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
    chosen = condition.ravel()
    out, one, two = push_elements(tape, condition.size, x.ravel(), True, y.ravel(), True, False)
    for k in range(condition.size if one >= 0 else 0):
        tape[3][one + k] = 1.0 if chosen[k] else 0.0
        tape[3][two + k] = 0.0 if chosen[k] else 1.0
    return out.reshape(condition.shape)


_NOWHERE, _GIVEN, _IN_A_ROW, _LISTED = range(4)  # where the places of a factor of a product are


@jit
def where_places_are(state, places, by_column):
    """Where the places of a factor are, if those of a row, or of a column, follow each other."""
    rows, columns = places.shape
    row, column, first = 1 if by_column else columns, rows if by_column else 1, places[0, 0]
    if state[8] <= places.ctypes.data < state[9]:
        steps = (row * places.itemsize, column * places.itemsize)
        if (rows == 1 or places.strides[0] == steps[0]) and (columns == 1 or places.strides[1] == steps[1]):
            return _GIVEN if first < state[1] else _IN_A_ROW
    carries, strays = np.int64(0), np.int64(first <= 0)
    for i in range(rows):
        for j in range(columns):
            carries |= places[i, j]
            strays |= places[i, j] ^ (first + i * row + j * column)
    return (_LISTED if strays else _IN_A_ROW) if carries else _NOWHERE


@jit
def write_factor(tape, at, where, by_column, x, places, used, numbers):
    """Write a factor, three words: where its places are, the first one, and its first number, in `leaves` or `values`.

    Args:
        used: where in `operands` a list of places goes; numbers: where in `values` x goes, -1 if nobody reads it.
    """
    operands = tape[4]
    rows, columns = x.shape
    row, column = 1 if by_column else columns, rows if by_column else 1
    operands[at], operands[at + 1] = where, used if where == _LISTED else places[0, 0]
    operands[at + 2] = places[0, 0] if where == _GIVEN else numbers
    for i in range(rows if where != _GIVEN else 0):
        for j in range(columns):
            k = i * row + j * column
            if where == _LISTED:
                operands[used + k] = places[i, j]
            if numbers >= 0:
                tape[3][numbers + k] = x[i, j]


@jit
def taped_product_22(tape, a, a_places, b, b_places):
    """The places of the elements of a matrix product; zeros (constants) if no operand carries a gradient."""
    rows, inner, columns = a.shape[0], a.shape[1], b.shape[1]
    count = rows * columns
    if count == 0 or inner == 0:
        return np.zeros((rows, columns), np.int64)
    by_column = columns == 1 or b_places.strides[0] < b_places.strides[1]  # as in `keys.T`
    of_a, of_b = where_places_are(tape[2], a_places, False), where_places_are(tape[2], b_places, by_column)
    if of_a == _NOWHERE and of_b == _NOWHERE:
        return np.zeros((rows, columns), np.int64)
    a_numbers = 0 if of_a == _GIVEN or of_b == _NOWHERE else a.size
    b_numbers = 0 if of_b == _GIVEN or of_a == _NOWHERE else b.size
    a_list, b_list = a.size if of_a == _LISTED else 0, b.size if of_b == _LISTED else 0
    late = count if of_b == _GIVEN or (of_a == _GIVEN and by_column) else 0
    first, at, used = push_array_op(tape, _PRODUCT, count, a_numbers + b_numbers + late, 12 + a_list + b_list)
    if used >= 0:
        operands, lists = tape[4], used + 12
        operands[used + 10] = at + a_numbers + b_numbers if late else -1
        operands[used], operands[used + 1], operands[used + 2], operands[used + 3] = rows, inner, columns, by_column
        write_factor(tape, used + 4, of_a, False, a, a_places, lists, at if a_numbers else -1)
        b_at = at + a_numbers if b_numbers else -1
        write_factor(tape, used + 7, of_b, by_column, b, b_places, lists + a_list, b_at)
    return row_of(tape, first, count).reshape(rows, columns)


@jit
def numbers_of(tape, at, shape):
    """The numbers of a factor, anything if nobody reads them."""
    source, first = tape[5] if tape[4][at] == _GIVEN else tape[3], tape[4][at + 2]
    return source[first : first + shape[0] * shape[1]].reshape(shape) if first >= 0 else np.empty(shape, tape[3].dtype)


@jit
def cotangents_of(operands, at, shape, adjoints, seen):
    """Where the cotangents of a factor are added up: in place, unless its places are listed."""
    where, first, count = operands[at], operands[at + 1], shape[0] * shape[1]
    if where == _IN_A_ROW:
        seen[first : first + count] = 1
    if where in (_GIVEN, _IN_A_ROW):
        return adjoints[first : first + count].reshape(shape)
    return np.zeros(shape if where == _LISTED else (0, 0), adjoints.dtype)


@jit(reorders=True)
def walk_product(tape, at, adjoints, seen):
    """Propagate the cotangents of a matrix product's elements to the elements of its operands."""
    operands = tape[4]
    rows, inner, columns, by_column = operands[at + 3], operands[at + 4], operands[at + 5], operands[at + 6]
    cts = took(adjoints, seen, operands[at + 2], operands[at + 1])
    if cts.size == 0:
        return
    one, two = at + 7, at + 10
    late = operands[at + 13]
    if late >= 0:
        tape[3][late : late + cts.size] = cts
        operands[at + 14], tape[2][13] = tape[2][13], at
    to_b = operands[two] != _NOWHERE and operands[two] != _GIVEN
    to_a = operands[one] != _NOWHERE and (late < 0 or operands[two] == _GIVEN)
    a_shape, b_shape = (rows, inner), (columns, inner) if by_column else (inner, columns)
    a, b = numbers_of(tape, one, a_shape), numbers_of(tape, two, b_shape)
    a_cts = cotangents_of(operands, one, a_shape, adjoints, seen)
    b_cts = cotangents_of(operands, two, b_shape, adjoints, seen)
    for i in range(rows):
        ct = cts[i * columns : (i + 1) * columns]
        for j in range(columns if by_column else 0):
            for k in range(inner if to_a else 0):
                a_cts[i, k] += ct[j] * b[j, k]
            for k in range(inner if to_b else 0):
                b_cts[j, k] += ct[j] * a[i, k]
        for k in range(0 if by_column else inner):
            if to_a:
                total = cts.dtype.type(0)
                for j in range(columns):
                    total += ct[j] * b[k, j]
                a_cts[i, k] += total
            for j in range(columns if to_b else 0):
                b_cts[k, j] += ct[j] * a[i, k]
    if operands[one] == _LISTED:
        give(operands, operands[one + 1], True, a_cts.ravel(), adjoints, seen)
    if operands[two] == _LISTED:
        give(operands, operands[two + 1], True, b_cts.ravel(), adjoints, seen)


@jit
def add_products(tape, adjoints):
    """Add the cotangents of arguments that are factors of products, all of one argument in one product.

    An argument's cotangent is `left.T @ right`, where a row of each belongs to a row (or column) of one product.
    """
    state, operands = tape[2], tape[4]
    while state[13] >= 0:
        last, of = state[13], late_factor(operands, state[13])
        size, at = 0, last
        while at >= 0:
            own = late_factor(operands, at)
            size += own[3] if own[:3] == of[:3] else 0
            at = operands[at + 14]
        left, right = np.empty((size, of[1]), adjoints.dtype), np.empty((size, of[2]), adjoints.dtype)
        state[13], at, used = -1, last, 0
        while at >= 0:
            following, own = operands[at + 14], late_factor(operands, at)
            if own[:3] == of[:3]:
                put_factors(tape, at, left[used : used + own[3]], right[used : used + own[3]])
                used += own[3]
            else:
                operands[at + 14], state[13] = state[13], at
            at = following
        add_outer(left, right, adjoints[of[0] : of[0] + of[1] * of[2]].reshape(of[1], of[2]))


@jit
def late_factor(operands, at):
    """Of a product's argument: its first place, its rows and columns as they lie, and how many rows are added to it."""
    rows, inner, columns, by_column = operands[at + 3], operands[at + 4], operands[at + 5], operands[at + 6]
    if operands[at + 10] != _GIVEN:
        return operands[at + 8], rows, inner, columns
    return operands[at + 11], columns if by_column else inner, inner if by_column else columns, rows


@jit
def put_factors(tape, at, left, right):
    """The factors of what is added to an argument's cotangent."""
    operands = tape[4]
    rows, inner, columns, by_column = operands[at + 3], operands[at + 4], operands[at + 5], operands[at + 6]
    late = operands[at + 13]
    cts = tape[3][late : late + rows * columns].reshape(rows, columns)
    if operands[at + 10] != _GIVEN:
        left[:], right[:] = cts.T, numbers_of(tape, at + 10, (columns, inner))
        return
    a = numbers_of(tape, at + 7, (rows, inner))
    if by_column:
        left[:], right[:] = cts, a
    else:
        left[:], right[:] = a, cts


@jit(reorders=True)
def add_outer(left, right, out):
    """`out += left.T @ right`."""
    many, four = left.shape[0], left.shape[0] - left.shape[0] % 4
    for p in range(out.shape[0]):
        row = out[p]
        for k in range(0, four, 4):
            a, b, c, d = left[k, p], left[k + 1, p], left[k + 2, p], left[k + 3, p]
            for q in range(row.size):
                row[q] += a * right[k, q] + b * right[k + 1, q] + c * right[k + 2, q] + d * right[k + 3, q]
        for k in range(four, many):
            a = left[k, p]
            for q in range(row.size):
                row[q] += a * right[k, q]


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
