"""The law as two checks: `check` (a batch equals the loop) and `check_grads` (plain and batched gradients are right).

An operand is a list of examples, or `Shared(value)`. Batches are padded wider than they need be, and the padding is
poisoned with NaN and huge integers; so are the cotangents of padded results.
"""

import warnings

import numpy as np

from autobatch.autodiff.tape import Tape
from autobatch.batches.masked import MaskedBatch
from autobatch.core.batched import Batched, Lengths


class Shared:
    def __init__(self, value):
        self.value = value


def poison(dtype):
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


def tolerance(dtype):
    return {2: 4e-3, 4: 2e-5}.get(np.dtype(dtype).itemsize, 1e-10) if np.dtype(dtype).kind in "fc" else 0


def assert_same(got, want, what=""):
    want = np.asarray(want)
    got = np.asarray(got)
    assert got.dtype == want.dtype, f"{what}: dtype {got.dtype}, expected {want.dtype}"
    assert got.shape == want.shape, f"{what}: shape {got.shape}, expected {want.shape}"
    tol = tolerance(want.dtype)
    np.testing.assert_allclose(got, want, rtol=tol, atol=tol, err_msg=what)


def check(f, *operands, wider=2, exact=False):
    """f over the batch equals f over each example: value, dtype, shape, or an exception of the same builtin class.

    No warning may come out of the batch that none of the examples gives.
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
    if quiet(f, operands):
        with warnings.catch_warnings():
            warnings.simplefilter("error")
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
            assert_same(example, want, f"example {i}")
    return got


def quiet(f, operands):
    """Whether no example warns."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            for i in range(size_of(operands)):
                f(*lane(operands, i))
    except Warning:
        return False
    return True


def weights_like(out, rng):
    return rng.normal(size=np.shape(out))


def numeric(f, args, weights, which, eps=1e-6):
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


def taped(f, args, weights, which):
    """The gradient of one example by the tape."""
    tape = Tape()
    leaf = tape.leaf(np.array(args[which], np.float64))
    out = f(*(leaf if k == which else a for k, a in enumerate(args)))
    return tape.backward(out, np.asarray(weights), [leaf])[0]


def check_grads(f, *operands, rtol=1e-5, seed=0):
    """Numeric gradients equal the tape's on each example, and the tape's below the whole batch, shared operands too."""
    rng = np.random.default_rng(seed)
    count = size_of(operands)
    weights = [weights_like(f(*lane(operands, i)), rng) for i in range(count)]
    for which, operand in enumerate(operands):
        if np.asarray(operand.value if isinstance(operand, Shared) else operand[0]).dtype.kind != "f":
            continue
        wants = []
        for i in range(count):
            args = lane(operands, i)
            want = numeric(f, args, weights[i], which)
            got = dense(taped(f, args, weights[i], which), want)
            np.testing.assert_allclose(got, want, rtol=rtol, atol=rtol, err_msg=f"operand {which}, example {i}, plain")
            wants.append(want)
        for garbage in (np.nan, 0.0):
            got = batched_grads(f, operands, weights, which, garbage)
            what = f"operand {which}, padding {garbage}"
            if isinstance(operand, Shared):
                np.testing.assert_allclose(got, sum(wants), rtol=rtol, atol=rtol * count, err_msg=what)
                continue
            for i, (want, mine) in enumerate(zip(wants, got, strict=True)):
                np.testing.assert_allclose(mine, want, rtol=rtol, atol=rtol, err_msg=f"{what}, example {i}")


def dense(grad, like):
    if grad is None:
        return np.zeros_like(like)
    return grad.to_dense() if hasattr(grad, "to_dense") else grad


def batched_grads(f, operands, weights, which, garbage):
    """The gradient by one operand with the tape below the batch: per example, or of the shared value.

    Padding of floats, and of the result's cotangent, is NaN; or 0 and 1, which divide and overflow where NaN is quiet.
    """
    tape = Tape()
    args = as_operands(operands)
    if garbage == 0:
        for arg in args:
            if isinstance(arg, MaskedBatch) and arg.data.dtype.kind == "f":
                arg.data[np.isnan(arg.data)] = 0
    batch = args[which]
    if isinstance(operands[which], Shared):
        leaf = tape.leaf(np.array(batch, np.float64))
        args[which] = leaf
    else:
        leaf = tape.leaf(batch.data)
        args[which] = MaskedBatch.of(Batched(leaf, batch.sizes))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        out = f(*args)
        ct = np.full(out.data.shape, np.nan if garbage != 0 else 1.0)
        for corner, weight in zip(corners(out), weights, strict=True):
            ct[corner] = weight
        grad = dense(tape.backward(out.data, ct, [leaf])[0], leaf.value)
    if isinstance(operands[which], Shared):
        return grad
    return [grad[corner] for corner in corners(batch)]
