"""The same numbers as `torch.nn.functional.embedding_bag`, gradients and errors included, where torch is installed."""

import inspect

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import autobatch as ab

torch = pytest.importorskip("torch")
pytestmark = pytest.mark.filterwarnings("ignore:Sparse invariant checks")  # what torch says of its own optimisers
functional = torch.nn.functional

RANDOM = np.random.default_rng(14)
DTYPES = {np.float16: 5e-3, np.float32: 1e-5, np.float64: 1e-12}


def problem(dtype=np.float64, rows=7, dim=5, lengths=(3, 0, 4, 1, 0)):
    offsets = np.cumsum([0, *lengths])
    return RANDOM.standard_normal((rows, dim)).astype(dtype), RANDOM.integers(0, rows, offsets[-1]), offsets


IDS = np.int32, np.int64
KINDS = [  # each width and each mode by each dtype of rows and of ids, not all by all: each compiles a kernel
    *(
        (dtype, "sum", (np.int32, np.int64)[at % 2], dim)
        for at, dim in enumerate((1, 8, 17, 64, 130))
        for dtype in DTYPES
        if dtype is np.float32 or dim in (1, 130)
    ),
    *((dtype, mode, id_dtype, 17) for dtype in DTYPES for mode in ("mean", "max") for id_dtype in (np.int32, np.int64)),
]


@pytest.mark.parametrize("closed", [False, True])
@pytest.mark.parametrize(("dtype", "mode", "id_dtype", "dim"), KINDS)
def test_s1_02_to_s1_07_values(dtype, mode, id_dtype, closed, dim):
    table, ids, offsets = problem(dtype, dim=dim)
    offsets = offsets if closed else offsets[:-1]
    ids, offsets = ids.astype(id_dtype), offsets.astype(id_dtype)
    found = ab.embedding_bag(ids, table, offsets, mode=mode, include_last_offset=closed)
    expected = functional.embedding_bag(
        *map(torch.from_numpy, (ids, table, offsets)), mode=mode, include_last_offset=closed
    )
    np.testing.assert_allclose(found, expected.numpy(), rtol=DTYPES[dtype], atol=DTYPES[dtype])
    assert found.dtype == dtype


@pytest.mark.parametrize("weighted", [False, True])
@pytest.mark.parametrize("padding", [None, 2, -1])
@pytest.mark.parametrize("mode", ["sum", "mean", "max"])
def test_s1_05_s1_10_gradients(mode, padding, weighted):
    if mode != "sum" and weighted:
        pytest.skip("torch has none")
    table, ids, offsets = problem()
    weights = RANDOM.standard_normal(len(ids)) if weighted else None
    ct = RANDOM.standard_normal((5, 5))
    options = {"mode": mode, "padding_idx": padding, "include_last_offset": True}
    their_table = torch.from_numpy(table).requires_grad_()
    their_weights = torch.from_numpy(weights).requires_grad_() if weighted else None
    theirs = functional.embedding_bag(
        torch.from_numpy(ids), their_table, torch.from_numpy(offsets), per_sample_weights=their_weights, **options
    )
    (theirs * torch.from_numpy(ct)).sum().backward()

    def loss(table, weights):
        return (ab.embedding_bag(ids, table, offsets, per_sample_weights=weights, **options) * ct).sum()

    np.testing.assert_allclose(
        ab.embedding_bag(ids, table, offsets, per_sample_weights=weights, **options),
        theirs.detach().numpy(),
        atol=1e-12,
    )
    found = ab.grad(loss)(ab.EmbeddingTable(table), weights)
    np.testing.assert_allclose(found.to_dense(), their_table.grad.numpy(), atol=1e-12)
    if weighted:
        np.testing.assert_allclose(ab.grad(loss, 1)(table, weights), their_weights.grad.numpy(), atol=1e-12)


