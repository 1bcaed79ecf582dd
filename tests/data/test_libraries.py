"""Data of other libraries in and out, with the real libraries: values, dtypes, missing values, and no copies."""

import datetime
import importlib
import subprocess
import sys
import warnings

import numpy as np
import pytest

import autobatch as ab
from autobatch.errors import DTypeError, ShapeError, UnsupportedError
from tests.law import assert_same

LISTS = [[1, 2], [], [3, 4, 5]]
ARRAYS = [np.array(x, np.int64) for x in LISTS]


def plain(x):
    """Arrays and NumPy's scalars as Python's."""
    if isinstance(x, np.ndarray | np.generic):
        return x.tolist()
    if isinstance(x, dict):
        return {key: plain(value) for key, value in x.items()}
    return type(x)(map(plain, x)) if type(x) in (list, tuple) else x


def examples(data, **options):
    return plain(ab.examples(ab.collate(data, **options)))


def random_value(rng, kind, missing):
    """A value of a nested type: "number", "text", ["of", kind] for lists, {"name": kind} for records."""
    if missing and rng.random() < 0.15:
        return None
    if kind == "number":
        return int(rng.integers(-5, 100))
    if kind == "text":
        return "".join(rng.choice(list("abcdé "), rng.integers(0, 20)))
    if isinstance(kind, dict):
        return {name: random_value(rng, each, missing) for name, each in kind.items()}
    return [random_value(rng, kind[0], missing) for _ in range(rng.integers(0, 4))]


KINDS = [
    ["number"],
    [["number"]],
    [[["number"]]],
    "number",
    "text",
    ["text"],
    {"a": "number", "b": ["number"], "c": "text"},
    {"a": {"b": ["number"]}, "c": [["number"]]},
]


@pytest.mark.parametrize("kind", KINDS, ids=str)
@pytest.mark.parametrize("seed", range(5))
def test_arrow_awkward_and_polars_give_what_they_hold(kind, seed):
    pa, ak, pl = (pytest.importorskip(name) for name in ("pyarrow", "awkward", "polars"))
    rng = np.random.default_rng(seed)
    values = [random_value(rng, kind, False) for _ in range(12)]
    values.append({"a": 1, "b": [1], "c": "é" * 13} if kind == KINDS[6] else random_value(rng, kind, False))
    whole = pa.array([*values, *values])
    start, stop = sorted(rng.integers(0, 13, 2))
    cut = pa.chunked_array([whole[:start], whole[start:stop], whole[stop:13]])
    arrow = whole.type
    assert examples(whole[start:stop]) == values[start:stop] if stop > start else True
    assert examples(cut) == values
    assert examples(ak.Array(values)) == values
    assert examples(ak.Array(values)[::-1]) == values[::-1]
    assert examples(pl.from_arrow(whole)[:13]) == values
    assert examples(pa.table({"x": cut})) == [{"x": value} for value in values]
    if pa.types.is_list(arrow):
        large = whole.cast(pa.large_list(arrow.value_type))
        starts, lengths = whole.offsets[:-1], whole.value_lengths()
        view = pa.ListViewArray.from_arrays(starts[::-1], lengths[::-1], whole.values)
        assert examples(large[3:9]) == whole[3:9].to_pylist()
        assert examples(view[3:9]) == whole.to_pylist()[::-1][3:9]


@pytest.mark.parametrize("kind", KINDS[:4], ids=str)
def test_missing_values_are_dropped_or_stood_for_alike(kind):
    pa, ak = (pytest.importorskip(name) for name in ("pyarrow", "awkward"))
    rng = np.random.default_rng(3)
    values = [random_value(rng, kind, True) for _ in range(40)]

    def dropped(x):
        return [dropped(y) for y in x if y is not None] if isinstance(x, list) else x

    def filled(x, depth):
        if x is None:
            return -7 if depth == 0 else []
        return [filled(y, depth - 1) for y in x] if isinstance(x, list) else x

    depth = str(kind).count("[")
    for data in (pa.array(values), pa.chunked_array([values[:7], values[7:]]), ak.Array(values), values):
        assert examples(data, nulls="drop") == dropped(values)
        assert examples(data, nulls=-7) == [filled(x, depth) for x in values]
        with pytest.raises(ShapeError, match=r"example \d+ has a missing .*nulls='drop'"):
            ab.collate(data)


