"""The way back over a gradient tape: cotangents of results become cotangents of what they were computed from.

`walk` leaves `adjoints` and `seen` zero except for the leaves.
"""

import numpy as np

from autobatch.kernels.compiled_code.checked_array_calls import array_at
from autobatch.kernels.compiled_code.gradient_tape import (
    ELEMENT_OP,
    EXAMPLE,
    FIRST,
    FOUND,
    FOUND_ROWS,
    GIVEN,
    IN_A_ROW,
    JOIN_OP,
    LAST,
    LATE,
    LEAVES,
    LOOK_UP_OP,
    LOOKED_UP,
    NEXT,
    NOWHERE,
    NUM_ROWS,
    PRODUCT_OP,
    ROOT_OP,
    ROW_SUM_OP,
    ROW_WIDTH,
    ROWS,
    ROWS_FOUND,
    SKIPPED,
    SUM_OP,
    TURNED,
    TURNED_USED,
    TURNS,
    VALUES,
    adjoints_of,
    copy_into,
    fill,
    head_of,
    parents_of,
    partials_of,
    records_of,
    scale,
    seen_of,
    values_of,
)
from autobatch.kernels.compiled_code.products import add_inner, add_product, product_11
from autobatch.kernels.jit import jit


@jit
def walk(tape):
    """Propagate the cotangents of all nodes to their parents. Nodes that no cotangent has reached are skipped."""
    head, parents, partials = head_of(tape), parents_of(tape), partials_of(tape)
    adjoints, seen, records = adjoints_of(tape), seen_of(tape), records_of(tape)
    place, last = head[NEXT] - 1, head[LAST]
    head[ROWS] = -1
    while place >= head[FIRST]:
        if last >= 0 and place < records[last + 2] + records[last + 1]:
            at, last = last, records[last - 1]
            first, count, operation = records[at + 2], records[at + 1], records[at]
            place -= count
            if not is_reached(seen[first : first + count]):
                skip(tape, at)
                continue
            if operation == LOOK_UP_OP:  # the first one that was looked up comes first
                records[at + 5], head[ROWS] = head[ROWS], at
                continue
            cts = adjoints[first : first + count]
            if operation == PRODUCT_OP:
                walk_product(tape, at, cts)
            elif operation == ROW_SUM_OP:
                walk_row_sum(tape, at, cts)
            elif operation == JOIN_OP:
                walk_joined(tape, at, cts)
            elif operation == SUM_OP:
                give(tape, records[at + 4], np.full(records[at + 3], cts[0]))
            else:
                walk_elements(tape, at, cts)
            fill(cts, 0.0)
            fill(seen[first : first + count], 0)
            continue
        node = 2 * (place - head[FIRST])
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
    keep_rows(tape)


@jit
def skip(tape, at):
    """Note whether the partial derivatives of an array operation that no cotangent has reached are finite."""
    records, values = records_of(tape), values_of(tape)
    total, operand = values.dtype.type(0), records[at + 3] if records[at] == ELEMENT_OP else np.int64(-1)
    while operand >= 0:
        first = records[operand + 2]
        total += values[first : first + (records[at + 1] if records[operand + 3] & 1 else 1)].sum()
        operand = records[operand + 4]
    for k in range(2 if records[at] == PRODUCT_OP else 0):
        factor = at + 7 + 3 * k
        if records[factor + 2] >= 0:
            total += numbers_of(tape, factor, (records[at + 3 + k], records[at + 4 + k])).sum()
    if not np.isfinite(total):
        head_of(tape)[SKIPPED] = 1


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
    is_root, count, following = records[at] == ROOT_OP, cts.size, records[at + 3]
    while following >= 0:
        side, following = following, records[following + 4]
        start, spread, partial, form = records[side], records[side + 1], records[side + 2], records[side + 3]
        factors = values[partial : partial + (count if form & 1 else 1)]
        if spread == 1 and not is_root:
            fill(seen[start : start + count], 1)
            add_scaled(adjoints[start : start + count], cts, factors, form & 8)
            continue
        size = 1 if spread == 0 else count if spread == 1 else count // -spread if spread < 0 else spread - 1
        own = cts
        if is_root:
            own = np.zeros(count, cts.dtype)
            add_scaled(own, cts, factors, form & 8)
            for k in range(count):
                if cts[k] == 0.0:
                    own[k] = 0.0
            factors, form = np.ones(1, cts.dtype), np.int64(0)
        more, wide = np.zeros(size, adjoints.dtype), form & 1
        if spread <= 0:
            each = count // size
            for k in range(size):
                part, by = own[k * each : (k + 1) * each], factors[k * each : (k + 1) * each]
                more[k] = product_11(part, by, more[k]) if wide else sum_of(part) * factors[0]
            if form & 8:
                scale(more, np.full(1, -1.0).astype(cts.dtype))
        else:
            for k in range(0, count, size):
                add_scaled(more, own[k : k + size], factors[k : k + size] if wide else factors, form & 8)
        give(tape, start, more)


