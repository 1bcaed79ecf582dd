"""`ab.ray.map` without Ray: what is committed, in which order, what is named, and what a second call does."""

import json
import os

import numpy as np
import pytest

import autobatch as ab
from autobatch.checkpoint.files import Lock
from autobatch.core.pytree import map_tree
from autobatch.errors import OptionError, StructureError
from autobatch.ray import row_groups

pa = pytest.importorskip("pyarrow")
pq = pytest.importorskip("pyarrow.parquet")
ds = pytest.importorskip("pyarrow.dataset")


def total(ids, weight):
    """Of one example."""
    return {"total": (ids * weight).sum(), "n": len(ids)}


def table(count, seed=0, first=0):
    rng = np.random.default_rng(seed)
    ids = [rng.integers(0, 9, n).tolist() for n in rng.integers(0, 5, count)]
    return pa.table({"key": np.arange(first, first + count), "ids": ids, "weight": rng.normal(size=count)})


@pytest.fixture
def files(tmp_path):
    """Three files of 10, 0 and 7 rows, in row groups of 4."""
    for i, (count, first) in enumerate([(10, 0), (0, 10), (7, 10)]):
        made = table(count, i, first)
        made = made.cast(pa.schema([("key", pa.int64()), ("ids", pa.list_(pa.int64())), ("weight", pa.float64())]))
        pq.write_table(made, tmp_path / f"in-{i}.parquet", row_group_size=4)
    return tmp_path


def run(files, f=total, **more):
    given = {"columns": ["ids", "weight"], "keep": ["key"], "out": files / "out", "workers": 0} | more
    return ab.ray.map(f, str(files / "in-*.parquet"), **given)


def expected(files):
    rows = [row for i in (0, 2) for row in pq.read_table(files / f"in-{i}.parquet").to_pylist()]
    return [{"key": row["key"], **total(np.array(row["ids"], np.int64), row["weight"])} for row in rows]


def read(files):
    return pq.read_table(files / "out").to_pylist()


def test_results_in_the_order_of_the_input(files):
    done = run(files)
    assert (done.rows, done.units, done.resumed, done.skipped) == (17, 6, 0, [])
    found = read(files)
    assert [row["key"] for row in found] == list(range(17))
    assert found == [{name: pytest.approx(value) for name, value in row.items()} for row in expected(files)]
    assert not list((files / "out").glob(".*.part"))


def test_forms_of_data_and_results(files):
    paths = [files / f"in-{i}.parquet" for i in (0, 2)]
    for i, data in enumerate([paths, ds.dataset(list(map(str, paths)), format="parquet")]):
        done = ab.ray.map(len, data, columns="ids", out=files / f"out-{i}", workers=0)
        assert done.rows == 17
    for i, (f, names) in enumerate(
        [
            (lambda ids: ids * 2, ["result"]),
            (lambda ids: (len(ids), {"a": ids.sum()}), ["0", "1.a"]),
            (lambda ids: "x" * len(ids), ["result"]),
        ]
    ):
        ab.ray.map(f, paths, columns="ids", out=files / f"form-{i}", workers=0)
        found = pq.read_table(files / f"form-{i}")
        assert found.column_names == names
        values = found.column(0).to_pylist()
        ids = [np.array(row["ids"], np.int64) for path in paths for row in pq.read_table(path).to_pylist()]
        plain = [f(each) for each in ids]
        plain = [each[0] if isinstance(each, tuple) else each for each in plain]
        assert values == [each.tolist() if isinstance(each, np.ndarray) else each for each in plain]


RESULTS = {
    "a list": lambda x: x.tolist(),
    "a list of arrays": lambda x: [x, x * 2],
    "arrays of any length": lambda x: np.ones(3 - len(x)),
    "a dict of a list and numbers": lambda x: {"list": x.tolist(), "sum": x.sum(), "array": x},
    "a tuple of a list and a number": lambda x: (x.tolist(), len(x)),
    "keys in any order": lambda x: {"a": [1] * len(x), "b": 2} if len(x) else {"b": 2, "a": []},
    "constants": lambda x: {"name": "é", "none": None, "sum": x.sum(), "names": ["a", "b"]},
    "records in lists": lambda x: [{"a": each} for each in x.tolist()],
}