def test_lists_of_a_part_of_an_array_with_missing_values():
    pa = pytest.importorskip("pyarrow")
    part = pa.array([9, 9, 9, 1, None, 3, 4, None, None, 7])[3:]  # the lists start behind the part's own start
    assert examples(pa.ListArray.from_arrays([1, 3, 3, 7], part), nulls=-7) == [[-7, 3], [], [4, -7, -7, 7]]
    assert examples(pa.ListArray.from_arrays([1, 3, 3, 7], part)[1:], nulls="drop") == [[], [4, 7]]


def test_the_message_names_the_example():
    pa, ak = (pytest.importorskip(name) for name in ("pyarrow", "awkward"))
    data = [[[1], [2]], [[3]], [[4], [5, None]]]
    for each in (pa.array(data), pa.chunked_array([pa.array(data[:2]), pa.array(data[2:])]), ak.Array(data), data):
        with pytest.raises(ShapeError, match="example 2 has a missing"):
            ab.collate(each)
    view = pa.ListViewArray.from_arrays([2, 0, 1], [1, 1, 1], pa.array([7, None, 9]))
    with pytest.raises(ShapeError, match="example 2 has a missing number"):
        ab.collate(view)


def test_empty_lists_point_anywhere():
    pa = pytest.importorskip("pyarrow")
    for starts, items in (([0, 0], []), ([1, 0], [7.0])):
        view = pa.ListViewArray.from_arrays(starts, [0, 0], pa.array(items, pa.float64()))
        assert [each.tolist() for each in ab.collate(view).examples()] == [[], []]


def test_a_missing_list_may_point_at_items():
    pa = pytest.importorskip("pyarrow")
    data = pa.ListArray.from_arrays(pa.array([0, 2, 3]), pa.array([1, 2, 3]), mask=pa.array([True, False]))
    assert examples(data, nulls=0) == [[], [3]]
    assert examples(data, nulls="drop") == [[3]]


def arrow_types():
    pa = pytest.importorskip("pyarrow")
    day = datetime.date(2020, 2, 3)
    at = datetime.datetime(2020, 2, 3, 4, 5, 6)
    return [
        (pa.array([1, 2], pa.int8()), np.array([1, 2], np.int8)),
        (pa.array([1, 2], pa.uint64()), np.array([1, 2], np.uint64)),
        (pa.array(np.array([1, 2], np.float16)), np.array([1, 2], np.float16)),
        (pa.array([1.5, 2], pa.float32()), np.array([1.5, 2], np.float32)),
        (pa.array([True] * 9 + [False])[5:], np.array([True] * 4 + [False])),
        (pa.array([day]), np.array([day], "M8[D]")),
        (pa.array([day], pa.date64()), np.array([day], "M8[ms]")),
        (pa.array([at], pa.timestamp("us", "UTC")), np.array([at], "M8[us]")),
        (pa.array([5], pa.int32()).cast(pa.time32("s")), np.array([5], "m8[s]")),
        (pa.array([5]).cast(pa.time64("ns")), np.array([5], "m8[ns]")),
        (pa.array([5]).cast(pa.duration("ms")), np.array([5], "m8[ms]")),
        (pa.array([5, 6, 5, 7]).dictionary_encode()[1:], np.array([6, 5, 7])),
        (pa.array([[1, 2], [3, 4], [5, 6]], pa.list_(pa.int64(), 2))[1:], np.array([[3, 4], [5, 6]])),
    ]


@pytest.mark.parametrize("place", range(13))
def test_arrow_types_are_numpys(place):
    data, expected = arrow_types()[place]
    found = ab.collate(data).data
    assert found.dtype == expected.dtype
    assert (found == expected).all()


