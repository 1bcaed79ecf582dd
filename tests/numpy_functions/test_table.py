"""The table of NumPy's functions: complete, disjoint, and what it says NumPy's own code serves works."""

import operator
import re
import sys
import types
import warnings

import numpy as np
import numpy.fft
import numpy.testing.overrides
import pytest

import autobatch as ab
from autobatch import MaskedBatch
from autobatch.errors import FallbackWarning, NeedsLoop, UnsupportedError
from autobatch.ops.numpy.function_table import UNSUPPORTED_REASONS, like_function, unsupported_reason
from autobatch.ops.rules.dispatch import FUNCTIONS, NUMPY_OWN, UFUNCS, UNSUPPORTED, top_box
from tests.inspect import Tape, forget_warnings
from tests.numpy_functions.cases import ROWS, VECTORS

OWN = {
    np.dsplit: lambda x: np.dsplit(x[:, :, None], [1])[0],
    np.hsplit: lambda x: np.hsplit(x, [2])[1],
    np.vsplit: lambda x: np.vsplit(x, [1])[1],
    np.nan_to_num: lambda x: np.nan_to_num(np.log(np.abs(x)), neginf=-1.0),
    np.iscomplex: lambda x: np.iscomplex(x),
    np.iscomplexobj: lambda x: np.iscomplexobj(x),
    np.isrealobj: lambda x: np.isrealobj(x),
    np.ndim: lambda x: np.ndim(x),
    np.shape: lambda x: np.shape(x)[1],
    np.size: lambda x: np.size(x),
    np.linalg.matmul: lambda x: np.linalg.matmul(x, x.mT),
    np.linalg.tensordot: lambda x: np.linalg.tensordot(x, x, axes=2),
    np.linalg.diagonal: lambda x: np.linalg.diagonal(x, offset=1),
    np.linalg.svdvals: lambda x: np.linalg.svdvals(x + np.ones(x.shape[1])),
    np.linalg.trace: lambda x: np.linalg.trace(x),
    np.cumulative_prod: lambda x: np.cumulative_prod(x, axis=1),
    np.cumulative_sum: lambda x: np.cumulative_sum(x, axis=0, include_initial=True),
    np.dstack: lambda x: np.dstack([x, x + 1]),
    np.hstack: lambda x: np.hstack([x, x[:, :1]]),
    np.vstack: lambda x: np.vstack([x, x[0]]),
    np.extract: lambda x: np.extract(x > 0, x),
    np.flatnonzero: lambda x: np.flatnonzero(x > 0),
    np.flip: lambda x: np.flip(x, 0),
    np.moveaxis: lambda x: np.moveaxis(x, 0, -1),
    np.rollaxis: lambda x: np.rollaxis(x, 1),
    np.isneginf: lambda x: np.isneginf(np.where(x > 0, x, -np.inf)),
    np.isposinf: lambda x: np.isposinf(np.where(x > 0, x, np.inf)),
    np.isreal: lambda x: np.isreal(x),
    np.angle: lambda x: np.angle(x + 1j),
    np.append: lambda x: np.append(x, x[:1], axis=0),
    np.apply_over_axes: lambda x: np.apply_over_axes(np.sum, x, [0, -1]),
    np.atleast_1d: lambda x: np.atleast_1d(x[0, 0]),
    np.atleast_2d: lambda x: np.atleast_2d(x[0]),
    np.atleast_3d: lambda x: np.atleast_3d(x),
    np.common_type: lambda x: np.zeros(2, np.common_type(x, x[0])),
    np.column_stack: lambda x: np.column_stack([x, x[:, 0]]),
    np.corrcoef: lambda x: np.corrcoef(np.vstack([x, x[:1] ** 2])),
    np.cov: lambda x: np.cov(np.vstack([x, x[:1] ** 2])),
    np.diff: lambda x: np.diff(x, axis=0, append=1.0),
    np.digitize: lambda x: np.digitize(x, [-1.0, 0.5]),
    np.fft.fft2: lambda x: np.fft.fft2(x, axes=(1, 1)),
    np.fft.fftn: lambda x: np.fft.fftn(x),
    np.fft.fftshift: lambda x: np.fft.fftshift(x),
    np.fft.hfft: lambda x: np.fft.hfft(x),
    np.fft.ifft2: lambda x: np.fft.ifft2(x),
    np.fft.ifftn: lambda x: np.fft.ifftn(x, norm="ortho"),
    np.fft.ifftshift: lambda x: np.fft.ifftshift(x, axes=0),
    np.fft.ihfft: lambda x: np.fft.ihfft(x),
    np.fft.irfft2: lambda x: np.fft.irfft2(x),
    np.fft.irfftn: lambda x: np.fft.irfftn(x, axes=(1,)),
    np.fft.rfft2: lambda x: np.fft.rfft2(x),
    np.fft.rfftn: lambda x: np.fft.rfftn(x, s=(3,), axes=(1,)),
    np.fill_diagonal: lambda x: (y := np.copy(x), np.fill_diagonal(y, 2.0))[0],
    np.fliplr: lambda x: np.fliplr(x),
    np.flipud: lambda x: np.flipud(x),
    np.gradient: lambda x: np.gradient(x, axis=1),
    np.intersect1d: lambda x: np.intersect1d(x[:, 0], np.abs(x)),
    np.isclose: lambda x: np.isclose(x, np.abs(x)),
    np.ix_: lambda x: np.ix_(x[:, 0] > 0, [1])[0],
    np.average: lambda x: np.average(x, axis=1, weights=np.arange(1.0, 5.0)),
    np.linalg.cond: lambda x: np.linalg.cond(np.vstack([x, np.eye(4)])),
    np.linalg.matrix_norm: lambda x: np.linalg.matrix_norm(x),
    np.linalg.norm: lambda x: np.linalg.norm(x, axis=1) + np.linalg.norm(x),
    np.linalg.matrix_power: lambda x: np.linalg.matrix_power(x.T @ x, 3),
    np.linalg.matrix_transpose: lambda x: np.linalg.matrix_transpose(x),
    np.linalg.multi_dot: lambda x: np.linalg.multi_dot([x, x.T, x]),
    np.linalg.outer: lambda x: np.linalg.outer(x[:, 0], x[0]),
    np.linalg.vector_norm: lambda x: np.linalg.vector_norm(x, axis=1, ord=3),
    np.matrix_transpose: lambda x: np.matrix_transpose(x),
    np.nancumprod: lambda x: np.nancumprod(np.where(x > 1, np.nan, x), axis=1),
    np.nancumsum: lambda x: np.nancumsum(np.where(x > 1, np.nan, x)),
    np.nanprod: lambda x: np.nanprod(np.where(x > 1, np.nan, x)),
    np.nansum: lambda x: np.nansum(np.where(x > 1, np.nan, x), axis=0),
    np.outer: lambda x: np.outer(x, x[0]),
    np.polyval: lambda x: np.polyval([1.0, -2.0], x),
    np.ptp: lambda x: np.ptp(x, axis=0),
    np.put_along_axis: lambda x: (y := np.copy(x), np.put_along_axis(y, np.argmax(y, axis=1)[:, None], 0.0, 1))[0],
    np.rot90: lambda x: np.rot90(x, 3),
    np.select: lambda x: np.select([x > 0.5, x < -1], [x, -x], 5.0),
    np.sinc: lambda x: np.sinc(x),
    np.split: lambda x: np.concatenate([np.split(x, 2, axis=1)[1], np.split(x, [1], axis=1)[0]], axis=1),
    np.take_along_axis: lambda x: np.take_along_axis(x, np.argsort(x, axis=0), 0),
    np.tensordot: lambda x: np.tensordot(x, np.ones((4, 2)), 1),
    np.trapezoid: lambda x: np.trapezoid(x, dx=0.5, axis=0),
    np.tril: lambda x: np.tril(x),
    np.tril_indices_from: lambda x: x[np.tril_indices_from(x)],
    np.triu: lambda x: np.triu(x, 1),
    np.triu_indices_from: lambda x: x[np.triu_indices_from(x)],
    np.unique_values: lambda x: np.unique_values(x),
    np.unstack: lambda x: np.unstack(x, axis=1)[1],
    np.union1d: lambda x: np.union1d(x[:, 0], x[:, 1]),
}
LOOPED = {np.fft.fft2, np.fft.ifft2, np.fft.irfft2, np.fft.irfftn, np.fft.rfft2, np.linalg.multi_dot}  # if sizes differ


