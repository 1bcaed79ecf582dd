"""Recurrent loops as people write them: cells that get a dict of weights, results that are appended, losses added up.

All of them run as one op, as in `test_scans.py`. Mutations that must turn this file red; each was made by hand and seen
red:
    - containers: in `block_launch.LaneBlock.unpacked`, `return values`; in `LaneScan._stays`, `return True`;
    - numbers: in `LaneBlock.find`, `site.updates` not asked;
    - appended expressions: in `lockstep_forms._convert`, no `split_off_arrays`.
"""

import warnings

import numpy as np
import pytest

import autobatch as ab
from autobatch import batch
from autobatch.errors import FallbackWarning
from tests.law import agrees, batch_of, equals_loop_either_way, every_way_equals_loop, loop, ragged, run_again

RNG = np.random.default_rng(5)
PARAMS = {
    "w": RNG.normal(size=(3, 4)),
    "u": RNG.normal(size=(4, 4)) / 4,
    "b": RNG.normal(size=4),
    "gates": {"w": RNG.normal(size=(3, 8)), "u": RNG.normal(size=(4, 8)) / 4},
    "out": [RNG.normal(size=(4, 5)), RNG.normal(size=5)],
    "emb": RNG.normal(size=(6, 3)),
    "name": "cell",
}
ROWS = ragged(5, 0, 3, 9, 1, 9, 12, width=3)
LABELS = [RNG.integers(0, 5, len(rows)) for rows in ROWS]


def cell(x, h, p):
    return np.tanh(x @ p["w"] + h @ p["u"] + p["b"])


def fading_cell(x, h, p):
    return cell(x, h, p["weights"]) * p["keep"]


def gated_cell(x, h, c, p):
    z = x @ p["w"] + h @ p["u"]
    f, g = z[:4], z[4:]
    c = ab.nn.sigmoid(f) * c + np.tanh(g)
    return np.tanh(c), c


def scores(h, out):
    return h @ out[0] + out[1]


def by_a_cell(xs, ys, p):
    h = np.zeros(4)
    for x in xs:
        h = cell(x, h, p)
    return h.sum()


def by_two_results(xs, ys, p):
    h, c = np.zeros(4), np.zeros(4)
    for x in xs:
        h, c = gated_cell(x, h, c, p["gates"])
    return (h * c).sum()


def backwards_too(xs, ys, p):
    h, g = np.zeros(4), np.zeros(4)
    for x in xs[::-1]:
        h = cell(x, h, p)
    for x in reversed(xs):
        g = cell(x, g, p)
    return (h * 2 + g).sum()


def in_layers(xs, ys, p):
    for layer in (p["gates"], p["gates"]):
        h, c, states = np.zeros(4), np.zeros(4), []
        for x in xs:
            h, c = gated_cell(x, h, c, layer)
            states.append(np.tanh(h[:3]))
        xs = np.stack(states) if states else xs
    return xs.sum()


def counted(xs, ys, p):
    h = np.zeros(4)
    for _, x in enumerate(xs, 1):
        h = np.tanh(x @ p["w"] + h @ p["u"])
    return h.sum()


def appended(xs, ys, p):
    h, found = np.zeros(4), []
    for x in xs:
        h = np.tanh(x @ p["w"] + h @ p["u"])
        found.append(ab.nn.log_softmax(scores(h, p["out"])))
    return np.stack(found).sum() if found else 0.0 * h.sum()


def losses_appended(xs, ys, p):
    h, losses = np.zeros(4), []
    for x, y in zip(xs, ys, strict=True):
        h = cell(x, h, p)
        losses.append(ab.nn.cross_entropy(h @ p["out"][0], y))
    return np.mean(np.array(losses)) if losses else 0.0 * h.sum()


