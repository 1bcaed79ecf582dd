"""NumPy's rules of conversion, `out=`, `where=`, dtypes and errors hold in a batch, whatever the way.

Each case is a function of one example. What it gives, or the error of the first example that fails, is what the
undecorated function gives on the raw arrays.
"""

import warnings

import numpy as np
import pytest

import autobatch as ab
from autobatch import PackedBatch
from autobatch.errors import ShapeError
from tests.law import assert_same, batch_of, loop
from tests.numpy_functions import error_cases  # noqa: F401  (adds its own to the cases)
from tests.numpy_functions.conversion_cases import CASES


def _outcome(run):
    """(results, None), or (None, (class, text))."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            return run(), None
        except Exception as error:
            return None, error


def _copies(column):
    return [x.copy() if isinstance(x, np.ndarray) else x for x in column]


def _arguments(columns, make):
    return [make(_copies(column)) for column in columns]


def _batched(make):
    def run(f, columns):
        with ab.options(way="lockstep"):
            return ab.examples(ab.batch(f)(*_arguments(columns, make)))

    return run


def _mapped(way):
    def run(f, columns):
        with ab.options(way=way):
            return ab.map(f, *_arguments(columns, list))

    return run


def _packed(column):
    """A packed batch, which has one dimension of unequal lengths; else as the library stacks the examples."""
    try:
        return PackedBatch.from_examples(column)
    except (ShapeError, TypeError):
        return batch_of(column)


WAYS = {
    "padded": _batched(batch_of),
    "packed": _batched(_packed),
    "fly": _mapped("fly"),
    "compiled": _mapped("compiled"),
}


def same_outcome(f, columns, way, wanted, failed):
    """One way gives the loop's results, or the first error of the loop, in class and text."""
    found, error = _outcome(lambda: WAYS[way](f, columns))
    if failed is None:
        if error is not None:
            raise AssertionError(f"{way} raised {error!r}, the loop gave {wanted!r}") from error
        assert_same(found, wanted, way, precision=4)
    else:
        assert error is not None, f"the loop raised {failed!r}, {way} gave {found!r}"
        assert type(error) is type(failed), f"the loop raised {failed!r}, {way} {error!r}"
        assert str(error) == str(failed), f"the loop raised {failed!r}, {way} {error!r}"


@pytest.mark.parametrize("name", CASES)
def test_as_numpy_does(name):
    f, columns = CASES[name]
    expected = _outcome(lambda: loop(f, *map(_copies, columns)))
    for way in WAYS:
        same_outcome(f, columns, way, *expected)
