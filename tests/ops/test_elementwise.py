"""Every elementwise op over the grid of operand kinds: ragged, static, of length one, scalar, shared."""

import numpy as np
import pytest
from numpy.testing.overrides import get_overridable_numpy_ufuncs

from autobatch import MaskedBatch
from autobatch.errors import ShapeError
from autobatch.ops.nn import activations
from autobatch.ops.numpy import elementwise
from autobatch.ops.rules.dispatch import UFUNCS, UNSUPPORTED
from tests.inspect import Op
from tests.law import Shared, as_operands, check, check_grads
from tests.ops.samples import operands

CASTS = ("astype", "copy", "real", "imag")  # tests/numpy_functions holds them
OPS = {
    op.name: op
    for name, op in [*UFUNCS.items(), *vars(elementwise).items(), *vars(activations).items()]
    if not str(name).startswith("_") and isinstance(op, Op) and op.kind == "elementwise" and op.name not in CASTS
}
STRINGS = {op.name for op in OPS.values() if isinstance(op.impl, np.ufunc) and "e->" not in str(op.impl.types)}
STRINGS = {name for name in STRINGS if name.startswith("is") or name == "str_len"}


def arity(op):
    return op.impl.nin if isinstance(op.impl, np.ufunc) else (2 if op.name.startswith(("divmod", "share")) else 1)


UNARY = sorted(name for name, op in OPS.items() if arity(op) == 1 and name not in STRINGS)
BINARY = sorted(name for name, op in OPS.items() if arity(op) == 2)
SMOOTH = sorted(name for name, op in OPS.items() if op.vjp is not None)
T = (3, 5, 0, 1)


def grid(name):
    """Pairs of operands: every way in which two lanes or a lane and a shared array may broadcast."""
    rng = np.random.default_rng(7)

    def make(left, right):
        count = len(T)
        a, b = zip(*(operands(name, 2, rng, (left(i), right(i))) for i in range(count)), strict=True)
        return [np.asarray(x) for x in a], [np.asarray(x) for x in b]

    def shared(left, right):
        a, b = make(left, right)
        return a, Shared(b[0])

    def swapped(left, right):
        a, b = make(left, right)
        return Shared(a[0]), b

    yield "same ragged", make(lambda i: (T[i],), lambda i: (T[i],))
    yield "ragged and static", make(lambda i: (T[i], 2), lambda i: (2,))
    yield "ragged and scalar", make(lambda i: (T[i],), lambda i: ())
    yield "scalar and ragged", make(lambda i: (), lambda i: (T[i],))
    yield "ranks differ", make(lambda i: (T[i],), lambda i: (3, T[i]))
    yield "lanes of one", make(lambda i: ((1, 5, 1, 1)[i],), lambda i: ((4, 5, 0, 2)[i],))
    yield "lanes of one both", make(lambda i: ((1, 5, 1, 3)[i], 2), lambda i: ((4, 1, 0, 1)[i], 1))
    yield "static one and ragged", make(lambda i: (1, 2), lambda i: (T[i], 1))
    yield "two ragged", make(lambda i: (T[i], 4 - i), lambda i: (T[i], 4 - i))
    yield "outer ragged", make(lambda i: (T[i], 1), lambda i: (1, i))
    yield "static", make(lambda i: (2, 3), lambda i: (3,))
    yield "shared row", shared(lambda i: (T[i], 3), lambda i: (3,))
    yield "shared row left", swapped(lambda i: (3,), lambda i: (T[i], 3))
    yield "shared rank above", shared(lambda i: (T[i],), lambda i: (2, 1))
    yield "shared scalar", shared(lambda i: (T[i],), lambda i: ())
    yield "shared against lengths", shared(lambda i: ((3, 1, 3, 1)[i],), lambda i: (3,))
    yield "shared static", shared(lambda i: (3,), lambda i: (3,))
    yield "shared static above", swapped(lambda i: (2, 3), lambda i: (3,))


def test_every_ufunc_of_one_or_two_arguments_has_a_decision():
    for ufunc in get_overridable_numpy_ufuncs():
        assert (ufunc in UFUNCS) != (ufunc in UNSUPPORTED), ufunc
        if ufunc in UNSUPPORTED:
            assert not any(letter in "bhilqefdg" for types in ufunc.types for letter in types.split("->")[0])


def test_numeric_ufuncs_are_all_ops():
    for value in vars(np).values():
        if isinstance(value, np.ufunc) and value.nin <= 2:
            assert value in UFUNCS, value


