"""The LSTM in torch: `nn.LSTM` on a packed sequence, and a loop over sentences and steps."""

from typing import Any

import torch
import torch.nn.functional as F  # noqa: N812 - torch's own habit
from torch.nn.utils.rnn import pack_sequence

from benchmarks.declare import Case, Runner
from benchmarks.peers import torch_common
from benchmarks.workloads import lstm


def module(w: torch.Tensor, u: torch.Tensor, b: torch.Tensor, train: bool) -> torch.nn.LSTM:
    """`nn.LSTM` with these weights. It has two biases; the second is 0."""
    built = torch.nn.LSTM(w.shape[0], u.shape[0], bias=True)
    with torch.no_grad():
        built.weight_ih_l0.copy_(w.T)
        built.weight_hh_l0.copy_(u.T)
        built.bias_ih_l0.copy_(b)
        built.bias_hh_l0.zero_()
    return built.requires_grad_(train)


def gradients_of(built: torch.nn.LSTM) -> dict[str, Any]:
    """Those of the weights of `module`, by our names."""
    found = {"w": built.weight_ih_l0.grad.T, "u": built.weight_hh_l0.grad.T, "b": built.bias_ih_l0.grad}
    return {name: g.numpy() for name, g in found.items()}


def packed(case: Case) -> Runner:
    data = lstm.data(case)
    p = torch_common.parameters(data, False)
    model = module(p["w"], p["u"], p["b"], case.train)
    out = p["out"].requires_grad_(case.train)
    xs = torch_common.tensors(data.columns[0])
    labels = torch.tensor(data.columns[-1]) if case.train else None

    def scores() -> torch.Tensor:
        _, (h, _) = model(pack_sequence(xs, enforce_sorted=False))
        return h[0] @ out

    def step() -> torch.Tensor:
        out.grad = None
        model.zero_grad(set_to_none=True)
        value = F.cross_entropy(scores(), labels)
        value.backward()
        return value

    def result(value: torch.Tensor) -> dict[str, Any]:
        return {"loss": value.detach().numpy(), "gradients": {"out": out.grad.numpy(), **gradients_of(model)}}

    return Runner(step, result) if case.train else torch_common.runner({}, scores, scores, train=False)


def loop(case: Case) -> Runner:
    data = lstm.data(case)
    p = torch_common.parameters(data, case.train)
    xs = torch_common.tensors(data.columns[0])
    labels = torch.tensor(data.columns[-1]) if case.train else None

    def scores(x: torch.Tensor) -> torch.Tensor:
        h = c = torch.zeros(case["hidden"])
        for row in x:
            i, f, g, o = (row @ p["w"] + h @ p["u"] + p["b"]).chunk(4)
            c = torch.sigmoid(f) * c + torch.sigmoid(i) * torch.tanh(g)
            h = torch.sigmoid(o) * torch.tanh(c)
        return h @ p["out"]

    return torch_common.runner(
        p,
        lambda: [scores(x) for x in xs],
        lambda: F.cross_entropy(torch.stack([scores(x) for x in xs]), labels),
        case.train,
    )
