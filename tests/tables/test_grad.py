"""`grad` over pytrees: values of plain NumPy, gradients of central differences; and what is refused, with why."""

import collections
import concurrent.futures
import dataclasses
import gc
import math
import weakref
from typing import Any

import numpy as np
import pytest

import autobatch as ab
from autobatch import EmbeddingTable, MaskedBatch, SparseRows
from autobatch.autodiff.grad import grad, value_and_grad
from autobatch.autodiff.tape import TapeArray
from autobatch.errors import DTypeError, ForcedValueError, ShapeError, UnsupportedError
from autobatch.tables.bag_and_segment_op import segment_p
from tests import naive
from tests.inspect import Tape

RANDOM = np.random.default_rng(3)
Pair = collections.namedtuple("Pair", "a b")


@dataclasses.dataclass
class Layer:
    w: Any
    name: str


def make(*shape):
    return RANDOM.standard_normal(shape)


def test_pytrees_of_every_kind_with_leaves_left_alone():
    params = {
        "d": {"x": make(3)},
        "l": [make(2, 2), None],
        "p": Pair(make(2), "tied"),
        "c": Layer(make(3), "top"),
        "unused": np.ones(4, np.float32),
        "flag": True,
    }

    def f(params, scale):
        out = (params["d"]["x"] * params["c"].w).sum() + (params["l"][0] @ params["p"].a).sum()
        return out * scale if params["flag"] and params["p"].b == "tied" else out

    value, grads = value_and_grad(f)(params, scale=2.0)
    assert value == f(params, 2.0)
    np.testing.assert_allclose(grads["d"]["x"], 2 * params["c"].w)
    np.testing.assert_allclose(grads["c"].w, 2 * params["d"]["x"])
    assert isinstance(grads["c"], Layer)
    assert grads["c"].name is None
    np.testing.assert_allclose(grads["l"][0], 2 * np.array([params["p"].a] * 2))
    assert grads["l"][1] is None
    assert isinstance(grads["p"], Pair)
    assert grads["p"].b is None
    assert grads["flag"] is None
    np.testing.assert_array_equal(grads["unused"], np.zeros(4))
    assert grads["unused"].dtype == np.float32


def test_argnums_keywords_and_aux():
    def f(x, y, *, z):
        return (x * y * z).sum(), {"double": x * 2, "n": 3}

    x, y = make(3), make(3)
    ((value, aux), (gy, gx)) = value_and_grad(f, argnums=(1, 0), has_aux=True)(x, y, z=4.0)
    np.testing.assert_allclose(value, (x * y * 4).sum())
    np.testing.assert_allclose(gx, 4 * y)
    np.testing.assert_allclose(gy, 4 * x)
    assert type(aux["double"]) is np.ndarray
    assert aux["n"] == 3
    gradient, aux = grad(f, has_aux=True)(x, y, z=4.0)
    np.testing.assert_allclose(gradient, 4 * y)
    np.testing.assert_allclose(aux["double"], 2 * x)


@pytest.mark.parametrize("x", [3.0, np.float32(3), np.float64(3), np.array(3.0), np.array(3.0, np.float32)])
def test_a_gradient_has_the_leafs_type_and_dtype(x):
    gradient = grad(lambda x: x * x + 1)(x)
    assert gradient == 6
    assert type(gradient) is type(x)
    assert getattr(gradient, "dtype", None) == getattr(x, "dtype", None)


def test_a_python_number_stays_weak():
    half = np.ones(3, np.float32)
    value, gradient = value_and_grad(lambda p: ((p * p + 1) * half).sum())(2.0)
    assert value.dtype == np.float32
    assert gradient == 12.0
    with pytest.raises(ZeroDivisionError, match="division by zero"):
        grad(lambda p: p / 0.0)(2.0)


def test_constant_results_give_zeros():
    for result in (1.0, np.float32(2), np.array(3.0)):
        value, gradient = value_and_grad(lambda x, result=result: result)(np.ones(2, np.float32))
        assert value == result
        np.testing.assert_array_equal(gradient, np.zeros(2))
        assert gradient.dtype == np.float32
    empty = grad(lambda t: 1.0)(EmbeddingTable(np.ones((5, 2), np.float32)))
    assert isinstance(empty, SparseRows)
    assert (empty.shape, empty.dtype, len(empty.ids)) == ((5, 2), np.float32, 0)


