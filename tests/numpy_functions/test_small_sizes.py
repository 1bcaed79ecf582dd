"""Every NumPy function with a rule, on sizes 0, 1 and 2 of each dimension: what NumPy gives there, or raises.

The grid is generated: a call with each axis that the function's signature has, and for what needs more arguments a line
in `CALLS`; a function without a call fails the test that counts them.
"""

import inspect
import itertools
import warnings

import numpy as np
import pytest

from autobatch import MaskedBatch
from autobatch.errors import FallbackWarning, UnsupportedError
from autobatch.ops.rules.dispatch import FUNCTIONS, name_of
from tests.law import assert_same, outcome, padded

DTYPES = [np.dtype(kind) for kind in ("float64", "int64", "bool", "float32", "uint8", "complex64")]
SHAPES = {rank: list(itertools.product((0, 1, 2), repeat=rank)) for rank in (1, 2)}
SHAPES[3] = [(2, 0, 2), (1, 2, 0), (0, 2, 0), (2, 1, 2)]
IGNORED = {"result_type", "can_cast", "common_type", "may_share_memory", "shares_memory", "empty", "empty_like"}
IGNORED |= {"unique_values"}  # in an order that NumPy leaves open

# What a call needs beside one array: of an array x and another, y, of its shape and dtype.
CALLS = {
    "moveaxis": [lambda x, y: np.moveaxis(x, 0, -1)],
    "swapaxes": [lambda x, y: np.swapaxes(x, 0, -1)],
    "expand_dims": [lambda x, y: np.expand_dims(x, 0), lambda x, y: np.expand_dims(x, (1, -1))],
    "broadcast_to": [lambda x, y: np.broadcast_to(x, (2, *x.shape)), lambda x, y: np.broadcast_to(x, (2,) * x.ndim)],
    "reshape": [
        lambda x, y: np.reshape(x, -1),
        lambda x, y: np.reshape(x, (-1, 1)),
        lambda x, y: np.reshape(x, (2, -1)),
        lambda x, y: np.reshape(x, (x.shape[0], -1)),
    ],
    "squeeze": [lambda x, y: np.squeeze(x, 0), lambda x, y: np.squeeze(x, -1)],
    "rollaxis": [lambda x, y: np.rollaxis(x, -1)],
    "broadcast_arrays": [lambda x, y: np.broadcast_arrays(x, y[:1])[1]],
    "meshgrid": [lambda x, y: np.meshgrid(x, y[:1])[0], lambda x, y: np.meshgrid(x, y, indexing="ij")[1]],
    "ix_": [lambda x, y: np.ix_(x, y)[0]],
    "lib.stride_tricks.sliding_window_view": [
        lambda x, y: np.lib.stride_tricks.sliding_window_view(x, 2, axis=0),
        lambda x, y: np.lib.stride_tricks.sliding_window_view(x, 1, axis=-1),
    ],
    "full_like": [lambda x, y: np.full_like(x, 1)],
    "full": [lambda x, y: np.full(x.shape, 1)],
    "zeros": [lambda x, y: np.zeros(x.shape)],
    "ones": [lambda x, y: np.ones(x.shape)],
    "arange": [lambda x, y: np.arange(x.shape[0]), lambda x, y: np.arange(x.shape[0], -1, -1.0)],
    "eye": [lambda x, y: np.eye(x.shape[0], x.shape[-1])],
    "identity": [lambda x, y: np.identity(x.shape[0])],
    "linspace": [lambda x, y: np.linspace(0, 1, x.shape[0]), lambda x, y: np.linspace(x, y, 2)],
    "vander": [lambda x, y: np.vander(x), lambda x, y: np.vander(x, 2), lambda x, y: np.vander(x, 0)],
    "tri": [lambda x, y: np.tri(x.shape[0], x.shape[-1])],
    "union1d": [lambda x, y: np.union1d(x, y)],
    "isin": [lambda x, y: np.isin(x, y)],
    "setdiff1d": [lambda x, y: np.setdiff1d(x, y[:1])],
    "intersect1d": [lambda x, y: np.intersect1d(x, y)],
    "searchsorted": [lambda x, y: np.searchsorted(x, y), lambda x, y: np.searchsorted([0, 1], x)],
    "lexsort": [lambda x, y: np.lexsort((x, y)), lambda x, y: np.lexsort(x)],
    "isclose": [lambda x, y: np.isclose(x, y)],
    "allclose": [lambda x, y: np.allclose(x, y)],
    "array_equal": [lambda x, y: np.array_equal(x, y), lambda x, y: np.array_equal(x, x)],
    "interp": [lambda x, y: np.interp(x, [0.0, 1.0], [1.0, 3.0]), lambda x, y: np.interp([0.5], x, y)],
    "corrcoef": [lambda x, y: np.corrcoef(x), lambda x, y: np.corrcoef(x, y)],
    "cov": [
        lambda x, y: np.cov(x),
        lambda x, y: np.cov(x, y),
        lambda x, y: np.cov(x, rowvar=False),
        lambda x, y: np.cov(x, bias=True),
    ],
    "bincount": [
        lambda x, y: np.bincount(x),
        lambda x, y: np.bincount(x, weights=y),
        lambda x, y: np.bincount(x, minlength=3),
        lambda x, y: np.bincount(x, weights=y, minlength=3),
        lambda x, y: np.bincount(x, weights=y.astype(np.float32)),
    ],
    "digitize": [lambda x, y: np.digitize(x, [0, 1]), lambda x, y: np.digitize(x, np.sort(y))],
    "histogram": [
        lambda x, y: np.histogram(x, 2, range=(0, 3)),
        lambda x, y: np.histogram(x, [0, 1, 3]),
        lambda x, y: np.histogram(x, 2, range=(0, 3), weights=y),
        lambda x, y: np.histogram(x, 2, range=(0, 3), density=True),
        lambda x, y: np.histogram(x),
    ],
    "quantile": [lambda x, y: np.quantile(x, 0.3), lambda x, y: np.quantile(x, [0.3, 1], axis=0)],
    "percentile": [lambda x, y: np.percentile(x, 30), lambda x, y: np.percentile(x, [30, 100], axis=-1)],
    "average": [
        lambda x, y: np.average(x),
        lambda x, y: np.average(x, 0),
        lambda x, y: np.average(x, weights=y),
        lambda x, y: np.average(x, -1, weights=y),
    ],
    "apply_over_axes": [lambda x, y: np.apply_over_axes(np.sum, x, [0]), lambda x, y: np.apply_over_axes(np.max, x, 0)],
    "cumulative_sum": [
        lambda x, y: np.cumulative_sum(x, axis=0),
        lambda x, y: np.cumulative_sum(x, axis=-1, include_initial=True),
    ],
    "cumulative_prod": [
        lambda x, y: np.cumulative_prod(x, axis=0),
        lambda x, y: np.cumulative_prod(x, axis=-1, include_initial=True),
    ],
    "diff": [
        lambda x, y: np.diff(x),
        lambda x, y: np.diff(x, axis=0),
        lambda x, y: np.diff(x, 2),
        lambda x, y: np.diff(x, prepend=1),
    ],
    "ediff1d": [lambda x, y: np.ediff1d(x), lambda x, y: np.ediff1d(x, to_begin=x[:1])],
    "trapezoid": [lambda x, y: np.trapezoid(x), lambda x, y: np.trapezoid(x, axis=0), lambda x, y: np.trapezoid(x, y)],
    "gradient": [
        lambda x, y: np.gradient(x),
        lambda x, y: np.gradient(x, axis=0),
        lambda x, y: np.gradient(x, 2.0, axis=-1),
        lambda x, y: np.gradient(x, edge_order=2),
    ],
    "einsum": [
        lambda x, y: np.einsum("...i,...i->...", x, y),
        lambda x, y: np.einsum("i...->...", x),
        lambda x, y: np.einsum("i...,j...->ij...", x, y),
    ],
    "dot": [lambda x, y: np.dot(x, y), lambda x, y: np.dot(x, y.T)],
    "tensordot": [lambda x, y: np.tensordot(x, y, 1), lambda x, y: np.tensordot(x, y, 0)],
    "convolve": [lambda x, y, m=m: np.convolve(x, y[:1], m) for m in ("full", "same", "valid")],
    "correlate": [lambda x, y, m=m: np.correlate(x, y, m) for m in ("full", "same", "valid")],
    "astype": [lambda x, y: np.astype(x, np.float32)],
    "clip": [lambda x, y: np.clip(x, 0, 1), lambda x, y: np.clip(x, y, None)],
    "polyval": [lambda x, y: np.polyval(x, 2), lambda x, y: np.polyval([1, 2], x)],
    "concatenate": [
        lambda x, y: np.concatenate([x, y]),
        lambda x, y: np.concatenate([x, y[:1]], axis=-1),
        lambda x, y: np.concatenate([x, y], axis=None),
    ],
    "stack": [lambda x, y: np.stack([x, y]), lambda x, y: np.stack([x, y], -1)],
    "array_split": [lambda x, y: np.array_split(x, 2), lambda x, y: np.array_split(x, 2, -1)],
    "split": [lambda x, y: np.split(x, 2), lambda x, y: np.split(x, [1], -1)],
    "unstack": [lambda x, y: np.unstack(x, axis=-1)],
    "vstack": [lambda x, y: np.vstack([x, y])],
    "hstack": [lambda x, y: np.hstack([x, y])],
    "dstack": [lambda x, y: np.dstack([x, y])],
    "column_stack": [lambda x, y: np.column_stack([x, y])],
    "block": [lambda x, y: np.block([x, y])],
    "append": [lambda x, y: np.append(x, y), lambda x, y: np.append(x, y, 0)],
    "delete": [lambda x, y: np.delete(x, 0), lambda x, y: np.delete(x, -1, 0), lambda x, y: np.delete(x, [], -1)],
    "insert": [lambda x, y: np.insert(x, 0, 1), lambda x, y: np.insert(x, 1, 1, axis=-1)],
    "repeat": [lambda x, y: np.repeat(x, 2), lambda x, y: np.repeat(x, 0, 0), lambda x, y: np.repeat(x, [2], -1)],
    "tile": [lambda x, y: np.tile(x, 2), lambda x, y: np.tile(x, (0, 2))],
    "resize": [lambda x, y: np.resize(x, (2, 2)), lambda x, y: np.resize(x, 0)],
    "pad": [
        lambda x, y: np.pad(x, 1),
        *[lambda x, y, m=m: np.pad(x, 1, mode=m) for m in ("edge", "wrap", "symmetric", "reflect", "mean", "maximum")],
    ],
    "roll": [lambda x, y: np.roll(x, 1), lambda x, y: np.roll(x, -3, 0)],
    "diagonal": [lambda x, y: np.diagonal(x), lambda x, y: np.diagonal(x, 1)],
    "diag": [lambda x, y: np.diag(x), lambda x, y: np.diag(x, 1)],
    "trace": [lambda x, y: np.trace(x), lambda x, y: np.trace(x, -1)],
    "fill_diagonal": [lambda x, y: _written(np.fill_diagonal, x, 1)],
    "linalg.solve": [lambda x, y: np.linalg.solve(x, y)],
    "linalg.norm": [
        lambda x, y: np.linalg.norm(x),
        *[lambda x, y, o=o: np.linalg.norm(x, o) for o in (1, 2, np.inf, -np.inf, 0, "fro", "nuc")],
        *[lambda x, y, o=o: np.linalg.norm(x, o, axis=0) for o in (1, 2, np.inf, -np.inf, 0)],
    ],
    "linalg.vector_norm": [
        *[lambda x, y, o=o: np.linalg.vector_norm(x, ord=o) for o in (1, 2, np.inf)],
        *[lambda x, y, o=o: np.linalg.vector_norm(x, axis=-1, ord=o) for o in (1, 2, np.inf, -np.inf)],
    ],
    "linalg.matrix_norm": [lambda x, y, o=o: np.linalg.matrix_norm(x, ord=o) for o in ("fro", 1, 2, np.inf)],
    "linalg.matrix_power": [lambda x, y, n=n: np.linalg.matrix_power(x, n) for n in (0, 1, 3, -1)],
    "linalg.multi_dot": [lambda x, y: np.linalg.multi_dot([x, y.T, x])],
    "where": [lambda x, y: np.where(x > 0, x, y), lambda x, y: np.where(x)],
    "take": [
        lambda x, y: np.take(x, 0),
        lambda x, y: np.take(x, [0, 1], 0),
        lambda x, y: np.take(x, [], -1),
        lambda x, y: np.take(x, [0, 1], -1, mode="clip"),
        lambda x, y: np.take(x, [0, 3], 0, mode="wrap") if x.shape[0] else None,  # there NumPy never comes to an end
        lambda x, y: np.take(x, [1.5, 0], 0),
        lambda x, y: np.take(x, np.array([0.5]), 0),
        lambda x, y: np.take(x, x),
        lambda x, y: np.take(x, [0], mode="other"),
    ],
    "take_along_axis": [
        lambda x, y: np.take_along_axis(x, np.argsort(y, -1), -1),
        lambda x, y: np.take_along_axis(x, np.zeros((1,) * x.ndim, int), 0),
        lambda x, y: np.take_along_axis(x, np.full((1,) * x.ndim, 7), -1),
    ],
    "put_along_axis": [lambda x, y: _written(np.put_along_axis, x, np.argsort(y, 0), 1, 0)],
    "put": [lambda x, y: _written(np.put, x, [0], 1), lambda x, y: _written(np.put, x, [], [])],
    "copyto": [lambda x, y: _written(np.copyto, x, y)],
    "putmask": [lambda x, y: _written(np.putmask, x, y > 0, y)],
    "compress": [lambda x, y: np.compress([True], x, axis=0), lambda x, y: np.compress([False, True], x)],
    "extract": [lambda x, y: np.extract(y > 0, x)],
    "choose": [
        lambda x, y: np.choose(x, [y, x]),
        lambda x, y: np.choose(x, [y, x, y]),
        lambda x, y: np.choose(-x, [y, x, y], mode="wrap"),
        lambda x, y: np.choose(-x, [y, x, y], mode="clip"),
        lambda x, y: np.choose(x, [y], mode="other"),
        lambda x, y: np.choose(x, []),
    ],
    "select": [lambda x, y: np.select([x > 0, y > 0], [x, y], 1)],
    "piecewise": [lambda x, y: np.piecewise(x, [x > 0], [lambda z: z + z, 0])],
}
TWO = ["inner", "outer", "vdot", "kron", "cross", "linalg.cross", "linalg.vecdot", "linalg.outer"]