def losses_added(xs, ys, p):
    h, total = np.zeros(4), np.float64(0)
    for x, y in zip(xs, ys, strict=True):
        h = cell(x, h, p)
        total += ab.nn.cross_entropy(scores(h, p["out"]), y)
        total *= 0.5
    return total + 0.0 * h.sum()


def from_a_python_number(xs, ys, p):
    h, total = np.zeros(4), 0.0
    for x in xs:
        h = np.tanh(x @ p["w"] + h @ p["u"])
        total += (h * h).sum()
    return total * h.sum()


def by_ids(xs, ys, p):
    h = np.zeros(4)
    for y in ys:
        x = p["emb"][y]
        h = cell(x, h, p)
    return h.sum()


def by_ids_within(xs, ys, p):
    h = np.zeros(4)
    for x, y in zip(xs, ys, strict=True):
        h = np.tanh((x + p["emb"][y]) @ p["w"] + h @ p["u"])
    return h.sum()


def by_numbers(xs, ys, p):
    h = np.zeros(4)
    for t in range(len(xs)):
        h = cell(xs[t], h, p)
    return h.sum()


def by_numbers_and_ids(xs, ys, p):
    h, total = np.zeros(4), np.float64(0)
    for t in range(len(ys)):
        (x,) = xs[t : t + 1]
        h = cell(x, h, p)
    for t, x in enumerate(xs):
        y = ys[t]
        h = cell(x, h, p)
        total += ab.nn.cross_entropy(scores(h, p["out"]), y)
    return total


def a_number_of_times(xs, ys, p):
    h = xs.sum(0)
    h = np.concatenate([h, h[:1]])
    for _ in range(7):
        h = np.tanh(h @ p["u"] + h * 0.5)
    return h.sum()


def appended_in_turns(xs, ys, p):
    h, states, found, twice = np.zeros(4), [], [], []
    for x in xs:
        h = np.tanh(x @ p["w"] + h @ p["u"])
        states.append(h)
        found.append(scores(h, p["out"]) * 2.0)
        twice.append(h @ p["u"])
    return np.stack(found).sum() + (np.stack(states) * np.stack(twice)).sum() if found else 0.0 * h.sum()


def stored(xs, ys, p):
    h, out, norms = np.zeros(4), np.zeros((len(xs), 5)), np.zeros(len(xs) + 1)
    for t, x in enumerate(xs):
        h = cell(x, h, p)
        norm = np.sum(h * h)
        out[t] = ab.nn.log_softmax(scores(h, p["out"]))
        norms[t] = norm
    return out.sum() + norms.sum() * norms[0]


def stored_by_numbers(xs, ys, p):
    states = np.zeros((len(xs), 4))
    h = np.zeros(4)
    for t in range(len(xs)):
        h = cell(xs[t], h, p)
        states[t] = h
    return (states * np.tanh(states)).sum()


WRITTEN = [
    appended_in_turns, stored, stored_by_numbers,
    by_ids, by_ids_within, by_numbers, by_numbers_and_ids, a_number_of_times, by_a_cell, by_two_results,
    backwards_too, in_layers, counted, appended, losses_appended, losses_added, from_a_python_number,
]  # fmt: skip


@pytest.mark.parametrize("f", WRITTEN)
def test_the_steps_run_as_one(f, scans):
    filled = slice(2, None) if f is from_a_python_number else slice(None)  # else a number of Python's is a result
    for pick in (filled, slice(5, 6), slice(0, 0)):
        for _ in range(3):
            if ROWS[pick]:
                agrees(f, ROWS[pick], LABELS[pick], p=PARAMS)
    scans.clear()
    run_again(f, ROWS[filled], LABELS[filled], p=PARAMS, times=1)
    assert sum(scans) >= 5, scans