@pytest.mark.parametrize("padding", [None, 2])
@pytest.mark.parametrize("mode", ["sum", "mean"])
def test_the_gradient_divided_by_frequency(mode, padding):
    """As `functional.embedding` has it; torch's own bag divides some rows by the count of another id."""
    table, ids, offsets = problem()
    ct = RANDOM.standard_normal((5, 5))
    theirs = torch.from_numpy(table).requires_grad_()
    rows = functional.embedding(torch.from_numpy(ids), theirs, padding_idx=padding, scale_grad_by_freq=True)
    bag_of = np.repeat(np.arange(5), np.diff(offsets))
    kept = ids != (-1 if padding is None else padding)
    counts = np.maximum(np.bincount(bag_of[kept], minlength=5), 1) if mode == "mean" else np.ones(5)
    (rows * torch.from_numpy(ct[bag_of] / counts[bag_of, None])).sum().backward()

    def loss(table):
        out = ab.embedding_bag(ids, table, offsets[:-1], None, 2.0, True, mode, padding_idx=padding)
        return (out * ct).sum()

    np.testing.assert_allclose(ab.grad(loss)(table), theirs.grad.numpy(), atol=1e-12)


@pytest.mark.parametrize("norm_type", [1.0, 2.0])
def test_max_norm_in_place(norm_type):
    table, ids, offsets = problem(np.float32)
    theirs = torch.from_numpy(table.copy())
    options = {"mode": "sum", "max_norm": 1.5, "norm_type": norm_type, "include_last_offset": True, "padding_idx": 3}
    expected = functional.embedding_bag(torch.from_numpy(ids), theirs, torch.from_numpy(offsets), **options)
    np.testing.assert_allclose(ab.embedding_bag(ids, table, offsets, **options), expected.numpy(), rtol=1e-5, atol=1e-6)
    np.testing.assert_allclose(table, theirs.numpy(), rtol=1e-6)


def test_positional_arguments_and_two_dimensions():
    table, ids, _ = problem(np.float32)
    rows = ids.reshape(2, 4)
    expected = functional.embedding_bag(torch.from_numpy(rows), torch.from_numpy(table))
    np.testing.assert_allclose(ab.embedding_bag(rows, table), expected.numpy(), rtol=1e-6)
    arguments = (None, 2.0, False, "sum", False)
    weights = RANDOM.standard_normal(rows.shape).astype(np.float32)
    expected = functional.embedding_bag(
        *map(torch.from_numpy, (rows, table)), None, *arguments, torch.from_numpy(weights)
    )
    np.testing.assert_allclose(ab.embedding_bag(rows, table, None, *arguments, weights), expected.numpy(), rtol=1e-4)


T = np.ones((4, 2), np.float32)


@pytest.mark.parametrize(
    ("ids", "offsets", "options", "ours"),
    [
        ([[0, 1]], [0], {}, "each row a bag; leave offsets out"),
        ([0, 1], None, {}, "offsets are needed"),
        ([0, 1], [[0]], {}, "offsets have shape"),
        ([0, 1], [1], {}, r"offsets\[0\] is 1; expected 0"),
        ([0, 1], [0, 3], {}, "above the number of values, 2"),
        ([0, 4], [0], {}, "id 4 at position 1"),
        ([0, -1], [0], {}, "id -1 at position 1"),
        ([[[0]]], None, {}, "input has shape"),
        ([0], [0], {"mode": "median"}, "mode='median'; expected one of"),
        ([0], [0], {"mode": "max", "scale_grad_by_freq": True}, "scale_grad_by_freq=True with mode='max'"),
        ([0], [0], {"mode": "max", "per_sample_weights": np.ones(1, np.float32)}, "per_sample_weights with mode='max'"),
        ([0, 1], [0], {"mode": "sum", "per_sample_weights": np.ones(1, np.float32)}, r"weights have shape \(1,\)"),
        ([0], [0], {"padding_idx": 4}, "padding_idx=4 is outside"),
    ],
)
def test_what_torch_refuses_is_refused(ids, offsets, options, ours):
    theirs = {k: torch.from_numpy(v) if isinstance(v, np.ndarray) else v for k, v in options.items()}
    with pytest.raises((ValueError, RuntimeError, AssertionError, IndexError), match=r"\w"):
        functional.embedding_bag(
            torch.tensor(ids), torch.from_numpy(T), None if offsets is None else torch.tensor(offsets), **theirs
        )
    with pytest.raises((ValueError, IndexError, TypeError), match=ours):
        ab.embedding_bag(ids, T, offsets, **options)


