"""Each workload's own code gives what its loop gives, and what it declares exists. No peer is needed."""

import ast
import doctest
import functools
import importlib
from pathlib import Path

import pytest

import benchmarks
from benchmarks import declare
from benchmarks.compare import difference
from benchmarks.declare import OURS

ROOT = Path(benchmarks.__file__).resolve().parent.parent
WORKLOADS = {name: declare.load(name) for name in declare.names()}
COMPILED = {"numeric", "numeric_gradients"}  # they take minutes to compile; tests/compiled compares them with the loop
CASES = [
    (name, case.name)
    for name, workload in WORKLOADS.items()
    if name not in COMPILED
    for case in workload.cases("small")
]

NAMED = {
    "attention",
    "bags",
    "checkpoint",
    "checks",
    "child_sum",
    "dag",
    "decoding",
    "data_in",
    "growth",
    "halting",
    "interest",
    "next_item",
    "lattice",
    "lstm",
    "mv_rnn",
    "node_losses",
    "numeric",
    "numeric_gradients",
    "parser",
    "segments",
    "seq2seq",
    "tagger",
    "transformer",
    "tree_gru",
    "tree_lstm",
    "updates",
    "variable",
}


@pytest.mark.parametrize("path", sorted((ROOT / "benchmarks").glob("*.py")), ids=lambda path: path.stem)
def test_examples_in_docstrings(path):
    assert not doctest.testmod(importlib.import_module(f"benchmarks.{path.stem}")).failed


def test_every_workload_is_found():
    assert set(WORKLOADS) == NAMED


@pytest.mark.parametrize(("name", "case_name"), CASES, ids=[f"{name}: {case}" for name, case in CASES])
def test_ours_equals_the_loop(name, case_name):
    workload = WORKLOADS[name]
    case = workload.case(case_name, "small")
    expected = of_loop(name, case_name)
    own = [way for way in workload.ways if way.where.startswith("benchmarks.workloads") and way.serves(case)]
    assert own[0].name == OURS
    for way in filter(lambda way: way.missing is None, own):
        assert difference(expected, result(way, case), workload.tolerance) is None, way.name


@functools.cache
def of_loop(name, case_name, size="small"):
    """Read only."""
    return result(WORKLOADS[name].reference, WORKLOADS[name].case(case_name, size))


def result(way, case):
    runner = way.prepare()(case)
    return runner.result(runner.run())


@pytest.mark.parametrize("name", sorted(NAMED))
def test_a_case_is_the_same_whenever_it_is_made(name):
    workload = WORKLOADS[name]
    size = "test" if name in COMPILED else "small"
    for case in workload.cases(size):
        assert difference(of_loop(name, case.name, size), result(workload.reference, case), 1e-6) is None


@pytest.mark.parametrize("name", sorted(NAMED))
def test_what_is_declared_exists(name):
    workload = WORKLOADS[name]
    assert workload.name == name
    for size in ("small", "full"):
        cases = [case.name for case in workload.cases(size)]
        assert len(cases) == len(set(cases))
    names = [way.name for way in workload.ways]
    assert len(names) == len(set(names))
    for bar in workload.bars:
        assert any(bar.names(way) for way in names), bar.over
        assert any(bar.holds(case) for case in workload.cases("full")), bar
        assert not any(bar.holds(case) for case in workload.cases("small")), "bars are for full sizes"
    for way in workload.ways:
        module, attribute = way.where.split(":")
        path = ROOT / (module.replace(".", "/") + ".py")
        if attribute.startswith("MODEL."):
            continue
        functions = {node.name for node in ast.parse(path.read_text()).body if isinstance(node, ast.FunctionDef)}
        assert attribute in functions, way.where
        is_of_extra = "peers" in module and not module.endswith(("_numpy", "typed_dict"))
        assert (way.needs is not None) == is_of_extra, way.where
