"""Segment reductions in torch."""

import torch

from benchmarks.declare import Case, Runner
from benchmarks.workloads.segments import Segmented


def index_add(case: Case) -> Runner:
    s = Segmented(case)
    rows, ids = torch.from_numpy(s.rows), torch.from_numpy(s.segment_ids)

    def run() -> torch.Tensor:
        return torch.zeros(len(s.lengths), rows.shape[1]).index_add_(0, ids, rows)

    return Runner(run, lambda out: out.numpy())


def segment_reduce(case: Case) -> Runner:
    s = Segmented(case)
    rows, offsets = torch.from_numpy(s.rows), torch.from_numpy(s.offsets)

    def run() -> torch.Tensor:
        return torch.segment_reduce(rows, case["reduction"], offsets=offsets, initial=None if s.lengths.all() else 0)

    return Runner(run, lambda out: out.numpy())
