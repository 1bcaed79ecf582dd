"""Blocks are the whole process's, the runs that use them a thread's own."""

import threading

import numpy as np

import autobatch as ab
from tests.law import assert_same, loop, normal


def cell(x, w, k):
    h = np.tanh(x @ w) * k + x[0]
    if h[0] > 0:
        h = h * 2 + k
    i, o = np.split(np.exp(-h * h), 2)
    return i * o + k, h


def test_threads_record_the_same_blocks_at_once():
    columns = [
        ([normal(4, seed=seed + i).astype(dtype) for i in range(20)], [kind(i) for i in range(20)])
        for seed, dtype, kind in ((0, np.float32, int), (50, np.float64, float), (90, np.float32, float))
    ]
    weights = [normal(4, 4, seed=k) for k in range(3)]
    failures = []

    def work(k):
        try:
            for _ in range(15):
                found = ab.map(cell, columns[k][0], [weights[k]] * 20, columns[k][1])
                assert_same(found, loop(cell, columns[k][0], [weights[k]] * 20, columns[k][1]))
        except BaseException as error:
            failures.append(error)

    threads = [threading.Thread(target=work, args=(k,)) for k in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert failures == []
