"""What all optimisers share: clipping, schedules, state dtypes, threads, many tables at once, memory kept for steps."""

import pickle
import tracemalloc

import numpy as np
import pytest

import autobatch as ab
from autobatch.errors import DTypeError, StructureError, UnsupportedError
from autobatch.optim import FTRL, SGD, Adagrad, Adam, AdamW, Indexer, RMSProp, RowWiseAdagrad
from tests import naive

RANDOM = np.random.default_rng(12)
ALL = [
    SGD(0.1),
    SGD(0.1, 0.9, True, 0.01),
    Adagrad(0.1),
    RowWiseAdagrad(0.1),
    Adam(0.1),
    AdamW(0.1),
    FTRL(0.5, l1=0.1),
    RMSProp(0.1),
    RMSProp(0.1, momentum=0.9, centered=True, eps=0.1),
]


def make(shape, dtype=np.float64):
    return RANDOM.standard_normal(shape).astype(dtype)


@pytest.mark.parametrize("dtype", [np.float16, np.float32, np.float64])
def test_row_wise_adagrad(dtype):
    tolerance = 2e-2 if dtype == np.float16 else 1e-5
    opt = RowWiseAdagrad(0.1, 1e-3, 0.01, 0.5)
    options = {"lr": 0.1, "eps": 1e-3, "weight_decay": 0.01, "initial": 0.5}
    params = {"w": make((4, 3), dtype), "deep": make((2, 3, 2), dtype), "v": make(5, dtype), "s": np.array(0.5, dtype)}
    before = {name: value.copy() for name, value in params.items()}
    steps = [{name: make(value.shape, dtype) for name, value in params.items()} for _ in range(3)]
    state = opt.init(params)
    assert {name: value.shape for name, value in state["sum"].items()} == {"w": (4,), "deep": (2,), "v": (5,), "s": ()}
    for grads in steps:
        opt.update(params, grads, state)
    for name, value in params.items():
        expected = naive.row_wise_adagrad(before[name], [grads[name].astype(float) for grads in steps], **options)
        np.testing.assert_allclose(value, expected, tolerance, tolerance)
    table, ids = ab.EmbeddingTable(before["w"].copy()), np.array([3, 1, 3])
    rows = make((3, 3), dtype)
    opt.update(table, ab.SparseRows(ids, rows, 4), opt.init(table))
    sums = naive.scatter_add(rows.astype(float), ids, 4)
    expected = naive.row_wise_adagrad(before["w"], [sums], **options)
    np.testing.assert_allclose(table.weights[[1, 3]], expected[[1, 3]], tolerance, tolerance)
    np.testing.assert_array_equal(table.weights[[0, 2]], before["w"][[0, 2]])


def gradients(dtype=np.float64):
    """A dense leaf, and a table of which row 2 is named twice."""
    sparse = ab.SparseRows(np.array([2, 0, 2]), make((3, 3), dtype), 4)
    return {"w": make((2, 3), dtype), "t": sparse}


# What the last one does more than the one before it, other tests hold; each dtype of it compiles kernels.
USUAL = [*ALL[:-1], pytest.param(ALL[-1], marks=pytest.mark.slow)]


@pytest.mark.parametrize("opt", USUAL, ids=lambda opt: type(opt).__name__)
def test_clipping_is_of_the_gradient_added_up(opt):
    grads, start = gradients(), {"w": make((2, 3)), "t": make((4, 3))}
    dense = {"w": grads["w"], "t": grads["t"].to_dense()}
    norm = np.sqrt(sum((g**2).sum() for g in dense.values()))
    for options, clipped in [
        ({"clip_value": 0.3}, lambda g: np.clip(g, -0.3, 0.3)),
        ({"clip_norm": 0.5}, lambda g: g * 0.5 / (norm + 1e-6)),
        ({"clip_norm": 1e6}, lambda g: g),
        ({"clip_norm": 0.5, "clip_value": 0.1}, lambda g: np.clip(g * 0.5 / (norm + 1e-6), -0.1, 0.1)),
    ]:
        ours = type(opt)(**{**fields(opt), **options})
        params = {"w": start["w"].copy(), "t": ab.EmbeddingTable(start["t"].copy())}
        ours.update(params, grads, ours.init(params))
        other = {"w": start["w"].copy(), "t": ab.EmbeddingTable(start["t"].copy())}
        ids = np.array([2, 0])
        given = {"w": clipped(dense["w"]), "t": ab.SparseRows(ids, clipped(dense["t"][ids]), 4)}
        opt.update(other, given, opt.init(other))
        np.testing.assert_allclose(params["w"], other["w"], 1e-12)
        np.testing.assert_allclose(params["t"].weights, other["t"].weights, 1e-12)


def fields(opt):
    return {name: getattr(opt, name) for name in opt.__dataclass_fields__}


