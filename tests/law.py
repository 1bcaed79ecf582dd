"""The law, as assertions: what runs batched equals the undecorated function on each example's raw arrays.

Whole functions, of columns of examples and what they share:

- `equals_loop`: lock-step on batches whose padding is poisoned, or packed; says whether it may become the loop.
- `agrees`: the same for a call that finds everything traced by the one before; `run_again` makes such calls.
- `map_equals_loop`: on the fly, with blocks and op by op.
- `every_way_is_exact`: all ways, to the digit, exceptions included;
- `every_way_equals_loop`: all ways, gradients included, by `ab.testing.assert_equivalent`, which is what users have.

Single ops, of operands: lists of examples, or `Shared(value)`:

- `check`: the op on a poisoned batch, in value or exception, without a warning that no example gives.
- `check_grads`: numeric gradients equal the tape's, on each example and below the whole batch.

Two results are the same by `assert_same`. Batches are made by `batch_of` (as the library would) or `padded` (wider than
they need be); examples by `ragged`, `normal`, `vectors`. Sizes to try: B = 0, B = 1, length 0, and B == T == D.
"""

import copy
import dataclasses
import gc
import warnings

import numpy as np

import autobatch as ab
from autobatch import MaskedBatch, PackedBatch, batch
from autobatch.api.extend import Batched, Lengths
from autobatch.api.run_record import ran_ways
from autobatch.batches.stacking import stack_results
from autobatch.compiled.compiled_map import compiled_map
from autobatch.core.memory import collector_paused
from autobatch.errors import FallbackWarning, Unsupported
from tests.compiled.interpreted import interpreted
from tests.inspect import Tape, forget_warnings, map_with_stats

# Examples.


def ragged(*lengths, width=None, seed=0, dtype=np.float64):
    """Random examples of these lengths."""
    rng = np.random.default_rng(seed)
    return [rng.normal(size=(n,) if width is None else (n, width)).astype(dtype) for n in lengths]


def normal(*shape, seed=0, dtype=np.float32):
    return np.random.default_rng(seed).normal(size=shape).astype(dtype)


def vectors(count, *shape, seed=0, dtype=np.float32):
    return list(normal(count, *shape, seed=seed, dtype=dtype))


# Batches.


def poison(dtype):
    """What no result may show: NaN, the largest integer, True."""
    if dtype.kind in "fc":
        return np.nan
    return True if dtype.kind == "b" else np.iinfo(dtype).max


def padded(examples, wider=2, dims=None):
    """A poisoned batch of these examples; dimensions that agree are static unless `dims` says otherwise."""
    arrays = [np.asarray(x) for x in examples]
    sizes = []
    for axis in range(arrays[0].ndim):
        lengths = [x.shape[axis] for x in arrays]
        varies = len(set(lengths)) > 1 or (dims is not None and dims[axis])
        sizes.append(Lengths(lengths) if varies else lengths[0])
    shape = [size.max() + wider if isinstance(size, Lengths) else size for size in sizes]
    data = np.full((len(arrays), *shape), poison(arrays[0].dtype), arrays[0].dtype)
    for i, x in enumerate(arrays):
        data[(i, *map(slice, x.shape))] = x
    return Batched(data, sizes)


def corners(batched):
    """The index of each example in the data."""
    ends = [s.values.tolist() if isinstance(s, Lengths) else [s] * batched.batch_size for s in batched.sizes]
    return [(i, *(slice(end[i]) for end in ends)) for i in range(batched.batch_size)]


def batch_of(column):
    """Examples of any kind as the library stacks them; the padding is poisoned."""
    out = stack_results(column)
    if isinstance(out, MaskedBatch) and any(isinstance(size, Lengths) for size in out.sizes):
        data = np.full(out.data.shape, poison(out.data.dtype), out.data.dtype)
        for corner in corners(out):
            data[corner] = out.data[corner]
        out.data = data
    return out


# What is the same.

_TOLERANCES = {2: (4e-3, 4e-3), 4: (1e-5, 4e-6), 8: (1e-9, 1e-10)}  # relative and absolute, by bytes of a real number