def test_other_arrow_types():
    pa = pytest.importorskip("pyarrow")
    assert examples(pa.array(["ab", "c" * 20, "é" * 7, ""], pa.string_view())[1:]) == ["c" * 20, "é" * 7, ""]
    assert examples(pa.array([b"ab", b""])) == [b"ab", b""]
    assert examples(pa.array(["x", "y", "x"]).dictionary_encode()[1:]) == ["y", "x"]
    pairs = pa.array([[(1, 2.0)], [(3, 4.0), (5, 6.0)]], pa.map_(pa.int64(), pa.float64()))
    assert examples(pairs) == [{"key": [1], "value": [2.0]}, {"key": [3, 5], "value": [4.0, 6.0]}]
    assert examples(pa.array([[[1, 2]], [], [[3, 4], [5, 6]]], pa.list_(pa.list_(pa.int64(), 2)))[1:]) == [
        [],
        [[3, 4], [5, 6]],
    ]
    pairs = pa.array([["a", "b"], ["c", "dd"], ["e", "f"]], pa.list_(pa.string(), 2))
    assert examples(pairs) == [["a", "b"], ["c", "dd"], ["e", "f"]]
    assert examples(pairs[1:]) == [["c", "dd"], ["e", "f"]]
    assert examples(pa.chunked_array([], pa.list_(pa.float32()))) == []
    assert ab.collate(pa.chunked_array([], pa.list_(pa.float32()))).dtype == np.float32
    tensors = np.arange(12).reshape(3, 2, 2)
    assert examples(pa.FixedShapeTensorArray.from_numpy_ndarray(tensors)[1:]) == tensors[1:].tolist()
    with pytest.raises(UnsupportedError, match=r"order \[1, 0\].*storage"):
        ab.collate(pa.FixedShapeTensorArray.from_numpy_ndarray(tensors.transpose(0, 2, 1)))
    assert examples(pa.array([None, None]), nulls="drop") == []
    with pytest.raises(UnsupportedError, match=r"Arrow's type decimal128.*cast it"):
        ab.collate(pa.array([1]).cast(pa.decimal128(30, 2)))
    with pytest.raises(UnsupportedError, match="two columns are named 'a'"):
        ab.collate(pa.table([[1], [2]], ["a", "a"]))


def address(array):
    return array.__array_interface__["data"][0]


def test_numbers_are_not_copied():
    pa, ak = (pytest.importorskip(name) for name in ("pyarrow", "awkward"))
    data = pa.array(LISTS, pa.large_list(pa.int64()))
    assert address(ab.collate(data).values) == data.values.buffers()[1].address
    assert address(ab.collate(data[2:]).values) == data.values.buffers()[1].address + 16
    layout = ak.Array(LISTS).layout
    assert address(ab.collate(ak.Array(layout)).values) == address(np.asarray(layout.content.data))


def test_memory_lives_as_long_as_the_batch():
    pa = pytest.importorskip("pyarrow")
    before = pa.total_allocated_bytes()
    batch = ab.collate(pa.array(np.arange(100_000)))
    assert batch.data.sum() == sum(range(100_000))
    assert pa.total_allocated_bytes() >= before
    records = ab.collate(pa.table({"x": pa.array([list(range(1000))] * 100), "y": pa.array(np.arange(100))}))
    held = records["x"].values
    del batch, records
    assert held.sum() == 100 * sum(range(1000))
    del held
    assert pa.total_allocated_bytes() <= before


def test_frames():
    pd, pl, nw = (pytest.importorskip(name) for name in ("pandas", "polars", "narwhals"))
    columns = {"words": LISTS, "label": [0.5, 1.5, 2.5], "name": ["a", "b", "c"]}
    rows = [dict(zip(columns, row, strict=True)) for row in zip(*columns.values(), strict=True)]
    for frame in (pd.DataFrame(columns), pl.DataFrame(columns), nw.from_native(pl.DataFrame(columns))):
        assert examples(frame) == rows
    with pytest.raises(UnsupportedError, match=r"write \.collect\(\) first"):
        ab.collate(pl.DataFrame(columns).lazy())


def test_pandas_columns():
    pd, pa = (pytest.importorskip(name) for name in ("pandas", "pyarrow"))
    assert examples(pd.Series([1.0, np.nan]))[0] == 1.0  # NaN is a number
    assert examples(pd.Series([1, 2], index=[7, 8])) == [1, 2]
    assert examples(pd.Series([1, None], dtype="Int64"), nulls=-1) == [1, -1]
    assert_same(ab.collate(pd.Series([1, 2], dtype="Int32")).data, np.array([1, 2], np.int32))
    assert examples(pd.Series(LISTS, dtype=pd.ArrowDtype(pa.list_(pa.int64())))) == LISTS
    assert examples(pd.Series(["a", "b", "a"], dtype="category")) == ["a", "b", "a"]
    assert examples(pd.DataFrame({"x": pd.Series([0, 0, 3], dtype="Sparse[int]")})) == [{"x": 0}, {"x": 0}, {"x": 3}]
    items = pd.DataFrame({"user": [1, 1, 2], "item": [5, 6, 7]})
    assert examples(items.groupby("user")["item"]) == [(1, [5, 6]), (2, [7])]
    assert examples(items.groupby("user")[["item"]].agg(list)) == [{"item": [5, 6]}, {"item": [7]}]
    assert ab.collate(pd.to_datetime(pd.Series(["2020-01-01"]))).data == np.datetime64("2020-01-01")
    for series in (pd.Series([[1], None]), pd.Series([[1], np.nan]), pd.Series(["a", None])):
        with pytest.raises(ShapeError, match="example 1 has a missing"):
            ab.collate(series)
    with pytest.raises(UnsupportedError, match="two columns have one name"):
        ab.collate(pd.DataFrame([[1, 2]], columns=["a", "a"]))