@pytest.mark.parametrize("opt", ALL, ids=lambda opt: type(opt).__name__)
def test_a_schedule_is_asked_for_the_rate_of_each_step(opt):
    rates, asked = [0.3, 0.2, 0.1], []

    def schedule(step):
        asked.append(step)
        return rates[step]

    scheduled = type(opt)(**{**fields(opt), "lr": schedule})
    params, other = make((3, 2)), None
    other = params.copy()
    state, again = scheduled.init(params), opt.init(other)
    for step, rate in enumerate(rates):
        g = make((3, 2))
        _, state = scheduled.update(params, g, state)
        _, again = type(opt)(**{**fields(opt), "lr": rate}).update(other, g, again)
        assert asked == list(range(step + 1))
    np.testing.assert_array_equal(params, other)


@pytest.mark.parametrize("state_dtype", [np.float16, np.float32, np.float64])
@pytest.mark.parametrize("opt", USUAL, ids=lambda opt: type(opt).__name__)
def test_state_of_another_dtype(opt, state_dtype):
    ours = type(opt)(**{**fields(opt), "state_dtype": state_dtype})
    for layout in (np.copy, ab.EmbeddingTable):
        start = make((4, 3), np.float32)
        params, other = layout(start.copy()), layout(start.copy())
        state, again = ours.init(params), opt.init(other)
        for slot in opt.slots:
            assert state[slot].dtype == state_dtype
            assert again[slot].dtype == np.float32
        for _ in range(3):
            g = make((4, 3), np.float32)
            grad = ab.SparseRows(np.arange(4), g, 4) if layout is ab.EmbeddingTable else g
            _, state = ours.update(params, grad, state)
            _, again = opt.update(other, grad, again)
        tolerance = 0.15 if state_dtype == np.float16 else 1e-4
        np.testing.assert_allclose(np.asarray(params), np.asarray(other), tolerance, tolerance)
        back = pickle.loads(pickle.dumps(state))
        for slot in opt.slots:
            np.testing.assert_array_equal(back[slot], state[slot])


@pytest.mark.parametrize("opt", USUAL, ids=lambda opt: type(opt).__name__)
def test_s0_25_many_tables_at_once_are_equal_to_the_bit_at_any_number_of_threads(opt):
    """Three tables and an array, in one update; and one after the other; with memory kept, and without."""
    sizes, dim = (3_000, 2_000, 50), 40
    starts = [make((n, dim), np.float32) for n in sizes]
    steps = [
        [ab.SparseRows(RANDOM.integers(0, n, 6_000), make((6_000, dim), np.float32), n) for n in sizes]
        for _ in range(2)
    ]
    dense, whole = make(200_000, np.float32), make(200_000, np.float32)

    def run(threads, indexers):
        params = [*(ab.EmbeddingTable(x.copy()) for x in starts), whole.copy()]
        state = opt.init(params)
        for grads in steps:
            params, state = opt.update(params, [*grads, dense], state, indexers=indexers, threads=threads)
        return [np.asarray(x).tobytes() for x in params]

    expected = run(1, None)
    kept = [*(Indexer(n) for n in sizes), None]
    assert run(2, None) == run(3, kept) == run(None, kept) == expected
    alone = []
    for i, start in enumerate(starts):
        table = ab.EmbeddingTable(start.copy())
        state = opt.init(table)
        for grads in steps:
            _, state = opt.update(table, grads[i], state)
        alone.append(table.weights.tobytes())
    assert alone == expected[:3]


def test_s0_23_an_indexer_is_made_once_and_used_again():
    indexer = Indexer(8)
    for ids in ([7, 2, 7, 2, 2], [1], [], [3, 3, 3, 3, 3, 3, 3, 3, 3, 3, 3, 4], [0, 9]):
        ids = np.array(ids, np.int64)
        index = indexer(ids)
        expected = list(dict.fromkeys(ids.tolist()))
        assert index.unique.tolist() == expected  # S0.23: in the order in which they were first seen
        np.testing.assert_array_equal(index.unique[index.inverse], ids)
        for k, one in enumerate(expected):
            at = index.positions[index.starts[k] : index.starts[k + 1]]
            np.testing.assert_array_equal(at, np.flatnonzero(ids == one))
    assert indexer.capacity == 12
    arrays = indexer._arrays
    indexer(np.arange(5))
    assert indexer._arrays is arrays
    assert repr(indexer) == "Indexer(capacity=12)"
    gradient = ab.SparseRows([3, 0, 3], make((3, 2)), 4)
    once = gradient.coalesce(indexer)
    indexer(np.array([1, 1, 1]))  # what was coalesced does not live in the indexer
    assert once.ids.tolist() == [3, 0]
    np.testing.assert_array_equal(once.rows, gradient.coalesce().rows)


