"""Valid calls of the public functions that reach kernels, by recipe, and what may be wrong with one argument."""

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
FAMILY = [name for name in ab.__all__ if name.startswith("segment_") and "_to_" not in name]


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

    def run(weights: Any, ids: Any, chunk: Any, packed: Any, dim: Any, bits: Any) -> Any:
        made: list[Any] = [ab.EmbeddingTable(weights), ab.SplitTable.from_array(weights, chunk)]
        made.append(ab.QuantizedTable(packed, dim, bits))
        return [(table[ids], np.asarray(table), ab.segment_sum(table, ids=ids, lengths=[len(ids)])) for table in made]

    bits = pick(rng, 8, 4)
    packed = ab.QuantizedTable.from_weights(weights, bits).packed
    ids = ids_below(rng, len(weights), 5)
    return Call(run, weights=weights, ids=ids, chunk=2, packed=packed, dim=weights.shape[1], bits=bits)


@recipe
def nn(rng: np.random.Generator) -> Call:
    x = rows(rng, 3, 4, pick(rng, *FLOATS))
    options = [Call(getattr(ab.nn, name), x=x) for name in ("softmax", "log_softmax", "logsumexp", "sigmoid", "relu")]
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
        try:
            return ab.map(lambda ids, table: np.tanh(table[ids].sum(0)), examples, table=table)
        except RecursionError:
            raise
        except (KeyError, OverflowError, AttributeError, RuntimeError) as error:
            # what the loop raises for `{}[3]`, `table[2**63]`, `type[3]` and an array of indices into a memoryview
            raise IndexError from error

    return Call(run, examples=[ids_below(rng, 5, int(rng.integers(0, 5))) for _ in range(3)], table=table)


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
    if not isinstance(value, np.ndarray) or rng.integers(5) == 0:
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