def test_results_go_back_into_a_frame():
    pd = pytest.importorskip("pandas")
    frame = pd.DataFrame({"words": [[1.0, 2.0], [3.0]]})
    total = ab.batch(lambda words: words.sum())
    frame = frame.assign(total=ab.examples(total(ab.collate(frame["words"]))))
    assert frame["total"].tolist() == [3.0, 3.0]


def test_awkward_layouts():
    ak = pytest.importorskip("awkward")
    assert examples(ak.Array([(1, 2.5), (3, 4.5)])) == [(1, 2.5), (3, 4.5)]
    assert examples(ak.to_regular(ak.Array([[1, 2], [3, 4]]))) == [[1, 2], [3, 4]]
    assert examples(ak.Array(LISTS)[[2, 0]]) == [LISTS[2], LISTS[0]]
    assert examples(ak.mask(ak.Array([1, 2, 3]), [True, False, True]), nulls="drop") == [1, 3]
    assert examples(ak.Array([None, None]), nulls="drop") == []
    assert examples(ak.Array([{"a": 1}, None, {"a": 2}]), nulls="drop") == [{"a": 1}, {"a": 2}]
    jets = ak.Array([[{"pt": 1.0, "hits": [1, 2]}], [], [{"pt": 2.0, "hits": []}, {"pt": 3.0, "hits": [3]}]])
    assert examples(jets) == [
        {"pt": [1.0], "hits": [[1, 2]]},
        {"pt": [], "hits": []},
        {"pt": [2.0, 3.0], "hits": [[], [3]]},
    ]
    with pytest.raises(UnsupportedError, match="UnionArray"):
        ab.collate(ak.Array([1, "a"]))
    with pytest.raises(UnsupportedError, match="single awkward record; expected an array of records"):
        ab.collate(ak.Record({"a": 1}))


def test_sparse_matrices_are_ids_and_entries():
    sparse = pytest.importorskip("scipy.sparse")
    matrix = np.array([[0, 1.5, 0], [0, 0, 0], [2, 0, 3]])
    for form in (sparse.csr_matrix, sparse.csr_array, sparse.coo_array, sparse.csc_matrix):
        ids, entries = ab.collate(form(matrix))
        assert plain(ids.examples()) == [[1], [], [0, 2]]
        assert plain(entries.examples()) == [[1.5], [], [2.0, 3.0]]
        assert ids.offsets is entries.offsets
        assert plain(ab.PackedBatch.from_sparse(form(matrix), weights=True)[0].examples()) == plain(ids.examples())


def test_tensors_of_torch():
    torch = pytest.importorskip("torch")
    whole = torch.arange(6.0).reshape(2, 3)
    assert address(ab.collate(whole).data) == whole.data_ptr()
    jagged = torch.nested.nested_tensor([torch.arange(2), torch.arange(3)], layout=torch.jagged)
    assert address(ab.collate(jagged).values) == jagged.values().data_ptr()
    assert examples(jagged) == examples([torch.arange(2), torch.arange(3)]) == [[0, 1], [0, 1, 2]]
    holes = torch.nested.narrow(
        torch.arange(8.0).reshape(2, 4), 1, torch.tensor([0, 1]), torch.tensor([2, 3]), layout=torch.jagged
    )
    assert examples(holes) == [[0.0, 1.0], [5.0, 6.0, 7.0]]
    for data in (torch.ones(2, requires_grad=True), [torch.ones(2, requires_grad=True)]):
        with pytest.raises(DTypeError, match=r"write \.detach\(\)"):
            ab.collate(data)
    with pytest.raises(DTypeError, match="bfloat16"):
        ab.collate(torch.ones(2, dtype=torch.bfloat16))
    with pytest.raises(ShapeError, match="without dimensions"):
        ab.collate(torch.tensor(1.0))
    conjugate = torch.tensor([1 + 2j, 3j]).conj()
    for data in (conjugate, conjugate.imag, list(conjugate)):
        assert examples(data) == [x.item() for x in data]
    sparse = torch.tensor([[0, 1.5], [0, 0], [2.0, 3]])
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # torch says that CSR is in beta
        forms = sparse.to_sparse(), sparse.to_sparse_csr()
    for matrix in forms:
        assert examples(matrix) == [([1], [1.5]), ([], []), ([0, 1], [2.0, 3.0])]


