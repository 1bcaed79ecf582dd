"""A known kind of call is walked, not decided anew: what changes between two of its calls is seen all the same."""

import concurrent.futures
import types

import numpy as np
import pytest

import autobatch as ab
from autobatch.core.pytree import leaves
from tests.inspect import python_calls, ran_ways

SCALE = 2.0
IDS = [np.array([0, 2, 1]), np.array([3]), np.array([1, 1]), np.array([], np.int64)]
LABELS = [0.0, 1.0, 1.0, 0.0]


def score(ids, y, p):
    total = 0.0
    for i in range(len(ids)):
        total += SCALE * (p["emb"][ids[i]] * p["w"]).sum()
    return (total - y) * (total - y) + p["b"].sum()


batched = ab.batch(score)


def step(p, ids=IDS, ys=LABELS):
    """A training step whose kind of call is known, with the way that ran it."""
    with ab.options(way="compiled", warn=False), ran_ways() as ways:
        value, gradient = ab.value_and_grad(lambda p: ab.mean(batched(ab.collate(ids), ab.collate(ys), p)))(p)
    return value, gradient, ways[-1].way


def by_loop(p, ids=IDS, ys=LABELS):
    return ab.value_and_grad(lambda p: ab.mean([score(i, y, p) for i, y in zip(ids, ys, strict=True)]))(p)


def close(found, expected):
    np.testing.assert_allclose(found, expected, rtol=1e-4 if np.asarray(found).dtype == np.float32 else 1e-9)


def plain(x):
    if isinstance(x, dict):
        return {name: plain(part) for name, part in x.items()}
    return x.to_dense() if isinstance(x, ab.SparseRows) else x


def check(p, *given, way="compiled"):
    value, gradient, ran = step(p, *given)
    expected, wanted = by_loop(p, *given)
    assert ran == way
    close(np.asarray(value), np.asarray(expected))
    assert value.dtype == expected.dtype
    assert list(gradient) == list(wanted)
    for part, other in zip(leaves(plain(gradient)), leaves(plain(wanted)), strict=True):
        assert type(part) is type(other)
        if part is not None:
            assert part.dtype == other.dtype
            close(part, other)


def params(dtype=np.float64, **more):
    rng = np.random.default_rng(3)
    emb = ab.EmbeddingTable(rng.normal(size=(5, 3)).astype(dtype))
    return {"emb": emb, "w": rng.normal(size=3).astype(dtype), "b": np.ones(1, dtype)} | more


@pytest.fixture(autouse=True)
def _known():
    for _ in range(3):
        check(params())


def test_other_numbers_and_lengths():
    for count in (1, 2, 3):
        check(params(), IDS[:count], LABELS[:count])
    check(params(), [IDS[3], IDS[3]], [1.0, 0.5])
    check(params(), IDS * 40, LABELS * 40)


def test_another_dtype_of_a_parameter():
    check(params(np.float32))
    check({**params(), "b": np.ones(1, np.float32)})
    check(params())


def test_another_key_order_and_size():
    check(params(more=np.ones(2)))
    check(params(more={"a": np.ones(2), "b": np.ones(3)}))
    p = params()
    check({name: p[name] for name in ("w", "b", "emb")})
    check({**params(), "b": np.ones(4)})


def test_another_structure():
    check({**params(), "b": np.ones((2, 2))})
    check({**params(), "w": np.ones((2, 3))[:, ::1][1]})
    check({**params(), "w": np.ones(6)[::2]})  # not contiguous
    check({**params(), "emb": np.asarray(params()["emb"])})  # an array in place of the table


def test_a_table_that_is_frozen():
    class Frozen(ab.EmbeddingTable):
        trainable = False

    p = params()
    value, gradient, _ = step({**p, "emb": Frozen(np.asarray(p["emb"]))})
    assert gradient["emb"] is None
    expected, wanted, _ = step(p)
    close(value, expected)
    close(gradient["w"], wanted["w"])


def test_a_global_that_is_bound_again(monkeypatch):
    before = step(params())[0]
    monkeypatch.setattr(f"{__name__}.SCALE", 3.0)
    check(params())
    assert step(params())[0] != before


def test_ids_outside_the_table_raise_as_before():
    with pytest.raises(IndexError, match="7"):
        step(params(), [np.array([0, 7]), np.array([1])], [1.0, 0.0])
    check(params())


