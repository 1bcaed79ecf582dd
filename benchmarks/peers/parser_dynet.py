"""The parser in DyNet: a move is computed when its value is asked for."""

from typing import Any

import dynet as dy

from benchmarks.declare import Case, Runner
from benchmarks.peers import dynet_common
from benchmarks.workloads import parser


def parse(words: list[int], p: dynet_common.Parameters) -> Any:
    left = 0
    stack: list[Any] = []
    while left < len(words) or len(stack) > 1:
        if len(stack) < 2:
            shift = True
        elif left == len(words):
            shift = False
        else:
            seen = dy.concatenate([stack[-2], stack[-1], p["emb"][words[left]]])
            shift = dy.dot_product(p["move"], dy.tanh(p["w_move"] * seen)).value() > 0
        if shift:
            stack.append(p["emb"][words[left]])
            left += 1
        else:
            right = stack.pop()
            stack.append(dy.tanh(p["w"] * dy.concatenate([stack.pop(), right])))
    return stack[0]


def prepare(case: Case) -> Runner:
    def build(words: list[int], p: dynet_common.Parameters) -> Any:
        state = parse(words, p)
        return dy.dot_product(state, p["out"]) if case.train else state

    return dynet_common.runner(parser.data(case), build, case.train)
