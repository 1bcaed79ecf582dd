"""The law, as a helper: a function over a batch with poisoned padding equals the list of its plain results."""

import dataclasses
import warnings

import numpy as np

import autobatch as ab
from autobatch.api.batch import batch
from autobatch.batches.examples import examples, stack_results
from autobatch.batches.masked import MaskedBatch
from autobatch.batches.packed import PackedBatch
from autobatch.core.batched import padding_mask
from autobatch.core.fallback import forget_warnings
from autobatch.errors import FallbackWarning


def batch_of(column):
    """Examples as a batch whose padding is NaN, a huge integer, or True."""
    out = stack_results(column)
    if isinstance(out, MaskedBatch):
        mask = padding_mask(out.sizes, out.data.shape[1:])
        if mask is not None:
            mask = mask.reshape(mask.shape + (1,) * (out.data.ndim - mask.ndim))
            poison = {"f": np.nan, "c": np.nan, "b": True}.get(out.data.dtype.kind, 1 << 30)
            out.data = np.where(mask, out.data, np.asarray(poison).astype(out.data.dtype))
    return out


def ragged(*lengths, width=None, seed=0, dtype=np.float64):
    """Random examples of these lengths."""
    rng = np.random.default_rng(seed)
    return [rng.normal(size=(n,) if width is None else (n, width)).astype(dtype) for n in lengths]


def assert_same(got, want, where=""):
    """Equal in type, structure, dtype, shape and (up to rounding) value."""
    assert type(got) is type(want), f"{where}: {type(got).__name__} {got!r} for {type(want).__name__} {want!r}"
    if isinstance(want, list | tuple):
        assert len(got) == len(want), where
        for i, (a, b) in enumerate(zip(got, want, strict=True)):
            assert_same(a, b, f"{where}[{i}]")
    elif isinstance(want, dict):
        assert list(got) == list(want), where
        for key in want:
            assert_same(got[key], want[key], f"{where}[{key!r}]")
    elif dataclasses.is_dataclass(want):
        assert_same(vars(got), vars(want), where)
    elif isinstance(want, np.ndarray | np.generic):
        assert got.dtype == want.dtype, where
        assert got.shape == want.shape, where
        np.testing.assert_allclose(got, want, rtol=1e-6, atol=1e-9, err_msg=where)
    else:
        assert got == want, where


def equals_loop(f, *columns, falls_back=False, packed=False, **shared):
    """Run `f` on batches of these columns, in lock-step or (asserted) as a loop, and compare with the plain calls."""
    want = [f(*row, **shared) for row in zip(*columns, strict=True)]
    make = PackedBatch.from_examples if packed else batch_of
    arguments = [make(column) for column in columns]
    forget_warnings()
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        out = batch(f)(*arguments, **shared)
    fallbacks = [str(each.message) for each in caught if issubclass(each.category, FallbackWarning)]
    assert bool(fallbacks) == falls_back, fallbacks or "ran in lock-step; expected the loop"
    got = examples(out)
    assert len(got) == len(want)
    for i, (a, b) in enumerate(zip(got, want, strict=True)):
        assert_same(a, b, f"example {i}")
    return out


def gradients_equal_loops(f, *columns, **shared):
    """Every way of running `f` gives the loop's results and gradients, lock-step and `ab.map` among them."""
    report = ab.testing.assert_equivalent(f, *columns, **shared)
    assert {"lock-step on MaskedBatch", "ab.map"} <= {*report.ways}, report
    assert "gradients" not in report.skipped, report


def run_again(f, *columns, times=2, **shared):
    """The result of the last of some lock-step calls, which finds every program traced."""
    f = batch(f, strict=True)
    for _ in range(times):
        out = f(*map(batch_of, columns), **shared)
    return out


def agrees(f, *columns, **shared):
    """A program traced before gives what the loop gives."""
    got = examples(run_again(f, *columns, **shared))
    for row, result in zip(zip(*columns, strict=True), got, strict=True):
        assert_same(result, f(*row, **shared))