@pytest.mark.parametrize("name", UNARY)
def test_unary(name):
    rng = np.random.default_rng(3)
    dtypes = (np.float16, np.float32, np.float64, np.int8, np.uint8, np.int64, np.bool_)
    for dtype in dtypes:
        examples = [operands(name, 1, rng, ((t, 2),))[0].astype(dtype) for t in T]
        check(OPS[name], examples)
        check(OPS[name], [x[:, 0] for x in examples if len(x) >= 1][:1] * 2)
    check(OPS[name], [np.asarray(operands(name, 1, rng, ((),))[0]) for _ in T])


@pytest.mark.parametrize("name", BINARY)
def test_binary(name):
    bits = name in ("gcd", "lcm") or "bitwise" in name or "shift" in name
    for case, (a, b) in grid(name):
        for left, right in (
            (("i8", "i8"), ("u1", "i2")) if bits else (("f8", "f8"), ("f4", "f8"), ("f2", "i1"), ("?", "f4"))
        ):
            if name == "ldexp":
                right = "i4"
            if name in ("heaviside",) and left == "?":
                continue
            cast = [_cast(x, dtype) for x, dtype in ((a, left), (b, right))]
            try:
                check(OPS[name], *cast)
            except AssertionError as error:
                raise AssertionError(f"{name}, {case}, {left} and {right}") from error


def _cast(x, dtype):
    if isinstance(x, Shared):
        return Shared(x.value.astype(dtype))
    return [e.astype(dtype) for e in x]


@pytest.mark.parametrize("name", [name for name in SMOOTH if name in BINARY])
def test_binary_gradients(name):
    for case, (a, b) in grid(name):
        try:
            check_grads(OPS[name], a, b)
        except (AssertionError, Warning) as error:
            raise AssertionError(f"{name}, {case}") from error


@pytest.mark.parametrize("name", [name for name in SMOOTH if name in UNARY])
def test_unary_gradients(name):
    rng = np.random.default_rng(3)
    check_grads(OPS[name], [operands(name, 1, rng, ((t, 2),))[0] for t in T])
    check_grads(OPS[name], [np.asarray(operands(name, 1, rng, ((),))[0]) for _ in T])


def test_clip_gradients():
    rng = np.random.default_rng(3)
    x = [rng.normal(size=(t, 2)) for t in T]
    check_grads(elementwise.clip_p, x, Shared(np.array(-0.5)), Shared(np.array([0.4, 0.6])))


@pytest.mark.parametrize("ufunc", [np.divmod, np.modf, np.frexp])
def test_two_outputs(ufunc):
    x = [np.linspace(-3, 3, t) for t in T]
    args = (x, [np.full(t, 0.7) for t in T]) if ufunc.nin == 2 else (x,)
    check(ufunc, *args)


def test_ties_go_to_the_first_operand():
    for op in (elementwise.max_p, elementwise.min_p, elementwise.fmax_p, elementwise.fmin_p):
        ones = np.ones(2)
        assert op.vjp(0, ones, ones, (ones, ones), {}).tolist() == [1, 1]
        assert op.vjp(1, ones, ones, (ones, ones), {}).tolist() == [0, 0]


def test_a_guarded_root_has_no_gradient_where_nothing_comes_back():
    x = np.array([0.0, 4.0])
    assert elementwise.sqrt_p.vjp(0, np.array([0.0, 1.0]), np.sqrt(x), (x,), {}).tolist() == [0, 0.25]


@pytest.mark.parametrize("other", [np.uint8, np.int8, np.int64, np.float16, np.float32, np.float64, np.bool_])
@pytest.mark.parametrize("ufunc", [np.add, np.multiply, np.divide, np.power, np.maximum, np.less, np.equal, np.arctan2])
def test_python_scalar_lanes_are_weak(ufunc, other):
    arrays = [np.ones(t, other) for t in T]
    for scalars in ([1, 2, 3, 4], [0.5, 1.5, 2.0, 0.0]):
        check(ufunc, arrays, scalars)
        check(ufunc, scalars, arrays)
        check(ufunc, scalars, [2, 1, 0, 5])
        check(ufunc, scalars, Shared(3))
        check(ufunc, scalars, Shared(np.ones(2, other)))