@pytest.mark.parametrize("rows", [1, 2, 5])
@pytest.mark.parametrize("name", RESULTS)
def test_the_columns_are_the_same_whatever_rows_come_together(tmp_path, name, rows):
    f, xs = RESULTS[name], [[1.0, 2.0], [], [3.0], [4.0, 5.0], [6.0, 7.0]]
    xs = [x for x in xs if x] if rows == 1 else xs  # a list without an element has no type of its own
    pq.write_table(pa.table({"x": pa.array(xs, pa.list_(pa.float64()))}), tmp_path / "in.parquet", row_group_size=rows)
    ab.ray.map(f, tmp_path / "in.parquet", columns="x", out=tmp_path / "out", workers=0)
    expected = [f(np.array(x)) for x in xs]
    if isinstance(expected[0], tuple):
        expected = [{str(i): each for i, each in enumerate(value)} for value in expected]
    if not isinstance(expected[0], dict):
        expected = [{"result": value} for value in expected]
    assert pq.read_table(tmp_path / "out").to_pylist() == map_tree(
        lambda x: x.tolist() if hasattr(x, "tolist") else x, expected
    )


def test_a_map_goes_on_where_it_was_left(files, monkeypatch):
    """Interrupted before each commit, in turn: nothing is done twice, nothing is lost."""
    begun = []
    real = row_groups.commit_unit
    whole = row_groups.run_unit

    def interrupted(out, unit, done):
        if len(begun) < 3:
            begun.append(unit)
            raise KeyboardInterrupt("now")
        return real(out, unit, done)

    monkeypatch.setattr(row_groups, "commit_unit", interrupted)
    seen = []
    monkeypatch.setattr("autobatch.ray.file_map.run_unit", lambda *args: seen.append(args[1].name) or whole(*args))
    for _ in range(3):
        with pytest.raises(KeyboardInterrupt, match="now"):
            run(files)
    done = run(files)
    assert done.rows == 17
    assert read(files) == [{name: pytest.approx(value) for name, value in row.items()} for row in expected(files)]
    again = run(files)
    assert (again.resumed, again.rows) == (6, 17)
    assert len(seen) == 3 + 6
    assert not list((files / "out").glob(".*.part"))


def fails_at(keys):
    def f(ids, weight, key):
        if key in keys:
            raise ValueError(f"key {key} is bad")
        return ids.sum() * weight

    return f


def test_a_row_that_raises_is_named(files):
    with pytest.raises(ValueError, match="key 6 is bad") as caught:
        run(files, fails_at({6, 7, 9}), columns=["ids", "weight", "key"])
    note = caught.value.__notes__[-1]
    assert note.endswith("in-0.parquet, row group 1, row 2 (row 6 of the file)")
    assert [row["key"] for row in read(files)] == [0, 1, 2, 3]
    done = run(files, fails_at(set()), columns=["ids", "weight", "key"])
    assert (done.resumed, done.rows) == (1, 17)


def test_a_bar_counts_the_examples_that_are_done(files, capsys):
    """Those of before too, when a map goes on; without a terminal there is none unless it is asked for."""
    pytest.importorskip("tqdm")
    run(files)
    assert capsys.readouterr().err == ""
    sorted((files / "out").glob("*.parquet"))[1].unlink()
    run(files, progress=True)
    said = capsys.readouterr().err
    assert "17.0/17.0" in said
    assert "examples/s" in said


