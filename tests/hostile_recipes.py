"""Valid calls of the public functions that reach kernels, by recipe, and what may be wrong with one argument."""

import asyncio
import pathlib
import tempfile
from collections.abc import Callable
from typing import Any

import numpy as np

import autobatch as ab


class Call:
    """A call: what is called with which arguments, by name, and which of these it writes into."""

    def __init__(self, run: Callable[..., Any], writes: tuple[str, ...] = (), **arguments: Any) -> None:
        self.run = run
        self.arguments = arguments
        self.writes = writes


Recipe = Callable[[np.random.Generator], Call]
RECIPES: dict[str, Recipe] = {}
FLOATS, INTEGERS = ("f2", "f4", "f8"), ("i4", "i8", "u1", "u4", "i2")


def recipe(function: Recipe) -> Recipe:
    RECIPES[function.__name__] = function
    return function


def pick(rng: np.random.Generator, *values: Any) -> Any:
    return values[int(rng.integers(len(values)))]


def rows(rng: np.random.Generator, count: int, width: int | None = None, dtype: str | None = None) -> np.ndarray:
    width = pick(rng, 1, 3, 4, 16) if width is None else width
    return rng.standard_normal((count, width)).astype(dtype or pick(rng, "f4", "f4", "f8", "f2"))


def ids_below(rng: np.random.Generator, limit: int, count: int) -> np.ndarray:
    return rng.integers(0, max(limit, 1), count if limit else 0).astype(pick(rng, *INTEGERS))


def lengths_of(rng: np.random.Generator, total: int) -> np.ndarray:
    cuts = np.sort(rng.integers(0, total + 1, int(rng.integers(0, 4))))
    return np.diff(np.concatenate([[0], cuts, [total]])).astype(pick(rng, "i4", "i8"))


def segments(rng: np.random.Generator, total: int) -> dict[str, Any]:
    """One of the ways to say which rows are of which segment."""
    lengths = lengths_of(rng, total)
    way = int(rng.integers(4))
    if way == 0:
        return {"lengths": lengths}
    if way == 1:
        return {"offsets": np.concatenate([[0], np.cumsum(lengths)])}
    found = np.repeat(np.arange(len(lengths)), lengths).astype(pick(rng, *INTEGERS))
    named = {"segment_ids": found if way == 2 else rng.permutation(found)}
    return named | ({"num_segments": len(lengths) + 1} if rng.integers(2) else {})


NO_EMPTY = ("segment_softmax", "segment_log_softmax", "segment_sort", "segment_cumsum")
FAMILY = [name for name in ab.segments.__all__ if name.startswith("segment_") and "_to_" not in name]


@recipe
def a_segment_function(rng: np.random.Generator) -> Call:
    name, count = pick(rng, *FAMILY), int(rng.integers(0, 9))
    data = rows(rng, count)
    if rng.integers(4) == 0:
        data = data[:, 0].copy() if rng.integers(2) else rng.integers(0, 9, data.shape).astype(pick(rng, *INTEGERS))
    arguments: dict[str, Any] = {"data": data, **segments(rng, count)}
    if name == "segment_topk":
        arguments["k"] = int(rng.integers(1, 3))
    if rng.integers(3) == 0 and name not in (*NO_EMPTY, "segment_any", "segment_all"):
        arguments["empty"] = 0
    return Call(getattr(ab, name), **arguments)


@recipe
def a_segment_function_of_a_table(rng: np.random.Generator) -> Call:
    name = pick(rng, *FAMILY)
    table = rows(rng, int(rng.integers(1, 7)))
    ids = ids_below(rng, len(table), int(rng.integers(0, 9)))
    arguments: dict[str, Any] = {"data": a_table(rng, table), "ids": ids, **segments(rng, len(ids))}
    if name in ("segment_sum", "segment_mean", "segment_sqrtn") and rng.integers(2):
        arguments["weights"] = rows(rng, len(ids), 1, table.dtype.str)[:, 0].copy()
    if name == "segment_topk":
        arguments["k"] = 2
    return Call(getattr(ab, name), **arguments)


