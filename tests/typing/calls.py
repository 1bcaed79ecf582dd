"""Calls that a type checker accepts, with the types it finds, and calls that it refuses: `# wrong: the error's code`.

The two functions are never called; `test_calls.py` has mypy check them.
"""

from typing import Any, assert_type

import numpy as np
from numpy.typing import NDArray

import autobatch as ab

Array = NDArray[np.float32]


@ab.batch
def scaled(x: Array, w: Array, *, factor: float = 1.0) -> Array:
    return x * w * np.float32(factor)


@ab.batch(strict=True)
def anything(x: Array, params: dict[str, Any]) -> Any:
    return {"h": x @ params["w"]}


@ab.batch
def pair(x: Array, y: Array, params: dict[str, Array]) -> tuple[Array, int]:
    return x + y, len(params)


@ab.batch
def total(x: Array, w: Array) -> np.float32:
    return np.float32((x * w).sum())


@ab.batch
def count(x: Array, by: int = 1) -> int:
    return len(x) * by


@ab.batch
def by_name(x: Array) -> dict[str, Array]:
    return {"x": x}


@ab.batch
def label(x: Array) -> str:
    return str(len(x))


@ab.batch
def listed(x: Array, by: Array) -> list[tuple[Array, float]]:
    return [(x, 1.0), (by, 2.0)]


@ab.batch
def nothing(x: Array) -> None:
    assert len(x)


class Model:
    @ab.batch
    def method(self, x: Array) -> Array:
        return x

    @ab.batch
    @staticmethod
    def static(x: Array) -> Array:
        return x


def loss(p: Array, x: Array) -> tuple[Array, str]:
    return (p * x).sum(keepdims=True), "auxiliary"


w = np.ones(3, np.float32)
xs = [w, w]
masked = ab.MaskedBatch.from_examples(xs)
packed = ab.PackedBatch.from_examples(xs)
model = Model()
table = ab.EmbeddingTable(np.ones((4, 3), np.float32))
ids = np.array([0, 2, 1])


def accepted() -> None:
    # What takes an array takes a batch, and what gives an array gives one that has examples.
    assert_type(scaled(masked, w), ab.MaskedBatch)
    assert_type(scaled(packed, w=w, factor=2.0), ab.MaskedBatch)
    assert_type(scaled(masked, w).examples(), list[Any])
    assert_type(anything(masked, {"w": w}), Any)
    assert_type(pair(w, w, {"w": w}), tuple[Array, int])
    assert_type(ab.examples(pair(masked, w, {"w": w})), list[tuple[Array, int]])
    assert_type(by_name(packed)["x"].examples(), Any)
    assert_type(by_name(w)["x"], Array)
    assert_type(label(masked).examples(), Any)
    assert_type(label(w), str)
    assert_type(listed(masked, by=w)[0].examples(), Any)
    assert_type(nothing(masked), Any)
    # What is a batch by keyword, or comes from a function of NumPy, is an array to a checker.
    assert_type(scaled(x=masked, w=w), Array)
    assert_type(ab.examples(scaled(x=masked, w=w)), list[Array])
    assert_type(ab.examples(pair(x=masked, y=w, params={})), list[tuple[Array, int]])
    assert_type(ab.examples(np.tanh(scaled(masked, w))), list[NDArray[Any]])
    assert_type(model.method(masked), ab.MaskedBatch)
    assert_type(Model.method(model, w), Array)
    assert_type(model.method(w), Array)
    assert_type(total(masked, w).examples(), list[Any])
    assert_type(total(w, w), np.float32)
    assert_type(count(packed, by=2), ab.MaskedBatch)
    assert_type(count(w), int)
    assert_type(Model.static(masked), ab.MaskedBatch)
    assert_type(ab.batch(lambda x, y: x + y)(masked, w), Any)
    assert_type(ab.map(pair, xs, xs, params={"w": w}), list[tuple[Array, int]])
    assert_type(ab.map(anything, xs, params={"w": w}), list[Any])
    assert_type(ab.value_and_grad(pair)(w, w, {"w": w}), tuple[tuple[Array, int], Any])
    assert_type(ab.value_and_grad(total)(w, w), tuple[np.float32, Any])
    assert_type(ab.value_and_grad(count)(w, by=2), tuple[int, Any])
    assert_type(ab.grad(total, argnums=(0, 1))(w, w), Any)
    assert_type(ab.jvp(total, (w, w), (w, None)), tuple[np.float32, Any])
    assert_type(ab.value_and_grad(loss, has_aux=True)(w, w), tuple[tuple[Array, str], Any])
    assert_type(ab.nn.softmax(masked, axis=0), NDArray[Any])
    assert_type(2.0 * (masked - w) @ w, ab.MaskedBatch)
    assert_type(ab.embedding_bag([0, 2], table, [0, 1], mode="sum"), NDArray[Any])
    assert_type(ab.embedding_bag(packed, np.ones((4, 3)), mode=("max", "mean")), tuple[NDArray[Any], ...])
    assert_type(ab.lookup(table, ids), NDArray[Any])
    assert_type(ab.maplookup([table, np.ones((3, 2))], [ids, [1, 2, 2]]), list[NDArray[Any]])
    assert_type(ab.maplookup([table], [ids], ab.strategies.Preallocation()), NDArray[Any])
    assert_type(ab.segment_sum(w, lengths=[2, 1], num_segments=np.int64(2)), NDArray[Any])
    assert_type(ab.segment_mean(table, ids, ids=[1, 1, 0], weights=w, empty=1.0), NDArray[Any])
    assert_type(ab.segment_topk(masked, ids, k=2), tuple[NDArray[Any], NDArray[Any]])
    with ab.options(way="loop", seed=3) as config:
        assert_type(config.threads, int)
    assert_type(ab.config.strict, bool)
    assert_type(ab.Examples(masked)[[0, 1]].batch, Any)
    assert_type(ab.testing.assert_same(scaled, scaled, xs, w=w), ab.testing.EquivalenceReport)
    scores: Array = scaled(masked, w)
    mean: float = ab.mean(scaled(masked, w))
    sum_of_both = np.add(masked, packed) + masked
    assert_type(scores.sum() + sum_of_both.sum() + mean, Any)


