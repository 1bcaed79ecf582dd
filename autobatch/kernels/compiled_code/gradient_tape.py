"""The gradient tape of compiled code: each number's parents and partial derivatives, in flat arrays.

A number that carries a gradient has a place, its index in the tape; constants have place 0. The leaves have the places
from 1 on, and each operation takes the next ones. A scalar operation has a node with at most two parents. An array
operation has a place for each element but one node, at its last place, which says where it is recorded. `walk` goes
back over the nodes, and leaves `adjoints` and `seen` zero except for the leaves.

Sources: Wengert, A simple automatic derivative evaluation program (1964); the flat layout of CppAD and Stan.
"""

import numpy as np

from autobatch.kernels.compiled_code.checked_array_calls import array_at
from autobatch.kernels.compiled_code.products import add_inner, add_product
from autobatch.kernels.compiled_code.tape_layout import (
    EXAMPLE,
    FIRST,
    FOUND,
    FOUND_ROWS,
    IS_SHORT,
    LATE,
    LEAVES,
    NEXT,
    NUM_NODES,
    NUM_PLACES,
    NUM_RECORDS,
    NUM_ROWS,
    NUM_VALUES,
    PLACES,
    RECORDS_USED,
    ROW_WIDTH,
    ROWS_BEFORE,
    ROWS_FOUND,
    SKIPPED,
    VALUES,
    VALUES_USED,
    WRITES_PLACES,
    adjoints_of,
    head_of,
    parents_of,
    partials_of,
    records_of,
    seen_of,
    values_of,
)
from autobatch.kernels.jit import jit

_ARRAY_OP = -(2**62)  # second parent of an array operation; the first is the index of its record
_ELEMENTS, _OF_ROOT, _SUM, _ROW_SUM, _PRODUCT, _ROWS = range(6)  # what an array operation is


@jit
def push_2(tape, a, da, b, db):
    """Record a number with two parents and partial derivatives; returns its place, 0 if both are constants."""
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
def push_1(tape, a, da):
    """Like `push_2`, with one parent."""
    return push_2(tape, a, da, np.int64(0), 0.0)


@jit
def push_root(tape, a, da):
    """Like `push_1`, but a zero cotangent stays zero if `da` is infinite, like the derivative of a root at zero."""
    return push_2(tape, -a, da, np.int64(0), 0.0)


@jit
def push_array_op(tape, operation, count, numbers, words):
    """Record an array operation with `count` results, and reserve space for so many values and words of its record.

    Returns (first place, index in the values, index in the records); the indices are -1 if there is no room.
    """
    head = head_of(tape)
    first, at, used = head[NEXT], head[VALUES_USED], head[RECORDS_USED]
    head[NEXT] = first + count
    node = first + count - 1 - head[FIRST]
    if node >= head[NUM_NODES] or at + numbers > head[NUM_VALUES] or used + words + 3 > head[NUM_RECORDS]:
        head[IS_SHORT] = 1
        return first, np.int64(-1), np.int64(-1)
    parents, records = parents_of(tape), records_of(tape)
    parents[2 * node], parents[2 * node + 1] = used, _ARRAY_OP
    records[used], records[used + 1], records[used + 2] = operation, count, first
    head[VALUES_USED], head[RECORDS_USED] = at + numbers, used + words + 3
    return first, at, used + 3


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
def carries(places):
    """True if an array has places of numbers that carry a gradient."""
    return places.size > 0 and (places[0] > 0 or (places.size > 1 and places.any()))


@jit
def list_length(head, places):
    """The number of places to store as a list: 0 if they are consecutive, or only one."""
    if places.size < 2 or in_a_row(head, places):
        return 0
    strays = np.int64(places[0] <= 0)
    for k in range(places.size):
        strays |= places[k] ^ (places[0] + k)
    return places.size if strays else 0


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
    return places.ravel()


@jit
def write_operand(records, at, many, list_at, places, spread, numbers_at, wide):
    """Write one operand of an element-wise operation: the indices of its places and its partial derivatives.

    Four words: the first place, or the index in the records of a list of places; what `spread_of` says; the index in
    the values of the first partial derivative; 1 if there is one for each result, and 2 more if the places are listed.
    """
    records[at], records[at + 1] = places[0] if places.size else 0, spread
    records[at + 2], records[at + 3] = numbers_at, wide + 2 * (many > 0)
    if many:
        records[at] = list_at
        copy_into(records[list_at : list_at + many], places)