@pytest.mark.parametrize("f", WRITTEN)
def test_gradients_are_those_of_the_loop(f, scans):
    g = batch(f, strict=True)
    rows, labels = ROWS[2:], LABELS[2:]
    for _ in range(4):
        got = ab.grad(lambda p: ab.sum(g(batch_of(rows), batch_of(labels), p)))(PARAMS)
    assert sum(scans) >= 5
    wanted = ab.grad(lambda p: sum(f(x, y, p) for x, y in zip(rows, labels, strict=True)))(PARAMS)
    for name in ("w", "u", "b", "emb"):
        np.testing.assert_allclose(got[name], wanted[name], rtol=1e-9, atol=1e-12)
    for place in (0, 1):
        np.testing.assert_allclose(got["out"][place], wanted["out"][place], rtol=1e-9, atol=1e-12)
    for name in ("w", "u"):
        np.testing.assert_allclose(got["gates"][name], wanted["gates"][name], rtol=1e-9, atol=1e-12)


def test_all_ways():
    every_way_equals_loop(losses_added, ROWS[2:], LABELS[2:], p=PARAMS)
    every_way_equals_loop(by_two_results, ROWS, LABELS, p=PARAMS)


@pytest.mark.parametrize("f", [by_ids, by_ids_within])
def test_rows_of_a_table(f, scans):
    params = PARAMS | {"emb": ab.EmbeddingTable(PARAMS["emb"].copy())}
    for _ in range(3):
        agrees(f, ROWS, LABELS, p=params)
    g = batch(f, strict=True)
    for _ in range(4):
        got = ab.grad(lambda p: ab.sum(g(batch_of(ROWS), batch_of(LABELS), p)))(params)
    assert sum(scans) >= 5
    wanted = ab.grad(lambda p: sum(f(x, y, p) for x, y in zip(ROWS, LABELS, strict=True)))(PARAMS)
    assert isinstance(got["emb"], ab.SparseRows)
    np.testing.assert_allclose(got["emb"].to_dense(), wanted["emb"], rtol=1e-9, atol=1e-12)


def test_ids_that_are_not_in_the_table():
    labels = [each.copy() for each in LABELS]
    labels[4][0] = -2  # from the end, for an array
    for _ in range(3):
        agrees(by_ids, ROWS, labels, p=PARAMS)
    labels[3][7] = 9
    for table in (PARAMS["emb"], ab.EmbeddingTable(PARAMS["emb"])):
        g = batch(by_ids)
        for _ in range(3):
            with pytest.raises(IndexError, match="9") as caught:
                g(batch_of(ROWS), batch_of(labels), PARAMS | {"emb": table})
            assert any("example 3" in note for note in caught.value.__notes__)


def test_numbers_of_steps_that_are_not_those_of_rows():
    def of_every_second(xs, p):
        h = np.zeros(4)
        for t in range(0, len(xs), 2):
            h = cell(xs[t], h, p)
        return h

    def from_the_second_on(xs, p):
        h = np.zeros(4)
        for t in range(1, len(xs)):
            h = cell(xs[t], h, p)
        return h

    def from_behind(xs, p):
        h = np.zeros(4)
        for t in range(len(xs) - 1, -1, -1):
            h = cell(xs[t], h, p)
        return h

    def enumerated_from_one(xs, p):
        h = np.zeros(4)
        for t, _ in enumerate(xs[1:], 1):
            h = cell(xs[t], h, p)
        return h

    def of_two(xs, p):
        h = np.zeros(4)
        for t, x in zip(range(3), xs, strict=False):
            h = cell(xs[t] + x, h, p)
        return h

    def in_its_value(xs, p):
        h = np.zeros(4)
        for t, x in enumerate(xs):
            h = np.tanh(x @ p["w"] + h * t)
        return h

    def in_an_index(xs, p):
        h = np.zeros(4)
        for t, x in enumerate(xs[:4]):
            h = np.tanh(x @ p["w"] + h[t])
        return h

    def of_weights(xs, p):
        h = np.zeros(4)
        for t in range(4):
            h = np.tanh(p["u"][t] * h + p["b"] + xs.sum())
        return h

    for f in (
        of_every_second, from_the_second_on, from_behind, enumerated_from_one, of_two, in_its_value, in_an_index,
        of_weights,
    ):  # fmt: skip
        for rows in (ROWS, ragged(6, 6, 6, width=3)):
            for _ in range(3):
                equals_loop_either_way(f, rows, p=PARAMS)