@jit
def add_scaled(out, cts, factors, negates):
    """`out += cts * factors`, of vectors, or `out -= cts * factors`; there may be one factor for all."""
    if factors.size == 1:
        factor = -factors[0] if negates else factors[0]
        for k in range(out.size):
            out[k] += cts[k] * factor
    elif negates:
        for k in range(out.size):
            out[k] -= cts[k] * factors[k]
    else:
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
def give(tape, start, cts):
    """Add cotangents at consecutive places from `start` on."""
    own = adjoints_of(tape)[start : start + cts.size]
    fill(seen_of(tape)[start : start + cts.size], 1)
    for k in range(cts.size):
        own[k] += cts[k]


@jit
def walk_row_sum(tape, at, cts):
    """Propagate the cotangents of sums of rows to the rows."""
    records = records_of(tape)
    before, rows, after, start = records[at + 3], records[at + 4], records[at + 5], records[at + 6]
    for i in range(before):
        own = cts[i * after : (i + 1) * after] if after != 1 else np.full(rows, cts[i])
        for k in range(0, rows * after, max(own.size, 1)):
            give(tape, start + k, own)
        start += rows * after


@jit
def found_of(tape):
    """What was looked up in tables, and the cotangents of these rows."""
    head = head_of(tape)
    found = array_at(head[FOUND], 3 * head[NUM_ROWS], np.int64(0)).reshape(head[NUM_ROWS], 3)
    rows = array_at(head[FOUND_ROWS], head[NUM_ROWS] * head[ROW_WIDTH], tape[1])
    return found, rows.reshape(head[NUM_ROWS], head[ROW_WIDTH])


@jit
def keep_rows(tape):
    """Keep the cotangents of the rows that were looked up and reached, by table, id and example."""
    head, records, adjoints, seen = head_of(tape), records_of(tape), adjoints_of(tape), seen_of(tape)
    found, rows = found_of(tape)
    at = head[ROWS]
    while at >= 0:
        first, table, count = records[at + 2], records[at + 3], records[at + 4]
        width = records[at + 1] // count
        for k in range(count):
            row, place = head[ROWS_FOUND], first + k * width
            if row < head[NUM_ROWS]:
                found[row, 0], found[row, 1], found[row, 2] = table, records[at + 6 + k], head[EXAMPLE]
                copy_into(rows[row, :width], adjoints[place : place + width])
            head[ROWS_FOUND] = row + 1
        fill(adjoints[first : first + records[at + 1]], 0.0)
        fill(seen[first : first + records[at + 1]], 0)
        at = records[at + 5]


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
def walk_joined(tape, at, cts):
    """Propagate the cotangents of an array of parts of others to these."""
    records, adjoints, seen, start = records_of(tape), adjoints_of(tape), seen_of(tape), 0
    for k in range(records[at + 3]):
        first, count = records[at + 4 + 2 * k], records[at + 5 + 2 * k]
        if first > 0 and count == 1:
            adjoints[first] += cts[start]
            seen[first] = 1
        elif first > 0:
            give(tape, first, cts[start : start + count])
        start += count


@jit
def numbers_of(tape, at, shape):
    """The numbers of a factor, anything if nobody reads them."""
    head, records, values = head_of(tape), records_of(tape), values_of(tape)
    source = head[LEAVES] if records[at] == GIVEN else head[VALUES]
    first = max(records[at + 2], 0)
    return array_at(source + first * values.itemsize, shape[0] * shape[1], tape[1]).reshape(shape)


@jit
def cotangents_of(tape, at, shape):
    """Where the cotangents of a factor are added up."""
    records, adjoints = records_of(tape), adjoints_of(tape)
    where, first, count = records[at], records[at + 1], shape[0] * shape[1]
    if where in (LOOKED_UP, IN_A_ROW):
        fill(seen_of(tape)[first : first + count], 1)
    return adjoints[first : first + count].reshape(shape) if where != NOWHERE else adjoints[:0].reshape(0, 0)


@jit
def walk_product(tape, at, cts):
    """Propagate the cotangents of a matrix product's elements to the elements of its operands."""
    head, records = head_of(tape), records_of(tape)
    rows, inner, columns, by_column = records[at + 3], records[at + 4], records[at + 5], records[at + 6]
    one, two = at + 7, at + 10
    late = records[at + 13]
    if late >= 0:
        copy_into(values_of(tape)[late : late + cts.size], cts)
        records[at + 14], records[at + 15], head[LATE] = head[LATE], late_factor(records, at)[0], at
    cts = cts.reshape(rows, columns)
    to_b = records[two] != NOWHERE and records[two] != GIVEN
    to_a = records[one] != NOWHERE and (late < 0 or records[two] == GIVEN) and not waits(records, at)
    a_shape, b_shape = (rows, inner), (columns, inner) if by_column else (inner, columns)
    a, b = numbers_of(tape, one, a_shape), numbers_of(tape, two, b_shape)
    a_cts, b_cts = cotangents_of(tape, one, a_shape), cotangents_of(tape, two, b_shape)
    if to_a and by_column:
        add_product(cts, b, a_cts)
    elif to_a:
        add_by_turned(tape, two, cts, b, a_cts)
    if to_b and by_column:
        add_product(cts.T, a, b_cts)
    elif to_b:
        add_product(a.T, cts, b_cts)