@jit
def push_elements(tape, count, a, a_wide, b, b_wide, is_root):
    """Record an element-wise operation with `count` results and operands at places a and b.

    Args:
        a, b: places, as many as results, as `spread_of` describes, or (0,) for an operand without a gradient.
        a_wide, b_wide: True if there is one partial derivative for each element, False if one for all.

    Returns the results' places, zeros if all operands are constants; and where to write the partial derivatives of a
    and of b: arrays of `count` numbers, or of one; empty ones if they are not needed.
    """
    head, values = head_of(tape), values_of(tape)
    a_spread, b_spread = spread_of(a), spread_of(b)
    a_own, b_own = own_places(a, a_spread), own_places(b, b_spread)
    if count == 0 or not (carries(a_own) or carries(b_own)):
        return np.zeros(count, np.int64), values[:0], values[:0]
    a_many, b_many = list_length(head, a_own), list_length(head, b_own)
    a_numbers, b_numbers = count if a_wide else 1, count if b_wide else 1
    operation = _OF_ROOT if is_root else _ELEMENTS
    first, at, used = push_array_op(tape, operation, count, a_numbers + b_numbers, 8 + a_many + b_many)
    out = new_places(tape, first, count)
    if at < 0:
        return out, values[:0], values[:0]
    records, b_at = records_of(tape), at + a_numbers
    write_operand(records, used, a_many, used + 8, a_own, a_spread, at, a_wide)
    write_operand(records, used + 4, b_many, used + 8 + a_many, b_own, b_spread, b_at, b_wide)
    return out, values[at:b_at], values[b_at : b_at + b_numbers]


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
def walk(tape):
    """Propagate the cotangents of all nodes to their parents. Nodes that no cotangent has reached are skipped."""
    head, parents, partials = head_of(tape), parents_of(tape), partials_of(tape)
    adjoints, seen, records = adjoints_of(tape), seen_of(tape), records_of(tape)
    place = head[NEXT] - 1
    while place >= head[FIRST]:
        node = 2 * (place - head[FIRST])
        if parents[node + 1] == _ARRAY_OP:
            at = parents[node]
            first, count, operation = records[at + 2], records[at + 1], records[at]
            place -= count
            if not is_reached(seen[first : first + count]):
                skip(tape, at)
                continue
            cts = adjoints[first : first + count]
            if operation == _PRODUCT:
                walk_product(tape, at, cts)
            elif operation == _ROW_SUM:
                walk_row_sum(tape, at, cts)
            elif operation == _SUM:
                give(tape, records[at + 5], records[at + 4] > 0, np.full(records[at + 3], cts[0]))
            elif operation == _ROWS:
                walk_rows(tape, at, cts)
            else:
                walk_elements(tape, at, cts)
            fill(cts, 0.0)
            fill(seen[first : first + count], 0)
            continue
        if seen[place] != 0:
            ct = adjoints[place]
            adjoints[place] = 0.0
            seen[place] = 0
            for k in range(2):
                parent = parents[node + k]
                if parent > 0:
                    adjoints[parent] += ct * partials[node + k]
                    seen[parent] = 1
                elif parent < 0:
                    if ct != 0.0:
                        adjoints[-parent] += ct * partials[node + k]
                    seen[-parent] = 1
        else:
            for k in range(2):
                if parents[node + k] > 0 and not np.isfinite(partials[node + k]):
                    head[SKIPPED] = 1
        place -= 1
    add_products(tape)
    turn_rows(tape)


@jit
def skip(tape, at):
    """Note whether the partial derivatives of an array operation that no cotangent has reached are finite."""
    records, values = records_of(tape), values_of(tape)
    total = values.dtype.type(0)
    for k in range(2):
        side, factor = at + 3 + 4 * k, at + 7 + 3 * k
        if records[at] == _PRODUCT and records[factor + 2] >= 0:
            total += numbers_of(tape, factor, (records[at + 3 + k], records[at + 4 + k])).sum()
        elif records[at] == _ELEMENTS and (records[side] or records[side + 1]):
            first = records[side + 2]
            total += values[first : first + (records[at + 1] if records[side + 3] & 1 else 1)].sum()
    if not np.isfinite(total):
        head_of(tape)[SKIPPED] = 1


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
def is_reached(seen):
    """True if a cotangent has reached one of an operation's results."""
    reached = np.uint8(0)
    for each in seen:
        reached |= each
    return reached != 0


