"""The gradient tape of compiled code: each number's parents and partial derivatives, in flat arrays.

A number that carries a gradient has a place, its index in the tape; constants have place 0. The leaves have the places
from 1 on, and each operation takes the next ones. A scalar operation has a node with at most two parents. An array
operation has a place for each element, in a row, and one record, before which is the index of the one before.
`tape_walk` goes back over both. What is called for an array operation returns the first place, 0 if all are constants.

The places of an operand are in a row, too; others are copied to one by an operation of their own (`row_of`), as are
those of several operations in a product, which knows numbers by place. An operand is (first place, spread), a factor
(where its places are, the first, whether by column). The spread says how many results the places serve: 0: one serves
all; 1: each serves one; -n: each serves n results in a row; n + 1: n places serve n results, and the next n, and so on.

A tape is (address of its head, a zero of its dtype): what is called with it gets two words, where arrays would be
seventy. The dtype is float32 if all numbers that carry a gradient are, else float64. The head has the words named
below; the last of them are addresses of arrays:

- `PARENTS` (int64) and `PARTIALS` have two elements for each node.
- `RECORDS` (int64) and `VALUES` belong to array operations.
- `LEAVES` are the numbers of the arguments by place, which nothing writes, so a product with an argument stores only
  where it lies. `TURNED` are matrices of them that are read often, with their axes exchanged. `TURNS` has, in the slot
  of a matrix, its first place and its shape, by how many rows it was multiplied, and where it is in `TURNED`.
- For each row that was looked up in a table and that a cotangent reaches, `FOUND` has (the table's number, id,
  example), `FOUND_ROWS` the cotangent, in the order of the look-ups.
- `PLACES[k]` is k: an array of places in a row is a view of it, which costs nothing.
- `ADJOINTS` and `SEEN` (uint8) have an element for each place: its cotangent, and whether one has reached it.

Sources: Wengert, A simple automatic derivative evaluation program (1964); the flat layout of CppAD and Stan.
"""

import numpy as np

from autobatch.kernels.compiled_code.checked_array_calls import array_at
from autobatch.kernels.jit import jit

(
    NEXT,  # place of the next number
    FIRST,  # place of the first node
    IS_SHORT,  # 1 if an array is too short for this example
    NUM_NODES,  # for how many nodes there is room
    VALUES_USED,
    NUM_VALUES,
    RECORDS_USED,
    NUM_RECORDS,
    ROWS_FOUND,  # more than `NUM_ROWS` if `FOUND` is too short
    LAST,  # the last record (-1: none)
    ROWS,  # the last record of rows that were looked up; when the tape is walked back, of those reached (-1: none)
    NUM_ROWS,
    ROW_WIDTH,  # of `FOUND_ROWS`
    NUM_PLACES,
    TURNED_USED,
    EXAMPLE,
    EPOCH,  # how many examples this tape has held, modulo a large number
    LATE,  # the last product whose cotangent of an argument is not added yet (-1: none)
    SKIPPED,  # 1 if no cotangent has reached a partial derivative that is not finite
    PARENTS,
    PARTIALS,
    VALUES,
    RECORDS,
    LEAVES,
    TURNED,
    TURNS,
    FOUND,
    FOUND_ROWS,
    PLACES,
    ADJOINTS,
    SEEN,
    HEAD_SIZE,
) = range(32)
ELEMENT_OP, ROOT_OP, SUM_OP, ROW_SUM_OP, PRODUCT_OP, LOOK_UP_OP, JOIN_OP = range(7)  # what an array operation is
NOWHERE, GIVEN, LOOKED_UP, IN_A_ROW = range(4)  # where the places of a factor of a product are


@jit
def head_of(tape):
    """The head of a tape."""
    return array_at(tape[0], np.int64(HEAD_SIZE), np.int64(0))


@jit
def values_of(tape):
    """The numbers that array operations keep."""
    head = head_of(tape)
    return array_at(head[VALUES], head[NUM_VALUES], tape[1])


@jit
def records_of(tape):
    """The records of array operations."""
    head = head_of(tape)
    return array_at(head[RECORDS], head[NUM_RECORDS], np.int64(0))


