"""Programs over Python objects, for running on the fly."""

import dataclasses

import numpy as np

import autobatch as ab
from tests.programs.registry import program, weights


@dataclasses.dataclass(eq=False)
class Node:
    word: int = 0
    children: tuple["Node", ...] = ()


def random_tree(rng, size):
    if size <= 1:
        return Node(int(rng.integers(10)))
    left = int(rng.integers(1, size))
    return Node(int(rng.integers(10)), (random_tree(rng, left), random_tree(rng, size - left)))


TREES = [random_tree(np.random.default_rng(i), n) for i, n in enumerate((1, 4, 7, 3, 5))]
TREE_PARAMS = weights(emb=(10, 4), w=(4, 16), u=(4, 12), uf=(4, 4))


@program(TREES, grad=True, params=TREE_PARAMS)
def child_sum_tree_lstm(tree, params):
    return tree_lstm(tree, params)[0]


def tree_lstm(node, params):
    states = [tree_lstm(child, params) for child in node.children]
    x = params["emb"][node.word] @ params["w"]
    h_sum = sum((h for h, _ in states), start=np.zeros(4, np.float32))
    i, o, u = np.split(x[:12] + h_sum @ params["u"], 3)
    c = ab.nn.sigmoid(i) * np.tanh(u)
    for h_child, c_child in states:
        c = c + ab.nn.sigmoid(x[12:] + h_child @ params["uf"]) * c_child
    return ab.nn.sigmoid(o) * np.tanh(c), c


@program(TREES, grad=True, params=weights(emb=(10, 4), w=(8, 4)))
def recursive_network(tree, params):
    if not tree.children:
        return params["emb"][tree.word]
    left, right = (recursive_network(child, params) for child in tree.children)
    return np.tanh(np.concatenate([left, right]) @ params["w"])


@program([[1, 2, 3], [4], [5, 6, 7, 8, 9]], params=weights(emb=(10, 4), w=(8, 4), move=(8,)))
def model_driven_parser(words, params):
    buffer, stack, moves = list(words), [], []
    while buffer or len(stack) > 1:
        if len(stack) < 2:
            shift = True
        elif not buffer:
            shift = False
        else:
            shift = bool(np.concatenate(stack[-2:]) @ params["move"] > 0)
        moves.append(shift)
        if shift:
            stack.append(params["emb"][buffer.pop(0)])
        else:
            right, left = stack.pop(), stack.pop()
            stack.append(np.tanh(np.concatenate([left, right]) @ params["w"]))
    return stack[0], moves


@program([{0: [1, 2], 1: [2], 2: []}, {0: [1], 1: [0]}, {0: []}], grad=True, params=weights(emb=(3, 4), w=(4, 4)))
def graph_network(neighbours, params):
    h = {v: params["emb"][v] for v in neighbours}
    for _ in range(2):
        h = {v: np.tanh(sum((h[u] for u in us), start=h[v]) @ params["w"]) for v, us in neighbours.items()}
    return sum(h.values())


@program([0, 1, 2, 3], params=weights(emb=(8, 4), u=(4, 4), out=(4, 8)))
def beam_search(start, params):
    beams = [(0.0, [start], params["emb"][start])]
    for _ in range(3):
        grown = []
        for score, path, h in beams:
            h = np.tanh(h @ params["u"])
            log_p = ab.nn.log_softmax(h @ params["out"])
            for k in range(8):
                grown.append((score + float(log_p[k]), [*path, k], h + params["emb"][k]))
        beams = sorted(grown, key=lambda beam: (-beam[0], beam[1]))[:2]
    return [path for _, path, _ in beams]


@program([np.float32(v) for v in (0.3, 2.0, -1.0)], params=weights(u=(4, 4), out=(4,)))
def steps_until_the_model_stops(x, params):
    h, steps = np.full(4, x, np.float32), 0
    while h @ params["out"] > -0.05 and steps < 20:
        h = np.tanh(h @ params["u"] + 0.1)
        steps += 1
    return steps, h