def test_s0_19_backward_and_update_make_no_gradient_of_the_table():
    table = ab.EmbeddingTable(np.zeros((200_000, 16), np.float32))
    opt, ids = Adagrad(0.1), RANDOM.integers(0, 200_000, 2_000)
    indexer, state = Indexer(2_000), opt.init(table)

    def step():
        grad = ab.grad(lambda t: (ab.segment_mean(t, lengths=[500] * 4, ids=ids) ** 2 + 1).sum())(table)
        opt.update(table, grad, state, indexers=indexer)

    step()
    tracemalloc.start()
    step()
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < table.nbytes / 20


class Backwards:
    """A table that is not an array: its rows lie in the opposite order."""

    def __init__(self, weights):
        self.weights_of, self.shape, self.dtype, self.ndim = weights, weights.shape, weights.dtype, 2
        self.trainable = True

    def read(self, ids):
        return self.weights_of[len(self.weights_of) - 1 - ids]

    def write(self, ids, rows):
        self.weights_of[len(self.weights_of) - 1 - ids] = rows


def test_a_table_that_says_how_its_rows_are_read_and_written():
    start, grad = make((5, 2)), ab.SparseRows([4, 0, 4], make((3, 2)), 5)
    for given in (grad, grad.to_dense()):
        table, other = Backwards(start[::-1].copy()), ab.EmbeddingTable(start.copy())
        for params in (table, other):
            opt = Adagrad(0.1)
            opt.update(params, given, opt.init(params))
        np.testing.assert_array_equal(table.weights_of[::-1], other.weights)
    table.trainable = False
    with pytest.raises(UnsupportedError, match="Backwards for look-ups only"):
        SGD(0.1).update(table, grad, {"step": 0})


@pytest.mark.parametrize(
    ("call", "error", "match"),
    [
        (lambda: SGD(0.1, clip_norm=-1), ValueError, "clip_norm=-1; expected at least 0"),
        (lambda: SGD(0.1, clip_value=float("nan")), ValueError, "clip_value=nan"),
        (lambda: RMSProp(alpha=1.5), ValueError, "alpha=1.5; expected at least 0 and below 1"),
        (lambda: Adam(state_dtype=np.int32), DTypeError, "state_dtype=int32; expected a float dtype"),
        (lambda: step(SGD(lambda n: -1.0)), ValueError, r"lr\(0\)=-1.0; expected at least 0"),
        (lambda: step(FTRL(0.0)), ValueError, "lr=0 for FTRL"),
        (lambda: step(SGD(0.1), threads=0), ValueError, "threads=0; expected at least 1"),
        (lambda: step(SGD(0.1), indexers=[3]), StructureError, "indexers hold a int; expected ab.optim.Indexer"),
        (lambda: step(SGD(0.1), indexers={}), StructureError, "indexers is a dict"),
        (lambda: step(SGD(0.1), 2, indexers=[SHARED] * 2), StructureError, "one Indexer is used for two parameters"),
        (lambda: RowWiseAdagrad().update([make((2, 2))], [make((2, 2))], Adagrad().init([make((2, 2))])),
         ValueError, r"the state of params\[0\] has shape \(2, 2\); expected \(2,\)"),
    ],
)  # fmt: skip
def test_bad_input(call, error, match):
    with pytest.raises(error, match=match):
        call()


SHARED = Indexer()


def step(opt, count=1, **options):
    params = [make(2) for _ in range(count)]
    return opt.update(params, [make(2) for _ in range(count)], opt.init(params), **options)


@pytest.mark.filterwarnings("ignore:Sparse invariant checks")  # what torch says of its own optimisers
def test_equals_torch_for_sparse_gradients_and_clipping():
    torch = pytest.importorskip("torch")
    start, ids = make((6, 3)), np.array([4, 1, 4, 0])
    for ours, theirs in [
        (SGD(0.1), lambda p: torch.optim.SGD(p, 0.1)),
        (Adagrad(0.1), lambda p: torch.optim.Adagrad(p, 0.1)),
        (Adam(0.1, eps=1e-20), lambda p: torch.optim.SparseAdam(p, 0.1, eps=1e-20)),
        (Adam(0.1, eps=1e-20, clip_norm=0.5), lambda p: torch.optim.SparseAdam(p, 0.1, eps=1e-20)),
    ]:
        table, weight = ab.EmbeddingTable(start.copy()), torch.nn.Parameter(torch.tensor(start))
        state, other = ours.init(table), theirs([weight])
        for _ in range(3):
            rows = make((4, 3))
            _, state = ours.update(table, ab.SparseRows(ids, rows, 6), state)
            scale = 1.0
            if ours.clip_norm:
                norm = np.linalg.norm(naive.scatter_add(rows, ids, 6))
                scale = min(1.0, ours.clip_norm / (norm + 1e-6))
            weight.grad = torch.sparse_coo_tensor(ids[None], torch.tensor(rows * scale), (6, 3)).coalesce()
            other.step()
        np.testing.assert_allclose(table.weights, weight.detach().numpy(), rtol=1e-8)
