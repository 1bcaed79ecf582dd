"""Lines that numeric code is full of stay in lock-step where the lengths of the examples differ."""

import re

import numpy as np
import pytest

import autobatch as ab
from autobatch.errors import FallbackWarning, UnsupportedError
from tests import inspect, law

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


def straight_line(x):
    return np.polyfit(np.arange(len(x)), x, 1)


def parabola_at(x):
    a, b, c = np.polyfit(np.linspace(0, 1, len(x)), x, deg=2)
    return a * 0.25 + b * 0.5 + c


def least_squares(x):
    columns = np.stack([np.ones(len(x)), np.arange(len(x), dtype=float)], axis=1)
    return np.linalg.lstsq(columns, x, rcond=None)


def least_squares_of_float32(x):
    columns = np.stack([np.ones(len(x)), np.linspace(-1, 1, len(x))], axis=1).astype(np.float32)
    solution, _, rank, _ = np.linalg.lstsq(columns, x.astype(np.float32))
    return solution, rank


def with_noise(x):
    rng = np.random.default_rng(0)
    return x + rng.normal(size=len(x))


def resampled(x):
    rng = np.random.default_rng(seed=42)
    return x[rng.integers(0, len(x), size=3)].mean(), rng.permutation(len(x)), rng.choice(x, size=2, replace=False)


def dropped_by_a_coin(x):
    rng, total = np.random.default_rng(len(x)), np.float64(0)
    for value in x:
        if rng.random() < 0.5:
            total = total + value
    return total


def in_order(x):
    values = []
    for value in x:
        values.append(float(value))
    values.sort()
    return values[0], values[-1]


def some_in_order(x):
    values = []
    for value in x:
        if value > 0:
            values.append(float(value))
    values.sort(reverse=True)
    return values


def densities(x):
    return np.histogram(x, bins=4, range=(-2, 2), density=True)


def counts_in_its_own_range(x):
    return np.histogram(x, bins=4)


def without_two(x):
    return np.delete(x, [0, -2])


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
    "insert into rows": lambda x: np.insert(x[:, None] * WINDOW, 1, 9.0),
    "cross of rows": lambda x: np.linalg.cross(x[:, None] * WINDOW, WINDOW),
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
    "polyfit": straight_line,
    "polyfit of a parabola": parabola_at,
    "lstsq": least_squares,
    "lstsq of float32": least_squares_of_float32,
    "histogram as a density": densities,
    "histogram of its own range": counts_in_its_own_range,
    "delete several": without_two,
    "a function of the library's": ab.nn.softmax,
    "a function of NumPy's": np.tanh,
}


@pytest.mark.parametrize("name", LINES)
def test_runs_in_lock_step_and_equals_the_loop(name):
    law.equals_loop(ab.batch(LINES[name], strict=True), EXAMPLES)


def test_what_takes_python_for_each_example_is_named():
    def in_their_order(x):
        return sorted([float(value) for value in x])

    law.equals_loop(ab.batch(in_their_order), EXAMPLES)
    with pytest.raises(UnsupportedError, match=r"sorted\(\) of numbers that differ"):
        ab.batch(in_their_order, strict=True)(ab.MaskedBatch.from_examples(EXAMPLES))


@pytest.mark.parametrize("name", [name for name in LINES if "histogram" not in name])
def test_takes_no_more_python_for_more_examples(name):
    f = ab.batch(LINES[name], strict=True)
    few, many = (ab.MaskedBatch.from_examples(EXAMPLES * times) for times in (2, 16))
    with ab.options(kernels=False):
        for batch in (few, many, few, many):
            f(batch)
        first, second = (inspect.python_calls(lambda batch=batch: f(batch)) for batch in (few, many))
    assert second <= 1.5 * first  # of eight times as many