def test_gradients_share_no_memory():
    x, y = np.ones(3), np.ones(3)
    for f in (lambda x, y: (x + y).sum(), lambda x, y: ((x + y) * 1.0).sum()):
        gx, gy = grad(f, (0, 1))(x, y)
        gx *= 5
        np.testing.assert_array_equal(gy, np.ones(3))
    a, b = EmbeddingTable(np.ones((2, 2))), EmbeddingTable(np.ones((2, 2)))
    ga, gb = grad(lambda a, b: ((a[[0]] + b[[1]]) * 1.0).sum(), (0, 1))(a, b)
    ga.rows *= 5
    np.testing.assert_array_equal(gb.rows, [[1, 1]])


def test_tables_in_a_tree():
    table, ids = EmbeddingTable(make(6, 3)), np.array([4, 1, 4])
    w = make(3)

    def f(params):
        return np.tanh(params["emb"][ids] @ params["w"]).sum() + params["emb"][2].sum()

    sparse = grad(f)({"emb": table, "w": w})["emb"]
    expected = naive.numeric_gradient(lambda t: f({"emb": t, "w": w}), table.weights)
    np.testing.assert_allclose(sparse.to_dense(), expected, atol=1e-8)
    assert sparse.ids.tolist() == [4, 1, 4, 2]


def test_a_table_used_otherwise_has_all_its_rows():
    table, h = EmbeddingTable(make(4, 3)), make(3)

    def f(table):
        return np.tanh(table.T.T @ h).sum() + table[1:3].sum() + table[[0, 0]].sum()

    sparse = grad(f)(table)
    np.testing.assert_allclose(sparse.to_dense(), naive.numeric_gradient(f, table.weights), atol=1e-8)


def test_gradients_of_gradients():
    x = make(3)

    def f(x):
        return (np.tanh(x) * x[::-1] + x[np.array([0, 0, 2])] ** 2).sum()

    def g(x):
        return (grad(f)(x) ** 2).sum()

    np.testing.assert_allclose(grad(g)(x), naive.numeric_gradient(g, x), rtol=1e-5, atol=1e-6)
    third = grad(grad(grad(lambda x: x**4)))(2.0)
    np.testing.assert_allclose(third, 48.0)


@pytest.mark.parametrize("mode", ["sum", "mean", "sqrtn", "max", "min"])
def test_gradients_of_gradients_through_a_look_up(mode):
    w = make(4, 2)

    def g(w):
        inner = grad(lambda w: np.tanh(segment_p(w, [1, 3, 1], mode=mode, form="one")).sum() + (w[[0, 0]] ** 3).sum())(
            w
        )
        return (inner * inner).sum()

    np.testing.assert_allclose(grad(g)(w), naive.numeric_gradient(g, w), rtol=1e-5, atol=1e-6)


def test_in_place_writes_in_the_function():
    x = make(3)

    def f(x):
        y = x * 1.0
        y *= x
        y[1] = y[0] * 2
        x += y
        return (x * x).sum()

    copy = x.copy()
    np.testing.assert_allclose(grad(f)(x), naive.numeric_gradient(lambda x: f(x.copy()), copy), atol=1e-6)


def test_reading_all_rows_of_a_buffer_is_linear():
    def backward_work(n):
        tape = Tape()
        x = tape.leaf(np.ones((n, 8)))
        total = sum((row for row in x), np.zeros(8)).sum()
        counted = collections.Counter(node[0].name for node in tape.nodes if node)
        (ct,) = tape.backward([total], [np.ones(())], [x._ab_index])
        np.testing.assert_array_equal(ct if isinstance(ct, np.ndarray) else ct.to_dense(), np.ones((n, 8)))
        return sum(counted.values())

    assert backward_work(400) <= 4.2 * backward_work(100)


def test_a_batch_inside():
    examples = [make(n) for n in (3, 0, 5)]
    w = np.float64(0.7)

    def f(w):
        out = np.tanh(MaskedBatch.from_examples(examples) * w).sum(axis=0)
        return ab.sum(out)

    value, gradient = value_and_grad(f)(w)
    loop = lambda w: sum(np.tanh(x * w).sum() for x in examples)
    np.testing.assert_allclose(value, loop(w))
    np.testing.assert_allclose(gradient, naive.numeric_gradient(loop, w), atol=1e-7)


def test_the_gradient_of_a_batch_is_a_batch():
    batch = MaskedBatch.from_examples([make(n) for n in (3, 0, 5)])
    batch.data[~np.asarray(batch.mask)] = np.nan
    out = grad(lambda x: ab.sum((x * x).sum(axis=0)))(batch)
    assert isinstance(out, MaskedBatch)
    for ct, x in zip(out.examples(), batch.examples(), strict=True):
        np.testing.assert_allclose(ct, 2 * x)
    assert not np.isnan(out.data).any()