def _written(f, x, *arguments):
    x = x.copy()
    f(x, *arguments)
    return x


def _of_one(f):
    """The calls that a signature allows with one array."""
    names = inspect.signature(f).parameters
    calls = [lambda x, y: f(x)]
    for options in ({"axis": 0}, {"axis": -1}, {"axis": (0, -1)}, {"axis": None}):
        calls += [lambda x, y, o=options: f(x, **o)] * ("axis" in names and inspect.signature(f) is not None)
        calls += [lambda x, y, o=options: f(x, **o, keepdims=True)] * ("axis" in names and "keepdims" in names)
    calls += [lambda x, y: f(x, ddof=1)] * ("ddof" in names)
    return calls


def calls_of(name, f):
    if name in TWO:
        return [lambda x, y: f(x, y)]
    return CALLS.get(name) or _of_one(f)


CASES = {name_of(f).removeprefix("np."): f for f in FUNCTIONS}


def example(shape, dtype, seed):
    values = np.random.default_rng([seed, *shape]).integers(0, 3, shape)
    return values.astype(dtype) + (np.float32(0.25) if dtype.kind in "fc" else np.uint8(0)).astype(dtype)


def agree(call, xs, ys, wants, wider):
    """The batch gives what the examples give, or raises what the first failing one does."""
    batches = [MaskedBatch.of(padded(each, wider)) for each in (xs, ys)]
    with np.errstate(all="ignore"):
        got = outcome(call, *batches)
    failing = next((want for want in wants if isinstance(want, Exception)), None)
    if failing is not None:
        assert isinstance(got, Exception), f"gave {got!r}, NumPy raises {failing!r}"
        kinds = [kind for kind in type(failing).__mro__ if kind.__module__ == "builtins"]
        assert isinstance(got, kinds[0]), f"raised {got!r}, NumPy {failing!r}"
        return
    if isinstance(got, UnsupportedError):  # outside of converted code: never silent
        return
    if isinstance(got, Exception):
        raise AssertionError(f"raised {got!r}, NumPy gives {wants!r}") from got
    for i, want in enumerate(wants):
        assert_same(lane_of(got, i), as_lane(want), f"example {i}", precision=4)