@pytest.mark.parametrize("best", [max, min])
def test_the_extreme_of_pythons_and_numpys_numbers_is_the_first_of_equals(best):
    def of_both(x):
        literal = [best(0.0, v, 1.5) for v in x]
        return literal, best(x[0], -0.0), best(0.5, x[1], x[2]), best(x[2], 0.5)

    rows = [[0.0, 1.5, -1.0], [-0.0, np.nan, 2.0], [3.0, 0.5, np.nan], [0.25, 0.5, 0.5]]
    law.equals_loop(ab.batch(of_both), [np.array(row) for row in rows])


@pytest.mark.parametrize("dtype", [np.float64, np.float32, np.int32], ids=lambda t: t.__name__)
def test_a_histogram_counts_what_numpy_counts(dtype):
    rows = [[0.0, 1.0, 2.0, 2.0, -1.0], [0.5], [], [3.0, 1.5, 2.0, 1.0]]
    examples = [np.array(row).astype(dtype) for row in rows]
    if np.dtype(dtype).kind == "f":
        examples.append(np.array([np.nan, np.inf, 1.0], dtype))
    for edges in ([0.0, 1.0, 2.0], [0, 1, 1, 2], np.linspace(0, 2, 7)):
        law.equals_loop(ab.batch(lambda x, edges=edges: np.histogram(x, edges)[0]), examples)


@pytest.mark.parametrize("dtype", [np.float64, np.float32, np.int32], ids=lambda t: t.__name__)
def test_a_histogram_of_its_own_range_has_numpys_edges(dtype):
    rows = [[0.1, 0.3, 0.2, 0.7, 0.4], [2.0, 2.0], [], [1.0], [0.0, 3.0, 1.0, 2.0]]
    examples = [np.array(row).astype(dtype) for row in rows]
    for bins in (1, 3, 10):
        law.equals_loop(ab.batch(lambda x, bins=bins: np.histogram(x, bins)), examples)
    law.equals_loop(ab.batch(lambda x: np.histogram(x[:, None] * x, 3)), examples)


@pytest.mark.parametrize("bad", [[1.0, np.nan], [np.inf, 0.0], [1.0, np.nextafter(1.0, 2.0)]], ids=str)
def test_a_histogram_without_edges_raises_as_numpy_does(bad):
    examples = [np.array([0.5, 1.0]), np.array(bad)]
    with pytest.raises(ValueError, match=r"not finite|Too many bins"):
        np.histogram(examples[1], 4)
    with pytest.raises(ValueError, match=r"not finite|Too many bins"):
        ab.batch(lambda x: np.histogram(x, 4))(ab.MaskedBatch.from_examples(examples))


