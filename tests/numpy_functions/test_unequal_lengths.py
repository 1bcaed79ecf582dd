"""Two arrays whose lengths agree, but for one example, in which one is of length 1: NumPy does not broadcast it here.

A batch that pads and broadcasts could give a number there.
"""

import numpy as np
import pytest

import autobatch as ab
from tests.law import assert_same


def written(write):
    """What has become of a copy of x by a write of y."""

    def f(x, y):
        z = x * 1
        write(z, y)
        return z

    return f


def added(z, y):
    z += y


def multiplied(z, y):
    z[:1] *= y


def place(key, of=lambda y: y):
    return written(lambda z, y: z.__setitem__(key(y), of(y)))


FUNCTIONS = {
    "inner": np.inner,
    "dot": np.dot,
    "vdot": np.vdot,
    "tensordot": lambda x, y: np.tensordot(x, y, 1),
    "vecdot": np.vecdot,
    "matmul": lambda x, y: np.outer(x, x) @ y,
    "vecmat": lambda x, y: y @ np.outer(x, x),
    "einsum": lambda x, y: np.einsum("i,i", x, y),
    "solve": lambda x, y: np.linalg.solve(np.eye(len(x)), y),
    "average": lambda x, y: np.average(x, weights=y),
    "bincount": lambda x, y: np.bincount(x.astype(int), weights=y),
    "interp": lambda x, y: np.interp(0.5, x, y),
    "trapezoid": lambda x, y: np.trapezoid(x, y),
    "cov": np.cov,
    "correlate": np.correlate,
    "histogram": lambda x, y: np.histogram(x, 2, weights=y)[0],
    "column_stack": lambda x, y: np.column_stack([x, y]),
    "stack": lambda x, y: np.stack([x, y]),
    "vstack": lambda x, y: np.vstack([x, y]),
    "hstack": lambda x, y: np.hstack([x, y]),
    "compress": lambda x, y: np.compress(y > 0, x),
    "extract": lambda x, y: np.extract(y > 0, x),
    "piecewise": lambda x, y: np.piecewise(x, [y > 0], [1.0]),
    "select": lambda x, y: np.select([x > 0], [y]),
    "choose": lambda x, y: np.choose(y.astype(int) * 0, [x, y]),
    "repeat": lambda x, y: np.repeat(x, y.astype(int)),
    "delete": lambda x, y: np.delete(x, y > 0),
    "insert": lambda x, y: np.insert(x, np.arange(len(y)), y),
    "take_along_axis": lambda x, y: np.take_along_axis(x, y.astype(int) * 0, 0),
    "reshape": lambda x, y: np.reshape(x, (len(y), 1)),
    "broadcast_to": lambda x, y: np.broadcast_to(x, y.shape),
    "array_equal": np.array_equal,
    "a mask": lambda x, y: x[y > 0],
    "segment_sum": lambda x, y: ab.segment_sum(x, segment_ids=y.astype(int)),
    "zip": lambda x, y: [a + b for a, b in zip(x, y, strict=True)],
    "out=": lambda x, y: np.add(x, y, out=x * 1),
    "out= of one": lambda x, y: np.rint(x - y, out=x * 1),
    "out= of a sum": lambda x, y: np.sum(np.outer(x, y), 0, out=x * 1),
    "out= of a product": lambda x, y: np.outer(x, y, out=np.zeros((len(x), len(x)))),
    "out= and where=": lambda x, y: np.add(x, 1, out=x * 1, where=y > 0),
    "clip with out=": lambda x, y: np.clip(x, 0, y, out=x * 1),
    "in place": written(added),
    "a view in place": written(multiplied),
    "copyto": written(np.copyto),
    "put": written(lambda z, y: np.put(z, np.arange(len(y)), y)),
    "place": written(lambda z, y: np.place(z, y > 0, [5.0])),
    "putmask": written(lambda z, y: np.putmask(z, y > 0, y)),
    "add.at": written(lambda z, y: np.add.at(z, np.arange(len(z)), y)),
    "all items": place(lambda y: slice(None)),
    "all items, of a column": place(lambda y: slice(None), lambda y: y[:, None]),
    "all items, of a row": place(lambda y: slice(None), lambda y: y[None]),
    "the first items": place(lambda y: slice(0, len(y))),
    "a mask's items": place(lambda y: y > 0, lambda y: 0.0),
}


@pytest.mark.parametrize("in_turn", [False, True])
@pytest.mark.parametrize("name", FUNCTIONS)
def test_lengths_of_one_and_more(name, in_turn):
    long, mixed = [np.arange(n) * 1.0 + 1 for n in (3, 2, 3)], [np.ones(n) for n in (3, 2, 1)]
    columns = (mixed, long) if in_turn else (long, mixed)
    f = FUNCTIONS[name]

    def outcome(call):
        try:
            return call()
        except Exception as error:
            return error

    want = outcome(lambda: [f(x.copy(), y.copy()) for x, y in zip(*columns, strict=True)])
    calls = {"map": lambda: ab.map(f, *columns)}
    for kind in (ab.MaskedBatch, ab.PackedBatch):
        batches = [kind.from_examples(column) for column in columns]
        calls[kind.__name__] = lambda batches=batches: ab.examples(ab.batch(f)(*batches))
    for way, call in calls.items():
        with ab.options(way="fly" if way == "map" else "lockstep", warn=False), np.errstate(all="ignore"):
            found = outcome(call)
        if isinstance(want, Exception):
            assert (type(found), str(found)) == (type(want), str(want)), f"{way} gives {found!r}"
        else:
            assert_same(found, want, way)