@pytest.mark.parametrize("bad", [{0}, {6, 7, 9}, set(range(4, 8)), set(range(0, 17, 2)), set(range(17))], ids=len)
def test_rows_that_raise_are_skipped(files, bad):
    done = run(files, fails_at(bad), columns=["ids", "weight", "key"], on_error="skip")
    kept = [key for key in range(17) if key not in bad]
    assert done.rows == len(kept)
    if kept:
        assert [row["key"] for row in read(files)] == kept
    found = [(os.path.basename(each.path), each.group, each.row) for each in done.skipped]
    place = [(f"in-{0 if key < 10 else 2}.parquet", key % 10 // 4, key % 10 % 4) for key in sorted(bad)]
    assert found == place
    assert "ValueError: key" in str(done.skipped[0])
    again = run(files, fails_at(bad), columns=["ids", "weight", "key"], on_error="skip")
    assert again.skipped == done.skipped
    assert again.resumed == 6


def test_a_null_is_a_row_that_raises(tmp_path):
    pq.write_table(pa.table({"x": [1.0, None, 3.0]}), tmp_path / "in.parquet")
    done = ab.ray.map(lambda x: 2 * x, tmp_path, columns="x", out=tmp_path / "out", workers=0, on_error="skip")
    assert pq.read_table(tmp_path / "out").to_pydict() == {"result": [2.0, 6.0]}
    assert [each.row for each in done.skipped] == [1]


def test_damaged_files(files):
    path = files / "in-1.parquet"
    path.write_bytes(b"PAR1 nothing PAR1")
    with pytest.raises((OSError, ValueError)) as caught:
        run(files)
    assert str(path) in caught.value.__notes__[-1]
    done = run(files, on_error="skip")
    assert [(each.path, each.group, each.row) for each in done.skipped] == [(str(path), None, None)]
    assert done.rows == 17


def test_damaged_pages(files):
    path = files / "in-0.parquet"
    about = pq.read_metadata(path).row_group(1).column(1)
    data = bytearray(path.read_bytes())
    start = about.data_page_offset
    data[start : start + 12] = b"\xff" * 12
    path.write_bytes(bytes(data))
    with pytest.raises(OSError, match=r"page|header|Thrift") as caught:
        run(files)
    assert any("in-0.parquet, row group 1" in note for note in caught.value.__notes__)
    done = run(files, on_error="skip")
    assert [(each.group, each.row) for each in done.skipped] == [(1, None)]
    assert [row["key"] for row in read(files)] == [*range(4), *range(8, 17)]


def test_changed_numbers(tmp_path):
    """Pages with checksums (`write_page_checksum=True`) are checked: without, a changed number is a number."""
    path = tmp_path / "in.parquet"
    numbers = pa.table({"x": np.arange(12.0)})
    pq.write_table(numbers, path, 4, use_dictionary=False, compression="none", write_page_checksum=True)
    data = path.read_bytes()
    path.write_bytes(data.replace(np.float64(6).tobytes(), np.float64(7).tobytes(), 1))
    done = ab.ray.map(lambda x: 2 * x, path, columns="x", out=tmp_path / "out", workers=0, on_error="skip")
    assert [(each.group, each.row) for each in done.skipped] == [(1, None)]
    assert pq.read_table(tmp_path / "out")["result"].to_pylist() == [0, 2, 4, 6, 16, 18, 20, 22]


def test_memory_is_bounded_by_chunks(files, monkeypatch):
    """A row group is mapped in pieces of a size, whatever its own."""
    pq.write_table(table(1000), files / "in-9.parquet")
    monkeypatch.setattr(row_groups, "_CHUNK_ROWS", 100)
    sizes = []
    real = ab.ray.Mapper.results
    monkeypatch.setattr(ab.ray.Mapper, "results", lambda self, rows: sizes.append(rows.num_rows) or real(self, rows))
    assert run(files).rows == 1017
    assert max(sizes) == 100


def test_the_folder_of_results(files):
    run(files)
    with pytest.raises(OptionError, match="resume=False"):
        run(files, resume=False)
    with pytest.raises(OptionError, match="results of other columns"):
        run(files, lambda ids: 1, columns="ids")
    pq.write_table(table(3), files / "in-5.parquet")
    with pytest.raises(OptionError, match="results of other files and units"):
        run(files)
    lock = Lock(str(files / "out" / "_lock"))
    with pytest.raises(OptionError, match="another map is writing"):
        run(files)
    lock.release()
    assert json.loads((files / "out" / "_job.json").read_text())["columns"] == ["ids", "weight"]


@pytest.mark.parametrize(
    ("change", "error", "match"),
    [
        ({"on_error": "ignore"}, OptionError, "on_error='ignore'"),
        ({"columns": ["ids", "nothing"]}, ValueError, "nothing"),
        ({"columns": []}, OptionError, "columns="),
        ({"f": 3}, OptionError, "f=3"),
        ({"keep": ["n"], "columns": ["ids", "weight"]}, ValueError, "'n'"),
    ],
    ids=str,
)
def test_bad_arguments(files, change, error, match):
    with pytest.raises(error, match=match):
        run(files, **change)
    with pytest.raises(OptionError, match="no file"):
        ab.ray.map(len, str(files / "nothing-*"), columns="ids", out=files / "out", workers=0)
    with pytest.raises(OptionError, match=r"ab\.ray\.Mapper"):
        ab.ray.map(len, 7, columns="ids", out=files / "out", workers=0)


def test_results_that_differ_in_kind(files, monkeypatch):
    monkeypatch.setattr(row_groups, "_CHUNK_ROWS", 2)
    with pytest.raises(TypeError, match="differ in kind from row to row"):
        run(files, lambda ids, weight, key: {"a": 1.5} if key < 2 else {"b": 2.0}, columns=["ids", "weight", "key"])


def test_results_that_differ_in_name_from_row_group_to_row_group(files):
    def f(key):
        return {"a": 1.5} if key < 4 else {"b": 2.0}

    with pytest.raises(StructureError, match=r"row group 1 have the columns \['b: double'\]; expected \['a: double'\]"):
        run(files, f, columns=["key"], keep=[])
    with pytest.raises(ab.errors.StructureError, match="have f return the same names"):  # of what is there already
        run(files, f, columns=["key"], keep=[])


def test_a_row_that_raises_what_ends_generators_is_named(files):
    def f(key):
        return next(iter([key] if key != 5 else []))

    with pytest.raises(StopIteration, match="raised for example 0") as caught:
        run(files, f, columns=["key"])
    assert caught.value.__notes__[-1].endswith("row group 1, row 1 (row 5 of the file)")
    done = run(files, f, columns=["key"], on_error="skip")
    assert (done.rows, [(each.group, each.row) for each in done.skipped]) == (16, [(1, 1)])


def test_a_file_without_a_column_is_named(files):
    pq.write_table(table(3).drop_columns(["ids"]), files / "in-3.parquet")
    with pytest.raises(ab.errors.StructureError, match="no column 'ids'") as caught:
        run(files, on_error="skip")
    assert caught.value.__notes__ == [f"in {files}/in-3.parquet, row group 0"]


def test_mapper_of_frames():
    pd, pl = pytest.importorskip("pandas"), pytest.importorskip("polars")
    mapper = ab.ray.Mapper(total, columns=["ids", "weight"], keep=["key"])
    given = table(6)
    plain = mapper(given)
    frame = mapper(given.to_pandas().set_index(pd.Index(list("abcdef"))))
    assert list(frame.index) == list("abcdef")
    assert frame.to_dict("list") == plain.to_pydict()
    assert mapper(pl.from_arrow(given)).to_dict(as_series=False) == plain.to_pydict()
    columns = {name: given[name].to_numpy(zero_copy_only=False) for name in given.column_names}
    assert {name: list(column) for name, column in mapper(columns).items()} == plain.to_pydict()
    with pytest.raises(ab.errors.OptionError, match="keep names"):
        ab.ray.Mapper(lambda ids: {"key": 1}, columns="ids", keep=["key"])(given)
    with pytest.raises(ab.errors.StructureError, match="no column 'x'"):
        ab.ray.Mapper(len, columns="x")(given)


def test_mapper_for_dask():
    dask = pytest.importorskip("dask")
    cloudpickle = pytest.importorskip("cloudpickle")
    mapper = cloudpickle.loads(cloudpickle.dumps(ab.ray.Mapper(total, columns=["ids", "weight"], keep=["key"])))
    parts = [table(5, 1).to_pandas(), table(4, 2).to_pandas()]
    found = dask.compute(*[dask.delayed(mapper)(part) for part in parts], scheduler="synchronous")
    assert [len(each) for each in found] == [5, 4]


def test_what_no_row_does_by_itself_is_raised_as_it_is(files):
    def f(ids, weight):
        return {"a": 1.0} if len(ids) % 2 else [1.0, 2.0]

    plain = {type(f(row["ids"], 1.0)) for row in pq.read_table(files / "in-0.parquet").to_pylist()}
    assert plain == {dict, list}
    with pytest.raises((TypeError, ValueError)):
        run(files, f)


@pytest.mark.parametrize(("first", "second"), [([1, 2], [1.5, 2.5]), ([1.5], [1]), ([1], [[1, 2]]), ([1], ["a"])])
def test_files_whose_results_differ_in_type_are_named(tmp_path, first, second):
    for i, values in enumerate((first, second)):
        pq.write_table(pa.table({"x": values}), tmp_path / f"{i}.parquet")
    with pytest.raises(StructureError, match=r"1\.parquet, row group 0 have the columns \['result: .*same names and d"):
        ab.ray.map(lambda x: x, tmp_path / "*.parquet", columns="x", out=tmp_path / "out", workers=0)


def test_a_column_that_no_file_has_is_named(files):
    with pytest.raises(StructureError, match=r"'idz' in .*in-0\.parquet; there are \['key', 'ids', 'weight'\]"):
        ab.ray.map(len, files / "*.parquet", columns="idz", out=files / "out", workers=0)


@pytest.mark.parametrize("inside", [False, True])
def test_results_into_a_file_are_refused(files, inside):
    (files / "taken").write_text("mine")
    out = files / "taken" / "out" if inside else files / "taken"
    with pytest.raises(OptionError, match="is a file or lies in one; expected a folder"):
        ab.ray.map(len, files / "*.parquet", columns="ids", out=out, workers=0)
    assert (files / "taken").read_text() == "mine"