@pytest.mark.parametrize(("start", "step"), [(0, 1), (9, -2), (1, 3)])
def test_ranges_of_each_example(start, step):
    def places(n, m):
        return [i * 2 for i in range(n, m, step)], [i + 1 for i in range(m)], [-i for i in range(start, n, step)]

    law.equals_loop(ab.batch(lambda x: places(len(x), start)), EXAMPLES)
    law.equals_loop(ab.batch(lambda x: (len(x) // 3 | 1, (len(x) > 3) ^ (len(x) < 5), -7 % len(x))), EXAMPLES)


@pytest.mark.parametrize("f", [with_noise, resampled, dropped_by_a_coin, in_order, some_in_order])
def test_generators_of_each_example_and_lists_that_are_sorted(f):
    law.equals_loop_either_way(f, list(EXAMPLES))
    with ab.options(warn=False):
        law.map_equals_loop(f, EXAMPLES)


def test_examples_share_no_stream_with_the_function_that_gives_it_out():
    def draws(x):
        return np.random.default_rng(3)

    with ab.options(warn=False):
        generators = ab.examples(ab.batch(draws)(ab.MaskedBatch.from_examples(EXAMPLES)))
    assert len({id(each) for each in generators}) == len(EXAMPLES)
    assert {each.random() for each in generators} == {np.random.default_rng(3).random()}


@pytest.mark.parametrize("rows", [2, 1])
def test_equations_of_a_rank_in_doubt_are_numpys_own(rows):
    def solution(x):
        columns = np.stack([np.ones(len(x)), np.full(len(x), 1.0 + 1e-9 * (rows - 1))], axis=1)
        return np.linalg.lstsq(columns, x, rcond=None)

    law.equals_loop_either_way(solution, list(EXAMPLES))


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


FLOATS = [x.astype(np.float32) for x in EXAMPLES]
COMPLEX = [x + 1j for x in EXAMPLES]
TYPES = {
    "dot": (lambda x: np.dot(x, 2), FLOATS),
    "inner": (lambda x: np.inner(2.5, x), FLOATS),
    "interp": (lambda x: np.interp(x, np.arange(2, dtype=np.float32), np.ones(2, np.float32)), FLOATS),
    "intersect1d": (lambda x: np.intersect1d(x, np.arange(3)), FLOATS),
    "union1d": (lambda x: np.union1d(x, 2), FLOATS),
    "std as int8": (lambda x: np.std(x, dtype=np.int8), EXAMPLES),
    "var as float": (lambda x: np.var(x, dtype=np.float64), COMPLEX),
    "real": (lambda x: (x.sum().real, np.vdot(x, x).imag, x[..., 0].real, np.real(x)), COMPLEX),
    "clip": (lambda x: (np.clip(x.sum(), None, None), np.clip(x, None, None)), EXAMPLES),
    "linspace": (
        lambda x: (np.linspace(x[0].astype(np.float32), x[0].astype(np.int8), 3), np.linspace(x[0], 3, 1)),
        EXAMPLES,
    ),
    "step": (lambda x: np.stack(np.linspace(x.sum(), 1, 1, retstep=True)[1:]), EXAMPLES),
    "clip of a number": (lambda x: np.clip(2, 0, x[0]), FLOATS),
    "equals text": (lambda x: (x.sum() == "a", x != "a"), EXAMPLES),
    "spectral norm": (lambda x: np.linalg.norm(np.outer(x, x), 2), EXAMPLES),
}


@pytest.mark.parametrize("way", ["lockstep", "fly"])
@pytest.mark.parametrize("name", TYPES)
@pytest.mark.filterwarnings("ignore:Casting complex")
def test_types_and_dtypes_of_rare_forms(name, way):
    function, examples = TYPES[name]
    with ab.options(way=way, warn=False):
        found = ab.map(function, examples)
    for one, example in zip(found, examples, strict=True):
        pairs = [(one, function(example))] if type(one) is not tuple else zip(one, function(example), strict=True)
        for ours, numpys in pairs:
            assert type(ours) is type(numpys)
            assert ours.dtype == numpys.dtype
            np.testing.assert_allclose(ours, numpys, 1e-5)


@pytest.mark.parametrize("way", ["lockstep", "fly"])
def test_an_integer_scalar_repeats_a_list_as_in_python(way):
    examples = [np.array([0.0, 2.0, 1.0]), np.array([3.0])]

    def repeated(x):
        items = [4, x[0]]
        items *= x.argmax()
        count = np.count_nonzero(x)
        return [0] * count, count * (1, 2), items, [1] * x.astype(np.int8)[0], [1.0] * x[:1]

    with ab.options(way=way, warn=False):
        for one, example in zip(ab.map(repeated, examples), examples, strict=True):
            law.assert_same(one, repeated(example))
        for times in (lambda x: [1] * x[0], lambda x: (x[0] > 1) * (1,)):
            with pytest.raises(TypeError, match=r"can't multiply sequence by non-int of type 'numpy\.(float64|bool)'"):
                ab.map(times, examples)


@pytest.mark.parametrize("way", ["lockstep", "fly"])
@pytest.mark.parametrize("num", [-1, 2.0, "size"])
def test_linspace_refuses_numbers_as_numpy_does(num, way):
    def points(x):
        return np.linspace(x[0], 3, x.size - 3 if num == "size" else num)

    with pytest.raises((ValueError, TypeError)) as expected:
        points(EXAMPLES[0][:1])
    with ab.options(way=way, warn=False), pytest.raises(type(expected.value), match=re.escape(str(expected.value))):
        ab.map(points, [x[:1] for x in EXAMPLES])
