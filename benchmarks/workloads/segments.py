"""Segment reductions: rows reduced by segment, the segments following each other or in any order."""

import numpy as np

import autobatch as ab
from benchmarks.declare import OURS, Bar, Case, Runner, Way, Workload


class Segmented:
    """Rows and their segments.

    Attributes:
        rows: (n, width); lengths: (segments,), some 0; offsets: (segments + 1,) int64.
        segment_ids: (n,), shuffled where the case is of segments in any order.
    """

    def __init__(self, case: Case) -> None:
        rng = np.random.default_rng(5)
        mean, count = case["length"], case["rows"] // case["length"]
        self.lengths = rng.integers(0, 2 * mean + 1, count)
        self.offsets = np.concatenate([[0], np.cumsum(self.lengths)])
        self.segment_ids = np.repeat(np.arange(count), self.lengths)
        if case["order"] == "any":
            rng.shuffle(self.segment_ids)
        self.rows = rng.random((len(self.segment_ids), case["width"]), np.float32)


def cases(size: str) -> list[Case]:
    full = size == "full"
    widths = (1, 4, 16, 64, 256) if full else (3,)
    rows = [("sum", width, length, "runs") for length in (5, 200) for width in widths]
    rows += [("sum", width, 5, "any") for width in widths]
    rows += [("max", width, 20, "runs") for width in ((16, 64) if full else (3,))]
    rows += [("mean", width, 20, "runs") for width in ((16, 64) if full else (3,))]
    return [
        Case(
            f"{reduction} of {width}, {'runs of' if order == 'runs' else 'any order,'} {length}",
            {"reduction": reduction, "width": width, "length": length, "order": order, "rows": 50_000 if full else 400},
        )
        for reduction, width, length, order in rows
    ]


def ours(case: Case) -> Runner:
    s = Segmented(case)
    reduce = getattr(ab, f"segment_{case['reduction']}")
    if case["order"] == "any":
        return Runner(lambda: reduce(s.rows, s.segment_ids, num_segments=len(s.lengths)))
    return Runner(lambda: reduce(s.rows, offsets=s.offsets))


def plain(case: Case) -> Runner:
    """A segment at a time; an empty one is 0."""
    s = Segmented(case)
    reduce = getattr(np, case["reduction"])

    def run() -> np.ndarray:
        out = np.zeros((len(s.lengths), s.rows.shape[1]), np.float32)
        if case["order"] == "any":
            np.add.at(out, s.segment_ids, s.rows)
            return out
        for i, (start, end) in enumerate(zip(s.offsets[:-1], s.offsets[1:], strict=True)):
            if end > start:
                out[i] = reduce(s.rows[start:end], axis=0)
        return out

    return Runner(run)


WORKLOAD = Workload(
    "segments",
    "reductions of 50,000 rows by segment",
    cases,
    ways=[
        Way(OURS, "benchmarks.workloads.segments:ours"),
        Way("NumPy", "benchmarks.workloads.segments:plain"),
        Way("reduceat", "benchmarks.peers.segments_numpy:reduceat", serves=lambda case: case["order"] == "runs"),
        Way(
            "SciPy CSR",
            "benchmarks.peers.segments_scipy:prepare",
            needs="scipy",
            serves=lambda case: case["reduction"] == "sum",
        ),
        Way(
            "torch index_add_",
            "benchmarks.peers.segments_torch:index_add",
            needs="torch",
            serves=lambda case: case["reduction"] == "sum",
        ),
        Way(
            "torch segment_reduce",
            "benchmarks.peers.segments_torch:segment_reduce",
            needs="torch",
            serves=lambda case: case["order"] == "runs",
        ),
    ],
    bars=[Bar(("reduceat", "SciPy", "torch index_add_"), 1.0, holds=lambda case: case["rows"] > 1000)],
)