def test_stores_that_are_not_of_whole_rows_in_order():
    def in_another_dtype(xs, p):
        h, out = np.zeros(4), np.zeros((len(xs), 4), np.float32)
        for t, x in enumerate(xs):
            h = cell(x, h, p)
            out[t] = h
        return out

    def broadcast(xs, p):
        h, out = np.zeros(4), np.zeros((len(xs), 3, 4))
        for t, x in enumerate(xs):
            h = cell(x, h, p)
            out[t] = h
        return out

    def from_behind(xs, p):
        h, out = np.zeros(4), np.zeros((len(xs), 4))
        for t in range(len(xs) - 1, -1, -1):
            h = cell(xs[t], h, p)
            out[t] = h
        return out

    def one_later(xs, p):
        h, out = np.zeros(4), np.zeros((len(xs) + 1, 4))
        for t in range(1, len(xs) + 1):
            h = cell(xs[t - 1], h, p)
            out[t] = h
        return out

    def that_are_read(xs, p):
        h, out = np.zeros(4), np.ones((len(xs) + 1, 4))
        for t, x in enumerate(xs):
            h = cell(x, h, p) + out[t] + out[0]
            out[t] = h
        return out

    def twice(xs, p):
        h, out = np.zeros(4), np.zeros((len(xs) + 1, 4))
        for t, x in enumerate(xs):
            h = cell(x, h, p)
            c = h * 2.0
            out[t] = h
            out[t] = c
        return out

    def under_another_name(xs, p):
        h, out = np.zeros(4), np.zeros((len(xs), 4))
        view, same = out[1:], out
        for t, x in enumerate(xs):
            h = cell(x, h, p)
            out[t] = h
        return view, same

    def into_a_view(xs, p):
        h, out = np.zeros(4), np.zeros((len(xs) + 2, 4))
        part = out[1:]
        for t, x in enumerate(xs):
            h = cell(x, h, p)
            part[t] = h
        return out

    def what_leaves_in_the_loop(xs, p):
        h, out = np.zeros(4), np.full((len(xs), 4), 7.0)
        for t, x in enumerate(xs):
            h = cell(x, h, p)
            out[t] = h
            if h.sum() > 1.5:
                break
        return out, h

    def from_inner_loops(xs, p):
        out = np.zeros((3, len(xs), 4))
        for k in range(3):
            h, own = np.zeros(4), np.zeros((len(xs), 4))
            for t, x in enumerate(xs):
                h = cell(x * (k + 1.0), h, p)
                own[t] = h
            out[k] = own
        return out

    for f in (
        in_another_dtype, broadcast, from_behind, one_later, that_are_read, twice, under_another_name, into_a_view,
        what_leaves_in_the_loop, from_inner_loops,
    ):  # fmt: skip
        for rows in (ROWS, ragged(6, 6, 6, width=3)):
            for _ in range(3):
                equals_loop_either_way(f, [each.copy() for each in rows], p=PARAMS)


