"""The table of figures in docs/figures.md is that of the run that is kept beside the suite."""

import json

import pytest

from benchmarks import declare, summary
from benchmarks.declare import OURS


@pytest.fixture(scope="module")
def measured():
    return json.loads(summary.MEASURED.read_text(encoding="utf-8"))


def test_the_pages_show_the_tables_of_the_kept_run(measured):
    assert summary.between(summary.PAGE.read_text(encoding="utf-8")) == summary.table(measured)


# `make bench` shows them; the pages have no figures of theirs
NOT_IN_THE_TABLE = {"checkpoint", "data_in", "numeric", "numeric_gradients", "variable"}


def test_every_case_was_measured_on_one_core_and_equal(measured):
    names = set(declare.names()) - NOT_IN_THE_TABLE
    expected = {(name, case.name) for name in names for case in declare.load(name).cases("full")}
    rows = {(row["workload"], row["case"]): row for row in measured["rows"] if row["cores"] == 1}
    assert set(rows) == expected
    assert not [where for where, row in rows.items() if any(timing["failed"] for timing in row["timings"].values())]


def test_a_ratio_is_that_of_the_fastest_peer_and_a_missed_bar_is_named(measured):
    row = {
        "workload": "planted",
        "case": "H=8 forward",
        "cores": 1,
        "timings": {
            OURS: {"median": 2e-3, "ratio": 1.0},
            "loop": {"median": 1e-1, "ratio": 50.0},
            "DyNet agenda": {"median": 3e-3, "ratio": 1.5},
            "DyNet depth": {"median": None, "ratio": None},
            "torch padded": {"median": 4e-3, "ratio": 2.0},
            "torch loop": {"median": 6e-3, "ratio": 3.0},
        },
        "verdicts": [{"over": "DyNet", "wanted": 2.0, "got": 1.5, "reached": False, "share": False}],
    }
    on_two = {name: {"median": 1e-3, "ratio": ratio} for name, ratio in [(OURS, 1.0), ("loop", 1.1), ("JAX", 4.5)]}
    twice = {**row, "cores": 2, "timings": {**on_two, "torch padded": {"median": 7e-3, "ratio": 7.0}}, "verdicts": []}
    text = summary.table({"machine": measured["machine"], "rows": [row, twice], "means": {}, "startup": None})
    assert "| planted: forward | H=8 | 2 ms | 50 |  | 2.00 | 1.50 |  | 2.00 | 4.50 |" in text
    assert "1 bars; 0 are reached. Not reached: planted H=8 forward 1.50 (DyNet ≥ 2)." in text
    assert measured["machine"]["processor"] in text