def test_every_function_is_in_exactly_one_table():
    wrong = [
        f"{f.__module__}.{f.__name__}"
        for f in numpy.testing.overrides.get_overridable_numpy_array_functions()
        if (f in FUNCTIONS) + (f in NUMPY_OWN) + (unsupported_reason(f) is not None) + (like_function(f) is not None)
        != 1
    ]
    assert wrong == []


def test_every_ufunc_is_decided():
    ufuncs = numpy.testing.overrides.get_overridable_numpy_ufuncs()
    assert [f.__name__ for f in ufuncs if (f in UFUNCS) + (f in UNSUPPORTED) != 1] == []


def test_every_unsupported_function_has_a_reason():
    assert all(isinstance(reason, str) and len(reason) > 8 for reason in UNSUPPORTED.values())


def test_no_function_with_a_rule_has_a_reason_for_having_none():
    assert [name for name in UNSUPPORTED_REASONS if operator.attrgetter(name)(np) in FUNCTIONS] == []


def test_all_that_numpy_serves_is_tried():
    assert set(OWN) == set(NUMPY_OWN)


@pytest.mark.parametrize("function", OWN, ids=lambda f: f.__name__)
def test_numpy_own_on_a_batch(function):
    f = OWN[function]
    with warnings.catch_warnings():
        if function in LOOPED:
            warnings.simplefilter("ignore", FallbackWarning)
        got = f(MaskedBatch.from_examples(ROWS))
    for i, x in enumerate(ROWS):
        mine = got.examples()[i] if isinstance(got, MaskedBatch) else got
        np.testing.assert_allclose(mine, f(x))