def test_what_is_appended_is_computed_in_turn():
    """What an appended expression does beside computing is seen by what was appended before."""

    def by_binding(xs, p):
        h, states, found = np.zeros(4), [], []
        for x in xs:
            h = np.tanh(x @ p["w"] + h @ p["u"])
            states.append(h)
            found.append((h := h * 0.5) @ p["u"])
        return np.stack(states).sum() + np.stack(found).sum() if found else h.sum()

    def by_a_call(xs, p):
        states, found = [], []

        def kept(x):
            states.append(x * 2.0)
            return x

        h = np.zeros(4)
        for x in xs:
            h = np.tanh(x @ p["w"] + h @ p["u"])
            states.append(h)
            found.append(kept(h) @ p["u"])
        return np.stack(states) if found else h

    def by_its_length(xs, p):
        h, states, found = np.zeros(4), [], []
        for x in xs:
            h = np.tanh(x @ p["w"] + h @ p["u"])
            states.append(h)
            found.append(h @ p["u"] * len(states))
        return np.stack(found) if found else h

    for f in (by_binding, by_a_call, by_its_length):
        for rows in (ROWS, ragged(6, 6, 6, width=3)):
            for _ in range(3):
                equals_loop_either_way(f, rows, p=PARAMS)


def test_numbers_that_only_begin_like_those_of_the_steps():
    """With a state per example from the start, a loop may run as one op from its first step on."""

    def start(xs):
        return np.tanh(np.concatenate([xs.sum(0), [1.0]]))

    def reads_every_second(xs, p):
        h = start(xs)
        for t in range(0, len(xs), 2):
            h = cell(xs[t], h, p)
        return h

    def stores_in_every_second(xs, p):
        h, out = start(xs), np.zeros((2 * len(xs), 4))
        for t in range(0, 2 * len(xs), 2):
            h = np.tanh(h @ p["u"] + p["b"])
            out[t] = h
        return out

    def stores_one_later(xs, p):
        h, out = start(xs), np.zeros((len(xs) + 1, 4))
        for t, x in enumerate(xs, 1):
            h = cell(x, h, p)
            out[t] = h
        return out

    def stores_a_number_of_times(xs, p):
        h, out = start(xs), np.zeros((9, 4)) + xs.sum()
        for t in range(0, 8, 2):
            h = np.tanh(h @ p["u"] + p["b"])
            out[t] = h
        return out

    for f in (reads_every_second, stores_in_every_second, stores_one_later, stores_a_number_of_times):
        for rows in (ROWS, ragged(6, 6, 6, width=3)):
            for _ in range(5):
                equals_loop_either_way(f, rows, p=PARAMS)


def test_stores_into_an_examples_own_array():
    def f(xs, own, p):
        h = np.zeros(3)
        for t, x in enumerate(xs):
            h = np.tanh(x @ p["w"])[:3] + h
            own[t] = h
        return own.sum(0)

    for rows in (ROWS, ROWS, ragged(6, 6, 6, width=3), ragged(6, 6, 6, width=3)):
        plain, mine = [each.copy() for each in rows], batch_of(rows)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", FallbackWarning)
            found = ab.examples(batch(f)(batch_of(rows), mine, PARAMS))
        for one, wanted in zip(found, loop(f, rows, plain, p=PARAMS), strict=True):
            np.testing.assert_allclose(one, wanted)
        for one, wanted in zip(mine.examples(), plain, strict=True):
            np.testing.assert_allclose(one, wanted)


def test_stores_behind_the_end():
    def f(xs, ys, p):
        h, out = np.zeros(4), np.zeros((len(ys), 4))
        for t, x in enumerate(xs):
            h = cell(x, h, p)
            out[t] = h
        return out

    longer = [np.append(ys, 1) for ys in LABELS]
    for _ in range(3):
        agrees(f, ROWS, longer, p=PARAMS)
    shorter = [*LABELS[:3], LABELS[3][:-1], *LABELS[4:]]
    for _ in range(3):
        with pytest.raises(IndexError, match="index 8 is out of bounds") as caught:
            batch(f)(batch_of(ROWS), batch_of(shorter), PARAMS)
        assert any("example 3" in note for note in caught.value.__notes__)