@pytest.mark.parametrize(
    ("params", "match"),
    [
        ({"ids": np.arange(3)}, r"params\['ids'\] is ndarray of dtype int64"),
        ({"a": [1.0, 2]}, r"params\['a'\]\[1\] is int of dtype int64.*3\.0 for 3"),
        (Pair(1.0, np.array([True])), r"params\.b is ndarray of dtype bool"),
        (Layer(1j, "x"), r"params\.w is complex of dtype complex128"),
        (3, r"params is int of dtype int64, which has no gradient; make it a float"),
    ],
)
def test_leaves_without_a_gradient_are_named(params, match):
    with pytest.raises(DTypeError, match=match):
        grad(lambda params: 1.0)(params)


@pytest.mark.parametrize(
    ("f", "error", "match"),
    [
        (lambda x: x, ShapeError, r"array of shape \(3,\); expected one scalar: write .sum\(\)"),
        (lambda x: None, UnsupportedError, r"returned None.*is a `return` missing"),
        (lambda x: (x.sum(), x), UnsupportedError, r"returned a tuple.*has_aux=True"),
        (lambda x: "a", UnsupportedError, r"returned str"),
        (lambda x: 3, DTypeError, r"scalar of dtype int64"),
        (
            lambda x: MaskedBatch.from_examples([np.ones(2), np.ones(1)]).sum() * x.sum(),
            UnsupportedError,
            r"returned a batch",
        ),
        (lambda x: float(x[0]), ForcedValueError, r"a Python float was needed .* leave out float\(\)"),
        (lambda x: np.zeros(2).__setitem__(0, x[0]), ForcedValueError, "instead of writing it into a plain array, "),
        (lambda x: x[0].item(), ForcedValueError, r"leave out .item\(\)"),
        (lambda x: x.tolist(), ForcedValueError, r"a list of Python numbers"),
        (lambda x: np.ones(3)[x[0]], ForcedValueError, r"carries a gradient"),
        (lambda x: np.array([x[0], x[1]]).sum(), ForcedValueError, r"write np.stack for np.array"),
        (
            lambda x: np.zeros(3).__setitem__(0, x[0]),
            ForcedValueError,
            r"carries a gradient",
        ),
    ],
)
def test_what_cannot_be_differentiated_is_refused(f, error, match):
    with pytest.raises(error, match=match):
        grad(f)(make(3))


def test_calls_that_cannot_be_right():
    with pytest.raises(UnsupportedError, match=r"argnums=1, but <lambda> was called with 1 positional"):
        grad(lambda x: x, 1)(1.0)
    for argnums in ("x", [0, "x"], 1.0):
        with pytest.raises(UnsupportedError, match=r"argnums is (str|list|float); expected the position"):
            grad(lambda x: x, argnums)
    assert grad(lambda x, y: x * y, np.int64(1))(2.0, 3.0) == 2.0
    with pytest.raises(UnsupportedError, match=r"write ab.grad\(f\)\(x\)"):
        grad(3.0)
    with pytest.raises(UnsupportedError, match=r"with has_aux=True the function returns \(scalar, auxiliary\)"):
        grad(lambda x: x, has_aux=True)(1.0)


def test_comparisons_and_untracked_values_are_plain():
    def f(x):
        assert type(x > 0) is np.ndarray
        assert isinstance(x.argmax(), np.integer)
        return x.sum() if x.sum() > 0 else -x.sum()

    np.testing.assert_array_equal(grad(f)(-np.ones(2)), [-1, -1])


def test_a_value_that_outlives_its_gradient_refuses():
    kept = []
    grad(lambda x: kept.append(x * 2) or x.sum())(np.ones(2))
    (leaked,) = kept
    assert isinstance(leaked, TapeArray)
    assert repr(leaked) == "TapeArray(array([2., 2.]))"
    with pytest.raises(UnsupportedError, match=r"from an ab\.grad call that has returned"):
        leaked + 1


def test_errors_leave_nothing_behind():
    class Held:
        pass

    held = Held()
    ref = weakref.ref(held)

    def f(x, held):
        x = x * 2
        raise KeyError("mine")

    with pytest.raises(KeyError, match="mine"):
        grad(f)(np.ones(2), held)
    del held
    gc.collect()
    assert ref() is None
    assert gc.isenabled()
    np.testing.assert_array_equal(grad(lambda x: x.sum())(np.ones(2)), [1, 1])


def test_what_is_printed_or_rounded_is_plain():
    def f(x):
        assert f"{x[0]:.1f} {x[0]}" == "2.5 2.5"
        assert (round(x[0]), round(x[0], 1), math.floor(x[0]), math.ceil(x[0]), math.trunc(x[0])) == (2, 2.5, 2, 3, 2)
        return (x * round(x[0])).sum()

    np.testing.assert_array_equal(grad(f)(np.array([2.5, 1.0])), [2, 2])


