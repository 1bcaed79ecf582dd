"""The harness: it times only what gave equal results, says why a way has no figure, and writes valid JSON."""

import json
import sys

import pytest

from benchmarks import harness, results
from benchmarks.__main__ import main
from benchmarks.declare import LOOP, OURS, Way
from tests.benchmarks.planted import WORKLOAD

PLAN = harness.Plan(size="small", seconds=0.05)


@pytest.fixture(scope="module")
def rows():
    return {row.case: row for row in harness.run(WORKLOAD, PLAN)}


def test_equal_ways_are_timed(rows):
    for case in ("four", "three"):
        ours, loop = rows[case].timings[OURS], rows[case].timings[LOOP]
        assert ours.status == loop.status == "ok"
        assert ours.ratio == 1.0
        assert loop.ratio > 0
        for timing in (ours, loop):
            assert 0 < timing.low <= timing.median <= timing.high
            assert timing.first > 0
            assert timing.samples >= 3


@pytest.mark.parametrize(
    ("way", "failed", "status"),
    [
        ("wrong", True, "not equal to loop: [0]: differs by 1.5 where the largest value is 6"),
        ("missing", False, "no_such_package is not installed"),
        ("raises", True, "KeyError: 'planted'"),
        ("dies", True, "its process ended with status -9: planted last words"),
        ("dies later", True, "its process ended with status -9: it printed nothing"),
        ("not importable", True, "ModuleNotFoundError: No module named 'no_such_module'"),
    ],
)
def test_a_way_without_a_figure_says_why(rows, way, failed, status):
    timing = rows["four"].timings[way]
    assert (timing.failed, timing.status) == (failed, status)
    assert timing.median is None


def test_a_way_that_does_not_serve_a_case_is_not_in_its_row(rows):
    assert "dies" not in rows["three"].timings


def test_nothing_is_timed_when_ours_is_wrong(rows):
    row = rows["ours is off"]
    assert row.failed
    assert row.timings[OURS].status == "not equal to loop: [0]: differs by 1 where the largest value is 6"
    assert row.timings[LOOP].status == "not timed: autobatch or loop failed"
    assert all(timing.median is None for timing in row.timings.values())
    assert not row.verdicts


def test_bars(rows):
    low, *_, share = rows["four"].verdicts
    assert [verdict.reached for verdict in rows["four"].verdicts] == [True, False, None, True]
    assert (share.over, share.got) == ("backward + products", 0.0)
    assert harness.Verdict("tracing", 0.3, 0.4, share=True).reached is False
    assert low.got == rows["four"].timings[LOOP].ratio
    assert len(rows["three"].verdicts) == 3
    (mean,) = harness.judge(WORKLOAD, list(rows.values()))
    assert mean.mean
    assert mean.reached is False
    assert min(rows[c].timings[LOOP].ratio for c in ("four", "three")) <= mean.got


def test_json(rows, tmp_path):
    path = tmp_path / "out.json"
    means = {WORKLOAD.name: harness.judge(WORKLOAD, list(rows.values()))}
    results.write(path, results.as_json(PLAN, list(rows.values()), means))
    read = json.loads(path.read_text(), parse_constant=lambda text: pytest.fail(f"{text} is not JSON"))
    assert read["machine"]["cores"] >= 1
    assert read["machine"]["versions"]["numpy"]
    assert [row["case"] for row in read["rows"]] == ["four", "three", "ours is off"]
    assert read["rows"][0]["timings"]["missing"]["status"] == "no_such_package is not installed"
    assert [verdict["reached"] for verdict in read["rows"][0]["verdicts"]] == [True, False, None, True]


def test_the_command(tmp_path, capsys):
    path = tmp_path / "out.json"
    arguments = ["attention", "--quick", "--cores", "1", "--case", "forward", "--peers", "none", "--json", str(path)]
    assert main(arguments) == 0
    (row,) = json.loads(path.read_text())["rows"]
    assert set(row["timings"]) == {OURS, LOOP}
    assert row["account"]["launches"] > 0
    assert abs(sum(row["account"]["shares"].values()) - 1) < 1e-6
    assert "H=8 forward" in capsys.readouterr().out


def test_an_unknown_workload_is_refused(capsys):
    assert main(["no_such_workload"]) == 2
    assert "no_such_workload" in capsys.readouterr().out
    assert main(["attention", "--quick", "--case", "no such case"]) == 2
    assert "no such case" in capsys.readouterr().out


def test_a_peer_may_have_a_python_of_its_own(monkeypatch, tmp_path):
    way, absent = (
        Way("peer", "module:name", needs=needs, python="PEER_PYTHON") for needs in ("json", "no_such_package")
    )
    monkeypatch.delenv("PEER_PYTHON", raising=False)
    assert way.missing is None
    assert way.interpreter == sys.executable
    assert absent.missing == "no_such_package is not installed, nor does PEER_PYTHON name a Python that has it"
    own = tmp_path / "python"
    monkeypatch.setenv("PEER_PYTHON", str(own))
    assert way.missing.startswith("PEER_PYTHON: ")
    own.symlink_to(sys.executable)
    assert way.missing is None
    assert way.interpreter == str(own)
    assert absent.missing.startswith("no_such_package is not installed")