def tolerance(dtype, precision=8):
    """(relative, absolute) for sums in another order; none where the numbers are whole."""
    dtype = np.dtype(dtype)
    if dtype.kind not in "fc":
        return 0.0, 0.0
    return _TOLERANCES[min(dtype.itemsize // (2 if dtype.kind == "c" else 1), precision)]


def assert_same(found, expected, where="", *, precision=8):
    """Equal in type, structure, dtype, shape and, up to rounding, value.

    Args:
        found, expected: arrays, numbers, containers, dataclasses or objects, as deep as wanted.
        where: what to call the place in a message.
        precision: the bytes of the coarsest float that went in, where less than those of the result.
    """
    assert type(found) is type(expected), (
        f"{where}: {type(found).__name__} {found!r} for {type(expected).__name__} {expected!r}"
    )
    if isinstance(expected, list | tuple):
        assert len(found) == len(expected), f"{where}: {len(found)} for {len(expected)}"
        for i, (a, b) in enumerate(zip(found, expected, strict=True)):
            assert_same(a, b, f"{where}[{i}]", precision=precision)
    elif isinstance(expected, dict):
        assert list(found) == list(expected), f"{where}: keys {list(found)} for {list(expected)}"
        for key in expected:
            assert_same(found[key], expected[key], f"{where}[{key!r}]", precision=precision)
    elif isinstance(expected, np.ndarray | np.generic):
        assert_same_array(found, expected, where, precision=precision)
    elif isinstance(expected, float | complex):
        relative, absolute = _TOLERANCES[precision]
        np.testing.assert_allclose(found, expected, relative, absolute, err_msg=where)
    elif dataclasses.is_dataclass(expected) or type(expected).__eq__ is object.__eq__:
        same = found is expected or not getattr(expected, "__dict__", None)
        assert same or vars(found).keys() == vars(expected).keys(), where
        if not same:
            assert_same(vars(found), vars(expected), where, precision=precision)
    else:
        assert found == expected, f"{where}: {found!r} for {expected!r}"


def assert_same_array(found, expected, where="", *, precision=8):
    """Equal in dtype, shape and value, where a 0-d array and a scalar of its dtype are one thing."""
    found, expected = np.asarray(found), np.asarray(expected)
    assert found.dtype == expected.dtype, f"{where}: dtype {found.dtype}, expected {expected.dtype}"
    assert found.shape == expected.shape, f"{where}: shape {found.shape}, expected {expected.shape}"
    if expected.dtype == object:
        assert_same(found.tolist(), expected.tolist(), where, precision=precision)
    else:
        relative, absolute = tolerance(expected.dtype, precision)
        np.testing.assert_allclose(found, expected, relative, absolute, err_msg=where)


def assert_same_classes(found, expected, where, loose=False):
    """The same NaN, the same infinities, zeros of the same sign; the rest within rounding.

    `loose`: sums were taken in another order, so what nearly cancels, or nearly overflows, may fall either way.
    """
    found, expected = np.asarray(found), np.asarray(expected)
    assert found.dtype == expected.dtype, where
    assert found.shape == expected.shape, where
    if expected.dtype.kind == "c":
        assert_same_classes(found.real, expected.real, where, loose)
        assert_same_classes(found.imag, expected.imag, where, loose)
        return
    if expected.dtype.kind != "f":
        np.testing.assert_array_equal(found, expected, where)
        return
    relative, absolute = tolerance(expected.dtype)
    info = np.finfo(expected.dtype)
    np.testing.assert_array_equal(np.isnan(found), np.isnan(expected), f"{where}: NaN")
    np.testing.assert_array_equal(np.isinf(found), np.isinf(expected), f"{where}: infinities")
    known = ~np.isnan(expected)
    zero = known & (expected == 0) & (found == 0)
    np.testing.assert_array_equal(np.signbit(found[zero]), np.signbit(expected[zero]), f"{where}: signed zeros")
    close = absolute if loose else 8 * float(info.smallest_subnormal)
    np.testing.assert_allclose(found[known], expected[known], relative, close, err_msg=where)


def garbage_of(call):
    """How many objects in cycles each call leaves. What a cache lets go of, or another thread leaves, comes once."""
    call()
    left = []
    gc.collect()
    gc.freeze()  # the collector need not look at all that other tests have made
    with collector_paused():
        for _ in range(4):
            gc.collect()
            call()
            left.append(gc.collect())
    return min(left)


# Whole functions.


def loop(f, *columns, **shared):
    """What the law says a batch gives: the undecorated function on one example at a time."""
    plain = getattr(f, "__wrapped__", f)
    return [plain(*row, **shared) for row in zip(*columns, strict=True)]


def equals_loop(f, *columns, falls_back=False, packed=False, **shared):
    """Run `f` on batches of these columns and compare with the plain calls.

    `falls_back`: False asserts that it ran in lock-step, True that it went to the next way; None allows both.
    """
    want = loop(f, *columns, **shared)
    make = PackedBatch.from_examples if packed else batch_of
    arguments = [make(column) for column in columns]
    forget_warnings()
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        out = batch(f)(*arguments, **shared)
    fallbacks = [str(each.message) for each in caught if issubclass(each.category, FallbackWarning)]
    assert falls_back in (None, bool(fallbacks)), fallbacks or "ran in lock-step; expected the next way"
    assert_same(ab.examples(out), want, "examples")
    return out


def equals_loop_either_way(f, *columns, falls_back=None, **options):
    """As `equals_loop`, for what lock-step need not have a form for."""
    return equals_loop(f, *columns, falls_back=falls_back, **options)


def every_way_equals_loop(f, *columns, **shared):
    """Every way of running `f` gives the loop's results and gradients, lock-step and `ab.map` among them."""
    report = ab.testing.assert_equivalent(f, *columns, **shared)
    assert {"lock-step on MaskedBatch", "ab.map"} <= {*report.ways}, report
    assert "gradients" not in report.skipped, report


def exact_outcome(call):
    """The results as text, in type, dtype and digits, or the class and message of the exception."""
    try:
        return [repr(x) for x in call()]
    except Exception as error:
        return type(error), str(error)


def every_way_is_exact(f, xs, **shared):
    """Lock-step, on the fly and compiled give the loop's results to the digit, or its exception; returns that."""
    want = exact_outcome(lambda: loop(f, copy.deepcopy(xs), **shared))
    ways = {
        "lock-step": lambda: ab.examples(batch(f)(MaskedBatch.from_examples(xs), **shared)),
        "on the fly": lambda: map_with_stats(f, copy.deepcopy(xs), **shared)[0],
        "compiled": lambda: compiled_map(f, [copy.deepcopy(xs)], shared),
    }
    with ab.options(warn=False), interpreted():
        for name, call in ways.items():
            for blocks in (True, False):
                with ab.options(blocks=blocks):
                    found = exact_outcome(call)
                assert found == want or found[0] is Unsupported, (name, found, want)
    return want


def run_again(f, *columns, times=2, **shared):
    """The result of the last of some lock-step calls, which finds every program traced."""
    f = batch(f, strict=True)
    for _ in range(times):
        out = f(*map(batch_of, columns), **shared)
    return out


def agrees(f, *columns, **shared):
    """A program traced before gives what the loop gives."""
    assert_same(ab.examples(run_again(f, *columns, **shared)), loop(f, *columns, **shared), "examples")


def run_as_text(way, call):
    """What a call gives where this way is named, compiled text run by Python; and the way that ran."""
    with interpreted(), ab.options(way=way, warn=False), ran_ways() as ran:
        return call(), ran[-1].way


def map_equals_loop(f, *columns, precision=4, **shared):
    """`ab.map` equals the loop, with blocks and op by op; returns what was launched op by op."""
    want = loop(f, *columns, **shared)
    assert_same(map_with_stats(f, *columns, **shared)[0], want, "with blocks", precision=precision)
    with ab.options(blocks=False):
        results, stats = map_with_stats(f, *columns, **shared)
    assert_same(results, want, "op by op", precision=precision)
    return stats


# Single ops.


class Shared:
    """An operand that all examples share."""

    def __init__(self, value):
        self.value = value


def as_operands(operands, wider=2):
    """What the batched call takes; lists of Python scalars become weak lanes."""
    out = []
    for at, operand in enumerate(operands):
        if isinstance(operand, Shared):
            out.append(operand.value)
        elif type(operand[0]) in (int, float, bool):
            out.append(MaskedBatch.of(Batched(np.array(operand), (), type(operand[0]))))
        else:
            out.append(MaskedBatch.of(padded(operand, wider + at)))
    return out


def lane(operands, i):
    """The operands of one example."""
    return [x.value if isinstance(x, Shared) else x[i] for x in operands]


def size_of(operands):
    return next(len(x) for x in operands if not isinstance(x, Shared))


def outcome(f, *args):
    """The result with no warnings, or the exception."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            return f(*args)
    except Exception as error:
        return error


def check(f, *operands, wider=2, exact=False, looped=False):
    """f over the batch equals f over each example: value, dtype, shape, or an exception of the same builtin class.

    No warning may come out of the batch that none of the examples gives; where it is `looped`, but that it is.
    """
    wants = [outcome(f, *lane(operands, i)) for i in range(size_of(operands))]
    failing = next((want for want in wants if isinstance(want, Exception)), None)
    batched = as_operands(operands, wider)
    if failing is not None:
        got = outcome(f, *batched)
        assert isinstance(got, Exception), f"the loop raised {failing!r}, the batch gave {got!r}"
        builtin = next(kind for kind in type(failing).__mro__ if kind.__module__ == "builtins")
        assert isinstance(got, builtin), f"the loop raised {failing!r}, the batch {got!r}"
        return None
    if _quiet(f, operands):
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            if looped:
                warnings.simplefilter("ignore", FallbackWarning)
            got = f(*batched)
    else:
        got = outcome(f, *batched)
        if isinstance(got, Exception):
            raise got
    results = got if isinstance(got, tuple) else (got,)
    for k, result in enumerate(results):
        assert isinstance(result, MaskedBatch), type(result)
        for i, (example, want) in enumerate(zip(result.examples(), wants, strict=True)):
            want = want[k] if isinstance(got, tuple) else want
            if exact:
                np.testing.assert_array_equal(example, want)
            assert_same_array(example, want, f"example {i}")
    return got


def _quiet(f, operands):
    """Whether no example warns."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            for i in range(size_of(operands)):
                f(*lane(operands, i))
    except Warning:
        return False
    return True


def check_grads(f, *operands, rtol=1e-5, seed=0, looped=False):
    """Numeric gradients equal the tape's on each example, and the tape's below the whole batch, shared operands too.

    `looped` is as in `check`.
    """
    rng = np.random.default_rng(seed)
    count = size_of(operands)
    weights = [rng.normal(size=np.shape(f(*lane(operands, i)))) for i in range(count)]
    for which, operand in enumerate(operands):
        if np.asarray(operand.value if isinstance(operand, Shared) else operand[0]).dtype.kind != "f":
            continue
        wants = []
        for i in range(count):
            args = lane(operands, i)
            want = _numeric(f, args, weights[i], which)
            got = dense(_taped(f, args, weights[i], which), want)
            np.testing.assert_allclose(got, want, rtol=rtol, atol=rtol, err_msg=f"operand {which}, example {i}, plain")
            wants.append(want)
        for garbage in (np.nan, 0.0):
            got = _batched_grads(f, operands, weights, which, garbage, looped)
            what = f"operand {which}, padding {garbage}"
            if isinstance(operand, Shared):
                np.testing.assert_allclose(got, sum(wants), rtol=rtol, atol=rtol * count, err_msg=what)
                continue
            for i, (want, mine) in enumerate(zip(wants, got, strict=True)):
                np.testing.assert_allclose(mine, want, rtol=rtol, atol=rtol, err_msg=f"{what}, example {i}")


def _numeric(f, args, weights, which, eps=1e-6):
    """Central differences of sum(weights * f(args)) by args[which]."""
    x = np.array(args[which], np.float64)
    grad = np.zeros_like(x)
    for index in np.ndindex(x.shape):
        ends = []
        for step in (eps, -eps):
            moved = x.copy()
            moved[index] += step
            ends.append(np.sum(weights * f(*(moved if k == which else a for k, a in enumerate(args)))))
        grad[index] = (ends[0] - ends[1]) / (2 * eps)
    return grad


def _taped(f, args, weights, which):
    """The gradient of one example by the tape."""
    tape = Tape()
    leaf = tape.leaf(np.array(args[which], np.float64))
    out = f(*(leaf if k == which else a for k, a in enumerate(args)))
    return tape.backward([out], [np.asarray(weights)], [leaf._ab_index])[0]


def dense(grad, like):
    """A gradient as an array: of nothing, of rows, or dense already."""
    if grad is None:
        return np.zeros_like(like)
    return grad.to_dense() if hasattr(grad, "to_dense") else grad


def _batched_grads(f, operands, weights, which, garbage, looped):
    """The gradient by one operand with the tape below the batch: per example, or of the shared value.

    Padding of floats, and of the result's cotangent, is NaN; or 0 and 1, which divide and overflow where NaN is quiet.
    """
    tape = Tape()
    args = as_operands(operands)
    if garbage == 0:
        for arg in args:
            if isinstance(arg, MaskedBatch) and arg.data.dtype.kind == "f":
                arg.data[np.isnan(arg.data)] = 0
    own = args[which]
    if isinstance(operands[which], Shared):
        leaf = tape.leaf(np.array(own, np.float64))
        args[which] = leaf
    else:
        leaf = tape.leaf(own.data)
        args[which] = MaskedBatch.of(Batched(leaf, own.sizes))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        if looped:
            warnings.simplefilter("ignore", FallbackWarning)
        out = f(*args)
        ct = np.full(out.data.shape, np.nan if garbage != 0 else 1.0)
        for corner, weight in zip(corners(out), weights, strict=True):
            ct[corner] = weight
        grad = dense(tape.backward([out.data], [ct], [leaf._ab_index])[0], leaf._ab_value)
    if isinstance(operands[which], Shared):
        return grad
    return [grad[corner] for corner in corners(own)]
