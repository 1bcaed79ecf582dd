"""Reductions over bags: rows of a table, named by ids, bag b being ids[offsets[b]:offsets[b + 1]].

Tables and outputs are C-contiguous (rows, width) arrays; `out` has one row for each bag, zero on entry. Ids are
trusted: 0 <= ids[i] < len(table); offsets are non-decreasing and end at or below len(ids). An empty bag leaves its row.
"""

from autobatch.kernels.jit import jit

__all__ = ["bag_dots", "bag_sum", "first_equal", "spread", "take_first"]


@jit
def bag_sum(table, ids, offsets, out):
    for b in range(out.shape[0]):
        for i in range(offsets[b], offsets[b + 1]):
            row = ids[i]
            for j in range(table.shape[1]):
                out[b, j] += table[row, j]


@jit
def first_equal(table, ids, offsets, values, out):
    """out[b, j]: the first position of bag b whose row has values[b, j] in column j (NaN is NaN); else as it was."""
    for b in range(values.shape[0]):
        for k in range(offsets[b + 1] - offsets[b]):
            i = offsets[b + 1] - 1 - k
            row = ids[i]
            for j in range(table.shape[1]):
                x = table[row, j]
                y = values[b, j]
                if x == y or (x != x and y != y):
                    out[b, j] = i


@jit
def take_first(ct, positions, out):
    """out[positions[b, j], j] += ct[b, j] where positions[b, j] >= 0"""
    for b in range(ct.shape[0]):
        for j in range(ct.shape[1]):
            if positions[b, j] >= 0:
                out[positions[b, j], j] += ct[b, j]


@jit
def spread(ct, offsets, coefficients, out):
    """out[i] = coefficients[i] * ct[b] for each position i of bag b; out has one row for each id."""
    for b in range(ct.shape[0]):
        for i in range(offsets[b], offsets[b + 1]):
            coefficient = coefficients[i]
            for j in range(ct.shape[1]):
                out[i, j] = coefficient * ct[b, j]


@jit
def bag_dots(table, ids, offsets, ct, out):
    """out[i] += table[ids[i]] . ct[b] for each position i of bag b"""
    for b in range(ct.shape[0]):
        for i in range(offsets[b], offsets[b + 1]):
            row = ids[i]
            dot = out[i]
            for j in range(ct.shape[1]):
                dot += table[row, j] * ct[b, j]
            out[i] = dot
