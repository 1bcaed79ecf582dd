"""Arrays of another byte order: results have the dtype that NumPy gives, byte order included, in every way."""

import numpy as np
import pytest

import autobatch as ab
from tests.compiled.interpreted import interpreted
from tests.law import assert_same


def same(x):
    return x


def part(x):
    return x[1:], x[0], x[::-1], x[x > 1], x[np.array([0, 1])]


def kept(x):
    return x.copy(), np.zeros_like(x), np.sort(x), np.pad(x, 1), np.ones(2, x.dtype), np.repeat(x, 2), np.roll(x, 1)


def computed(x):
    return x + 1, -x, x.sum(), np.concatenate([x, x]), np.where(x > 1, x, x), np.cumsum(x), x @ x


def written(x):
    x[0] = 7
    x += 1
    return x


FUNCTIONS = (same, part, kept, computed, written)
MAKERS = {
    "padded": ab.MaskedBatch.from_examples,
    "packed": ab.PackedBatch.from_examples,
    "collated": ab.collate,
}


def examples(dtype, lengths):
    return [(np.arange(n) + n).astype(dtype) for n in lengths]


def dtypes(results):
    return [[each.dtype.str for each in (x if isinstance(x, tuple) else (x,))] for x in results]


def each_example(out):
    return list(zip(*map(each_example, out), strict=True)) if isinstance(out, tuple) else out.examples()


@pytest.mark.parametrize("lengths", [(3, 3), (4, 2)], ids=["equal", "ragged"])
@pytest.mark.parametrize("dtype", [">i4", ">f8"])
@pytest.mark.parametrize("f", FUNCTIONS, ids=lambda f: f.__name__)
def test_results_have_the_byte_order_of_the_loop(f, dtype, lengths):
    want = [f(x) for x in examples(dtype, lengths)]
    found = {}
    with ab.options(warn=False), interpreted():
        for way in ("fly", "compiled"):
            with ab.options(way=way):
                found[way] = ab.map(f, examples(dtype, lengths))
        for name, make in MAKERS.items():
            for way in ("lockstep", "fly"):
                with ab.options(way=way):
                    found[name, way] = each_example(ab.batch(f)(make(examples(dtype, lengths))))
    for name, results in found.items():
        assert dtypes(results) == dtypes(want), name
        for got, expected in zip(results, want, strict=True):
            assert_same(got, expected)


@pytest.mark.parametrize("make", MAKERS.values(), ids=MAKERS)
def test_a_batch_keeps_the_byte_order(make):
    for lengths in ((3, 3), (4, 2)):
        assert dtypes(make(examples(">i4", lengths)).examples()) == [[">i4"], [">i4"]]
    assert ab.MaskedBatch.from_examples([np.array(1, ">i4"), np.array(2, ">i4")]).dtype.str == ">i4"