@jit
def waits(records, at):
    """True if the cotangent of a product's first factor, of rows that were looked up, is found at the end of a walk."""
    return records[at + 7] == LOOKED_UP and records[at + 10] == GIVEN and records[at + 6] == 0


@jit
def add_by_turned(tape, at, cts, b, out):
    """`out += cts @ b.T`; the numbers of an argument b that is often read are kept with their axes exchanged."""
    head, first = head_of(tape), records_of(tape)[at + 1]
    if records_of(tape)[at] == GIVEN and b.size >= 64:
        slot = array_at(head[TURNS] + 32 * (first * 40503 // 2**10 % 64), np.int64(4), np.int64(0))
        if slot[0] == 0:
            slot[0], slot[1] = first, b.shape[0] * 2**32 + b.shape[1]
        if slot[0] == first and slot[1] == b.shape[0] * 2**32 + b.shape[1]:
            slot[2] += cts.shape[0]
            turns = slot[3] == 0 and slot[2] > 64 and head[TURNED_USED] + b.size < head[FIRST]
            if turns:
                slot[3] = head[TURNED_USED] + 1
                head[TURNED_USED] += b.size
            turned = array_at(head[TURNED] + slot[3] * out.itemsize, b.size, tape[1]).reshape(b.shape[1], b.shape[0])
            for i in range(b.shape[0] if turns else 0):
                for j in range(b.shape[1]):
                    turned[j, i] = b[i, j]
            if slot[3] > 0:
                add_product(cts, turned, out)
                return
    for i in range(cts.shape[0]):
        add_inner(b, cts[i], out[i])


@jit
def add_products(tape):
    """Add the cotangents of arguments that are factors of products, all of one argument in one product.

    An argument's cotangent is `left.T @ right`, where a row of each belongs to a row (or column) of one product. The
    cotangents of other factors that have waited are found in one product, too.
    """
    head, records, adjoints = head_of(tape), records_of(tape), adjoints_of(tape)
    while head[LATE] >= 0:
        at, of = head[LATE], late_factor(records, head[LATE])
        size, own, head[LATE] = 0, np.int64(-1), -1
        while at >= 0:
            following = records[at + 14]
            if records[at + 15] == of[0] and late_factor(records, at)[:4] == of[:4]:
                records[at + 14], own = own, at
                size += late_factor(records, at)[4]
            else:
                records[at + 14], head[LATE] = head[LATE], at
            at = following
        left, right = np.empty(size * of[1], adjoints.dtype), np.empty(size * of[2], adjoints.dtype)
        at, used = own, 0
        while at >= 0:
            end = used + late_factor(records, at)[4]
            put_factors(tape, at, left[used * of[1] : end * of[1]], right[used * of[2] : end * of[2]])
            at, used = records[at + 14], end
        left, right = left.reshape(size, of[1]), right.reshape(size, of[2])
        out = adjoints[of[0] : of[0] + of[1] * of[2]].reshape(of[1], of[2])
        if of[2] < 32 < of[1]:  # the long rows are added together
            turned = np.zeros((of[2], of[1]), adjoints.dtype)
            add_product(right.T, left, turned)
            for k in range(of[2]):
                for j in range(of[1]):
                    out[j, k] += turned[k, j]
        else:
            add_product(left.T, right, out)
        if not of[3]:
            continue
        fill(left.ravel(), 0.0)
        add_by_turned(tape, own + 10, right, numbers_of(tape, own + 10, (of[1], of[2])), left)
        at, used = own, 0
        while at >= 0:
            end = used + records[at + 3]
            give(tape, records[at + 8], left[used:end].ravel())
            at, used = records[at + 14], end


@jit
def late_factor(records, at):
    """Of a product's argument: its first place, its rows and columns as they lie, whether the other factor waits, and
    how many rows are added to it."""
    rows, inner, columns, by_column = records[at + 3], records[at + 4], records[at + 5], records[at + 6]
    if records[at + 10] != GIVEN:
        return records[at + 8], rows, inner, False, columns
    is_late = waits(records, at)
    return records[at + 11], columns if by_column else inner, inner if by_column else columns, is_late, rows


@jit
def put_factors(tape, at, left, right):
    """The factors of what is added to an argument's cotangent, row by row."""
    records = records_of(tape)
    rows, inner, columns, by_column = records[at + 3], records[at + 4], records[at + 5], records[at + 6]
    late = records[at + 13]
    cts = values_of(tape)[late : late + rows * columns]
    if records[at + 10] != GIVEN:
        for k in range(cts.size):
            left[k % columns * rows + k // columns] = cts[k]
        copy_into(right, numbers_of(tape, at + 10, (columns, inner)).ravel())
        return
    a = numbers_of(tape, at + 7, (rows, inner)).ravel()
    copy_into(left, cts if by_column else a)
    copy_into(right, a if by_column else cts)
