"""NaN, infinities, denormals, signed zeros and the ends of each dtype: the batch gives the loop's, class by class.

A tolerance would hide them: NaN stands where the loop has NaN, an infinity and a zero has the loop's sign, and a
denormal is not flushed. What is finite and not tiny is compared within rounding.
"""

import itertools

import numpy as np
import pytest

import autobatch as ab
from tests.fuzz import by_seed
from tests.inspect import compiled_at_once, map_with_stats
from tests.law import assert_same_classes
from tests.ops.samples import special_numbers
from tests.ops.test_elementwise import BINARY, OPS, UNARY

DTYPES = ("f2", "f4", "f8")
LENGTHS = (3, 0, 7, 1, 5)
INTEGERS = {name for name in OPS if "bitwise" in name or "shift" in name} | {"gcd", "lcm", "invert", "bitwise_count"}


def examples(dtype, seed, *shape):
    """One array for each length, of such numbers; the first four hold some of every class."""
    rng = np.random.default_rng(seed)
    return [rng.choice(special_numbers(dtype), size=(n, *shape)) for n in LENGTHS]


def ways(f, columns, **shared):
    """What each way gives for these columns, example by example."""
    for kind in (ab.MaskedBatch, ab.PackedBatch):
        yield kind.__name__, ab.examples(ab.batch(f, strict=True)(*map(kind.from_examples, columns), **shared))
    yield "on the fly", map_with_stats(f, *columns, **shared)[0]


def check(f, columns, loose=False, **shared):
    with np.errstate(all="ignore"):
        expected = [f(*row, **shared) for row in zip(*columns, strict=True)]
        for way, results in ways(f, columns, **shared):
            for i, (found, want) in enumerate(zip(results, expected, strict=True)):
                found, want = (x if isinstance(x, tuple) else (x,) for x in (found, want))
                for k, (one, other) in enumerate(zip(found, want, strict=True)):
                    assert_same_classes(one, other, f"{way}, example {i} of {columns!r}, output {k}", loose)


def of_one(name):
    op = OPS[name]
    return lambda x: op(x)


def of_two(name):
    op = OPS[name]
    return lambda x, y: op(x, y)


UNARY_FLOATS = [name for name in UNARY if name not in INTEGERS and name != "str_len"]
BINARY_FLOATS = [name for name in BINARY if name not in INTEGERS and name != "ldexp"]


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("name", UNARY_FLOATS)
def test_an_op_of_one_operand(name, dtype):
    check(of_one(name), [examples(dtype, 1)])


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("name", BINARY_FLOATS)
def test_an_op_of_two_operands(name, dtype):
    check(of_two(name), [examples(dtype, 2), examples(dtype, 3)])


REDUCTIONS = {
    "sum": lambda x: x.sum(0),
    "prod": lambda x: x.prod(0),
    "mean": lambda x: x.mean(0) if len(x) else x.sum(0),
    "var": lambda x: x.var(0) if len(x) else x.sum(0),
    "max": lambda x: x.max(0, initial=-np.inf),
    "min": lambda x: x.min(0, initial=np.inf),
    "argmax": lambda x: x.argmax(0) if len(x) else 0,
    "argmin": lambda x: x.argmin(0) if len(x) else 0,
    "nanmax": lambda x: np.nanmax(x, 0) if len(x) else x.sum(0),
    "nansum": lambda x: np.nansum(x, 0),
    "fmax": lambda x: np.fmax.reduce(x, 0, initial=-np.inf),
    "logaddexp": lambda x: np.logaddexp.reduce(x, 0),
    "hypot": lambda x: np.hypot.reduce(x, 0),
    "cumsum": lambda x: x.cumsum(0),
    "cumprod": lambda x: x.cumprod(0),
    "maximum.accumulate": lambda x: np.maximum.accumulate(x, 0),
    "sort": lambda x: np.sort(x, 0),
    "argsort": lambda x: np.argsort(x, 0, kind="stable"),
    "all": lambda x: x.all(0),
    "any": lambda x: x.any(0),
    "nonzero": lambda x: np.count_nonzero(x, 0),
    "clip": lambda x: x.clip(-1.5, 2.0),
    "nan_to_num": lambda x: np.nan_to_num(x),
    "where": lambda x: np.where(x > 0, x, -x * x),
    "softmax": lambda x: ab.nn.softmax(x, axis=-1),
    "log_softmax": lambda x: ab.nn.log_softmax(x, axis=-1),
    "logsumexp": lambda x: ab.nn.logsumexp(x, axis=-1),
    "layer_norm": lambda x: ab.nn.layer_norm(x),
    "sigmoid": lambda x: ab.nn.sigmoid(x),
    "gelu": lambda x: ab.nn.gelu(x),
    "relu": lambda x: ab.nn.relu(x),
    "scaled": lambda x: (x * 2.0 - 1.0) / 3.0,
    "norm": lambda x: np.sqrt((x * x).sum(-1)),
    "root": lambda x: np.sqrt(np.abs(x)) + np.log1p(np.abs(x)),
    "diff": lambda x: np.diff(x, axis=0),
    "median": lambda x: np.median(x, axis=-1),
    "quantile": lambda x: np.quantile(x, 0.3, axis=-1),
}
ORDER_MATTERS = {"sum", "mean", "var", "cumsum", "layer_norm", "norm", "nansum", "softmax", "log_softmax", "logsumexp"}