def test_python_integers_out_of_range():
    arrays = [np.ones(2, np.uint8)] * 3
    with pytest.raises(OverflowError, match="Python integer 300 out of bounds for uint8"):
        np.add(*as_operands((arrays, [1, 300, 2])))
    check(np.less, arrays, [1, 300, -2])


def test_lengths_that_disagree_name_the_example():
    a, b = [np.ones(3), np.ones(2)], [np.ones(3), np.ones(4)]
    with pytest.raises(ShapeError, match="lengths 2 and 4 in example 1"):
        np.add(*as_operands((a, b)))
    with pytest.raises(ShapeError, match="lengths 2 and 3 in example 1"):
        np.add(*as_operands((a, Shared(np.ones(3)))))


def test_dtype_option_and_methods():
    x = [np.arange(t, dtype=np.float32) for t in T]
    check(lambda a: np.add(a, 1, dtype=np.float64), x)
    check(lambda a: np.add.reduce(a), x)
    check(lambda a: np.multiply.accumulate(a + 1), x)
    check(lambda a: np.subtract.outer(a, a * 2), x)
    check(lambda a: np.maximum.reduce(a, axis=None, initial=1), x)


@pytest.mark.parametrize("wider", [0, 3])
def test_empty_batch_and_single_example(wider):
    x = as_operands(([np.ones((2, 3))],), wider)[0]
    assert (x + x).batch_size == 1
    none = MaskedBatch(np.zeros((0, 4, 3)), lengths=np.zeros(0, int))
    out = np.exp(none) * np.ones(3) + np.ones((5, 3))
    assert out.examples() == []
    assert out.ndim == 2


def test_padding_does_not_warn_and_examples_do():
    x = as_operands(([np.array([1.0, 2.0]), np.array([4.0])],), 3)[0]
    x.data[np.isnan(x.data)] = 0
    assert [e.tolist() for e in (1 / x).examples()] == [[1, 0.5], [0.25]]
    zero = as_operands(([np.array([1.0, 0.0]), np.array([4.0])],), 3)[0]
    with pytest.warns(RuntimeWarning, match="divide by zero"):
        1 / zero
    ints = as_operands(([np.array([1, 2]), np.array([4])],), 3)[0]
    ints.data[1, 1:] = -1
    assert [e.tolist() for e in np.power(3, ints).examples()] == [[3, 9], [81]]


@pytest.mark.parametrize("seed", range(60))
def test_any_lanes_broadcast_as_numpy_does(seed):
    """Random shapes per lane: every dimension of either operand is the result's or 1, in each lane anew."""
    rng = np.random.default_rng(seed)
    count, rank = int(rng.integers(1, 5)), int(rng.integers(1, 4))
    ranks = [rank, int(rng.integers(0, rank + 1))]
    full = [rng.integers(0, 4, size=rank) for _ in range(count)]
    fixed = rng.random(rank) < 0.4
    full = [np.where(fixed, full[0], shape) for shape in full]
    sides = []
    for own in ranks:
        always = rng.random(own)  # 0 .. 1: how often a lane has length one along this dimension
        shapes = [np.where(rng.random(own) < always**2, 1, shape[rank - own :]) for shape in full]
        sides.append([rng.normal(size=shape) for shape in shapes])
    if rng.random() < 0.3:
        wide = max(sides[1], key=np.size)
        sides[1] = Shared(wide)
    check(np.multiply, *sides)
    check(np.add, *sides[::-1], wider=0)
    if check(np.subtract, *sides) is not None:
        check_grads(np.multiply, *sides)


PADDED = {ufunc: op for ufunc, op in UFUNCS.items() if isinstance(op, Op) and op.kind == "elementwise" and op.vjp}


@pytest.mark.parametrize("ufunc", PADDED, ids=lambda ufunc: ufunc.__name__)
def test_what_stands_in_for_padding_has_a_finite_value_and_derivative(ufunc):
    op = PADDED[ufunc]
    pads = op.pad if isinstance(op.pad, tuple) else (op.pad,) * ufunc.nin
    dtypes = [np.float64] + [np.int32 if ufunc is np.ldexp else np.float64] * (ufunc.nin - 1)
    args = [dtype(1 if pad is None else pad) for dtype, pad in zip(dtypes, pads, strict=True)]
    with np.errstate(all="raise"):
        out = op(*args)
        for position in range(len(args)):
            ct = op.vjp(position, np.ones((), np.asarray(out).dtype), out, args, {})
            assert ct is None or np.isfinite(ct).all()
