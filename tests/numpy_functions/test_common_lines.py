"""Lines that numeric code is full of stay in lock-step where the lengths of the examples differ."""

import numpy as np
import pytest

import autobatch as ab
from autobatch.errors import FallbackWarning, UnsupportedError
from tests import law

LENGTHS = [5, 3, 8, 3, 4]
EXAMPLES = [np.random.default_rng(n).normal(size=length) for n, length in enumerate(LENGTHS)]
WINDOW = np.array([1.0, -2.0, 0.5])
GRID = np.linspace(-1.5, 1.5, 7)


def pairs(x):
    i, j = np.triu_indices(x.shape[0], 1)
    return (x[i] * x[j]).sum()


def pairs_of_a_matrix(x):
    i, j = np.tril_indices_from(x[:, None] * x, -1)
    return x[i] - x[j]


def counts_by_place(x):
    out = np.zeros(4)
    np.add.at(out, np.arange(x.shape[0]) % 4, x)
    return out


def put_and_copied(x):
    out, other = np.zeros(4), np.zeros(2)
    np.put(out, [1, 2], x[:2])
    np.copyto(other, x[:2])
    return out, other


def written_by_out(x):
    out = np.zeros(3)
    np.multiply(x[:3], 2.0, out=out)
    return out


def scores(x):
    n = x.shape[0]
    table = np.zeros((n + 1, n + 1))
    for i in range(n):
        for j in range(n):
            table[i + 1, j + 1] = max(0.0, table[i, j] + x[i] * x[j], table[i, j + 1] - 0.5)
    return table.max()


def without_the_largest(x):
    return np.delete(x, x.argmax())


def positive(x):
    return np.count_nonzero(x > 0)


def share(x):
    return np.count_nonzero(x > 0) / x.shape[0]


LINES = {
    "triu_indices": pairs,
    "tril_indices_from": pairs_of_a_matrix,
    "diag_indices": lambda x: (x[:, None] * x)[np.diag_indices(x.shape[0])],
    "add.at": counts_by_place,
    "put": put_and_copied,
    "out=": written_by_out,
    "max of a literal": scores,
    "delete": lambda x: np.delete(x, 1),
    "delete from the end": lambda x: np.delete(x, -2),
    "delete at a place of its own": without_the_largest,
    "count_nonzero": positive,
    "count_nonzero in arithmetic": share,
    "interp": lambda x: np.interp(GRID, np.sort(x), x),
    "interp outside": lambda x: np.interp(x, np.linspace(0, 1, x.shape[0]), x, left=-1.0, right=2.0),
    "sliding windows": lambda x: np.lib.stride_tricks.sliding_window_view(x, 3).mean(1),
    **{f"convolve {mode}": lambda x, mode=mode: np.convolve(x, WINDOW, mode) for mode in ("full", "same", "valid")},
    "convolve with a longer one": lambda x: np.convolve(x, np.ones(4), "same"),
    "correlate": lambda x: np.correlate(x, WINDOW, "same"),
    "maximum.accumulate": lambda x: np.maximum.accumulate(x),
    "logaddexp.accumulate": lambda x: np.logaddexp.accumulate(x),
    "accumulate of columns": lambda x: np.minimum.accumulate(x[:, None] * WINDOW, axis=1),
}


@pytest.mark.parametrize("line", LINES.values(), ids=LINES)
def test_runs_in_lock_step_and_equals_the_loop(line):
    law.equals_loop(ab.batch(line, strict=True), EXAMPLES)


@pytest.mark.parametrize("line", LINES.values(), ids=LINES)
def test_every_way_gives_what_the_loop_gives(line):
    law.map_equals_loop(line, EXAMPLES)


@pytest.mark.parametrize("ufunc", [np.maximum, np.minimum, np.fmax, np.add, np.multiply, np.logaddexp], ids=str)
def test_accumulate_has_a_gradient(ufunc):
    def loss(x, w):
        return (ufunc.accumulate(w * x) * np.arange(1.0, x.shape[0] + 1)).sum()

    ab.testing.check_grads(lambda w: loss(EXAMPLES[2], w), np.float64(1.3))
    ab.testing.assert_equivalent(loss, EXAMPLES, w=np.float64(1.3))


def test_the_first_of_equal_maxima_has_the_gradient():
    ct = ab.grad(lambda x: np.maximum.accumulate(x).sum())(np.array([1.0, 2.0, 2.0, 0.0]))
    np.testing.assert_array_equal(ct, [1.0, 3.0, 0.0, 0.0])


@pytest.mark.parametrize("place", [3, -4])
def test_a_place_outside_of_one_example_is_that_examples_error(place):
    batch = ab.MaskedBatch.from_examples(EXAMPLES)
    with (
        pytest.raises(IndexError, match="out of bounds") as raised,
        pytest.warns(FallbackWarning, match="loop over the examples"),
    ):
        ab.batch(lambda x: np.delete(x, place))(batch)
    assert "example 1" in "".join(raised.value.__notes__)


def test_windows_longer_than_an_example_are_that_examples_error():
    batch = ab.MaskedBatch.from_examples(EXAMPLES)
    with pytest.raises(ValueError, match="window shape cannot be larger") as raised:
        ab.batch(lambda x: np.lib.stride_tricks.sliding_window_view(x, 4))(batch)
    assert "example 1" in "".join(raised.value.__notes__)


# ufuncs of other libraries


def of_another_library():
    return pytest.importorskip("scipy.special")


def test_a_foreign_ufunc_is_elementwise():
    special = of_another_library()
    law.equals_loop(ab.batch(lambda x: special.expit(x) + special.gammaln(np.abs(x)), strict=True), EXAMPLES)
    law.equals_loop(ab.batch(lambda x: special.sici(x)[1], strict=True), EXAMPLES)
    law.map_equals_loop(lambda x: special.expit(x).sum(), EXAMPLES)


def test_a_foreign_ufunc_without_a_known_derivative_says_so():
    special = of_another_library()
    with pytest.raises(UnsupportedError, match=r"derivative of scipy\.special\.expit"):
        ab.grad(lambda w: special.expit(w * 2.0))(1.0)


def test_a_ufunc_of_python_objects_is_called_for_each_example():
    seen = []
    noted = np.frompyfunc(lambda x: seen.append(float(x)) or x, 1, 1)
    with pytest.warns(FallbackWarning, match="loop over the examples"):
        ab.batch(lambda x: noted(x))(ab.MaskedBatch.from_examples(EXAMPLES))
    assert seen == [float(each) for x in EXAMPLES for each in x]