@jit
def parents_of(tape):
    """Two parents for each node."""
    head = head_of(tape)
    return array_at(head[PARENTS], 2 * head[NUM_NODES], np.int64(0))


@jit
def partials_of(tape):
    """Two partial derivatives for each node."""
    head = head_of(tape)
    return array_at(head[PARTIALS], 2 * head[NUM_NODES], tape[1])


@jit
def adjoints_of(tape):
    """A cotangent for each place."""
    head = head_of(tape)
    return array_at(head[ADJOINTS], head[FIRST] + head[NUM_NODES], tape[1])


@jit
def seen_of(tape):
    """For each place, 1 if a cotangent has reached it."""
    head = head_of(tape)
    return array_at(head[SEEN], head[FIRST] + head[NUM_NODES], np.uint8(0))


@jit
def start_tape(tape, example):
    """Empty the tape, for an example."""
    head = head_of(tape)
    head[NEXT] = head[FIRST]
    head[EXAMPLE] = example
    head[EPOCH] = (head[EPOCH] + 1) % 2**29
    head[VALUES_USED] = head[RECORDS_USED] = head[IS_SHORT] = 0
    head[LAST] = head[LATE] = head[ROWS] = -1


@jit
def is_short(tape):
    """True if the tape has not held an example, so nothing can be said of its gradient."""
    head = head_of(tape)
    return head[IS_SHORT] != 0 or head[NEXT] > head[FIRST] + head[NUM_NODES]


@jit
def push_2(tape, a, da, b, db):
    """Record a number with two parents and partial derivatives; returns its place, 0 if both are constants.

    A zero cotangent stays zero for a parent below 0, whose partial derivative may be infinite, as that of a root is.
    """
    if a == 0 and b == 0:
        return np.int64(0)
    head = head_of(tape)
    place = head[NEXT]
    head[NEXT] = place + 1
    node = place - head[FIRST]
    if node < head[NUM_NODES]:
        parents, partials = parents_of(tape), partials_of(tape)
        parents[2 * node], parents[2 * node + 1] = a, b
        partials[2 * node], partials[2 * node + 1] = da, db
    return place


@jit
def reserve_in(tape, numbers, words):
    """Reserve space for values and words of records; returns the index of the first of each, -1 if there is no room."""
    head = head_of(tape)
    at, used = head[VALUES_USED], head[RECORDS_USED]
    if at + numbers > head[NUM_VALUES] or used + words > head[NUM_RECORDS]:
        head[IS_SHORT] = 1
        return np.int64(-1), np.int64(-1)
    head[VALUES_USED], head[RECORDS_USED] = at + numbers, used + words
    return at, used


@jit
def push_array_op(tape, operation, count, numbers, words):
    """Record an array operation with `count` results, and reserve space for so many values and words of its record.

    Returns (first place, index in the values, index in the records); the indices are -1 if there is no room.
    """
    head, records = head_of(tape), records_of(tape)
    first = head[NEXT]
    head[NEXT] = first + count
    at, used = reserve_in(tape, numbers, words + 4)
    if used < 0 or first + count - head[FIRST] > head[NUM_NODES]:
        head[IS_SHORT] = 1
        return first, np.int64(-1), np.int64(-1)
    records[used], head[LAST] = head[LAST], used + 1
    records[used + 1], records[used + 2], records[used + 3] = operation, count, first
    return first, at, used + 4


@jit
def places_from(tape, first, count):
    """The places from `first` on, as an array that nobody writes into."""
    head = head_of(tape)
    if first + count > head[NUM_PLACES]:
        head[IS_SHORT] = 1
        return np.zeros(count, np.int64)
    return array_at(head[PLACES] + 8 * first, count, np.int64(0))


@jit
def places_of(tape, first, shape):
    """An array of the places of an array of this shape, of which `first` is the first; nobody writes into it."""
    if first == 0:
        return np.zeros(shape, np.int64)
    count = np.int64(1)
    for each in shape:
        count *= each
    return places_from(tape, first, count).reshape(shape)


