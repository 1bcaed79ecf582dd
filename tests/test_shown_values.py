"""What a prompt or a notebook shows: few rows of an array, examples without padding, short types, public names."""

import inspect

import numpy as np
import pytest

import autobatch as ab

CALLABLES = [
    *(getattr(ab.segments, name) for name in ab.segments.__all__),
    *(getattr(ab.nn, name) for name in ab.nn.__all__ if callable(getattr(ab.nn, name))),
    ab.embedding_bag, ab.lookup, ab.MaskedBatch, ab.PackedBatch, ab.MaskedBatch.from_examples, ab.EmbeddingVariable,
]  # fmt: skip


@pytest.mark.parametrize(
    ("layer", "shown"),
    [
        (ab.nn.Linear(4, 3), "Linear(4, 3)"),
        (ab.nn.Linear(4, 3, bias=False), "Linear(4, 3, bias=False)"),
        (ab.nn.Embedding(5, 2), "Embedding(5, 2)"),
        (ab.nn.LayerNorm(4), "LayerNorm(4)"),
        (ab.nn.Dropout(0.25), "Dropout(0.25)"),
        (ab.nn.Conv1d(2, 3, 5), "Conv1d(2, 3, 5)"),
        (ab.nn.Conv2d(2, 3, (5, 4)), "Conv2d(2, 3, (5, 4))"),
        (ab.nn.MultiHeadAttention(8, 2), "MultiHeadAttention(8, 2)"),
        (ab.nn.LSTM(3, 4), "LSTM(3, 4)"),
        (ab.nn.GRU(3, 5), "GRU(3, 5)"),
    ],
    ids=str,
)
def test_layers(layer, shown):
    assert repr(layer) == shown
    assert repr([layer, layer]) == f"[{shown}, {shown}]"


def test_few_rows_of_tables_and_gradients():
    assert repr(ab.EmbeddingTable(np.ones((300, 4)))).count("[1., 1., 1., 1.]") == 6
    sparse = repr(ab.SparseRows(np.arange(50), np.ones((50, 2)), 60))
    assert sparse.count("[1., 1.]") == 6
    assert "num_rows=60" in sparse
    assert repr(ab.SparseRows([3, 1], np.ones((2, 1)), 4)) == (
        "SparseRows(ids=[3, 1], rows=array([[1.],\n       [1.]]), num_rows=4)"
    )


def test_few_rows_of_an_optimisers_state():
    """It stays an ordinary dict: what is saved has no class of the library."""
    params = {"w": np.ones((200, 50)), "k": np.ones((30, 20, 10)), "layers": [ab.nn.Linear(30, 20)]}
    opt = ab.optim.Adam(0.1)
    state = opt.init(params)
    _, after = opt.update(
        params, {"w": np.ones((200, 50)), "k": None, "layers": [{"weight": None, "bias": None}]}, state
    )
    for each in (state, after):
        assert isinstance(each, dict)
        assert each["mean"]["w"].shape == (200, 50)
        text = repr(each)
        assert len(text) < 4000
        assert text.count("...,\n") > 2
        assert max(map(len, text.splitlines())) < 90  # deep trees indent further
    assert repr(opt.init({"w": np.zeros(2)})) == (
        "{'step': 0, 'mean': {'w': array([0., 0.])}, 'square': {'w': array([0., 0.])}}"
    )


def test_a_saved_state_is_a_plain_dict(tmp_path):
    state = ab.optim.Adam(0.1).init({"w": np.ones(2)})
    ab.save(tmp_path / "state", state)
    assert type(ab.load(tmp_path / "state")) is dict


def test_few_rows_of_what_is_restored(tmp_path):
    checkpoints = ab.Checkpoints(tmp_path)
    checkpoints.save(3, {"w": np.ones((300, 4))}, ab.optim.Adam(0.1).init({"w": np.ones((300, 4))}))
    restored = checkpoints.restore()
    text = repr(restored)
    assert text.count("[1., 1., 1., 1.]") == 6
    assert text.count("[0., 0., 0., 0.]") == 12
    assert text.startswith("Restored(params={")
    assert text.endswith(", step=3)")
    assert restored.params["w"].shape == (300, 4)


def test_mini_batches_say_how_many():
    assert repr(ab.minibatches(np.zeros((50, 3)), 8)) == "<7 mini-batches of 50 examples>"


def test_padding_is_never_shown():
    rows = [[1.5, 2.5, 3.5], [4.5]]
    masked = ab.MaskedBatch.from_examples(rows)
    np.asarray(masked.data)[1, 1:] = 77
    for batch in (masked, ab.PackedBatch.from_examples(rows)):
        assert "examples=[[1.5 2.5 3.5], [4.5]]" in repr(batch)
        assert "77" not in repr(batch)


def test_packed_batches_print_examples():
    packed = ab.PackedBatch.from_examples([[1, 2], [], [3, 4, 5]])
    assert repr(packed) == "PackedBatch(batch_size=3, of=int64, lengths=[2 0 3], examples=[[1 2], [], [3 4 5]])"
    nested = repr(ab.PackedBatch(packed, [0, 2, 3]))
    assert nested.startswith(
        "PackedBatch(batch_size=2, of=lists,\n  lengths=[2 1],\n  examples=[\n    [array([1, 2]), "
    )
    long = repr(ab.PackedBatch.from_examples([np.arange(1000)] * 50))
    assert len(long) < 300
    assert long.endswith(",\n    ...])")