def test_the_signature_is_torchs():
    """S1.02: the same arguments, in the same order, with the same defaults; ours come after a star."""
    theirs = inspect.signature(functional.embedding_bag).parameters
    ours = inspect.signature(ab.embedding_bag).parameters
    assert [name for name, p in ours.items() if p.kind is not p.KEYWORD_ONLY] == list(theirs)
    for name, parameter in theirs.items():
        assert ours[name].default == parameter.default, name


@settings(max_examples=150, deadline=None)
@given(st.data())
def test_s1_02_to_s1_12_any_call(data):
    """Modes, layouts, dtypes, padding, weights, max_norm, frequencies and the last offset, with all gradients."""
    draw = data.draw
    mode = draw(st.sampled_from(["sum", "mean", "max"]))
    dtype = draw(st.sampled_from([np.float32, np.float64]))
    id_dtype = draw(st.sampled_from([np.int32, np.int64]))
    rows, dim = draw(st.integers(1, 6)), draw(st.sampled_from([3, 8]))  # any dim: test_embedding_bag.py
    flat = draw(st.booleans())
    lengths = draw(st.lists(st.integers(0, 4), min_size=1, max_size=5)) if flat else [draw(st.integers(1, 4))] * 3
    bounds = np.cumsum([0, *lengths]).astype(id_dtype)
    ids = np.random.default_rng(draw(st.integers(0, 99))).integers(0, rows, bounds[-1]).astype(id_dtype)
    weighted = mode == "sum" and draw(st.booleans())
    options = {
        "mode": mode,
        "padding_idx": draw(st.sampled_from([None, 0, -1, rows - 1])),
        "max_norm": draw(st.sampled_from([None, None, 1.0])),
        "norm_type": draw(st.sampled_from([2.0, 1.0])),
    }
    offsets = None
    if flat:
        options["include_last_offset"] = draw(st.booleans())
        offsets = bounds if options["include_last_offset"] else bounds[:-1]
    else:
        ids = ids.reshape(3, -1)
    table = RANDOM.standard_normal((rows, dim)).astype(dtype)
    weights = RANDOM.standard_normal(ids.shape).astype(dtype) if weighted else None
    ct = RANDOM.standard_normal((len(lengths), dim)).astype(dtype)

    their_table = torch.from_numpy(table.copy())
    renormed = options["max_norm"] is not None
    if renormed:  # torch renormalises a leaf only where it needs no gradient
        functional.embedding_bag(
            torch.from_numpy(ids), their_table, None if offsets is None else torch.from_numpy(offsets), **options
        )
    rest = {name: value for name, value in options.items() if name not in ("max_norm", "norm_type")}
    their_table.requires_grad_()
    their_weights = torch.from_numpy(weights).requires_grad_() if weighted else None
    expected = functional.embedding_bag(
        torch.from_numpy(ids), their_table, None if offsets is None else torch.from_numpy(offsets),
        per_sample_weights=their_weights, **rest,
    )  # fmt: skip
    (expected * torch.from_numpy(ct)).sum().backward()

    ours = ab.EmbeddingTable(table)
    tolerance = {"rtol": DTYPES[dtype], "atol": DTYPES[dtype]}
    out = ab.embedding_bag(ids, ours, offsets, per_sample_weights=weights, **options)
    assert out.dtype == dtype
    np.testing.assert_allclose(out, expected.detach().numpy(), **tolerance)
    np.testing.assert_allclose(table, their_table.detach().numpy(), **tolerance)

    def loss(table, weights):
        return (ab.embedding_bag(ids, table, offsets, per_sample_weights=weights, **options) * ct).sum()

    by_table = ab.grad(loss)(ours, weights)
    np.testing.assert_allclose(by_table.to_dense(), their_table.grad.numpy(), **tolerance)
    if weighted:
        by_weights = ab.grad(loss, 1)(table, weights)
        np.testing.assert_allclose(by_weights, their_weights.grad.numpy(), **tolerance)


