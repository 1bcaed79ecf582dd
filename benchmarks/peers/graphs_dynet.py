"""Networks over lattices and acyclic graphs in DyNet."""

from typing import Any

import dynet as dy

from benchmarks.declare import Case, Runner
from benchmarks.peers import dynet_common
from benchmarks.peers.trees_dynet import classifier
from benchmarks.workloads import dag as dag_workload
from benchmarks.workloads import lattice as lattice_workload


def lattice(case: Case) -> Runner:
    size = case["hidden"]

    def parts(z: Any) -> tuple[Any, Any, Any]:
        gates = dy.logistic(dy.pick_range(z, 0, 2 * size))
        new = dy.tanh(dy.pick_range(z, 2 * size, 3 * size))
        return dy.pick_range(gates, 0, size), dy.pick_range(gates, size, 2 * size), new

    def word_cell(x: Any, h: Any, c: Any, p: dynet_common.Parameters) -> Any:
        i, f, new = parts(dy.affine_transform([p["b_word"], p["w_word"], dy.concatenate([x, h])]))
        return dy.cmult(i, new) + dy.cmult(f, c)

    def encode(one: lattice_workload.Lattice, p: dynet_common.Parameters) -> Any:
        h = c = dy.zeros(size)
        states: list[tuple[Any, Any]] = []
        for character, words in zip(one.characters, one.words, strict=True):
            x = p["emb"][character]
            i, o, new = parts(dy.affine_transform([p["b"], p["w"], dy.concatenate([x, h])]))
            if words:
                cells = [word_cell(p["emb"][word], *states[start], p) for start, word in words]
                shares = [dy.exp(dy.logistic(p["w_gate"] * dy.concatenate([x, cell]))) for cell in cells]
                own = dy.exp(i)
                mixed = [dy.cmult(s, cell) for s, cell in zip(shares, cells, strict=True)]
                c = dy.cdiv(dy.esum([dy.cmult(own, new), *mixed]), dy.esum([own, *shares]))
            else:
                c = dy.cmult(i, new) + dy.cmult(-i + 1.0, c)
            h = dy.cmult(o, dy.tanh(c))
            states.append((h, c))
        return h

    return classifier(lattice_workload.data(case), encode, case)


def dag(case: Case) -> Runner:
    def encode(graph: list[dag_workload.Vertex], p: dynet_common.Parameters) -> Any:
        states: list[Any] = []
        for vertex in graph:
            z = p["w"] * p["emb"][vertex.word]
            if vertex.parents:
                found = [states[parent] for parent in vertex.parents]
                gate = dy.logistic(z + p["u_gate"] * found[0])
                z = z + dy.cmult(gate, p[f"u_{vertex.kind}"] * dy.esum(found))
            states.append(dy.tanh(z))
        return states[-1]

    return classifier(dag_workload.data(case), encode, case)
