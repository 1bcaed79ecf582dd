"""Models of sequences and points: random fields, transducers, beams, parsers, clusters, elimination."""

# ruff: noqa: RUF005, B007 (the programs are what people write)

import dataclasses

import numpy as np

import autobatch as ab
from tests.programs.registry import program, vectors, weights

IDS = [np.array(x, np.int64) for x in ([1, 3, 2], [2, 5], [0], [4, 3, 2, 1], [1])]
EMISSIONS = vectors(4, 2, 1, 6, 3, seed=80, width=3, dtype=np.float64)
TAGS = [np.array(x, np.int64) for x in ([0, 1, 2, 1], [2, 2], [0], [1, 0, 2, 1, 0, 0], [2, 1, 0])]
PARAMS = weights(seed=81, dtype=np.float64, emb=(6, 3), w=(3, 3), u=(3, 3), b=(3,), out=(3, 4))


@program(EMISSIONS, TAGS, grad=True, params=PARAMS)
def random_field(emissions, tags, params):
    moves = params["w"]
    alpha, score = emissions[0], emissions[0, tags[0]]
    for t in range(1, len(emissions)):
        alpha = np.log(np.exp(alpha[:, None] + moves).sum(0)) + emissions[t]
        score = score + moves[tags[t - 1], tags[t]] + emissions[t, tags[t]]
    return np.log(np.exp(alpha).sum()) - score


@program(EMISSIONS, params=PARAMS)
def best_path(emissions, params):
    best, back = emissions[0], []
    for t in range(1, len(emissions)):
        scores = best[:, None] + params["w"]
        back.append(scores.argmax(0))
        best = scores.max(0) + emissions[t]
    path = [int(best.argmax())]
    for places in reversed(back):
        path.append(int(places[path[-1]]))
    return path[::-1], best.max()


@program(vectors(5, 3, 4, 6, 2, seed=82, width=4, dtype=np.float64), [[1, 2], [1], [2, 2], [3, 1, 2], []], grad=True)
def alignments_of_a_label(logits, label):
    scores = ab.nn.log_softmax(logits)
    symbols = [0]
    for symbol in label:
        symbols += [symbol, 0]
    alpha = [scores[0, 0]] + ([scores[0, symbols[1]]] if len(symbols) > 1 else [])
    alpha += [np.float64(-1e9)] * (len(symbols) - len(alpha))
    for t in range(1, len(scores)):
        after = []
        for s in range(len(symbols)):
            total = alpha[s]
            if s >= 1:
                total = np.logaddexp(total, alpha[s - 1])
            if s >= 2 and symbols[s] != 0 and symbols[s] != symbols[s - 2]:
                total = np.logaddexp(total, alpha[s - 2])
            after.append(total + scores[t, symbols[s]])
        alpha = after
    return alpha[-1] if len(symbols) == 1 else np.logaddexp(alpha[-1], alpha[-2])


@program(IDS, grad=True, params=PARAMS)
def beam_that_ends_by_itself(ids, params):
    beams = [(0.0, [int(ids[0])], params["emb"][ids[0]])]
    for t in range(len(ids)):
        found = []
        for score, path, h in beams:
            h = np.tanh(h @ params["w"] + params["emb"][ids[t]])
            scores = ab.nn.log_softmax(h @ params["out"])
            for k in np.argsort(-scores)[:2]:
                found.append((score + scores[k], path + [int(k)], h))
        found.sort(key=lambda beam: -beam[0])
        beams = found[:2]
        if beams[0][1][-1] == 3:
            break
    return beams[0][0], beams[0][1], len(beams)


@program(IDS, grad=True, params=PARAMS)
def parser_that_decides(ids, params):
    waiting, stack, moves = [params["emb"][i] for i in ids][::-1], [], []
    while waiting or len(stack) > 1:
        score = (stack[-1] if stack else np.zeros(3)) @ params["b"]
        if len(stack) >= 2 and (score > 0 or not waiting):
            right = stack.pop()
            left = stack.pop()
            stack.append(np.tanh(left @ params["w"] + right @ params["u"]))
            moves.append("reduce")
        else:
            stack.append(waiting.pop())
            moves.append("shift")
    return stack[0], " ".join(moves)


class Layer:
    def __init__(self, w, b):
        self.w, self.b = w, b
        self.calls = 0

    def __call__(self, x):
        self.calls += 1
        return np.tanh(x @ self.w + self.b)


class Network:
    def __init__(self, params):
        self.layers = [Layer(params["w"], params["b"]), Layer(params["u"], params["b"])]

    def forward(self, x):
        for layer in self.layers:
            x = layer(x) + x
        return x


@program(EMISSIONS, [1, 0, 0, 1, 1], grad=True, params=PARAMS)
def layers_that_count(rows, parity, params):
    network, h = Network(params), np.zeros(3)
    for i, row in enumerate(rows):
        if i % 2 == parity:
            h = network.forward(row + h)
    return h, [layer.calls for layer in network.layers]


@dataclasses.dataclass(frozen=True)
class Step:
    h: object
    count: int = 0

    def after(self, x):
        return dataclasses.replace(self, h=np.tanh(self.h + x), count=self.count + 1)


@program(EMISSIONS, grad=True)
def the_best_of_frozen_states(rows):
    now = best = Step(np.zeros(3))
    for row in rows:
        now = now.after(row)
        if now.h.sum() > best.h.sum():
            best = now
    return now, best.h, best.count


@program(vectors(6, 4, 3, 8, 5, seed=83, width=2, dtype=np.float64), [2, 2, 1, 3, 2])
def clusters(points, k):
    centres = points[:k].copy()
    for steps in range(10):
        nearest = ((points[:, None] - centres[None]) ** 2).sum(-1).argmin(1)
        moved = [points[nearest == j].mean(0) if (nearest == j).any() else centres[j] for j in range(k)]
        if np.allclose(np.stack(moved), centres):
            break
        centres = np.stack(moved)
    return nearest, centres, steps


@program(EMISSIONS, grad=True)
def orthogonal_rows(rows):
    basis = []
    for row in rows[:3]:
        for other in basis:
            row = row - (row @ other) * other
        norm = np.linalg.norm(row)
        if norm > 1e-6:
            basis.append(row / norm)
    return sum(basis), len(basis)


@program([np.random.default_rng(i).normal(size=(3, 3)) for i in range(5)])
def elimination_with_pivots(matrix):
    a, determinant = matrix.copy(), 1.0
    for c in range(3):
        p = c + int(np.abs(a[c:, c]).argmax())
        if p != c:
            a[[c, p]] = a[[p, c]]
            determinant = -determinant
        determinant *= a[c, c]
        a[c] = a[c] / a[c, c]
        for r in range(3):
            if r != c:
                a[r] -= a[r, c] * a[c]
    return determinant, a


@program(vectors(4, 2, 1, 6, 3, seed=84, dtype=np.float64), [1, 2, 3, 4, 5])
def annealing(x, seed):
    now = best = x.sum()
    for t in range(12):
        seed = (1103515245 * seed + 12345) % 2**31
        tried = now + (seed / 2**31 - 0.5)
        if tried**2 < now**2 or seed % 7 > t:
            now = tried
            if now**2 < best**2:
                best = now
    return best, now, seed