def refused() -> None:
    scaled(masked)  # wrong: call-overload
    scaled(masked, w, w)  # wrong: call-overload
    scaled(masked, w, scale=2.0)  # wrong: call-overload
    scaled("a", w)  # wrong: call-overload
    anything(masked)  # wrong: call-overload
    model.method()  # wrong: call-overload
    model.method(masked, masked)  # wrong: call-overload
    Model.static(masked, masked)  # wrong: call-overload
    ab.batch(lambda x, y: x + y)(masked)  # wrong: call-overload
    label(masked, w)  # wrong: call-overload
    pair(w, w, {"w": w})[0].examples()  # wrong: attr-defined
    label(w).examples()  # wrong: attr-defined
    scaled(w, w).example(0)  # wrong: attr-defined
    total(w, w).examples()  # wrong: attr-defined
    total(masked, "a")  # wrong: call-overload
    ab.batch(3)  # wrong: call-overload
    ab.map(scaled, xs)  # wrong: call-overload
    ab.map(scaled, xs, v=w)  # wrong: call-overload
    ab.map(scaled, ["a"], w=w)  # wrong: call-overload
    ab.grad(loss)(w)  # wrong: call-arg
    ab.value_and_grad(loss, has_aux=True)(w)  # wrong: call-arg
    ab.value_and_grad(total)(w)  # wrong: call-arg
    ab.grad(total)("a", w)  # wrong: arg-type
    ab.MaskedBatch.from_examples(xs, dim=[True])  # wrong: call-arg
    ab.optim.SGD(rate=0.1)  # wrong: call-arg
    ab.nn.softmax(masked, axes=0)  # wrong: call-arg
    ab.embedding_bag(ids, table, [0], mode="total")  # wrong: call-overload
    ab.embedding_bag(ids, table, [0], mode=("max", "total"))  # wrong: arg-type
    ab.embedding_bag(ids, table, [0], bad_ids="drop")  # wrong: call-overload
    ab.lookup({}, ids)  # wrong: arg-type
    ab.maplookup([table], [ids], "simple parallel")  # wrong: call-overload
    ab.segment_sum(w, ids, num_segments=1.5)  # wrong: arg-type
    ab.segment_max(w, ids=ids, k=2)  # wrong: call-arg
    ab.segment_topk(w, ids)  # wrong: call-arg
    ab.options(wey="loop")  # wrong: call-arg
    ab.options(way="lock-step")  # wrong: arg-type
    ab.testing.assert_same(scaled, scaled, xs, layout="rows")  # wrong: arg-type