@jit
def row_from(first, start, rows, size):
    """The first place of a part of an array of `rows` rows, `size` elements, that begins with the row `start`."""
    start = np.int64(start)
    start = max(start + rows if start < 0 else start, 0)
    return first + start * (size // max(rows, 1)) if first else first


@jit
def operand_in_row(first, count):
    """An operand whose places, so many, follow each other, or are all of constants if the first is 0."""
    return first, np.int64(count > 1)


@jit
def operand_at(tape, places):
    """An operand, of an array of places."""
    return operand_in_row(row_of(tape, places, False), places.size)


@jit
def operand_aligned(tape, first, own, shape):
    """An operand of an array of the shape `own`, with places in a row, that is broadcast to another shape."""
    size, count, ahead, behind = np.int64(1), np.int64(1), np.int64(1), np.int64(1)
    for each in own:
        size *= each
    for each in shape:
        count *= each
    if first == 0 or size == count or size == 1:
        return first, np.int64(size == count and count > 1)
    for k in range(len(own)):  # the axes at the end, then those at the start, that are not broadcast
        if own[len(own) - 1 - k] != shape[len(shape) - 1 - k]:
            break
        behind *= own[len(own) - 1 - k]
    for k in range(len(own) if len(own) == len(shape) else 0):
        if own[k] != shape[k]:
            break
        ahead *= own[k]
    if behind == size or ahead == size:
        return first, size + 1 if behind == size else -(count // size)
    return operand_at(tape, np.broadcast_to(places_of(tape, first, own), shape))


@jit
def row_of(tape, places, is_of_one):
    """The first place of these if they are in a row, of one operation if `is_of_one`; else of one that copies them."""
    head, flat, count = head_of(tape), places.ravel(), places.size
    first = (flat.ctypes.data - head[PLACES]) // 8
    if count and 0 <= first < head[NUM_PLACES]:
        return first
    parts, carry = np.int64(count > 0), np.int64(0)
    for k in range(count):
        carry |= flat[k]
    for k in range(1, count):
        parts += follows(flat[k - 1], flat[k]) == 0
    if carry == 0 or (parts < 2 and not is_of_one):
        return flat[0] if carry else np.int64(0)
    first, _, used = push_array_op(tape, JOIN_OP, count, 0, 2 * parts + 1)
    if used >= 0:
        records = records_of(tape)
        records[used], records[used + 1], at, start = parts, flat[0], used + 1, 0
        for k in range(1, count):
            if not follows(flat[k - 1], flat[k]):
                records[at + 1], records[at + 2], start = k - start, flat[k], k
                at += 2
        records[at + 1] = count - start
    return first


@jit
def write_operand(tape, at, before, operand, numbers_at, wide):
    """Write one operand of an element-wise operation.

    Five words: the operand; the index in the values of the first partial derivative; its form; where the operation's
    operand `before` is written. The form is 1 if there is a partial derivative for each result, and more if these
    derivatives belong to another operand (4), or are to be negated (8). Returns where this operand is written.
    """
    records = records_of(tape)
    records[at], records[at + 1] = operand
    records[at + 2], records[at + 3], records[at + 4] = numbers_at, np.int64(wide), before
    return at


@jit
def push_elements(tape, count, a, a_wide, b, b_wide, is_root, ends):
    """Record an element-wise operation with `count` results and operands a and b; one without a gradient is zeros.

    Args:
        a_wide, b_wide: True if there is one partial derivative for each element, False if one for all.
        ends: 1 if nothing else reads the places of a, 2 those of b, 3 both. If they are the results of the last
            operation, this one becomes a part of it: its partial derivatives are multiplied by `join`.

    Returns the first place; where to write the partial derivatives of a and of b: arrays of `count` numbers, or of one;
    empty ones if they are not needed; and what `join` needs for each.
    """
    head, values, nowhere = head_of(tape), values_of(tape), np.int64(-1)
    to_a, to_b = a[0] != 0, b[0] != 0
    if count == 0 or not (to_a or to_b):
        return np.int64(0), values[:0], values[:0], nowhere, nowhere
    last, records, first = head[LAST], records_of(tape), head[NEXT]
    joins_a = joins_b = False
    if ends and last >= 0 and records[last] == ELEMENT_OP and records[last + 1] == count and not is_root:
        start = records[last + 2]
        if start + count == first:
            joins_b = ends & 2 != 0 and b[1] == 1 and b[0] == start
            joins_a = ends & 1 != 0 and a[1] == 1 and a[0] == start and not joins_b
    numbers, before = (count if a_wide else 1) + (count if b_wide else 1), nowhere
    if joins_a or joins_b:
        first, before = records[last + 2], records[last + 3]
        at, used = reserve_in(tape, numbers, 11)
        used -= 1
    else:
        first, at, used = push_array_op(tape, ROOT_OP if is_root else ELEMENT_OP, count, numbers, 11)
        last = used - 3
    if at < 0:
        return first, values[:0], values[:0], nowhere, nowhere
    b_at, newest = at + (count if a_wide else 1), before
    if to_a and not joins_a:
        newest = write_operand(tape, used + 1, newest, a, at, a_wide)
    if to_b and not joins_b:
        newest = write_operand(tape, used + 6, newest, b, b_at, b_wide)
    records[last + 3] = newest
    of_a, of_b = values[at : b_at if to_a else at], values[b_at : at + numbers if to_b else b_at]
    return first, of_a, of_b, before if joins_a else nowhere, before if joins_b else nowhere


@jit
def join(tape, operand, factors):
    """Multiply the partial derivatives of an operation's operands, from one on, by those of one that it joins."""
    records, values, head = records_of(tape), values_of(tape), head_of(tape)
    shared, owned = (factors.ctypes.data - head[VALUES]) // factors.itemsize, 0
    while operand >= 0:
        start, form = records[operand + 2], records[operand + 3]
        if factors.size == 1 or form & 1:
            own = values[start : start + (records[head[LAST] + 1] if form & 1 else 1)]
            if not form & 4 and (factors.size > 1 or factors[0] != 1.0):
                scale(own, factors)
        elif abs(values[start]) == 1.0:
            records[operand + 2], records[operand + 3] = shared, form + 1 + owned + (8 if values[start] < 0.0 else 0)
            owned = 4
        else:
            at, _ = reserve_in(tape, factors.size, 0)
            if at < 0:
                return
            fill(values[at : at + factors.size], values[start])
            scale(values[at : at + factors.size], factors)
            records[operand + 2], records[operand + 3] = at, form + 1
        operand = records[operand + 4]


@jit
def scale(out, factors):
    """`out *= factors`, of vectors; there may be one factor for all."""
    if factors.size == 1:
        factor = factors[0]
        for k in range(out.size):
            out[k] *= factor
        return
    for k in range(out.size):
        out[k] *= factors[k]


@jit
def stretched(x, count):
    """The elements of an operand of an element-wise operation with `count` results."""
    flat = x.ravel()
    return np.full(count, flat[0]) if flat.size == 1 and count > 1 else flat


@jit
def put_places(places, first):
    """Write the places from `first` on, or zeros if it is 0, into an array of them, in C order."""
    for k, index in enumerate(np.ndindex(places.shape)):
        places[index] = first + k if first else 0


@jit
def fill(out, value):
    """`out[:] = value` of a vector, without the checks for other shapes."""
    for k in range(out.size):
        out[k] = value


@jit
def copy_into(out, values):
    """`out[:] = values` of vectors of the same length."""
    for k in range(out.size):
        out[k] = values[k]


@jit
def taped_rows(tape, table, ids, width):
    """The first place of rows, (ids, width), that are looked up in a table; 0 if that is not differentiated."""
    count = ids.size * width
    if table == 0 or count == 0:
        return np.int64(0)
    first, _, used = push_array_op(tape, LOOK_UP_OP, count, 0, 3 + ids.size)
    if used >= 0:
        head, records = head_of(tape), records_of(tape)
        records[used], records[used + 1], records[used + 2], head[ROWS] = table, ids.size, head[ROWS], used - 3
        for k, each in enumerate(ids.flat):
            records[used + 3 + k] = each
    return first


@jit
def is_looked_up(tape, place):
    """True if a place is one of the last rows that were looked up."""
    records, at = records_of(tape), head_of(tape)[ROWS]
    for _ in range(8):
        if at < 0 or records[at + 2] <= place:
            break
        at = records[at + 5]
    return at >= 0 and records[at + 2] <= place < records[at + 2] + records[at + 1]


@jit
def sign_of(x):
    """`np.sign`."""
    return x if x != x else 1.0 if x > 0 else -1.0 if x < 0 else 0.0  # Numba does not convert a bool to a float


@jit
def taped_sum(tape, start, count, operand):
    """The place of a sum: the number at `start` plus `count` numbers."""
    if operand[0] == 0 or count == 0:
        return start
    first, _, used = push_array_op(tape, SUM_OP, 1, 0, 2)
    if used >= 0:
        records = records_of(tape)
        records[used], records[used + 1] = count, operand[0]
    return first if start == 0 else push_2(tape, start, 1.0, first, 1.0)


@jit
def taped_sum_rows(tape, shape, operand):
    """The places of the sums, over the second axis, of an array of three."""
    before, rows, after = shape
    if operand[0] == 0 or before * after == 0:
        return np.int64(0)
    first, _, used = push_array_op(tape, ROW_SUM_OP, before * after, 0, 4)
    if used >= 0:
        records = records_of(tape)
        records[used], records[used + 1], records[used + 2], records[used + 3] = before, rows, after, operand[0]
    return first


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
def taped_extreme_rows(places, x, made):
    """The places of the first numbers of an array of three axes, over the second, that are `made` or NaN."""
    out, at = np.empty(made.shape, np.int64), np.zeros(x.shape[2], np.int32)
    for i in range(x.shape[0]):
        for k in range(x.shape[1] - 1, -1, -1):
            row, found = x[i, k], np.int32(k)
            for j in range(at.size):
                at[j] = found if (row[j] == made[i, j]) | (row[j] != row[j]) else at[j]
        for j in range(at.size):
            out[i, j] = places[i, at[j], j]
    return out


@jit
def taped_where(tape, condition, x, y):
    """The places of `np.where`; elements not chosen get a cotangent of zero."""
    chosen = condition.ravel()
    first, one, two, _, _ = push_elements(tape, condition.size, x, True, y, True, False, 0)
    for k in range(one.size):
        one[k] = 1.0 if chosen[k] else 0.0
    for k in range(two.size):
        two[k] = 0.0 if chosen[k] else 1.0
    return first


@jit
def where_row_is(tape, first):
    """Where the places from a first one on are."""
    if first < head_of(tape)[FIRST]:
        return GIVEN if first else NOWHERE
    return LOOKED_UP if is_looked_up(tape, first) else IN_A_ROW


@jit
def factor_in_row(tape, first):
    """A factor of a product whose places follow each other, row by row."""
    return np.int64(where_row_is(tape, first)), first, False


@jit
def factor_at(tape, places, may_turn):
    """A factor of a product, of a matrix of places; if it may, those of a column follow each other, as in `keys.T`."""
    by_column = may_turn and places.strides[0] < places.strides[1]
    first = row_of(tape, places.T, True) if by_column else row_of(tape, places, True)
    return np.int64(where_row_is(tape, first)), first, by_column


@jit
def note_of(tape, factor, count):
    """Two words of the first node of the results of an array operation, which has no use for them; empty if there are
    none: where in the values the numbers of this factor are kept, and how many of which example."""
    head, parents = head_of(tape), parents_of(tape)
    node = 2 * (factor[1] - head[FIRST])
    is_known = (factor[0] == LOOKED_UP or factor[0] == IN_A_ROW) and count > 1
    return parents[node : node + 2] if is_known and 0 <= node < 2 * head[NUM_NODES] else parents[:0]


@jit
def write_factor(tape, at, factor, by_column, x, numbers):
    """Write a factor, three words: where its places are, the first one, and its first number, of a leaf or a value.

    Args:
        numbers: where in the values x goes, -1 if it is kept already, -2 if nobody reads it.
    """
    records, values = records_of(tape), values_of(tape)
    rows, columns = x.shape
    row, column = 1 if by_column else columns, rows if by_column else 1
    records[at], records[at + 1] = factor[0], factor[1]
    note = note_of(tape, factor, x.size)
    if numbers >= 0 and note.size:
        note[0], note[1] = numbers, note_stamp(tape, x.size)
    records[at + 2] = factor[1] if factor[0] == GIVEN else note[0] if numbers == -1 else numbers
    if numbers < 0 or factor[0] == GIVEN:
        return
    for i in range(rows):
        if column == 1:
            copy_into(values[numbers + i * row : numbers + i * row + columns], x[i])
        else:
            for j in range(columns):
                values[numbers + i * row + j * column] = x[i, j]


@jit
def note_stamp(tape, count):
    """What `note_of` says of so many numbers of this example."""
    return head_of(tape)[EPOCH] * 2**32 + count - 2**62


@jit
def is_kept(tape, factor, count):
    """True if the numbers of a factor are kept."""
    note = note_of(tape, factor, count)
    return note.size > 0 and note[1] == note_stamp(tape, count)


@jit
def taped_joined(tape, firsts, counts):
    """The first place of arrays one after the other, each with its places in a row, so many from a first one on."""
    total, carry = np.int64(0), np.int64(0)
    for k in range(len(firsts)):
        total += counts[k]
        carry |= firsts[k]
    if total == 0 or carry == 0:
        return np.int64(0)
    first, _, used = push_array_op(tape, JOIN_OP, total, 0, 2 * len(firsts) + 1)
    if used >= 0:
        records = records_of(tape)
        records[used] = len(firsts)
        for k in range(len(firsts)):
            records[used + 1 + 2 * k], records[used + 2 + 2 * k] = firsts[k], counts[k]
    return first


@jit
def taped_taken(tape, first, shape, places):
    """The first place of what `taken` makes of an array of three axes with places in a row."""
    before, rows, after = shape
    parts = before * places.size
    if first == 0 or parts * after == 0:
        return np.int64(0)
    out, _, used = push_array_op(tape, JOIN_OP, parts * after, 0, 2 * parts + 1)
    if used >= 0:
        records, at = records_of(tape), used + 1
        records[used] = parts
        for i in range(before):
            for k in range(places.size):
                records[at], records[at + 1] = first + (i * rows + places[k]) * after, after
                at += 2
    return out


@jit
def follows(before, place):
    """True if a place is the next one, or both are of constants."""
    return place == before + (before > 0)


@jit
def taped_product_22(tape, a, of_a, b, of_b):
    """The first place of a matrix product; 0 if no factor carries a gradient."""
    rows, inner, columns = a.shape[0], a.shape[1], b.shape[1]
    count = rows * columns
    if count == 0 or inner == 0 or (of_a[0] == NOWHERE and of_b[0] == NOWHERE):
        return np.int64(0)
    by_column = of_b[2] or columns == 1
    a_is_kept, b_is_kept = is_kept(tape, of_a, a.size), is_kept(tape, of_b, b.size)
    a_numbers = 0 if a_is_kept or of_a[0] == GIVEN or of_b[0] == NOWHERE else a.size
    b_numbers = 0 if b_is_kept or of_b[0] == GIVEN or of_a[0] == NOWHERE else b.size
    late = count if of_b[0] == GIVEN or (of_a[0] == GIVEN and by_column) else 0
    first, at, used = push_array_op(tape, PRODUCT_OP, count, a_numbers + b_numbers + late, 13)
    if used >= 0:
        records = records_of(tape)
        records[used + 10] = at + a_numbers + b_numbers if late else -1
        records[used], records[used + 1], records[used + 2], records[used + 3] = rows, inner, columns, by_column
        a_at = at if a_numbers else -1 if a_is_kept and of_b[0] != NOWHERE else -2
        write_factor(tape, used + 4, of_a, False, a, a_at)
        b_at = at + a_numbers if b_numbers else -1 if b_is_kept and of_a[0] != NOWHERE else -2
        write_factor(tape, used + 7, of_b, by_column, b, b_at)
    return first


@jit
def taped_product_11(tape, a, of_a, b, of_b):
    """The place of the inner product of two vectors."""
    return taped_product_22(tape, np.expand_dims(a, 0), of_a, np.expand_dims(b, 1), of_b)


@jit
def taped_product_21(tape, a, of_a, b, of_b):
    """The first place of a matrix times a vector."""
    return taped_product_22(tape, a, of_a, np.expand_dims(b, 1), of_b)


@jit
def taped_product_12(tape, a, of_a, b, of_b):
    """The first place of a vector times a matrix."""
    return taped_product_22(tape, np.expand_dims(a, 0), of_a, b, of_b)
