"""The gradient tape of compiled code: each number's parents and partial derivatives, in flat arrays.

A number that carries a gradient has a place, its index in the tape; constants have place 0. The leaves have the places
from 1 on, and each operation takes the next ones. A scalar operation has a node with at most two parents. An array
operation has a place for each element and one record, before which is the index of the one before. `tape_walk` goes
back over both.

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
- `PLACES[k]` is k: the places of a new array are a view of it, which costs nothing, and an array whose memory lies in
  it has places in a row.
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
    WRITES_PLACES,  # 1 if the function may write into places that are views
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
) = range(33)
ELEMENT_OP, ROOT_OP, SUM_OP, ROW_SUM_OP, PRODUCT_OP, LOOK_UP_OP, JOIN_OP = range(7)  # what an array operation is
NOWHERE, GIVEN, LOOKED_UP, IN_A_ROW, LISTED = range(5)  # where the places of a factor of a product are


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
def new_places(tape, first, count):
    """The places from `first` on, as an array."""
    places = places_from(tape, first, count)
    return places.copy() if head_of(tape)[WRITES_PLACES] else places


@jit
def in_a_row(head, places):
    """True if a vector of places is a view of all places."""
    offset = places.ctypes.data - head[PLACES]
    return 0 <= offset < 8 * head[NUM_PLACES] and (places.size < 2 or places.strides[0] == 8)


@jit
def place_list(head, places):
    """Of a vector of places: the first one, and how many to store as a list, 0 if they are consecutive or all zero."""
    if places.size == 0:
        return np.int64(0), 0
    if in_a_row(head, places):
        return (places.ctypes.data - head[PLACES]) // 8, 0
    first = places[0]
    found, strays = np.int64(0), np.int64(first <= 0)
    for k in range(places.size):
        found |= places[k]
        strays |= places[k] ^ (first + k)
    return (first, places.size if strays and places.size > 1 else 0) if found else (np.int64(0), 0)


@jit
def spread_of(places):
    """How many results the places of an operand serve.

    0: one place serves all; 1: each serves one; -n: each serves n results in a row; n + 1: n places serve n results,
    and the next n, and so on. As a view with strides of zero, which `broadcast_places` makes, says.
    """
    if places.size < 2:
        return 0
    if places.ndim == 2:
        if places.strides[0] == 0:
            return places.shape[1] + 1 if places.strides[1] else 0
        if places.strides[1] == 0:
            return -places.shape[1]
    return 1


@jit
def broadcast_places(places, shape):
    """The places of an array that is broadcast to a shape."""
    return np.broadcast_to(places, shape)


@jit
def own_places(places, spread):
    """The places of an operand, as a vector in which none stands for another result, too."""
    if places.ndim == 2:
        first, count = places.ctypes.data, np.int64(min(places.size, 1) if spread == 0 else places.size)
        is_view = places.strides[1] == 8 and places.strides[0] == 8 * places.shape[1]
        if spread < 0:
            count, is_view = np.int64(places.shape[0]), places.strides[0] == 8
        elif spread != 1:
            count, is_view = np.int64(max(spread - 1, 1)), spread == 0 or places.strides[1] == 8
        if is_view:
            return array_at(first, count, np.int64(0))
        return (places[:, 0] if spread < 0 else places[0] if spread > 1 else places.ravel()).copy()
    if places.ndim == 1 and places.strides[0] == 8:
        return array_at(places.ctypes.data, np.int64(places.size), np.int64(0))
    return places.ravel()


@jit
def write_operand(tape, at, before, first, places, many, spread, numbers_at, wide):
    """Write one operand of an element-wise operation: the indices of its places and its partial derivatives.

    Five words: the first place, or the index in the records of a list of places; what `spread_of` says; the index in
    the values of the first partial derivative; its form; where the operation's operand `before` is written. The form is
    1 if there is a partial derivative for each result, and more if the places are listed (2), if these derivatives
    belong to another operand (4), or are to be negated (8). Returns where this operand is written.
    """
    records = records_of(tape)
    records[at], records[at + 1] = at + 5 if many else first, spread
    records[at + 2], records[at + 3], records[at + 4] = numbers_at, wide + 2 * (many > 0), before
    if many:
        copy_into(records[at + 5 : at + 5 + many], places)
    return at


@jit
def push_elements(tape, count, a, a_wide, b, b_wide, is_root, ends):
    """Record an element-wise operation with `count` results and operands at places a and b.

    Args:
        a, b: places, as many as results, as `spread_of` describes, or (0,) for an operand without a gradient.
        a_wide, b_wide: True if there is one partial derivative for each element, False if one for all.
        ends: 1 if nothing else reads the places of a, 2 those of b, 3 both. If they are the results of the last
            operation, this one becomes a part of it: its partial derivatives are multiplied by `join`.

    Returns the results' places, zeros if all operands are constants; where to write the partial derivatives of a and
    of b: arrays of `count` numbers, or of one; empty ones if they are not needed; and what `join` needs for each.
    """
    head, values, nowhere = head_of(tape), values_of(tape), np.int64(-1)
    a_spread, b_spread = spread_of(a), spread_of(b)
    a_own, b_own = own_places(a, a_spread), own_places(b, b_spread)
    a_first, a_many = place_list(head, a_own)
    b_first, b_many = place_list(head, b_own)
    to_a, to_b = a_first != 0 or a_many > 0, b_first != 0 or b_many > 0
    if count == 0 or not (to_a or to_b):
        return np.zeros(count, np.int64), values[:0], values[:0], nowhere, nowhere
    last, records, first = head[LAST], records_of(tape), head[NEXT]
    joins_a = joins_b = False
    if ends and last >= 0 and records[last] == ELEMENT_OP and records[last + 1] == count and not is_root:
        start = records[last + 2]
        if start + count == first:
            joins_b = ends & 2 != 0 and b_spread == 1 and b_many == 0 and b_first == start
            joins_a = ends & 1 != 0 and a_spread == 1 and a_many == 0 and a_first == start and not joins_b
    numbers = (count if a_wide else 1) + (count if b_wide else 1)
    words, before = 11 + a_many + b_many, nowhere
    if joins_a or joins_b:
        first, before = records[last + 2], records[last + 3]
        at, used = reserve_in(tape, numbers, words)
        used -= 1
    else:
        first, at, used = push_array_op(tape, ROOT_OP if is_root else ELEMENT_OP, count, numbers, words)
        last = used - 3
    out = new_places(tape, first, count)
    if at < 0:
        return out, values[:0], values[:0], nowhere, nowhere
    b_at, newest = at + (count if a_wide else 1), before
    if to_a and not joins_a:
        newest = write_operand(tape, used + 1, newest, a_first, a_own, a_many, a_spread, at, a_wide)
    if to_b and not joins_b:
        newest = write_operand(tape, used + 6 + a_many, newest, b_first, b_own, b_many, b_spread, b_at, b_wide)
    records[last + 3] = newest
    of_a, of_b = values[at : b_at if to_a else at], values[b_at : at + numbers if to_b else b_at]
    return out, of_a, of_b, before if joins_a else nowhere, before if joins_b else nowhere


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
def put_places(places, values):
    """Write places into an array of them, in C order."""
    for k, index in enumerate(np.ndindex(places.shape)):
        places[index] = values[k]


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
def write_places(tape, used, places):
    """Write the places of an operand: whether they are a list, and the first place or the index of the list."""
    records, (first, many) = records_of(tape), place_list(head_of(tape), places)
    records[used], records[used + 1] = many, used + 2 if many else first
    if many:
        copy_into(records[used + 2 : used + 2 + many], places)


@jit
def taped_rows(tape, table, ids, width):
    """The places, (ids, width), of rows that are looked up in a table; zeros for a table that is not differentiated."""
    count = ids.size * width
    if table == 0 or count == 0:
        return np.zeros((ids.size, width), np.int64)
    first, _, used = push_array_op(tape, LOOK_UP_OP, count, 0, 3 + ids.size)
    if used >= 0:
        head, records = head_of(tape), records_of(tape)
        records[used], records[used + 1], records[used + 2], head[ROWS] = table, ids.size, head[ROWS], used - 3
        for k, each in enumerate(ids.flat):
            records[used + 3 + k] = each
    return new_places(tape, first, count).reshape(ids.size, width)


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
def taped_sum(tape, start, places):
    """The place of a sum: the number at `start` plus the numbers at `places`."""
    flat = places.ravel()
    own, many = place_list(head_of(tape), flat)
    if own == 0 and many == 0:
        return start
    first, _, used = push_array_op(tape, SUM_OP, 1, 0, 3 + many)
    if used >= 0:
        records_of(tape)[used] = flat.size
        write_places(tape, used + 1, flat)
    return first if start == 0 else push_2(tape, start, 1.0, first, 1.0)


@jit
def taped_sum_rows(tape, places):
    """The places of the sums, over the second axis, of an array of three."""
    before, rows, after = places.shape
    flat, count = places.ravel(), before * after
    own, many = place_list(head_of(tape), flat)
    if own == 0 and many == 0:
        return np.zeros((before, after), np.int64)
    first, _, used = push_array_op(tape, ROW_SUM_OP, count, 0, 5 + many)
    if used >= 0:
        records = records_of(tape)
        records[used], records[used + 1], records[used + 2] = before, rows, after
        write_places(tape, used + 3, flat)
    return new_places(tape, first, count).reshape(before, after)


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
    out, one, two, _, _ = push_elements(tape, condition.size, x, True, y, True, False, 0)
    for k in range(one.size):
        one[k] = 1.0 if chosen[k] else 0.0
    for k in range(two.size):
        two[k] = 0.0 if chosen[k] else 1.0
    return out.reshape(condition.shape)


@jit
def where_places_are(tape, places, by_column):
    """Where the places of a factor are, if those of a row, or of a column, follow each other."""
    head, (rows, columns) = head_of(tape), places.shape
    row, column = 1 if by_column else columns, rows if by_column else 1
    first = (places.ctypes.data - head[PLACES]) // 8
    follow = (rows == 1 or places.strides[0] == 8 * row) and (columns == 1 or places.strides[1] == 8 * column)
    if follow and 0 <= first < head[NUM_PLACES]:
        return GIVEN if first < head[FIRST] else LOOKED_UP if is_looked_up(tape, first) else IN_A_ROW
    first = places[0, 0]
    carries, strays = np.int64(0), np.int64(first <= 0)
    for i in range(rows):
        for j in range(columns):
            carries |= places[i, j]
            strays |= places[i, j] ^ (first + i * row + j * column)
    return (LISTED if strays else IN_A_ROW) if carries else NOWHERE


@jit
def note_of(tape, where, places):
    """Two words of the first node of the results of an array operation, which has no use for them; empty if there are
    none: where in the values the numbers at these places are kept, and how many of which example."""
    head, first = head_of(tape), (places.ctypes.data - head_of(tape)[PLACES]) // 8
    is_known = where in (LOOKED_UP, IN_A_ROW) and 0 <= first < head[NUM_PLACES] and places.size > 1
    node = 2 * (first - head[FIRST])
    return parents_of(tape)[node : node + 2] if is_known and node < 2 * head[NUM_NODES] else parents_of(tape)[:0]


@jit
def write_factor(tape, at, where, by_column, x, places, used, numbers):
    """Write a factor, three words: where its places are, the first one, and its first number, of a leaf or a value.

    Args:
        used: where in the records a list of places goes; numbers: where in the values x goes, -1 if it is kept already,
            -2 if nobody reads it.
    """
    records, values = records_of(tape), values_of(tape)
    rows, columns = x.shape
    row, column = 1 if by_column else columns, rows if by_column else 1
    records[at], records[at + 1] = where, used if where == LISTED else places[0, 0]
    note = note_of(tape, where, places)
    if numbers >= 0 and note.size:
        note[0], note[1] = numbers, note_stamp(tape, x.size)
    records[at + 2] = places[0, 0] if where == GIVEN else note[0] if numbers == -1 else numbers
    for i in range(rows if where == LISTED else 0):
        for j in range(columns):
            records[used + i * row + j * column] = places[i, j]
    if numbers < 0 or where == GIVEN:
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
def is_kept(tape, where, places):
    """True if the numbers at these places are kept."""
    note = note_of(tape, where, places)
    return note.size > 0 and note[1] == note_stamp(tape, places.size)


@jit
def packed_places(tape, places):
    """The places of an array of parts of others, in a row: an operation that copies them; `places` if they are many."""
    flat, count = places.ravel(), places.size
    parts, carry = 1, np.int64(0)
    for k in range(count):
        carry |= flat[k]
    for k in range(1, count):
        parts += follows(flat[k - 1], flat[k]) == 0
    if count < max(4 * parts, 32) or carry == 0:
        return places
    first, _, used = push_array_op(tape, JOIN_OP, count, 0, 2 * parts + 1)
    if used >= 0:
        records = records_of(tape)
        records[used], records[used + 1], at, start = parts, flat[0], used + 1, 0
        for k in range(1, count):
            if not follows(flat[k - 1], flat[k]):
                records[at + 1], records[at + 2], start = k - start, flat[k], k
                at += 2
        records[at + 1] = count - start
    return new_places(tape, first, count).reshape(places.shape)


@jit
def follows(before, place):
    """True if a place is the next one, or both are of constants."""
    return place == before + (before > 0)


@jit
def taped_product_22(tape, a, a_places, b, b_places):
    """The places of the elements of a matrix product; zeros (constants) if no operand carries a gradient."""
    rows, inner, columns = a.shape[0], a.shape[1], b.shape[1]
    count = rows * columns
    if count == 0 or inner == 0:
        return np.zeros((rows, columns), np.int64)
    by_column = columns == 1 or b_places.strides[0] < b_places.strides[1]  # as in `keys.T`
    of_a, of_b = where_places_are(tape, a_places, False), where_places_are(tape, b_places, by_column)
    if of_a == NOWHERE and of_b == NOWHERE:
        return np.zeros((rows, columns), np.int64)
    a_is_kept, b_is_kept = is_kept(tape, of_a, a_places), is_kept(tape, of_b, b_places)
    a_numbers = 0 if a_is_kept or of_a == GIVEN or of_b == NOWHERE else a.size
    b_numbers = 0 if b_is_kept or of_b == GIVEN or of_a == NOWHERE else b.size
    a_list, b_list = a.size if of_a == LISTED else 0, b.size if of_b == LISTED else 0
    late = count if of_b == GIVEN or (of_a == GIVEN and by_column) else 0
    first, at, used = push_array_op(tape, PRODUCT_OP, count, a_numbers + b_numbers + late, 13 + a_list + b_list)
    if used >= 0:
        records, lists = records_of(tape), used + 13
        records[used + 10] = at + a_numbers + b_numbers if late else -1
        records[used], records[used + 1], records[used + 2], records[used + 3] = rows, inner, columns, by_column
        a_at = at if a_numbers else -1 if a_is_kept and of_b != NOWHERE else -2
        write_factor(tape, used + 4, of_a, False, a, a_places, lists, a_at)
        b_at = at + a_numbers if b_numbers else -1 if b_is_kept and of_a != NOWHERE else -2
        write_factor(tape, used + 7, of_b, by_column, b, b_places, lists + a_list, b_at)
    return new_places(tape, first, count).reshape(rows, columns)


@jit
def taped_product_11(tape, a, a_places, b, b_places):
    """The place of the inner product of two vectors."""
    return taped_product_21(tape, np.expand_dims(a, 0), np.expand_dims(a_places, 0), b, b_places)[0]


@jit
def taped_product_21(tape, a, a_places, b, b_places):
    """The places of a matrix times a vector."""
    return taped_product_22(tape, a, a_places, np.expand_dims(b, 1), np.expand_dims(b_places, 1)).reshape(a.shape[0])


@jit
def taped_product_12(tape, a, a_places, b, b_places):
    """The places of a vector times a matrix."""
    return taped_product_22(tape, np.expand_dims(a, 0), np.expand_dims(a_places, 0), b, b_places)[0]
