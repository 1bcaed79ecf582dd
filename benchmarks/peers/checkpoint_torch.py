"""torch's own way to save: pickled and zipped, the whole file each time, flushed as ours is."""

import os

import numpy as np
import torch

from benchmarks.declare import Case, Runner
from benchmarks.workloads.checkpoint import Model


def prepare(case: Case) -> Runner:
    model = Model(case)
    path = model.folder / "model.pt"
    tensors = {name: torch.from_numpy(array) for name, array in model.arrays.items()}

    def save() -> None:
        model.advance()
        with open(path, "wb") as file:
            torch.save(tensors, file)
            file.flush()
            os.fsync(file.fileno())

    def heads(found: dict[str, torch.Tensor]) -> dict[str, np.ndarray]:
        return {name: tensor[:100].numpy() for name, tensor in found.items()}

    if case["what"] == "restore":
        save()
        return Runner(lambda: torch.load(path, weights_only=True), heads)
    return Runner(
        save,
        lambda _: {name: np.minimum(head, 1 - head) for name, head in heads(torch.load(path)).items()},
    )
