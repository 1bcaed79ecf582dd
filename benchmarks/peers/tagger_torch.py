"""The tagger in torch: a bidirectional `nn.LSTM` on packed sentences."""

from typing import Any

import torch
import torch.nn.functional as F  # noqa: N812 - torch's own habit
from torch.nn.utils.rnn import PackedSequence, pack_sequence, unpack_sequence

from benchmarks.declare import Case, Runner
from benchmarks.peers import torch_common
from benchmarks.workloads import tagger

_SUFFIXES = {"ahead": "l0", "back": "l0_reverse"}


def module(data: Any, case: Case) -> torch.nn.LSTM:
    """`nn.LSTM` with the weights of both directions. It has two biases for each; the second is 0."""
    built = torch.nn.LSTM(case["hidden"], case["hidden"], bidirectional=True)
    with torch.no_grad():
        for name, suffix in _SUFFIXES.items():
            p = tagger.direction(data.params, name)
            getattr(built, f"weight_ih_{suffix}").copy_(torch.from_numpy(p["w"].T))
            getattr(built, f"weight_hh_{suffix}").copy_(torch.from_numpy(p["u"].T))
            getattr(built, f"bias_ih_{suffix}").copy_(torch.from_numpy(p["b"]))
            getattr(built, f"bias_hh_{suffix}").zero_()
    return built.requires_grad_(case.train)


def prepare(case: Case) -> Runner:
    data = tagger.data(case)
    model = module(data, case)
    p = {name: torch.tensor(data.params[name], requires_grad=case.train) for name in ("emb", "out")}
    words = torch_common.tensors(data.columns[0])

    def packed_scores() -> PackedSequence:
        ids = pack_sequence(words, enforce_sorted=False)
        rows = F.embedding(ids.data, p["emb"], sparse=case.train)
        states, _ = model(ids._replace(data=rows))
        return states._replace(data=states.data @ p["out"])

    if not case.train:

        def forward() -> list[torch.Tensor]:
            with torch.inference_mode():
                return unpack_sequence(packed_scores())

        return Runner(forward, lambda out: [x.numpy() for x in out])

    tags = torch_common.tensors(data.columns[1])
    # a sentence's loss is the mean over its words, the batch's the mean over its sentences
    shares = [torch.full((len(x),), 1 / (len(x) * len(tags))) for x in tags]

    def step() -> torch.Tensor:
        model.zero_grad(set_to_none=True)
        for x in p.values():
            x.grad = None
        target, weight = (pack_sequence(x, enforce_sorted=False).data for x in (tags, shares))
        value = (F.cross_entropy(packed_scores().data, target, reduction="none") * weight).sum()
        value.backward()
        return value

    def result(value: torch.Tensor) -> dict[str, Any]:
        found = {name: x.grad.to_dense() for name, x in p.items() if x.grad is not None}
        for name, suffix in _SUFFIXES.items():
            found[f"w_{name}"] = getattr(model, f"weight_ih_{suffix}").grad.T
            found[f"u_{name}"] = getattr(model, f"weight_hh_{suffix}").grad.T
            found[f"b_{name}"] = getattr(model, f"bias_ih_{suffix}").grad
        return {"loss": value.detach().numpy(), "gradients": {name: g.numpy() for name, g in found.items()}}

    return Runner(step, result)