def test_functions_without_a_gradient_are_refused_never_dropped():
    with pytest.raises(UnsupportedError, match=r"no gradient for np\.linalg\.eigvals: .*keep it outside the diff"):
        grad(lambda x: np.linalg.eigvals(x).real.sum())(np.ones((2, 2)))


def test_two_threads_at_once():
    def work(seed):
        x = np.random.default_rng(seed).standard_normal(50)
        for _ in range(30):
            found = grad(lambda x: sum((row * row * seed for row in x), np.float64(0)))(x)
            np.testing.assert_allclose(found, 2 * seed * x)
        return True

    with concurrent.futures.ThreadPoolExecutor(4) as pool:
        assert all(pool.map(work, range(1, 9)))
    assert gc.isenabled()


@pytest.mark.parametrize("mode", ["sum", "mean", "sqrtn"])
def test_a_weights_gradient_has_a_gradient_by_the_table(mode):
    ids, offsets, weights, direction = np.array([1, 1, 4, 0, 2]), np.array([0, 2, 2]), make(5), make(5)

    def slope(table):
        def total(weights):
            return ab.embedding_bag(ids, table, offsets, mode=mode, per_sample_weights=weights).sum()

        return (grad(total)(weights) * direction).sum()

    table = make(6, 3)
    np.testing.assert_allclose(grad(slope)(table), naive.numeric_gradient(slope, table), 1e-6, 1e-6)


def test_a_function_without_a_gradient_is_named_where_padded_data_is_differentiated():
    examples = MaskedBatch.from_examples([make(3), make(2)])
    with pytest.raises(UnsupportedError, match=r"no gradient for np\.unwrap"):
        grad(lambda scale: np.unwrap((examples * scale).data).sum())(2.0)


def whole_part(x):
    return (x * int(np.sum(x))).sum()


def test_the_whole_part_of_a_value_is_a_number_without_gradient():
    x = np.array([3.0, 4.5])
    value, gradient = ab.value_and_grad(whole_part)(x)
    assert value == whole_part(x) == 52.5
    assert gradient.tolist() == [7.0, 7.0]
    for way in ("lockstep", "fly", "loop"):
        with ab.options(way=way):
            total = ab.grad(lambda xs: ab.sum(ab.batch(whole_part)(xs)))(ab.MaskedBatch.from_examples([x, x[:1]]))
        assert [each.tolist() for each in total.examples()] == [[7.0, 7.0], [3.0]]


def takes_a_refusal_for_an_error(x):
    try:
        values = x.tolist()
    except TypeError:
        values = []
    return x.sum() * len(values)


def goes_on_after_any_error(x):
    try:
        x = np.unwrap(x)
    except Exception:
        x = x * 100
    return x.sum()


@pytest.mark.parametrize("f", [takes_a_refusal_for_an_error, goes_on_after_any_error])
def test_a_refusal_that_a_handler_takes_for_an_error_is_raised_all_the_same(f):
    x = np.array([3.0, 4.5])
    with pytest.raises(TypeError, match="gradient"):
        ab.value_and_grad(f)(x)
    for way in ("lockstep", "fly", "loop", "compiled"):
        with ab.options(way=way, warn=False), pytest.raises(TypeError, match="gradient"):
            ab.grad(lambda w: sum(ab.map(f, [x * w, x * w + 1])))(1.0)
    assert ab.grad(np.sum)(x).tolist() == [1.0, 1.0]  # nothing of it is left


def unwrapped(x):
    return ((x.value if hasattr(x, "value") else x) ** 2).sum()


def of_a_list_or_an_array(x):
    return x[0] if hasattr(x, "index") else x.sum()


@pytest.mark.parametrize("f", [unwrapped, of_a_list_or_an_array])
def test_a_value_that_carries_a_gradient_has_no_attributes_that_arrays_have_not(f):
    xs = [np.array([3.0, 4.5]), np.array([1.0])]
    for x in xs:
        np.testing.assert_allclose(ab.grad(f)(x), naive.numeric_gradient(f, x), rtol=1e-6)
    for way in ("loop", "lockstep", "fly", "compiled"):
        with ab.options(way=way, warn=False):
            total = ab.grad(lambda w: sum(ab.map(f, [x * w for x in xs])))(1.0)
        np.testing.assert_allclose(total, sum((naive.numeric_gradient(f, x) * x).sum() for x in xs), rtol=1e-6)