def test_in_branches_and_in_loops():
    def f(xs, ys, p):
        h, total = np.zeros(4), np.float64(0)
        if len(xs) > 2:
            for t in range(len(xs)):
                h = cell(xs[t], h, p)
        elif len(xs):
            for y in ys:
                h = cell(p["emb"][y], h, p)
        for k in range(2):
            for t in range(len(xs)):
                x, y = xs[t], ys[t]
                h = cell(x * (k + 1.0), h, p)
                total += ab.nn.cross_entropy(scores(h, p["out"]), y)
            if total > 12:
                break
        return h, total

    for _ in range(3):
        agrees(f, ROWS, LABELS, p=PARAMS)
        agrees(f, ROWS[::-1], LABELS[::-1], p=PARAMS)


def test_items_that_are_flags():
    def f(flags, p):
        h = np.zeros(4)
        for flag in flags:
            h = np.tanh(h @ p["u"] + p["b"][int(flag)] + p["emb"][flag].sum())
        return h

    for _ in range(3):
        equals_loop_either_way(f, [ys > 2 for ys in LABELS], p=PARAMS)


def test_rows_that_end_before_the_loop():
    def f(xs, ys, p):
        h = np.zeros(4)
        for t in range(len(ys)):
            h = cell(xs[t], h, p)
        return h

    agrees(f, ROWS, [ys[:-1] for ys in LABELS], p=PARAMS)
    agrees(f, ROWS, [ys[:-1] for ys in LABELS], p=PARAMS)
    longer = [*LABELS[:3], np.append(LABELS[3], 1), *LABELS[4:]]
    for _ in range(3):
        with pytest.raises(IndexError, match="index 9 is out of bounds") as caught:
            batch(f)(batch_of(ROWS), batch_of(longer), PARAMS)
        assert any("example 3" in note for note in caught.value.__notes__)


def test_weights_of_a_container_that_change(scans):
    def f(xs, p):
        h = np.zeros(4)
        for x in xs:
            h = fading_cell(x, h, p)
        return h

    weights = dict(PARAMS)
    params = {"weights": weights, "keep": 0.9}
    for of, name, value in [
        (weights, "u", -PARAMS["u"]), (params, "keep", 0.25), (weights, "name", "another"), (weights, "b", 2.0),
        (weights, "b", RNG.normal(size=4)), (weights, "w", PARAMS["w"].astype(np.float32)), (params, "more", [1, 2]),
        (params, "keep", np.float64(0.5)), (params, "keep", RNG.normal(size=4)), (weights, "u", 0),
    ]:  # fmt: skip
        for _ in range(3):
            scans.clear()
            agrees(f, ROWS, p=params)
        assert scans or name == "u"
        of[name] = value
    with pytest.raises(ValueError, match="matmul"):
        batch(f)(batch_of(ROWS), params)


def test_containers_that_differ_from_loop_to_loop():
    def f(xs, layers):
        for layer in layers:
            h, states = np.zeros(4), [np.ones(3)]
            for x in xs:
                h = cell(x, h, layer)
                states.append(np.tanh(h[:3]))
            xs = np.stack(states)
        return xs

    small = {name: PARAMS[name] for name in ("w", "u", "b")}
    for layers in ([PARAMS, small, PARAMS], [small, PARAMS], [small, {"more": 1, **small}, small], [{**small, "b": 2}]):
        for _ in range(3):
            agrees(f, ROWS, layers=layers)


def test_a_weight_that_is_written_into_between_calls():
    params = {**PARAMS, "u": PARAMS["u"].copy()}
    for _ in range(4):
        agrees(by_a_cell, ROWS, LABELS, p=params)
        params["u"] *= -0.5


def test_a_container_that_changes_in_the_loop():
    def f(xs, p):
        h, p = np.zeros(4), dict(p)
        for i, x in enumerate(xs):
            h = cell(x, h, p)
            if i == 3:
                p["u"] = -p["u"]
        return h

    for _ in range(3):
        equals_loop_either_way(f, ROWS, p=PARAMS)


