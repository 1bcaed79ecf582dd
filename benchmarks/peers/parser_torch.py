"""The parser in torch, a sentence at a time."""

import torch

from benchmarks.declare import Case, Runner
from benchmarks.peers import torch_common
from benchmarks.workloads import parser


def parse(words: list[int], p: dict[str, torch.Tensor]) -> torch.Tensor:
    left = 0
    stack: list[torch.Tensor] = []
    rows = p["emb"][torch.tensor(words)]
    while left < len(words) or len(stack) > 1:
        if len(stack) < 2:
            shift = True
        elif left == len(words):
            shift = False
        else:
            seen = torch.cat([stack[-2], stack[-1], rows[left]])
            shift = bool(torch.tanh(seen @ p["w_move"]) @ p["move"] > 0)
        if shift:
            stack.append(rows[left])
            left += 1
        else:
            right = stack.pop()
            stack.append(torch.tanh(torch.cat([stack.pop(), right]) @ p["w"]))
    return stack[0]


def loop(case: Case) -> Runner:
    data = parser.data(case)
    p = torch_common.parameters(data, case.train)
    (sentences,) = data.columns
    return torch_common.runner(
        p,
        lambda: [parse(words, p) for words in sentences],
        lambda: torch.stack([(parse(words, p) * p["out"]).sum() for words in sentences]).mean(),
        case.train,
    )
