"""torch's optimisers on a sparse gradient."""

import torch

from benchmarks.declare import Case, Runner
from benchmarks.workloads.updates import LR, Update


def prepare(case: Case) -> Runner:
    u = Update(case)
    table = torch.nn.Parameter(torch.from_numpy(u.table))
    kinds = {"SGD": torch.optim.SGD, "Adagrad": torch.optim.Adagrad, "Adam": torch.optim.SparseAdam}
    optimizer = kinds[case["optimizer"]]([table], lr=LR)
    ids, rows = torch.from_numpy(u.ids)[None], torch.from_numpy(u.rows)

    def run() -> None:
        table.grad = torch.sparse_coo_tensor(ids, rows, table.shape, check_invariants=False)
        optimizer.step()

    return Runner(run, lambda out: table.detach().numpy()[u.touched])