@pytest.mark.parametrize("function", OWN, ids=lambda f: f.__name__)
def test_numpy_own_on_a_tape(function):
    f = OWN[function]
    got = f(Tape().leaf(ROWS[0]))
    np.testing.assert_allclose(getattr(got, "_ab_value", got), f(ROWS[0]))


@pytest.mark.parametrize("homes", [["physics._ufuncs", "physics.special", "physics.special.all"], ["_physics"], []])
def test_a_ufunc_of_another_library_is_named_as_its_own(homes, monkeypatch):
    def expit(x):
        return 1.0 / (1.0 + np.exp(-x))

    ufunc = np.frompyfunc(expit, 1, 1)
    for home in homes:
        module = types.ModuleType(home)
        setattr(module, ufunc.__name__, ufunc)
        monkeypatch.setitem(sys.modules, home, module)
    named = ".".join([*homes[1 if len(homes) > 1 else 0 :][:1], ufunc.__name__])
    says = rf"^{re.escape(named)} has no batching rule; it runs"
    forget_warnings()
    with pytest.warns(FallbackWarning, match=says):
        ufunc(MaskedBatch.from_examples(ROWS))
    with pytest.warns(FallbackWarning, match=says):
        ab.map(lambda x: ufunc(x), ROWS)
    with pytest.raises(UnsupportedError, match=f"{re.escape(named)} has no batching rule"):
        ufunc(Tape().leaf(ROWS[0]))


def test_what_has_no_rule_runs_as_a_loop_and_says_so():
    x = MaskedBatch.from_examples([np.eye(2), 2 * np.eye(3)])
    with pytest.warns(FallbackWarning, match=r"np\.linalg\.eigvals has no batching rule \(a factorisation"):
        got = np.linalg.eigvals(x)
    np.testing.assert_allclose(got.examples()[1], [2.0, 2.0, 2.0])


def test_a_declined_combination_runs_as_a_loop_and_says_so():
    x = MaskedBatch.from_examples(VECTORS)
    with pytest.warns(FallbackWarning, match=r"linear_ramp"):
        got = np.pad(x, 1, mode="linear_ramp")
    np.testing.assert_allclose(got.examples()[2], np.pad(VECTORS[2], 1, mode="linear_ramp"))


