"""The gradient of every NumPy function through a batch is the numeric one of the loop, or it is refused.

Never a zero, or a part of it, for a function whose result does depend on what is differentiated. Each function is
called with the sample arguments of `tests/facts`; whichever of them is the sample array of floats is differentiated.
"""

import contextlib
import io
import itertools

import numpy as np
import pytest

import autobatch as ab
from autobatch.errors import ForcedValueError, UnsupportedError
from autobatch.ops.rules.op_kinds import looped_op
from tests.facts.arguments import pools
from tests.facts.test_numpy_functions import MODULES, candidates, every_entry
from tests.law import batch_of

ENTRIES = [entry.values for entry in every_entry()]
UFUNCS = [f for f in vars(np).values() if isinstance(f, np.ufunc) and f.nin < 3 and any(t[0] == "d" for t in f.types)]
# What changes files or settings, what shows uninitialised memory, and what takes arrays for bytes.
SKIPPED = {
    "byte_bounds", "empty", "empty_like", "errstate", "frombuffer", "from_dlpack", "fromfile", "genfromtxt", "load",
    "loadtxt", "memmap", "nested_iters", "printoptions", "save", "savetxt", "savez", "savez_compressed",
    "set_printoptions", "setbufsize", "seterr", "show_config", "show_runtime", "test",
}  # fmt: skip


def replaced(tree, old, new):
    """The arguments with each array that equals `old` replaced by `new`."""
    if type(tree) in (list, tuple):
        return type(tree)(replaced(item, old, new) for item in tree)
    same = isinstance(tree, np.ndarray) and tree.dtype == old.dtype and np.array_equal(tree, old)
    return new if same else tree


def weighted(x):
    """The sum of an array's elements, each with a weight of its own."""
    return np.sum(x * np.cos(np.arange(1, np.prod(np.shape(x), dtype=int) + 1).reshape(np.shape(x))))


def floats(result):
    """The arrays and numbers of floats in what a function returned, complex ones as two."""
    if isinstance(result, list | tuple):
        return [x for item in result for x in floats(item)]
    kind = result.dtype.kind if hasattr(result, "dtype") else "f" if isinstance(result, float) else ""
    return [result] if kind == "f" else [result.real, result.imag] if kind == "c" else []


def loss_of(function, args, place):
    """A loss of one example: what the function returns is used after a write into the array that it was given."""

    def loss(x, w):
        y = x * w
        results = floats(function(*replaced(args, place, y)))
        y[:1] *= 3.0
        total = weighted(y)
        for result in results:
            total = total + weighted(result)
        return total

    return loss


def compare(function, args, place):
    """None: nothing to compare; True: the gradient is the numeric one; False: refused; else what differs."""
    rng = np.random.default_rng(0)
    examples = [place * (1 + 0.1 * k) + 0.013 * rng.normal(size=place.shape) for k in range(3)]
    w, way = 1 + 0.05 * rng.normal(size=place.shape), rng.normal(size=place.shape)
    loss = loss_of(function, args, place)

    def mean_of_loop(w):
        return np.mean([loss(x.copy(), w) for x in examples])

    with contextlib.redirect_stdout(io.StringIO()), np.errstate(all="ignore"):
        try:
            value = mean_of_loop(w)
            slopes = [(mean_of_loop(w + h * way) - mean_of_loop(w - h * way)) / (2 * h) for h in (1e-5, 1e-6)]
        except Exception:  # not arguments of this function
            return None
        if np.iscomplexobj(value) or not np.isfinite(value) or not np.isclose(*slopes, rtol=1e-3, atol=1e-4):
            return None
        batch = batch_of(examples)
        try:
            got, gradient = ab.value_and_grad(lambda w: ab.mean(ab.batch(loss)(batch, w)))(w)
        except (UnsupportedError, ForcedValueError):
            return False
        slope = np.sum(gradient * way)
        if not np.isclose(got, value, rtol=1e-7, atol=1e-9) or not np.isclose(slope, slopes[0], rtol=2e-3, atol=2e-4):
            return f"{function.__name__}{tuple(map(np.shape, args))}: {got}, {slope}; expected {value}, {slopes[0]}"
    return True


def some_arguments(effect):
    """Up to two argument lists, each with the array among them that is differentiated."""
    found = []
    for candidate in itertools.islice(candidates(effect), 70):
        for name in ("matrix", "vector"):
            args, place = candidate(arrays := pools()), arrays[name]
            if any(x is place for x in (*args, *(y for x in args if isinstance(x, list) for y in x))):
                found.append((args, place))
    return found


# How many functions of a module have a gradient that is compared, at least.
COMPARED = {"numpy": 160, "numpy.linalg": 25, "numpy.fft": 16}


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("module", MODULES, ids=lambda module: module.__name__)
def test_functions(module):
    compared, wrong = set(), []
    for effect, function in ENTRIES:
        if getattr(module, effect.name, None) is not function or effect.name in SKIPPED:
            continue
        outcomes = (compare(function, *arguments) for arguments in some_arguments(effect))
        for outcome in itertools.islice((x for x in outcomes if x is not None), 2):
            wrong += [outcome] if isinstance(outcome, str) else []
            compared |= {effect.name} if outcome is True else set()
    assert not wrong
    assert len(compared) >= COMPARED.get(module.__name__, 0), len(compared)


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("ufunc", UFUNCS, ids=lambda ufunc: ufunc.__name__)
def test_ufuncs(ufunc):
    place, other = np.array([[0.31, 0.62], [0.87, 0.11]]) + (ufunc is np.arccosh), np.array([[0.73, 0.4], [0.27, 0.55]])
    other = other.round().astype(int) if ufunc is np.ldexp else other
    for args in [(place,)] if ufunc.nin == 1 else [(place, other), (other, place), (place, place)]:
        if ufunc is not np.ldexp or args[1] is other:
            assert compare(ufunc, args, place) is True


def test_an_op_without_gradient_is_refused_where_its_result_would_need_one():
    twice = looped_op("twice", lambda x: x * 2.0, dynamic=False)
    order = looped_op("order", np.argsort, dynamic=False)
    xs = batch_of([np.array([3.0, 1.0, 2.0]), np.array([5.0])])

    def gradient_of(function):
        with ab.options(way="lockstep", strict=True):
            return ab.grad(lambda xs: ab.mean(ab.batch(function)(xs)))(xs).examples()

    whole = gradient_of(lambda x: np.sum(order(x) * x))
    assert [grad.tolist() for grad in whole] == [[0.5, 1.0, 0.0], [0.0]]
    with pytest.raises(UnsupportedError, match="no gradient"):
        gradient_of(lambda x: np.sum(twice(x)))
