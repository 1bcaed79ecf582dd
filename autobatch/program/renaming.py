"""Copies of normal form in which variables have other names, so that one function can be read inside another."""

import dataclasses
from collections.abc import Mapping, Sequence

from autobatch.program import normal_form as nf
from autobatch.program.liveness import binds


def renamed(body: Sequence[nf.Statement], names: Mapping[str, str]) -> list[nf.Statement]:
    """A copy of statements in which names have other names, also in the functions inside that do not bind them."""

    def value(node: nf.Value) -> nf.Value:
        if isinstance(node, nf.Name):
            return dataclasses.replace(node, id=names.get(node.id, node.id))
        node = nf.with_values(node, value)
        if isinstance(node, nf.Closure):
            own = {*node.parameters.names, *binds(node.body)} - node.outer
            free = {name: new for name, new in names.items() if name not in own}
            return dataclasses.replace(node, body=renamed(node.body, free))
        return node

    def target(node: nf.Target) -> nf.Target:
        if isinstance(node, str):
            return names.get(node, node)
        return dataclasses.replace(node, targets=list(map(target, node.targets)))

    def statement(node: nf.Statement) -> nf.Statement:
        node = nf.with_bodies(nf.with_values(node, value), lambda inner: list(map(statement, inner)))
        if isinstance(node, nf.Bind | nf.Loop | nf.With) and node.target is not None:
            node = dataclasses.replace(node, target=target(node.target))
        if isinstance(node, nf.Branch):
            node = dataclasses.replace(node, choice=names.get(node.choice, node.choice))
        elif isinstance(node, nf.Loop):
            node = dataclasses.replace(node, fills=names.get(node.fills, node.fills))
        return node

    return list(map(statement, body))