def as_the_loop_raises(run: Callable[[], Any]) -> Any:
    """Call it; what the loop raises for `{}[3]`, `table[2**63]`, `type[3]` and the like is no leak of ours."""
    try:
        return run()
    except RecursionError:
        raise
    except (KeyError, OverflowError, AttributeError, RuntimeError) as error:
        raise IndexError from error


def a_table(rng: np.random.Generator, weights: np.ndarray) -> Any:
    kind = int(rng.integers(6))
    if kind == 0:
        return ab.EmbeddingTable(weights)
    if kind == 1:
        return ab.SplitTable.from_array(weights, max(len(weights) // 2, 1))
    return weights


@recipe
def embedding_bag(rng: np.random.Generator) -> Call:
    table = rows(rng, int(rng.integers(1, 7)))
    mode = pick(rng, "sum", "mean", "max", "min", "sqrtn", ["sum", "max"])
    arguments: dict[str, Any] = {"weight": a_table(rng, table), "mode": mode}
    if rng.integers(2):
        arguments["input"] = ids_below(rng, len(table), 6).reshape(2, 3)
    else:
        ids = ids_below(rng, len(table), int(rng.integers(0, 9)))
        lengths = lengths_of(rng, len(ids))
        last = bool(rng.integers(2))
        ends = np.concatenate([[0], np.cumsum(lengths)])
        arguments |= {"input": ids, "offsets": ends if last else ends[:-1], "include_last_offset": last}
    if mode in ("sum", "mean", "sqrtn") and rng.integers(2):
        arguments["per_sample_weights"] = rng.standard_normal(arguments["input"].shape).astype(table.dtype)
    for name, value in (("padding_idx", 0), ("max_norm", 1.0), ("empty", 0), ("bad_ids", "skip")):
        if rng.integers(5) == 0:
            arguments[name] = value
    writes = ("weight",) if "max_norm" in arguments else ()  # whose rows are made shorter, as torch's are
    return Call(ab.embedding_bag, writes, **arguments)


@recipe
def lookup(rng: np.random.Generator) -> Call:
    table = rows(rng, int(rng.integers(1, 7)))
    ids = ids_below(rng, len(table), 6)
    arguments: dict[str, Any] = {"table": a_table(rng, table), "ids": ids.reshape(2, 3) if rng.integers(2) else ids}
    if rng.integers(2):
        arguments["out"] = np.empty((len(arguments["ids"]), table.shape[1]), table.dtype)
    return Call(ab.lookup, ("out",), **arguments)


@recipe
def maplookup(rng: np.random.Generator) -> Call:
    count, total = int(rng.integers(1, 4)), int(rng.integers(0, 9))
    tables = [rows(rng, 5, 4, "f4") for _ in range(count)]
    arguments: dict[str, Any] = {"tables": tables, "ids": [ids_below(rng, 5, total) for _ in tables]}
    ways = ab.strategies
    arguments["strategy"] = pick(rng, None, *(getattr(ways, name)() for name in ways.__all__ if name != "Strategy"))
    return Call(ab.maplookup, ("out",), **arguments)


@recipe
def gather_and_scatter(rng: np.random.Generator) -> Call:
    data = rows(rng, int(rng.integers(1, 7)))
    ids = ids_below(rng, len(data), int(rng.integers(0, 7)))
    if rng.integers(4) == 0:
        return Call(ab.gather, data=data, ids=ids)
    new = rows(rng, len(ids), data.shape[1], data.dtype.str)
    out = {"out": data.copy()} if rng.integers(2) else {}
    if rng.integers(3) == 0:
        weights = rng.standard_normal(()).astype(data.dtype)[()]

        def weighted(data: Any, weight: Any, ids: Any, new: Any, other: Any, out: Any = None) -> Any:
            return ab.scatter_weighted_sum(data, weight, ids, new, other, out=out)

        return Call(weighted, ("out",), data=data, weight=weights, ids=ids, new=new, other=weights, **out)
    return Call(pick(rng, ab.scatter_add, ab.scatter_assign), ("out",), data=data, ids=ids, rows=new, **out)


@recipe
def sparse_rows(rng: np.random.Generator) -> Call:
    count = int(rng.integers(1, 7))
    ids = ids_below(rng, count, int(rng.integers(0, 7)))
    values = rows(rng, len(ids))
    dense = np.zeros((count, values.shape[1]), values.dtype)

    def run(ids: Any, rows: Any, num_rows: Any, dense: Any, changed: Any) -> Any:
        made = ab.SparseRows(ids, rows, num_rows)
        if changed is not None:
            made.ids = changed
        return made.coalesce().to_dense(), made.to_dense(), made.add_to(dense)

    return Call(run, ("dense",), ids=ids, rows=values, num_rows=count, dense=dense, changed=None)


OPTIMIZERS = (ab.optim.SGD, ab.optim.Adagrad, ab.optim.Adam, ab.optim.AdamW, ab.optim.RMSProp, ab.optim.FTRL)


@recipe
def an_optimizer(rng: np.random.Generator) -> Call:
    make = pick(rng, *OPTIMIZERS, ab.optim.RowWiseAdagrad)
    params = rows(rng, int(rng.integers(1, 7)), dtype=pick(rng, "f4", "f8", "f2"))
    optimizer = make(0.1)
    ids = ids_below(rng, len(params), int(rng.integers(0, 7)))
    grads = rows(rng, len(ids), params.shape[1], params.dtype.str)

    def run(params: Any, ids: Any, grads: Any, num_rows: Any, state: Any, **how: Any) -> Any:
        grad = grads if ids is None else ab.SparseRows(ids, grads, num_rows)
        return optimizer.update(params, grad, state, **how)

    if rng.integers(3) == 0:
        ids, grads = None, np.ones_like(params)  # type: ignore[assignment]
    return Call(
        run, ("params", "state", "scratch"), params=params, ids=ids, grads=grads, num_rows=len(params),
        state=optimizer.init(params), threads=pick(rng, None, 1, 2), num_splits=pick(rng, None, 3), scratch=None,
    )  # fmt: skip


@recipe
def hyperparameters(rng: np.random.Generator) -> Call:
    make = pick(rng, *OPTIMIZERS)
    params = rows(rng, 3, 2, "f4")

    def run(lr: Any, weight_decay: Any, clip_norm: Any, clip_value: Any, state_dtype: Any) -> Any:
        optimizer = make(
            lr, weight_decay=weight_decay, clip_norm=clip_norm, clip_value=clip_value, state_dtype=state_dtype
        )
        return optimizer.update(params, np.ones_like(params), optimizer.init(params))

    return Call(run, ("params",), lr=0.1, weight_decay=0.01, clip_norm=1.0, clip_value=None, state_dtype=None)


@recipe
def an_indexer(rng: np.random.Generator) -> Call:
    def run(capacity: Any, ids: Any, more: Any) -> Any:
        indexer = ab.optim.Indexer(capacity)
        return indexer(ids), indexer(more)

    return Call(run, capacity=int(rng.integers(0, 9)), ids=ids_below(rng, 6, 7), more=ids_below(rng, 9, 5))


@recipe
def representations(rng: np.random.Generator) -> Call:
    total = int(rng.integers(0, 9))
    lengths, values = lengths_of(rng, total), rows(rng, total, 3)
    offsets = np.concatenate([[0], np.cumsum(lengths)])
    found = np.repeat(np.arange(len(lengths)), lengths)
    padded = np.zeros((len(lengths), max(lengths.max(initial=0), 1)), "f4")
    options: list[Call] = [
        Call(ab.lengths_to_offsets, lengths=lengths), Call(ab.lengths_to_segment_ids, lengths=lengths),
        Call(ab.offsets_to_lengths, offsets=offsets), Call(ab.offsets_to_segment_ids, offsets=offsets),
        Call(ab.segment_ids_to_lengths, segment_ids=found, num_segments=len(lengths)),
        Call(ab.segment_ids_to_offsets, segment_ids=found, num_segments=len(lengths)),
        Call(ab.lengths_to_padded, values=values, lengths=lengths, filler=0),
        Call(ab.padded_to_lengths, padded=padded, filler=0.0),
        Call(ab.lengths_to_sparse, values=ids_below(rng, 5, total), lengths=lengths, num_columns=9),
        Call(ab.sort_segments, values=values[:, 0].copy(), segment_ids=rng.permutation(found)),
        Call(ab.PackedBatch.from_lengths, values=values, lengths=lengths),
        Call(ab.PackedBatch.from_segment_ids, values=values, segment_ids=found),
        Call(ab.PackedBatch.from_examples, examples=[values[:1], values[:2], values]),
        Call(ab.MaskedBatch.from_examples, examples=[values[:1], values[:2], values]),
    ]  # fmt: skip
    return pick(rng, *options)


@recipe
def batches(rng: np.random.Generator) -> Call:
    def use(batch: Any) -> Any:
        return (
            batch.examples(),
            ab.sum(batch),
            ab.sum(batch, by="example"),
            repr(batch),
            ab.batch(lambda x: np.tanh(x))(batch),
        )

    if rng.integers(2):
        total = int(rng.integers(1, 9))
        lengths = lengths_of(rng, total)

        def packed(values: Any, offsets: Any) -> Any:
            batch = ab.PackedBatch(values, offsets)
            return use(batch), batch.to_masked(), batch.to_padded(), batch.lengths, batch.segment_ids

        return Call(packed, values=rows(rng, total, 2), offsets=np.concatenate([[0], np.cumsum(lengths)]))

    def masked(data: Any, lengths: Any, mask: Any, dims: Any) -> Any:
        return use(ab.MaskedBatch(data, lengths=lengths, mask=mask, dims=dims))

    data = rows(rng, 3, 4)
    if rng.integers(2):
        return Call(masked, data=data, lengths=rng.integers(0, 5, 3), mask=None, dims=None)
    return Call(masked, data=data, lengths=None, mask=np.arange(4) < rng.integers(0, 5, 3)[:, None], dims=None)


@recipe
def tables(rng: np.random.Generator) -> Call:
    weights = rows(rng, int(rng.integers(1, 7)), 4, "f4")

    def run(weights: Any, ids: Any, chunk: Any, packed: Any) -> Any:
        made: list[Any] = [ab.EmbeddingTable(weights), ab.SplitTable.from_array(weights, chunk)]
        made.append(ab.QuantizedTable(packed))
        return [(table[ids], np.asarray(table), ab.segment_sum(table, ids=ids, lengths=[len(ids)])) for table in made]

    packed = ab.QuantizedTable.from_weights(weights).packed
    ids = ids_below(rng, len(weights), 5)
    return Call(run, weights=weights, ids=ids, chunk=2, packed=packed)


FUNCTIONS_OF_NN = "softmax", "log_softmax", "logsumexp", "sigmoid", "relu"


@recipe
def nn(rng: np.random.Generator) -> Call:
    x = rows(rng, 3, 4, pick(rng, *FLOATS))
    options = [Call(getattr(ab.nn, name), x=x) for name in FUNCTIONS_OF_NN]
    options += [
        Call(ab.nn.gelu, x=x), Call(ab.nn.layer_norm, x=x), Call(ab.nn.dropout, x=x, rate=0.5, seed=3),
        Call(ab.nn.one_hot, ids=ids_below(rng, 4, 5), num_classes=4), Call(ab.nn.causal_mask, scores=rows(rng, 4, 4)),
        Call(ab.nn.cross_entropy, logits=x, label=ids_below(rng, 4, 3)), Call(ab.nn.softmax, x=x, axis=-1),
    ]  # fmt: skip
    return pick(rng, *options)


@recipe
def a_gradient(rng: np.random.Generator) -> Call:
    table = rows(rng, int(rng.integers(1, 7)), dtype=pick(rng, "f4", "f8"))
    ids = ids_below(rng, len(table), int(rng.integers(1, 9)))
    mode = pick(rng, "sum", "mean", "max", "sqrtn", "prod", "logsumexp", "std", "softmax", "cumsum")

    def run(table: Any, ids: Any, lengths: Any, weights: Any) -> Any:
        function = getattr(ab, f"segment_{mode}")
        given = {} if weights is None else {"weights": weights}
        return ab.grad(lambda t: np.sum(function(t, ids=ids, lengths=lengths, **given)))(ab.EmbeddingTable(table))

    weights = rng.standard_normal(len(ids)).astype(table.dtype) if mode in ("sum", "mean", "sqrtn") else None
    return Call(run, table=table, ids=ids, lengths=lengths_of(rng, len(ids)), weights=weights)


@recipe
def a_map(rng: np.random.Generator) -> Call:
    table = rows(rng, 5, 3)

    def run(examples: Any, table: Any) -> Any:
        return as_the_loop_raises(lambda: ab.map(lambda ids, table: np.tanh(table[ids].sum(0)), examples, table=table))

    return Call(run, examples=[ids_below(rng, 5, int(rng.integers(0, 5))) for _ in range(3)], table=table)


@recipe
def a_table_of_keys(rng: np.random.Generator) -> Call:
    keys = np.unique(ids_below(rng, 50, int(rng.integers(0, 7))).astype("i8"))
    values = rows(rng, len(keys), 4, "f4")

    def run(dim: Any, capacity: Any, keys: Any, rows: Any, more: Any, steps: Any, limit: Any, offsets: Any) -> Any:
        table = ab.EmbeddingVariable(dim, capacity=capacity, steps_to_live=steps)
        as_the_loop_raises(lambda: table.assign(keys, rows))  # as NumPy of a number that no float32 holds
        table.insert(more)
        read = table[keys], table.lookup(more), table.contains(more), ab.embedding_bag(keys, table, offsets, mode="sum")
        table.remove(more[:1])
        if steps is not None:
            table.shrink(limit)
        return read, table.export(), len(table), ab.segment_sum(table, ids=keys, lengths=[len(keys)])

    return Call(
        run, dim=4, capacity=pick(rng, None, 8), keys=keys, rows=values, more=ids_below(rng, 9, 3).astype("i8"),
        steps=pick(rng, None, 2), limit=None, offsets=np.array([0]),
    )  # fmt: skip


@recipe
def a_step_of_a_table_of_keys(rng: np.random.Generator) -> Call:
    make = pick(rng, *OPTIMIZERS, ab.optim.RowWiseAdagrad)
    keys = ids_below(rng, 50, int(rng.integers(1, 7))).astype("i8")

    def run(keys: Any, grads: Any, number: Any, capacity: Any, error: Any, seed: Any, insert_on: Any) -> Any:
        let_in = ab.admission.count(number) if error is None else ab.admission.bloom(number, capacity, error)
        table = ab.EmbeddingVariable(4, admission=let_in, seed=seed, insert_on=insert_on)
        optimizer = make(0.1)
        table, state = optimizer.update(table, ab.SparseRows(keys, grads, None), optimizer.init(table))
        return table[keys], ab.grad(lambda t: np.sum(t[keys] ** 2))(table), optimizer.update(table, None, state)

    return Call(
        run, keys=keys, grads=rows(rng, len(keys), 4, "f4"), number=1, capacity=9, error=pick(rng, None, 0.1), seed=0,
        insert_on=pick(rng, "update", "lookup"),
    )  # fmt: skip


@recipe
def features(rng: np.random.Generator) -> Call:
    strings = [pick(rng, "a", "bc", "", "\u00e9") for _ in range(int(rng.integers(0, 5)))]
    keys = ids_below(rng, 20, 5).astype("i8")

    def vocabulary(strings: Any, more: Any, grow: Any) -> Any:
        known = ab.Vocabulary(strings, grow=grow)
        return known[more], len(known)

    options = [
        Call(ab.hash_keys, strings=strings, seed=3),
        Call(ab.multi_hash, keys=keys, quotients=rows(rng, 3, 2, "f4"), remainders=rows(rng, 7, 2, "f4"), buckets=7),
        Call(vocabulary, strings=strings, more=strings, grow=True),
    ]
    return pick(rng, *options)


@recipe
def data(rng: np.random.Generator) -> Call:
    examples = [rows(rng, int(rng.integers(0, 4)), 2, "f4") for _ in range(3)]

    def use(data: Any, other: Any, size: Any, seed: Any, bucket: Any, drop_last: Any) -> Any:
        parts = list(ab.minibatches(data, size, shuffle=True, seed=seed, bucket=bucket, drop_last=drop_last))
        return parts, ab.concat([ab.collate(data), ab.collate(other)])

    def items(data: Any, place: Any, ids: Any) -> Any:
        some = ab.Examples(ab.collate(data))
        return ab.examples(some.batch), some[place], some[ids], len(some), list(some)

    if rng.integers(2):
        return Call(items, data=examples, place=1, ids=ids_below(rng, 3, 2))
    return Call(use, data=examples, other=examples[:1], size=2, seed=1, bucket=pick(rng, None, 2), drop_last=False)


@recipe
def derivatives(rng: np.random.Generator) -> Call:
    x = rows(rng, 3, 2, pick(rng, "f4", "f8"))

    def f(x: Any, scale: Any) -> Any:
        return np.sum(np.tanh(x) * ab.stop_gradient(x) * scale)

    def run(x: Any, direction: Any, places: Any) -> Any:
        return ab.jvp(f, (x, 2.0), (direction, 0.0)), ab.value_and_grad(f, argnums=places)(x, 2.0)

    def of_a_batch(values: Any, offsets: Any, weight: Any) -> Any:
        return ab.grad(lambda w: ab.mean(ab.batch(f)(ab.PackedBatch(values, offsets), w)))(weight)

    if rng.integers(2):
        return Call(run, x=x, direction=np.ones_like(x), places=0)
    return Call(of_a_batch, values=x, offsets=np.array([0, 1, 3]), weight=np.array(2.0))


@recipe
def reductions_of_a_batch(rng: np.random.Generator) -> Call:
    total = int(rng.integers(1, 6))
    reduce = pick(rng, ab.sum, ab.mean, ab.max, ab.min, ab.count)

    def run(values: Any, lengths: Any, by: Any) -> Any:
        return reduce(ab.PackedBatch.from_lengths(values, lengths), by=by)

    values = rows(rng, total, 2)
    return Call(run, values=values, lengths=np.array([total - 1, 1]), by=pick(rng, "element", "example"))


@recipe
def other_forms(rng: np.random.Generator) -> Call:
    maps = [{int(key): float(key) for key in range(int(rng.integers(1, 3)))} for _ in range(3)]
    packed = ab.PackedBatch.from_lengths(rows(rng, 4, 2, "f4"), np.array([1, 0, 3]))

    def to_maps_and_back(maps: Any) -> Any:
        return ab.packed_to_maps(*ab.maps_to_packed(maps))

    def of_lengths(keys: Any, values: Any, offsets: Any) -> Any:
        return ab.packed_to_maps(ab.PackedBatch(keys, offsets), ab.PackedBatch(values, offsets))

    def of_sparse(data: Any, indices: Any, starts: Any) -> Any:
        return ab.sparse_to_lengths((data, indices, starts))

    def pinned(way: Any, warn: Any, threads: Any, examples: Any) -> Any:
        with ab.options(way=way, warn=warn, threads=threads):
            return ab.config.way, ab.map(np.tanh, examples), ab.map(np.add, examples, ab.shared(examples[0]))

    def by_hand(x: Any, place: Any) -> Any:
        with ab.lazy() as lazy:
            return as_the_loop_raises(lambda: np.asarray(np.tanh(lazy(x))[place] * 2.0))

    def converted(batch: Any, strict: Any) -> Any:
        return ab.batch(np.tanh, strict=strict)(batch)

    at = np.array([0, 0, 2])
    options: list[Call] = [
        Call(to_maps_and_back, maps=maps),
        Call(of_lengths, keys=np.arange(4), values=rows(rng, 4, 2, "f4"), offsets=np.array([0, 1, 4])),
        Call(of_sparse, data=np.ones(3, "f4"), indices=np.array([0, 2, 1]), starts=np.array([0, 1, 3])),
        Call(pinned, way=pick(rng, "loop", "fly", "lockstep", "compiled"), warn=True, threads=1, examples=[at * 1.0]),
        Call(by_hand, x=rows(rng, 3, 2), place=1),
        Call(converted, batch=packed, strict=False),
    ]
    return pick(rng, *options)


LAYERS = {
    "Linear": (3, 2), "GRU": (3, 2), "LSTM": (3, 2), "LayerNorm": (3,), "Embedding": (5, 2),
    "MultiHeadAttention": (3, 1), "Dropout": (0.5,), "Conv1d": (3, 2, 2),
}  # fmt: skip


@recipe
def layers(rng: np.random.Generator) -> Call:
    make = pick(rng, *LAYERS)

    def run(sizes: Any, seed: Any, dtype: Any, examples: Any) -> Any:
        named = {} if make in ("Dropout", "LayerNorm") else {"seed": seed, "dtype": dtype}
        with ab.options(seed=seed):
            layer = getattr(ab.nn, make)(*sizes, **named)
            return as_the_loop_raises(lambda: ab.map(lambda x, layer: layer(x), examples, layer=layer))

    examples: list[Any] = [rows(rng, int(rng.integers(2, 5)), 3, "f4") for _ in range(2)]
    if make == "Embedding":
        examples = [ids_below(rng, 5, 3) for _ in range(2)]
    return Call(run, sizes=list(LAYERS[make]), seed=0, dtype="f4", examples=examples)


@recipe
def dimensions_and_initial_values(rng: np.random.Generator) -> Call:
    x = rows(rng, 3, 4)

    def image(x: Any, sizes: Any, padding: Any) -> Any:
        return ab.nn.Conv2d(*sizes, padding=padding, seed=0)(x)

    kind = pick(rng, ab.nn.init.normal, ab.nn.init.uniform, ab.nn.init.orthogonal, ab.nn.init.zeros)

    def first(shape: Any, dtype: Any, seed: Any) -> Any:
        return kind()(shape, seed, dtype)

    options = [
        Call(ab.nn.split_dim, x=x, axis=1, parts=2),
        Call(ab.nn.join_dims, x=x, first=0, second=1),
        Call(first, shape=(3, 2), dtype="f4", seed=0),
        Call(image, x=rng.standard_normal((4, 5, 2)).astype("f4"), sizes=[2, 3, 2], padding=pick(rng, "same", "valid")),
    ]
    return pick(rng, *options)


@recipe
def files(rng: np.random.Generator) -> Call:
    tree = {"w": rows(rng, 3, 2), "ids": ids_below(rng, 9, 4)}

    def saved(tree: Any, like: Any) -> Any:
        with tempfile.TemporaryDirectory() as folder:
            ab.save(f"{folder}/a", tree)
            return ab.load(f"{folder}/a", like)

    def damaged(content: Any) -> Any:
        with tempfile.TemporaryDirectory() as folder:
            pathlib.Path(folder, "a").write_bytes(np.asarray(content).tobytes())
            return ab.load(f"{folder}/a")

    def kept(params: Any, step: Any, extra: Any, keep: Any, full_every: Any) -> Any:
        with tempfile.TemporaryDirectory() as folder:
            points = ab.Checkpoints(folder, keep=keep, full_every=full_every)
            points.save(step, params, extra=extra)
            return points.restore(params), points.steps(), points.verify()

    with tempfile.TemporaryDirectory() as folder:
        ab.save(f"{folder}/a", tree)
        content = np.fromfile(f"{folder}/a", np.uint8)
    options: list[Call] = [
        Call(saved, tree=tree, like=tree),
        Call(damaged, content=content),
        Call(kept, params=tree, step=1, extra={"epoch": 1}, keep=2, full_every=2),
    ]
    return pick(rng, *options)


@recipe
def what_is_said_of_a_function(rng: np.random.Generator) -> Call:
    def explained(examples: Any, table: Any) -> Any:
        how = as_the_loop_raises(
            lambda: ab.explain(lambda ids, table: np.tanh(table[ids].sum(0)), examples, table=table)
        )
        return str(how)

    def proved(x: Any, eps: Any) -> Any:
        try:
            return ab.testing.check_grads(lambda x: np.sum(np.tanh(x)), x, eps=eps)
        except AssertionError as error:  # what it says of a gradient that is not the slope
            raise ValueError from error

    options: list[Call] = [
        Call(explained, examples=[ids_below(rng, 5, int(rng.integers(0, 5))) for _ in range(2)], table=rows(rng, 5, 3)),
        Call(proved, x=rows(rng, 2, 2, "f8"), eps=1e-6),
        Call(ab.source, function=proved, rewritten=False),
    ]
    return pick(rng, *options)


@recipe
def a_server(rng: np.random.Generator) -> Call:
    def run(max_batch: Any, max_wait: Any, max_queue: Any, examples: Any, table: Any) -> Any:
        async def asked() -> Any:
            batcher = ab.Batcher(
                lambda ids, table: table[ids].sum(0),
                max_batch=max_batch,
                max_wait=max_wait,
                max_queue=max_queue,
                table=table,
            )
            return await asyncio.gather(*map(batcher, examples))

        return as_the_loop_raises(lambda: asyncio.run(asked()))

    examples = [ids_below(rng, 5, int(rng.integers(0, 5))) for _ in range(2)]
    return Call(run, max_batch=4, max_wait=0.0, max_queue=None, examples=examples, table=rows(rng, 5, 3))


# What may be wrong.

ODD = (
    None, "sum", "", 2**63, -(2**63), 2**31, -1, 0, 1, 3, 2**70, float("nan"), float("inf"), 1e300, -1e-320, 1j,
    {}, (), [], b"x", object(), [[1], [1, 2]], [None], ["a"], [2**70], np.array([None, 1], object), np.float32("nan"),
    np.uint64(2**63), np.float16(65504), np.array(3), np.array("x"), np.ma.masked_array([1, 2], [True, False]),
    range(3), np.empty((0, 3)), np.zeros((2, 2, 2)), lambda x: x, type, slice(None), np.datetime64("2020"), 10**400,
)  # fmt: skip
EXTREMES = (-1, 7, 2**31, 2**62, -(2**62), 255, -128, 2**63 - 1, -(2**63))
DTYPES = ("?", "i1", "u1", "i4", "u8", "f2", "f4", ">f4", ">i8", "f8", "g", "c8", "M8[s]", "U3", "V4", "O")


def spoiled(rng: np.random.Generator, value: Any) -> Any:
    """An argument with something wrong: of an array most often a small thing."""
    if isinstance(value, list) and value and rng.integers(4):
        value = list(value)
        place = int(rng.integers(len(value)))
        value[place] = spoiled(rng, value[place])
        return value
    if isinstance(value, dict) and value and rng.integers(4):
        key = pick(rng, *value)
        return value | {key: spoiled(rng, value[key])}
    if not isinstance(value, np.ndarray) or not value.ndim or rng.integers(5) == 0:
        return ODD[int(rng.integers(len(ODD)))]
    return pick(rng, *ARRAYS)(rng, value)


def _elements(rng: np.random.Generator, x: np.ndarray) -> Any:
    x = x.copy()
    if x.size:
        bad: Any = pick(rng, *EXTREMES) if x.dtype.kind in "iu" else pick(rng, np.nan, np.inf, -np.inf, 1e-310, -0.0)
        with np.errstate(all="ignore"):
            x.reshape(-1)[int(rng.integers(x.size))] = np.array(bad).astype(x.dtype)
    return x


def _dtype(rng: np.random.Generator, x: np.ndarray) -> Any:
    with np.errstate(all="ignore"):
        try:
            return x.astype(pick(rng, *DTYPES))
        except (TypeError, ValueError):
            return x.astype(object)


def _unaligned(rng: np.random.Generator, x: np.ndarray) -> Any:
    return np.frombuffer(b"\0" + x.tobytes(), x.dtype, x.size, 1).reshape(x.shape)


def _read_only(rng: np.random.Generator, x: np.ndarray) -> Any:
    x = x.copy()
    x.flags.writeable = False
    return x


ARRAYS = (
    _elements, _elements, _elements, _dtype, _dtype, _unaligned, _read_only,
    lambda rng, x: x[:-1], lambda rng, x: x[1:], lambda rng, x: np.concatenate([x, x]), lambda rng, x: x[:0],
    lambda rng, x: x[::-1], lambda rng, x: np.concatenate([x, x])[::2], lambda rng, x: x.T, lambda rng, x: x[None],
    lambda rng, x: x[..., None], lambda rng, x: x.reshape(-1), lambda rng, x: np.asfortranarray(x),
    lambda rng, x: np.broadcast_to(x[:1], x.shape) if x.size else x, lambda rng, x: x.tolist(),
    lambda rng, x: x[..., :-1], lambda rng, x: np.ma.masked_array(x, np.ones(x.shape, bool)),
    lambda rng, x: x.view(np.recarray), lambda rng, x: x.sum(), lambda rng, x: memoryview(np.ascontiguousarray(x)),
    lambda rng, x: x if x.dtype == bool else -x,
    lambda rng, x: x.astype(object),
)  # fmt: skip
