"""Loops that store a row in each step into an array that they also read under another name: no step may be skipped.

Mutations that must turn this file red; each was made by hand and seen red: in `block_loops._takes_rows`, no
`has_views`; no comparison of the array with the block's values.
"""

import numpy as np

from tests.law import equals_loop_either_way, ragged
from tests.lockstep.test_loops_as_written import PARAMS, ROWS


def test_stores_that_change_what_the_block_reads():
    def start(xs):
        return np.zeros((9, 4)) + xs.sum()

    def a_view(xs, p):
        h, out = np.zeros(4), start(xs)
        row = out[2]
        for t, x in enumerate(xs):
            h = np.tanh(x @ p["w"] + h @ p["u"]) + row
            out[t] = h
        return out

    def a_view_of_several(xs, p):
        h, out = np.zeros(4), start(xs)
        part = out[1:3]
        for t, x in enumerate(xs):
            h = np.tanh(x @ p["w"] + h @ p["u"]) + part.sum(0) * 0.1
            out[t] = h
        return out

    def rows_from_behind(xs, p):
        h, out = np.zeros(4), start(xs)
        back = out[::-1]
        for t in range(9):
            h = np.tanh(back[t] @ p["u"] + h @ p["u"])
            out[t] = h
        return out

    def another_name(xs, p):
        h, out = np.zeros(4), start(xs)
        same = out
        for t, x in enumerate(xs):
            h = np.tanh(x @ p["w"] + h @ p["u"] + same.sum(0) * 0.1)
            out[t] = h
        return out

    def in_a_container(xs, p):
        h, out = np.zeros(4), start(xs)
        held = {**p, "b": out}
        for t, x in enumerate(xs):
            h = summed_cell(x, h, held)
            out[t] = h
        return out

    def a_base(xs, p):
        h, out = np.zeros(4), start(xs)
        part = out[1:]
        for t, x in enumerate(xs[:8]):
            h = np.tanh(x @ p["w"] + h @ p["u"]) + out[3]
            part[t] = h
        return out

    for f in (a_view, a_view_of_several, rows_from_behind, another_name, in_a_container, a_base):
        for rows in ([rows[:9] for rows in ROWS], ragged(8, 8, 8, width=3)):
            for _ in range(5):
                equals_loop_either_way(f, rows, p=PARAMS)


def summed_cell(x, h, p):
    return np.tanh(x @ p["w"] + h @ p["u"] + p["b"].sum(0) * 0.1)