def test_arrays_of_jax():
    jnp = pytest.importorskip("jax.numpy")
    assert_same(
        ab.collate(jnp.arange(6, dtype=jnp.int32).reshape(2, 3)).data, np.arange(6, dtype=np.int32).reshape(2, 3)
    )
    assert examples([jnp.arange(2), jnp.arange(3)]) == [[0, 1], [0, 1, 2]]
    with pytest.raises(DTypeError, match="bfloat16"):
        ab.collate(jnp.ones(2, jnp.bfloat16))


def test_hugging_face_datasets():
    datasets = pytest.importorskip("datasets")
    rows = [
        {"ids": [1, 2], "y": 0.5, "text": "a"},
        {"ids": [], "y": 1.0, "text": "bc"},
        {"ids": [4], "y": 2.0, "text": ""},
    ]
    data = datasets.Dataset.from_list(rows)
    assert examples(data) == rows
    assert examples(data.select([2, 0])) == [rows[2], rows[0]]
    assert examples(data.with_format("torch" if "torch" in sys.modules else "numpy")) == rows
    assert examples(data.with_format("numpy", columns=["y"])) == [{"y": row["y"]} for row in rows]
    assert examples(data.with_format("numpy", columns=["y"], output_all_columns=True)[:]) == examples(data)
    sums = data.with_transform(lambda part: {"sum": list(map(sum, part["ids"]))})
    assert examples(sums) == [{"sum": 3}, {"sum": 0}, {"sum": 4}]
    assert examples(data["ids"]) == [row["ids"] for row in rows]
    assert examples(data.to_iterable_dataset()) == rows
    assert plain(ab.Examples(data)[[2, 1]].batch["ids"].examples()) == [[4], []]
    assert [batch["ids"].batch_size for batch in ab.minibatches(data, 2)] == [2, 1]
    assert ab.map(lambda row: row["y"] * 2, data) == [1.0, 2.0, 4.0]
    with pytest.raises(UnsupportedError, match=r"several splits; pass one of them: data\['train'\]"):
        ab.collate(datasets.DatasetDict({"train": data}))


@pytest.mark.parametrize("library", ["pandas", "polars"])
def test_results_are_a_new_column(library):
    frames = pytest.importorskip(library)
    pytest.importorskip("pyarrow")
    df = frames.DataFrame({"ids": LISTS, "y": [0.5, 1.0, 2.0]})
    f = ab.batch(lambda ids, y: ids.sum() * y)
    columns = ab.collate(df)
    found = ab.examples(f(columns["ids"], columns["y"]))
    new = df.assign(s=found) if library == "pandas" else df.with_columns(frames.Series("s", found))
    assert new["s"].to_list() == [sum(ids) * y for ids, y in zip(LISTS, [0.5, 1.0, 2.0], strict=True)]
    rows = ab.examples(ab.batch(lambda ids: ids * 2)(columns["ids"]))
    new = df.assign(s=rows) if library == "pandas" else df.with_columns(s=frames.Series([x.tolist() for x in rows]))
    assert [list(x) for x in new["s"]] == [[2 * i for i in ids] for ids in LISTS]


# Out again.

BATCHES = {
    "ragged": lambda: ab.PackedBatch.from_examples(ARRAYS),
    "padded": lambda: ab.MaskedBatch.from_examples(ARRAYS),
    "rows": lambda: ab.PackedBatch.from_examples([np.ones((2, 3), np.float32), np.zeros((1, 3), np.float32)]),
    "nested": lambda: ab.PackedBatch.from_examples([[[1, 2], [3]], [], [[4]]], depth=2),
    "numbers": lambda: ab.collate(np.array([1.5, 2.5])),
    "stack": lambda: ab.collate(np.arange(12).reshape(2, 3, 2)),
    "none": lambda: ab.PackedBatch(np.zeros(0), [0]),
    "empty": lambda: ab.PackedBatch(np.zeros(0, np.int32), [0, 0]),
}