def tame(columns):
    """Without the few numbers of which two already overflow, so that no sum depends on its order."""
    limit = np.sqrt(np.finfo(columns[0].dtype).max) / 16
    return [
        np.where(np.isfinite(x) & (np.abs(x) > limit), np.copysign(limit / 64, x), x).astype(x.dtype) for x in columns
    ]


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("name", REDUCTIONS)
def test_what_reduces_or_combines(name, dtype):
    column = examples(dtype, 0, 4)
    check(REDUCTIONS[name], [tame(column) if name in ORDER_MATTERS else column], loose=name in ORDER_MATTERS)
    whole = [x.reshape(-1, 4)[:, :1] for x in column]
    check(REDUCTIONS[name], [tame(whole) if name in ORDER_MATTERS else whole], loose=name in ORDER_MATTERS)


def gates(x, y):
    i, f = ab.nn.sigmoid(x), ab.nn.sigmoid(y)
    c = i * np.tanh(x) + f * y
    return c, np.maximum(x, y), np.exp(-x * x), np.where(x < y, x / y, y - x), np.abs(x) + np.sqrt(y * y)


def parts(x, y):
    return x / y, x * y - y, np.minimum(x, y), np.log(x) * y, np.tanh(x) / np.exp(y), np.negative(x) + np.square(y)


def halves(x, y):
    return ab.nn.gelu(x), ab.nn.relu(y), ab.nn.softmax(x), np.sign(x) * y, np.where(x == y, x, x != y), x.max() + y


@pytest.mark.parametrize("dtype", ["f4", "f8"])
@pytest.mark.parametrize("f", [gates, parts, halves], ids=lambda f: f.__name__)
def test_a_block_in_one_kernel(f, dtype):
    """Static rows, of which compiled kernels compute many at once."""
    rng = np.random.default_rng(4)
    columns = [[rng.choice(special_numbers(dtype), 19) for _ in range(6)] for _ in range(2)]
    with compiled_at_once():
        check(f, columns)


def slopes(f):
    """A gradient of every output, where it has one."""

    def total(x, y):
        outputs = f(x, y)
        return sum((out * 0.5).sum() for out in outputs if out.dtype.kind == "f")

    return total


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("f", [gates, parts, halves], ids=lambda f: f.__name__)
def test_gradients(f, dtype):
    """Where a value is not a number, its slope is none either, in the same places as of one example alone."""
    columns = [[x for x in examples(dtype, seed) if len(x)] for seed in (5, 6)]
    one = ab.grad(slopes(f), argnums=(0, 1))
    with np.errstate(all="ignore"):
        expected = [one(*row) for row in zip(*columns, strict=True)]
        together = ab.grad(lambda xs, ys: sum(ab.map(slopes(f), xs, ys)), argnums=(0, 1))(*columns)
    for i, want in enumerate(expected):
        for k in range(2):
            assert_same_classes(together[k][i], want[k], f"example {i} of {columns!r}, operand {k}", loose=True)


MODES = {
    "sum": lambda x: x.sum(0),
    "mean": lambda x: x.sum(0) / x.dtype.type(len(x)),
    "sqrtn": lambda x: x.sum(0) / np.sqrt(x.dtype.type(len(x))),
    "max": lambda x: x.max(0),
    "min": lambda x: x.min(0),
}


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("dim", [1, 19])
def test_bags(mode, dtype, dim):
    rng = np.random.default_rng(7)
    (table,) = tame([rng.choice(special_numbers(dtype), (40, dim))])
    ids, offsets = rng.integers(0, 40, 33), [0, 3, 3, 4, 20, 33]
    with np.errstate(all="ignore"):
        found = ab.embedding_bag(ids, table, offsets, mode=mode, include_last_offset=True)
        for row, (start, end) in zip(found, itertools.pairwise(offsets), strict=True):
            bag = table[ids[start:end]]
            want = MODES[mode](bag) if len(bag) else np.zeros(dim, dtype)
            assert_same_classes(row, want, f"{mode} of {bag!r}", loose=True)


IN_PROGRAMS = [name for name in BINARY_FLOATS if name not in ("fmax", "fmin")]  # NumPy's take a zero by its place


def compare(seed):
    """A random program of such ops on such numbers, by every way."""
    rng = np.random.default_rng(seed)
    dtype = rng.choice(DTYPES)
    steps = []
    for _ in range(rng.integers(2, 7)):
        unary = rng.random() < 0.5
        steps.append((str(rng.choice(UNARY_FLOATS if unary else IN_PROGRAMS)), *rng.integers(0, 100, 2)))

    def f(x, y):
        values = [x, y]
        for name, i, j in steps:
            args = (values[i % len(values)], values[j % len(values)])
            out = OPS[name](*args[: 1 if name in UNARY_FLOATS else 2])
            if out.dtype.kind == "f":
                values.append(out)
        return values[-1]

    check(f, [examples(dtype, seed), examples(dtype, seed + 1)])


@pytest.mark.fuzz
@pytest.mark.parametrize("seed", range(8))
def test_programs_at_random(seed):
    compare(seed)


FUZZERS = {"special-numbers": by_seed(compare)}
