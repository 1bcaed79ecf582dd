"""Data in: bags of ids as other libraries hold them, made a batch by `ab.collate`.

The reference is what one writes with the library itself: its values and its offsets as NumPy arrays.
"""

import importlib.util
from collections.abc import Callable
from typing import Any

import numpy as np

import autobatch as ab
from benchmarks.declare import OURS, Bar, Case, Runner, Way, Workload

_NEEDS = {"awkward": "awkward", "Arrow": "pyarrow", "polars": "polars", "lists": None, "arrays": None}


def bags_as(case: Case) -> Any:
    """The bags: 0 to 20 ids each, in the form of a library."""
    rng = np.random.default_rng(6)
    lengths = rng.integers(0, 21, case["bags"])
    arrays = np.split(rng.integers(0, 10**6, int(lengths.sum())), np.cumsum(lengths)[:-1])
    form = case["form"]
    if form == "arrays":
        return arrays
    lists = [x.tolist() for x in arrays]
    if form == "lists":
        return lists
    library = importlib.import_module(_NEEDS[form] or "")
    if form == "awkward":
        return library.Array(lists)
    return library.array(lists) if form == "Arrow" else library.Series(lists)


def cases(size: str) -> list[Case]:
    bags = 50_000 if size == "full" else 20
    forms = [form for form, needs in _NEEDS.items() if needs is None or importlib.util.find_spec(needs)]
    return [Case(form, {"form": form, "bags": bags}) for form in forms]


def ours(case: Case) -> Runner:
    data = bags_as(case)
    return Runner(
        lambda: ab.collate(data), lambda batch: {"values": np.asarray(batch.values), "offsets": batch.offsets}
    )


def by_hand(case: Case) -> Runner:
    """Values and offsets, by the functions of the library that has the data."""
    data = bags_as(case)
    return Runner(lambda: _BY_HAND[case["form"]](data), lambda out: {"values": out[0], "offsets": out[1]})


def _awkward(data: Any) -> Any:
    library: Any = importlib.import_module("awkward")
    counts = library.to_numpy(library.num(data))
    return library.to_numpy(library.flatten(data)), np.concatenate([[0], np.cumsum(counts)])


def _arrow(data: Any) -> Any:
    return data.values.to_numpy(), data.offsets.to_numpy().astype(np.int64)


def _polars(data: Any) -> Any:
    counts = data.list.len().to_numpy()
    return data.explode(empty_as_null=False).to_numpy(), np.concatenate([[0], np.cumsum(counts.astype(np.int64))])


def _lists(data: Any) -> Any:
    arrays = [np.array(x, np.int64) for x in data]
    return np.concatenate(arrays), np.concatenate([[0], np.cumsum([len(x) for x in arrays])])


def _arrays(data: Any) -> Any:
    return np.concatenate(data), np.concatenate([[0], np.cumsum([len(x) for x in data])])


_BY_HAND: dict[str, Callable[[Any], Any]] = {
    "awkward": _awkward,
    "Arrow": _arrow,
    "polars": _polars,
    "lists": _lists,
    "arrays": _arrays,
}

WORKLOAD = Workload(
    "data_in",
    "50,000 bags of 0 to 20 ids as other libraries hold them, made a batch",
    cases,
    ways=[
        Way(OURS, "benchmarks.workloads.data_in:ours"),
        Way("by hand", "benchmarks.workloads.data_in:by_hand"),
    ],
    bars=[Bar(("by hand",), 1.0, holds=lambda case: case["bags"] > 1000 and case["form"] in ("lists", "awkward"))],
)
