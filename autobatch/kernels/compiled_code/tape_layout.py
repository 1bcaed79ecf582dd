"""Where a gradient tape keeps what: the words of its head, and the arrays whose addresses it holds.

A tape is (address of its head, a zero of its dtype): what is called with it gets two words, where arrays would be
seventy. The dtype is float32 if all numbers that carry a gradient are, else float64. The head has the words named
below; the last of them are addresses of arrays:

- `PARENTS` (int64) and `PARTIALS` have two elements for each node.
- `RECORDS` (int64) and `VALUES` belong to array operations.
- `LEAVES` are the numbers of the arguments by place, which nothing writes, so a product with an argument stores only
  where it lies.
- For each row that was looked up in a table and that a cotangent reaches, `FOUND` has (the table's number, id,
  example), `FOUND_ROWS` the cotangent, in the order of the look-ups.
- `PLACES[k]` is k: the places of a new array are a view of it, which costs nothing, and an array whose memory lies in
  it has places in a row.
- `ADJOINTS` and `SEEN` (uint8) have an element for each place: its cotangent, and whether one has reached it.
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
    ROWS_BEFORE,  # those of the examples before
    NUM_ROWS,
    ROW_WIDTH,  # of `FOUND_ROWS`
    NUM_PLACES,
    EXAMPLE,
    WRITES_PLACES,  # 1 if the function may write into places that are views
    LATE,  # the last product whose cotangent of an argument is not added yet (-1: none)
    SKIPPED,  # 1 if no cotangent has reached a partial derivative that is not finite
    PARENTS,
    PARTIALS,
    VALUES,
    RECORDS,
    LEAVES,
    FOUND,
    FOUND_ROWS,
    PLACES,
    ADJOINTS,
    SEEN,
    HEAD_SIZE,
) = range(28)


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
    head[VALUES_USED] = head[RECORDS_USED] = head[IS_SHORT] = 0
    head[ROWS_BEFORE] = head[ROWS_FOUND]
    head[LATE] = -1


@jit
def is_short(tape):
    """True if the tape has not held an example, so nothing can be said of its gradient."""
    head = head_of(tape)
    return head[IS_SHORT] != 0 or head[NEXT] > head[FIRST] + head[NUM_NODES]