@jit
def walk_elements(tape, at, cts):
    """Propagate the cotangents of an element-wise operation's results to its operands."""
    records, values, adjoints, seen = records_of(tape), values_of(tape), adjoints_of(tape), seen_of(tape)
    is_root, count = records[at] == _OF_ROOT, cts.size
    for side in (at + 3, at + 7):
        start, spread, partial, form = records[side], records[side + 1], records[side + 2], records[side + 3]
        wide, is_list = form & 1, form > 1
        if start == 0 and spread == 0:
            continue
        factors = values[partial : partial + (count if wide else 1)]
        if spread == 1 and not is_list and not is_root:
            own = adjoints[start : start + count]
            fill(seen[start : start + count], 1)
            add_scaled(own, cts, factors)
            continue
        size = 1 if spread == 0 else count if spread == 1 else count // -spread if spread < 0 else spread - 1
        more, scaled = np.zeros(size, adjoints.dtype), np.zeros(count, adjoints.dtype)
        add_scaled(scaled, cts, factors)
        for k in range(count if is_root else 0):
            if cts[k] == 0.0:
                scaled[k] = 0.0
        if spread == 1:
            more = scaled
        elif spread <= 0:
            for k in range(size):
                more[k] = sum_of(scaled[k * (count // size) : (k + 1) * (count // size)])
        else:
            for k in range(0, count, size):
                add_scaled(more, scaled[k : k + size], np.ones(1, adjoints.dtype))
        give(tape, start, is_list, more)


@jit
def add_scaled(out, cts, factors):
    """`out += cts * factors`, of vectors; there may be one factor for all."""
    if factors.size == 1:
        for k in range(out.size):
            out[k] += cts[k] * factors[0]
        return
    for k in range(out.size):
        out[k] += cts[k] * factors[k]


@jit(reorders=True)
def sum_of(values):
    """The sum of a vector, of several sums side by side: it is sooner there, and loses less to rounding."""
    total = values.dtype.type(0)
    for each in values:
        total += each
    return total


@jit
def give(tape, start, is_list, cts):
    """Add cotangents at consecutive places from `start` on, or at those of a list that starts in the records."""
    records, adjoints, seen = records_of(tape), adjoints_of(tape), seen_of(tape)
    if not is_list:
        own = adjoints[start : start + cts.size]
        fill(seen[start : start + cts.size], 1)
        for k in range(cts.size):
            own[k] += cts[k]
        return
    for k in range(cts.size):
        place = records[start + k]
        if place > 0:
            adjoints[place] += cts[k]
            seen[place] = 1


@jit
def write_places(tape, used, places):
    """Write the places of an operand: whether they are a list, and the first place or the index of the list."""
    records, many = records_of(tape), list_length(head_of(tape), places)
    records[used], records[used + 1] = many, used + 2 if many else places[0]
    if many:
        copy_into(records[used + 2 : used + 2 + many], places)


@jit
def walk_row_sum(tape, at, cts):
    """Propagate the cotangents of sums of rows to the rows."""
    records = records_of(tape)
    before, rows, after, many, start = (
        records[at + 3],
        records[at + 4],
        records[at + 5],
        records[at + 6],
        records[at + 7],
    )
    for i in range(before):
        for _ in range(rows):
            give(tape, start, many > 0, cts[i * after : (i + 1) * after])
            start += after


@jit
def taped_rows(tape, table, ids, width):
    """The places, (ids, width), of rows that are looked up in a table; zeros for a table that is not differentiated."""
    count = ids.size * width
    if table == 0 or count == 0:
        return np.zeros((ids.size, width), np.int64)
    first, _, used = push_array_op(tape, _ROWS, count, 0, 2 + ids.size)
    if used >= 0:
        records = records_of(tape)
        records[used], records[used + 1] = table, ids.size
        for k, each in enumerate(ids.flat):
            records[used + 2 + k] = each
    return new_places(tape, first, count).reshape(ids.size, width)


@jit
def found_of(tape):
    """What was looked up in tables, and the cotangents of these rows."""
    head = head_of(tape)
    found = array_at(head[FOUND], 3 * head[NUM_ROWS], np.int64(0)).reshape(head[NUM_ROWS], 3)
    rows = array_at(head[FOUND_ROWS], head[NUM_ROWS] * head[ROW_WIDTH], tape[1])
    return found, rows.reshape(head[NUM_ROWS], head[ROW_WIDTH])


@jit
def walk_rows(tape, at, cts):
    """Keep the cotangents of rows that were looked up, by table, id and example; the last row comes first."""
    head, records = head_of(tape), records_of(tape)
    found, rows = found_of(tape)
    table, count = records[at + 3], records[at + 4]
    width = cts.size // count
    for k in range(count - 1, -1, -1):
        row = head[ROWS_FOUND]
        if row < head[NUM_ROWS]:
            found[row, 0], found[row, 1], found[row, 2] = table, records[at + 5 + k], head[EXAMPLE]
            copy_into(rows[row, :width], cts[k * width : (k + 1) * width])
        head[ROWS_FOUND] = row + 1


@jit
def turn_rows(tape):
    """Bring the rows that `walk_rows` has kept of one example into the order of the look-ups."""
    head = head_of(tape)
    one, other = head[ROWS_BEFORE], head[ROWS_FOUND] - 1
    if other >= head[NUM_ROWS]:
        return
    found, rows = found_of(tape)
    while one < other:
        for k in range(3):
            found[one, k], found[other, k] = found[other, k], found[one, k]
        for k in range(head[ROW_WIDTH]):
            rows[one, k], rows[other, k] = rows[other, k], rows[one, k]
        one, other = one + 1, other - 1


@jit
def seed(tape, places, cts, at):
    """Add cts[at], cts[at + 1] ... to the adjoints of these places; does nothing if `at` is negative."""
    if at < 0:
        return
    adjoints, seen = adjoints_of(tape), seen_of(tape)
    for k in range(places.size):
        place = places[k]
        if place > 0:
            adjoints[place] += cts[at + k]
            seen[place] = 1


@jit
def move_shared(tape, row):
    """Move the cotangents of the first leaves into a row of the examples' own."""
    adjoints = adjoints_of(tape)
    for k in range(row.size):
        row[k] = adjoints[k + 1]
        adjoints[k + 1] = 0.0


@jit
def sign_of(x):
    """`np.sign`."""
    return x if x != x else 1.0 if x > 0 else -1.0 if x < 0 else 0.0  # Numba does not convert a bool to a float


@jit
def taped_sum(tape, start, places):
    """The place of a sum: the number at `start` plus the numbers at `places`."""
    flat = places.ravel()
    if not carries(flat):
        return start
    first, _, used = push_array_op(tape, _SUM, 1, 0, 3 + list_length(head_of(tape), flat))
    if used >= 0:
        records_of(tape)[used] = flat.size
        write_places(tape, used + 1, flat)
    return first if start == 0 else push_2(tape, start, 1.0, first, 1.0)


@jit
def taped_sum_rows(tape, places):
    """The places of the sums, over the second axis, of an array of three."""
    before, rows, after = places.shape
    flat, count = places.ravel(), before * after
    if not carries(flat):
        return np.zeros((before, after), np.int64)
    first, _, used = push_array_op(tape, _ROW_SUM, count, 0, 5 + list_length(head_of(tape), flat))
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
def taped_where(tape, condition, x, y):
    """The places of `np.where`; elements not chosen get a cotangent of zero."""
    chosen = condition.ravel()
    out, one, two = push_elements(tape, condition.size, x, True, y, True, False)
    for k in range(one.size):
        one[k], two[k] = (1.0, 0.0) if chosen[k] else (0.0, 1.0)
    return out.reshape(condition.shape)


_NOWHERE, _GIVEN, _IN_A_ROW, _LISTED = range(4)  # where the places of a factor of a product are


@jit
def where_places_are(head, places, by_column):
    """Where the places of a factor are, if those of a row, or of a column, follow each other."""
    rows, columns = places.shape
    row, column, first = 1 if by_column else columns, rows if by_column else 1, places[0, 0]
    follow = (rows == 1 or places.strides[0] == 8 * row) and (columns == 1 or places.strides[1] == 8 * column)
    if follow and 0 <= places.ctypes.data - head[PLACES] < 8 * head[NUM_PLACES]:
        return _GIVEN if first < head[FIRST] else _IN_A_ROW
    carries, strays = np.int64(0), np.int64(first <= 0)
    for i in range(rows):
        for j in range(columns):
            carries |= places[i, j]
            strays |= places[i, j] ^ (first + i * row + j * column)
    return (_LISTED if strays else _IN_A_ROW) if carries else _NOWHERE


@jit
def write_factor(tape, at, where, by_column, x, places, used, numbers):
    """Write a factor, three words: where its places are, the first one, and its first number, of a leaf or a value.

    Args:
        used: where in the records a list of places goes; numbers: where in the values x goes, -1 if nobody reads it.
    """
    records, values = records_of(tape), values_of(tape)
    rows, columns = x.shape
    row, column = 1 if by_column else columns, rows if by_column else 1
    records[at], records[at + 1] = where, used if where == _LISTED else places[0, 0]
    records[at + 2] = places[0, 0] if where == _GIVEN else numbers
    for i in range(rows if where == _LISTED else 0):
        for j in range(columns):
            records[used + i * row + j * column] = places[i, j]
    if numbers < 0 or where == _GIVEN:
        return
    for i in range(rows):
        if column == 1:
            copy_into(values[numbers + i * row : numbers + i * row + columns], x[i])
        else:
            for j in range(columns):
                values[numbers + i * row + j * column] = x[i, j]


@jit
def taped_product_22(tape, a, a_places, b, b_places):
    """The places of the elements of a matrix product; zeros (constants) if no operand carries a gradient."""
    rows, inner, columns = a.shape[0], a.shape[1], b.shape[1]
    count, head = rows * columns, head_of(tape)
    if count == 0 or inner == 0:
        return np.zeros((rows, columns), np.int64)
    by_column = columns == 1 or b_places.strides[0] < b_places.strides[1]  # as in `keys.T`
    of_a, of_b = where_places_are(head, a_places, False), where_places_are(head, b_places, by_column)
    if of_a == _NOWHERE and of_b == _NOWHERE:
        return np.zeros((rows, columns), np.int64)
    a_numbers = 0 if of_a == _GIVEN or of_b == _NOWHERE else a.size
    b_numbers = 0 if of_b == _GIVEN or of_a == _NOWHERE else b.size
    a_list, b_list = a.size if of_a == _LISTED else 0, b.size if of_b == _LISTED else 0
    late = count if of_b == _GIVEN or (of_a == _GIVEN and by_column) else 0
    first, at, used = push_array_op(tape, _PRODUCT, count, a_numbers + b_numbers + late, 12 + a_list + b_list)
    if used >= 0:
        records, lists = records_of(tape), used + 12
        records[used + 10] = at + a_numbers + b_numbers if late else -1
        records[used], records[used + 1], records[used + 2], records[used + 3] = rows, inner, columns, by_column
        write_factor(tape, used + 4, of_a, False, a, a_places, lists, at if a_numbers else -1)
        b_at = at + a_numbers if b_numbers else -1
        write_factor(tape, used + 7, of_b, by_column, b, b_places, lists + a_list, b_at)
    return new_places(tape, first, count).reshape(rows, columns)


@jit
def numbers_of(tape, at, shape):
    """The numbers of a factor, anything if nobody reads them."""
    head, records, values = head_of(tape), records_of(tape), values_of(tape)
    source = head[LEAVES] if records[at] == _GIVEN else head[VALUES]
    first = max(records[at + 2], 0)
    return array_at(source + first * values.itemsize, shape[0] * shape[1], tape[1]).reshape(shape)


@jit
def cotangents_of(tape, at, shape):
    """Where the cotangents of a factor are added up: in place, unless its places are listed."""
    records, adjoints = records_of(tape), adjoints_of(tape)
    where, first, count = records[at], records[at + 1], shape[0] * shape[1]
    if where == _IN_A_ROW:
        fill(seen_of(tape)[first : first + count], 1)
    if where in (_GIVEN, _IN_A_ROW):
        return adjoints[first : first + count].reshape(shape)
    return np.zeros(shape if where == _LISTED else (0, 0), adjoints.dtype)


@jit
def walk_product(tape, at, cts):
    """Propagate the cotangents of a matrix product's elements to the elements of its operands."""
    head, records = head_of(tape), records_of(tape)
    rows, inner, columns, by_column = records[at + 3], records[at + 4], records[at + 5], records[at + 6]
    one, two = at + 7, at + 10
    late = records[at + 13]
    if late >= 0:
        copy_into(values_of(tape)[late : late + cts.size], cts)
        records[at + 14], head[LATE] = head[LATE], at
    cts = cts.reshape(rows, columns)
    to_b = records[two] != _NOWHERE and records[two] != _GIVEN
    to_a = records[one] != _NOWHERE and (late < 0 or records[two] == _GIVEN)
    a_shape, b_shape = (rows, inner), (columns, inner) if by_column else (inner, columns)
    a, b = numbers_of(tape, one, a_shape), numbers_of(tape, two, b_shape)
    a_cts, b_cts = cotangents_of(tape, one, a_shape), cotangents_of(tape, two, b_shape)
    if to_a and by_column:
        add_product(cts, b, a_cts)
    for i in range(rows if to_a and not by_column else 0):
        add_inner(b, cts[i], a_cts[i])
    if to_b and by_column:
        add_product(cts.T, a, b_cts)
    elif to_b:
        add_product(a.T, cts, b_cts)
    if records[one] == _LISTED:
        give(tape, records[one + 1], True, a_cts.ravel())
    if records[two] == _LISTED:
        give(tape, records[two + 1], True, b_cts.ravel())


@jit
def add_products(tape):
    """Add the cotangents of arguments that are factors of products, all of one argument in one product.

    An argument's cotangent is `left.T @ right`, where a row of each belongs to a row (or column) of one product.
    """
    head, records, adjoints = head_of(tape), records_of(tape), adjoints_of(tape)
    while head[LATE] >= 0:
        last, of = head[LATE], late_factor(records, head[LATE])
        size, at = 0, last
        while at >= 0:
            own = late_factor(records, at)
            size += own[3] if own[:3] == of[:3] else 0
            at = records[at + 14]
        left, right = np.empty(size * of[1], adjoints.dtype), np.empty(size * of[2], adjoints.dtype)
        head[LATE], at, used = -1, last, 0
        while at >= 0:
            following, own = records[at + 14], late_factor(records, at)
            if own[:3] == of[:3]:
                end = used + own[3]
                put_factors(tape, at, left[used * of[1] : end * of[1]], right[used * of[2] : end * of[2]])
                used = end
            else:
                records[at + 14], head[LATE] = head[LATE], at
            at = following
        out = adjoints[of[0] : of[0] + of[1] * of[2]].reshape(of[1], of[2])
        add_product(left.reshape(size, of[1]).T, right.reshape(size, of[2]), out)


@jit
def late_factor(records, at):
    """Of a product's argument: its first place, its rows and columns as they lie, and how many rows are added to it."""
    rows, inner, columns, by_column = records[at + 3], records[at + 4], records[at + 5], records[at + 6]
    if records[at + 10] != _GIVEN:
        return records[at + 8], rows, inner, columns
    return records[at + 11], columns if by_column else inner, inner if by_column else columns, rows


@jit
def put_factors(tape, at, left, right):
    """The factors of what is added to an argument's cotangent, row by row."""
    records = records_of(tape)
    rows, inner, columns, by_column = records[at + 3], records[at + 4], records[at + 5], records[at + 6]
    late = records[at + 13]
    cts = values_of(tape)[late : late + rows * columns]
    if records[at + 10] != _GIVEN:
        for k in range(cts.size):
            left[k % columns * rows + k // columns] = cts[k]
        copy_into(right, numbers_of(tape, at + 10, (columns, inner)).ravel())
        return
    a = numbers_of(tape, at + 7, (rows, inner)).ravel()
    copy_into(left, cts if by_column else a)
    copy_into(right, a if by_column else cts)


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