def lane_of(value, i):
    if isinstance(value, list | tuple):
        return [lane_of(part, i) for part in value]
    return np.asarray(value.examples()[i] if hasattr(value, "examples") else value)


def as_lane(value):
    return [as_lane(part) for part in value] if isinstance(value, list | tuple) else np.asarray(value)


def dtypes_of(rank, number, whole):
    """The dtypes of a call of a function: of vectors all, of more dimensions two; by turns where not the `whole`."""
    if rank == 1:
        return DTYPES if whole else [*DTYPES[:2], DTYPES[2 + number % 4]]
    return DTYPES[:2] if whole else [DTYPES[(rank + number) % 2]]


def failures(name, whole):
    for number, call in enumerate(calls_of(name, CASES[name])):
        for rank, shapes in SHAPES.items():
            for dtype in dtypes_of(rank, number, whole):
                columns = [[example(shape, dtype, seed) for shape in shapes] for seed in (0, 1)]
                wants = [outcome(call, x, y) for x, y in zip(*columns, strict=True)]
                fine = [i for i, want in enumerate(wants) if not isinstance(want, Exception)]
                groups = [[i] for i in range(len(shapes))] + [fine] * (len(fine) > 1)
                groups += [[*fine[-1:], i] for i in range(len(shapes)) if i not in fine]
                for at in groups:
                    try:
                        agree(
                            call, *[[column[i] for i in at] for column in columns], [wants[i] for i in at], len(at) > 1
                        )
                    except AssertionError as error:
                        yield f"call {number} of {dtype} {[shapes[i] for i in at]}: {error}"


@pytest.mark.parametrize("name", [name for name in CASES if name not in IGNORED])
@pytest.mark.parametrize("whole", [False, pytest.param(True, marks=pytest.mark.slow)], ids=["turns", "whole"])
def test_small_sizes(name, whole):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", FallbackWarning)
        found = list(failures(name, whole))
    assert not found, f"{len(found)} of np.{name}\n" + "\n".join(found[:12])