@pytest.mark.parametrize("cls", [ab.MaskedBatch, ab.PackedBatch])
@pytest.mark.parametrize("shape", [(30,), (8,), (16,), (100,), (2, 30)])
@pytest.mark.parametrize("dtype", [np.float64, np.float32, np.complex64, np.int64])
def test_batches_are_shown_in_eighty_columns(cls, shape, dtype):
    xs = [(np.arange(n * np.prod(shape)) * 123_456.789).astype(dtype).reshape(n, *shape) for n in (3, 0, 1, 200, 5)]
    shown = repr(cls.from_examples(xs)).splitlines()
    assert max(map(len, shown)) <= 80
    assert shown[2] == "  examples=["


@pytest.mark.parametrize("function", CALLABLES, ids=lambda each: getattr(each, "__name__", str(each)))
def test_signatures_have_short_types(function):
    text = str(inspect.signature(function))
    assert "_NestedSequence" not in text
    assert "SupportsArray" not in text
    assert "ArrayLike" in text or "ArrayLike" not in inspect.getsource(function).partition(":\n")[0]


def test_public_names_complete():
    masked, packed = (
        ab.MaskedBatch.from_examples([[1.0], [2.0, 3.0]]),
        ab.PackedBatch.from_examples([[1.0], [2.0, 3.0]]),
    )
    for batch in (masked, packed):
        names = {name for name in dir(batch) if name[0] != "_"}
        assert {"batch_size", "examples", "example", "lengths", "sum", "shape"} <= names
        assert not names & {"guard_data", "unguarded", "in_region", "of", "of_data", "pending", "region", "sizes"}
        assert all(inspect.getattr_static(batch, name, None) is not None for name in names)
    assert "mask" in dir(masked)
    assert "offsets" in dir(packed)


def test_public_names_of_a_sparse_gradient_complete():
    names = {name for name in dir(ab.SparseRows([0], np.ones((1, 2)), 3)) if name[0] != "_"}
    assert {"ids", "rows", "num_rows", "where", "coalesce", "add_to", "to_dense"} <= names
    assert not names & {"boxed", "checked_ids", "gathered", "map_arrays", "pieces", "spread", "trusted"}


OWN_NAMES = {  # what only the library uses
    "a table of keys": (ab.EmbeddingVariable(2), {"keys", "insert", "step"}, {"blocks", "locks", "mark", "slot_array"}),
    "a table": (ab.EmbeddingTable(np.ones((2, 2))), {"weights", "read", "sum"}, set()),
    "an optimiser": (ab.optim.Adam(0.1), {"init", "update", "lr", "betas"}, {"slots", "by_row"}),
    "a vocabulary": (ab.Vocabulary(["a"]), {"strings", "find", "grow"}, {"arrays", "from_arrays"}),
    "an LSTM": (ab.nn.LSTM(2, 3), {"w", "u", "b"}, {"gates", "start_biases"}),
    "a convolution": (ab.nn.Conv1d(2, 3, 3), {"weight", "bias"}, {"beside"}),
    "initialisers": (ab.nn.init, {"normal", "zeros"}, {"np", "math", "Any", "normal_rows"}),
    "admissions": (ab.tables.admission, {"count", "bloom"}, {"np", "kernels", "KeyIndex"}),
    "strategies": (ab.tables.strategies, {"Default", "SimpleParallel"}, {"dataclasses", "ShapeError"}),
}


@pytest.mark.parametrize(("owner", "public", "own"), OWN_NAMES.values(), ids=OWN_NAMES)
def test_the_librarys_own_names_do_not_complete(owner, public, own):
    assert public <= set(dir(owner))
    assert not own & set(dir(owner))
    assert all(hasattr(owner, name) for name in own)


def test_the_report_of_equivalence():
    report = ab.testing.assert_equivalent(lambda x: x.sum(), [np.ones(2), np.ones(3)])
    lines = repr(report).splitlines()
    assert lines[0].startswith("2 examples (0 raise)")
    assert "  ab.map: equal" in lines
    assert max(map(len, lines)) <= 80
    html = report._repr_html_()
    assert html.count("<tr>") == len(lines)
    assert "ab.map</td>" in html


@pytest.mark.parametrize("function", [bool, int, float, complex, range])
def test_a_batch_that_is_asked_for_one_value_shows_the_users_line_only(function):
    with pytest.raises(TypeError, match=r"write ab\.mean\(batch\)") as caught:
        function(ab.collate([[1.0], [2.0, 3.0]]))
    assert len(caught.traceback) == 1


@pytest.mark.parametrize("wrong", [list, len, max])
@pytest.mark.parametrize("form", [ab.MaskedBatch, ab.PackedBatch])
def test_a_batch_as_a_sequence_shows_the_users_line_only(form, wrong):
    batch = form.from_examples([[1.0], [2.0, 3.0]])
    with pytest.raises(TypeError, match=r"\.examples\(\)|\.batch_size") as caught:
        wrong(batch)
    assert len(caught.traceback) == 1