@pytest.mark.parametrize(
    ("ours", "theirs"),
    [
        (ab.optim.SGD(0.1), lambda p: torch.optim.SGD(p, 0.1)),
        (ab.optim.SGD(0.1, momentum=0.9, nesterov=True), lambda p: torch.optim.SGD(p, 0.1, 0.9, nesterov=True)),
        (ab.optim.SGD(0.1, weight_decay=0.1), lambda p: torch.optim.SGD(p, 0.1, weight_decay=0.1)),
        (ab.optim.Adagrad(0.1, weight_decay=0.1), lambda p: torch.optim.Adagrad(p, 0.1, weight_decay=0.1)),
        (ab.optim.Adam(0.1), lambda p: torch.optim.Adam(p, 0.1)),
        (ab.optim.AdamW(0.1), lambda p: torch.optim.AdamW(p, 0.1)),
        (ab.optim.RMSProp(0.1), lambda p: torch.optim.RMSprop(p, 0.1)),
        (
            ab.optim.RMSProp(0.1, momentum=0.9, centered=True),
            lambda p: torch.optim.RMSprop(p, 0.1, momentum=0.9, centered=True),
        ),
    ],
)
@pytest.mark.parametrize("as_table", [False, True])
def test_dense_optimisers(ours, theirs, as_table):
    """A dense gradient moves every row, of an array and of a table."""
    start = RANDOM.standard_normal((5, 3))
    params = ab.EmbeddingTable(start.copy()) if as_table else start.copy()
    weight = torch.nn.Parameter(torch.tensor(start))
    state, other = ours.init(params), theirs([weight])
    for _ in range(4):
        grad = RANDOM.standard_normal((5, 3))
        params, state = ours.update(params, grad, state)
        weight.grad = torch.tensor(grad)
        other.step()
    np.testing.assert_allclose(np.asarray(params), weight.detach().numpy(), rtol=1e-9)


@pytest.mark.parametrize(
    ("ours", "theirs"),
    [
        (ab.optim.SGD(0.1), lambda p: torch.optim.SGD(p, 0.1)),
        (ab.optim.Adagrad(0.1), lambda p: torch.optim.Adagrad(p, 0.1)),
        (ab.optim.Adam(0.1, eps=1e-20), lambda p: torch.optim.SparseAdam(p, 0.1, eps=1e-20)),
    ],
)
@pytest.mark.parametrize("mode", ["sum", "mean"])
def test_s0_19_s3_23_sparse_optimisers_after_a_bag(ours, theirs, mode):
    """Bags, their sparse gradients and the optimiser's step, three times."""
    start, ids, offsets = problem(rows=9)
    module = torch.nn.EmbeddingBag.from_pretrained(
        torch.tensor(start), freeze=False, mode=mode, sparse=True, include_last_offset=True
    )
    other = theirs(module.parameters())
    table = ab.EmbeddingTable(start.copy())
    state = ours.init(table)
    for _ in range(3):
        ct = RANDOM.standard_normal((5, 5))
        other.zero_grad()
        (module(torch.from_numpy(ids), torch.from_numpy(offsets)) * torch.from_numpy(ct)).sum().backward()
        other.step()

        def loss(table, ct=ct):
            return (ab.embedding_bag(ids, table, offsets, mode=mode, include_last_offset=True, sparse=True) * ct).sum()

        _, state = ours.update(table, ab.grad(loss)(table), state)
    np.testing.assert_allclose(table, module.weight.detach().numpy(), rtol=1e-8, atol=1e-12)