def test_no_gradient_is_dropped_silently():
    x = Tape().leaf(np.eye(2))
    with pytest.raises(UnsupportedError, match=r"no gradient for np\.linalg\.eigvals"):
        np.linalg.eigvals(x)
    with pytest.raises(UnsupportedError, match=r"no gradient for np\.pad"):
        np.pad(x, 1, mode="linear_ramp")


def test_a_shared_array_is_never_written_for_one_example():
    x = MaskedBatch.from_examples([np.ones(2), np.ones(2)])
    out = np.zeros(2)
    with pytest.raises(NeedsLoop, match="they share"):
        np.add(x, 1, out=out)
    row = out[0:1]
    assert row.tolist() == [0.0]


def test_top_box_is_the_innermost_interpreter():
    tape = Tape()
    low, high = tape.leaf(np.ones(2)), MaskedBatch.from_examples([np.ones(2)])
    assert top_box(([low, 1], {"a": (high,)})) is high
    assert top_box(slice(low, None)) is low


def test_reflected_and_named_operators():
    x = MaskedBatch.from_examples(VECTORS)
    f = lambda x: [
        1 - x,
        2 / (x * x + 1),
        2**x,
        x**2,
        x // 1,
        7 % (x * x + 1),
        divmod(x, 2)[1],
        divmod(9, x * x + 1)[0],
        -x,
        +x,
        abs(x),
        x < 0,
        x <= 0,
        x > 0,
        x >= 0,
        x == 0,
        x != 0,
        (x > 0) & (x < 1),
        (x > 0) | (x < 1),
        (x > 0) ^ True,
        ~(x > 0),
        np.ones(1) @ np.ones((1, 1)) + x,
        (x > 0).astype(int) << 2,
    ]
    for k, got in enumerate(f(x)):
        for i, example in enumerate(VECTORS):
            np.testing.assert_allclose(got.examples()[i], f(example)[k], err_msg=f"operator {k}")


METHODS = {
    "sum": lambda x: x.sum(0),
    "mean": lambda x: x.mean(axis=1),
    "max": lambda x: x.max(),
    "min": lambda x: x.min(0),
    "prod": lambda x: x.prod(),
    "any": lambda x: (x > 0).any(0),
    "all": lambda x: (x > -9).all(),
    "var": lambda x: x.var(0),
    "std": lambda x: x.std(),
    "argmax": lambda x: x.argmax(0),
    "argmin": lambda x: x.argmin(),
    "cumsum": lambda x: x.cumsum(0),
    "argsort": lambda x: x.argsort(0),
    "reshape": lambda x: x.reshape(-1, 2),
    "ravel": lambda x: x.ravel(),
    "flatten": lambda x: x.flatten(),
    "transpose": lambda x: x.transpose(1, 0),
    "swapaxes": lambda x: x.swapaxes(0, 1),
    "squeeze": lambda x: x[None].squeeze(0),
    "repeat": lambda x: x.repeat(2, axis=1),
    "take": lambda x: x.take([0], axis=0),
    "clip": lambda x: x.clip(0, 1),
    "dot": lambda x: x.dot(x.T),
    "astype": lambda x: x.astype("float32"),
    "copy": lambda x: x.copy(),
    "round": lambda x: x.round(1),
    "conj": lambda x: x.conj(),
    "nonzero": lambda x: x.nonzero()[1],
    "T": lambda x: x.T,
    "mT": lambda x: x.mT,
    "real": lambda x: x.real,
    "imag": lambda x: x.imag,
    "flat": lambda x: x.flat[1:3],
    "diagonal": lambda x: x.diagonal(),
    "trace": lambda x: x.trace(),
    "nbytes": lambda x: x.nbytes,
    "size": lambda x: x.size,
    "compress": lambda x: x.compress([True], axis=0),
    "itemsize": lambda x: x.itemsize,
}


@pytest.mark.parametrize("name", METHODS)
def test_methods(name):
    got = METHODS[name](MaskedBatch.from_examples(ROWS))
    for i, x in enumerate(ROWS):
        mine = got.examples()[i] if isinstance(got, MaskedBatch) else got
        np.testing.assert_allclose(mine, METHODS[name](x))