@pytest.mark.parametrize("shape", [(3, 0), (2, 3, 0), (2, 0, 3), (2, 0, 0), (0, 3)])
@pytest.mark.parametrize("form", ["arrow", "polars"])
def test_arrays_without_elements_keep_their_number(form, shape):
    pytest.importorskip("polars")
    pytest.importorskip("pyarrow")
    batch = ab.MaskedBatch(np.zeros(shape, np.float32))
    found = getattr(batch, f"to_{form}")()
    assert (found.to_pylist() if form == "arrow" else found.to_list()) == batch.data.tolist()


@pytest.mark.parametrize("form", ["arrow", "awkward", "polars", "torch", "pandas"])
@pytest.mark.parametrize("name", BATCHES)
def test_round_trips(name, form):
    pytest.importorskip({"arrow": "pyarrow", "polars": "polars"}.get(form, form))
    batch = BATCHES[name]()
    if form == "torch" and name == "nested":
        with pytest.raises(UnsupportedError, match=r"\.values\.to_torch\(\)"):
            batch.to_torch()
        return
    if (form, name) in {("pandas", "none"), ("torch", "none"), ("pandas", "empty")}:
        return  # neither says what has no element
    back = ab.collate(getattr(batch, f"to_{form}")())
    assert_same(back.examples(), batch.examples())


def test_strings_go_out_too():
    pytest.importorskip("pyarrow")
    names = ab.collate({"name": ["a", "bc"]})["name"]
    assert names.to_arrow().to_pylist() == ["a", "bc"]
    pytest.importorskip("awkward")
    assert names.to_awkward().to_list() == ["a", "bc"]
    pytest.importorskip("pandas")
    assert names.to_pandas().tolist() == ["a", "bc"]


def test_strings_have_no_tensor():
    pytest.importorskip("torch")
    with pytest.raises(UnsupportedError, match="have no tensor"):
        ab.collate({"name": ["a", "bc"]})["name"].to_torch()


def test_what_is_out_shares_memory():
    batch = BATCHES["ragged"]()
    assert np.shares_memory(np.from_dlpack(batch), batch.values)
    pytest.importorskip("pyarrow")
    assert batch.to_arrow().values.buffers()[1].address == address(batch.values)
    pytest.importorskip("torch")
    assert batch.to_torch().values().data_ptr() == address(batch.values)


def test_no_form_shows_padding():
    pytest.importorskip("pyarrow")
    padded = ab.MaskedBatch(np.full((2, 3), np.nan), lengths=[0, 0])
    assert padded.to_arrow().to_pylist() == [[], []]
    with pytest.raises(UnsupportedError, match="one array cannot hold"):
        np.from_dlpack(padded)
    with pytest.raises(UnsupportedError, match=r"\.examples\(\) lists them"):
        ab.MaskedBatch(np.zeros((1, 2, 2)), lengths=[[1, 2]]).to_arrow()


def test_a_gradient_does_not_go_out():
    pytest.importorskip("pyarrow")

    def loss(x):
        ab.PackedBatch(x, [0, 2]).to_arrow()
        return x.sum()

    with pytest.raises(UnsupportedError, match="carries a gradient"):
        ab.grad(loss)(np.ones(2))


def test_no_library_is_imported_for_the_user():

    code = (
        "import sys, autobatch as ab; ab.collate([{'x': [1, 2], 's': 'a'}]); ab.minibatches([[1]], 1);"
        "print({'pyarrow', 'awkward', 'polars', 'pandas', 'torch', 'jax', 'narwhals'} & set(sys.modules))"
    )
    out = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout
    assert out.strip() == "set()"


def test_crafted_arrow_data_is_read_or_refused():
    pytest.importorskip("pyarrow")
    pytest.importorskip("resource")  # of POSIX only
    assert importlib.import_module("tests.data.crafted_arrow").read(range(120)).startswith("120 calls")


def test_rows_of_another_type_are_named():
    pa = pytest.importorskip("pyarrow")
    users = ab.EmbeddingVariable(2)
    for rows in ([1.0, 2.0], [[1.0, 2.0], [3.0, 4.0]], ["a", "b"]):
        with pytest.raises(ab.errors.ShapeError, match=r"rows of type .* expected lists of one size"):
            users.from_arrow(pa.table({"key": [1, 2], "row": rows}))