def test_a_loss_that_is_not_finite():
    with np.errstate(all="ignore"):
        value, gradient, _ = step({**params(), "w": np.array([1e200, 1.0, 0.0])})
        expected, wanted = by_loop({**params(), "w": np.array([1e200, 1.0, 0.0])})
    np.testing.assert_array_equal(np.isfinite(gradient["w"]), np.isfinite(wanted["w"]))
    assert np.isinf(value) == np.isinf(expected)


def test_cotangents_that_differ():
    weights = np.array([1.0, 2.0, 0.0, -1.0])

    def of_batch(p):
        with ab.options(way="compiled", warn=False):
            return np.sum(batched(ab.collate(IDS), ab.collate(LABELS), p).data * weights)

    def of_loop(p):
        return np.sum(np.stack([score(i, y, p) for i, y in zip(IDS, LABELS, strict=True)]) * weights)

    _, gradient = ab.value_and_grad(of_batch)(params())
    _, wanted = ab.value_and_grad(of_loop)(params())
    for name, part in plain(gradient).items():
        close(part, plain(wanted)[name])
    check(params())


def test_a_gradient_within_a_gradient():
    p = params()

    def inner(w):
        with ab.options(warn=False):
            return ab.grad(lambda q: ab.mean(batched(ab.collate(IDS), ab.collate(LABELS), {**p, "w": q})))(w).sum()

    def loop(w):
        pairs = list(zip(IDS, LABELS, strict=True))
        return ab.grad(lambda q: ab.mean([score(i, y, {**p, "w": q}) for i, y in pairs]))(w).sum()

    close(ab.grad(inner)(p["w"]), ab.grad(loop)(p["w"]))
    check(params())


def test_an_exception_in_the_function_leaves_the_next_call_right():
    def fails(p):
        with ab.options(way="compiled", warn=False):
            batched(ab.collate(IDS), ab.collate(LABELS), p)
        raise KeyError("after the call")

    with pytest.raises(KeyError, match="after the call"):
        ab.value_and_grad(fails)(params())
    check(params())


def test_what_is_changed_in_a_parameter_tree_is_carried_over():
    p = params()

    def counts(p):
        p["calls"] = 1
        p["w"] = p["w"] * 2.0
        with ab.options(way="compiled", warn=False):
            return ab.mean(batched(ab.collate(IDS), ab.collate(LABELS), p))

    w = p["w"].copy()
    ab.value_and_grad(counts)(p)
    assert p["calls"] == 1
    np.testing.assert_array_equal(p["w"], 2.0 * w)


def test_a_part_that_is_a_container_of_another_class_in_the_copy():
    class State(dict):
        _ab_tree = dict

    p = {"w": np.ones(2), "state": State(n=0.0)}

    def counts(p):
        p["state"]["n"] = 1.0
        return p["w"].sum()

    ab.value_and_grad(counts)(p)
    assert p["state"]["n"] == 1.0


@pytest.mark.parametrize("extra", [{1: np.ones(2)}, {True: np.ones(2)}, {0.0: np.ones(2)}, {-0.0: np.ones(2)}])
def test_keys_that_are_equal_but_not_the_same(extra):
    gradient = ab.grad(lambda p: sum((part * part).sum() for part in p.values()))(extra)
    assert [repr(key) for key in gradient] == [repr(key) for key in extra]


def test_objects_in_a_dict_are_read_anew():
    values = [1.0, np.ones(2), types.SimpleNamespace(w=np.ones(2)), [np.ones(1)], np.float32(2.0)]
    for value in values * 2:
        gradient = ab.grad(lambda p: (p["w"] * p["w"]).sum())({"w": np.ones(2), "x": value})
        assert type(gradient["x"]) is type(value)


def test_threads():
    calls = [(params(), IDS[: 1 + k % 4], LABELS[: 1 + k % 4]) for k in range(24)]
    with concurrent.futures.ThreadPoolExecutor(4) as pool:
        found = list(pool.map(lambda given: step(*given), calls))
    for given, (value, gradient, _) in zip(calls, found, strict=True):
        expected, wanted = by_loop(*given)
        close(np.asarray(value), np.asarray(expected))
        close(gradient["w"], wanted["w"])


def test_few_calls_of_python():
    p = params()

    def settled():
        ab.value_and_grad(lambda p: ab.mean(batched(ab.collate(IDS), ab.collate(LABELS), p)))(p)

    with ab.options(way="compiled", warn=False):
        settled()
        assert python_calls(settled) <= 350