@pytest.mark.parametrize(
    "more", [{"table": ab.EmbeddingTable(RNG.normal(size=(5, 3)))}, {"f": cell}, {3: {4: object()}}]
)
def test_what_a_helper_does_not_read_may_be_anything(more, scans):
    for _ in range(3):
        agrees(by_a_cell, ROWS, LABELS, p=PARAMS | more)
    assert scans


def from_a_table(x, h, p):
    return np.tanh(p["table"][np.arange(2)].sum(0)[:3] @ p["w"] + x @ p["w"] + h @ p["u"])


def test_what_a_helper_reads_and_a_block_cannot(scans):
    def f(xs, p):
        h = np.zeros(4)
        for x in xs:
            h = from_a_table(x, h, p)
        return h

    for table in (ab.EmbeddingTable(RNG.normal(size=(5, 3))), RNG.normal(size=(5, 3))):
        for _ in range(3):
            agrees(f, ROWS, p=PARAMS | {"table": table})
    table = ab.EmbeddingTable(RNG.normal(size=(5, 3)))
    g = batch(f)
    found = ab.grad(lambda p: ab.sum(g(batch_of(ROWS), p)))(PARAMS | {"table": table})
    wanted = ab.grad(lambda p: sum(f(x, p).sum() for x in ROWS))(PARAMS | {"table": table})
    np.testing.assert_allclose(found["table"].to_dense(), wanted["table"].to_dense())


def test_a_container_of_many(scans):
    params = PARAMS | {f"w{i}": np.ones(2) for i in range(100)}
    for _ in range(3):
        agrees(by_a_cell, ROWS, LABELS, p=params)


def test_a_container_per_example():
    def f(ex, p):
        h = np.zeros(4)
        for x in ex["xs"]:
            h = mixed(x, h, ex, p)
        return h

    examples = [{"xs": x, "own": RNG.normal(size=4)} for x in ROWS]
    whole = {"xs": batch_of([x["xs"] for x in examples]), "own": batch_of([x["own"] for x in examples])}
    g = batch(f)
    for _ in range(4):
        for found, wanted in zip(ab.examples(g(whole, PARAMS)), loop(f, examples, p=PARAMS), strict=True):
            np.testing.assert_allclose(found, wanted)


def mixed(x, h, ex, p):
    return np.tanh(x @ p["w"] + h @ p["u"] + ex["own"])


def test_arrays_that_are_added_to_in_place():
    """`+=` on an array writes into it, so all of its names see it; on a number it does not."""

    def f(xs, p):
        total = np.zeros(4)
        before, h = total, np.zeros(4)
        for x in xs:
            h = np.tanh(x @ p["w"] + h @ p["u"])
            total += h * 2.0
        return before, total

    def becomes_an_array(xs, p):
        total = np.float64(0)
        seen = []
        for x in xs:
            total += np.tanh(x @ p["w"])
            seen.append(total)
        return np.stack(seen) if seen else np.zeros((0, 4))

    def of_no_dimension(xs, p):
        total = np.zeros(())
        before = total
        for x in xs:
            total += np.tanh(x @ p["w"]).sum()
        return before, total

    for g in (f, becomes_an_array, of_no_dimension):
        for _ in range(3):
            equals_loop_either_way(g, ROWS, p=PARAMS)


def test_labels_out_of_range_are_the_examples_error():
    labels = [each.copy() for each in LABELS]
    labels[3][7] = 5
    for f in (losses_added, losses_appended):
        g = batch(f)
        for _ in range(3):
            g(batch_of(ROWS[2:]), batch_of(LABELS[2:]), PARAMS)
        for call in (
            lambda g=g: g(batch_of(ROWS[2:]), batch_of(labels[2:]), PARAMS),
            lambda f=f: ab.map(f, ROWS[2:], labels[2:], p=PARAMS),
        ):
            with pytest.raises(ab.errors.BadIdError, match="label 5 is not one of the 5 classes") as caught:
                call()
            assert any("example 1" in note for note in caught.value.__notes__)
