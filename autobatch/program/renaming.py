"""Copies of normal form in which variables have other names, so that one function can be read inside another."""

import dataclasses
from collections.abc import Mapping, Sequence

from autobatch.program.liveness import binds
from autobatch.program.normal_form import (
    Bind,
    Branch,
    Closure,
    Loop,
    Name,
    Statement,
    Target,
    Value,
    With,
    with_bodies,
    with_values,
)


def renamed(body: Sequence[Statement], names: Mapping[str, str]) -> list[Statement]:
    """A copy of statements in which names have other names, also in the functions inside that do not bind them."""

    def value(node: Value) -> Value:
        if isinstance(node, Name):
            return dataclasses.replace(node, id=names.get(node.id, node.id))
        node = with_values(node, value)
        if isinstance(node, Closure):
            own = {*node.parameters.names, *binds(node.body)} - node.outer
            free = {name: new for name, new in names.items() if name not in own}
            return dataclasses.replace(node, body=renamed(node.body, free))
        return node

    def target(node: Target) -> Target:
        if isinstance(node, str):
            return names.get(node, node)
        return dataclasses.replace(node, targets=list(map(target, node.targets)))

    def statement(node: Statement) -> Statement:
        node = with_bodies(with_values(node, value), lambda inner: list(map(statement, inner)))
        if isinstance(node, Bind | Loop | With) and node.target is not None:
            node = dataclasses.replace(node, target=target(node.target))
        if isinstance(node, Branch):
            node = dataclasses.replace(node, choice=names.get(node.choice, node.choice))
        elif isinstance(node, Loop):
            node = dataclasses.replace(node, fills=names.get(node.fills, node.fills))
        return node

    return list(map(statement, body))
