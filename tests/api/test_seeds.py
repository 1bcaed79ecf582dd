"""One block with a seed: the plain list, the batch, the map and micro-batches draw the same numbers, and draw on."""

import contextvars
import threading

import numpy as np
import pytest

import autobatch as ab
from tests import law

XS = [np.ones((n, 16)) for n in (2, 3, 2, 1)]
WAYS = ("loop", "lockstep", "fly", "compiled")


def once(x):
    return ab.nn.dropout(x, 0.5)


def helper(row, scale=1.0):
    return ab.nn.dropout(row * scale, 0.3)


def twice(x):
    first = ab.nn.dropout(x, 0.5)
    return first + 2.0 * ab.nn.dropout(x, 0.5)


def with_helpers(x):
    return sum(helper(row) for row in x) + helper(x[0], scale=3.0)


@ab.batch
def decorated_helper(x):
    return ab.nn.dropout(x, 0.4)


def nested(x):
    return decorated_helper(x) + ab.nn.dropout(x, 0.1) + decorated_helper(x)


def of_a_loop(x):
    h = np.zeros(16)
    for row in x:
        h = ab.nn.dropout(h + row, 0.5)
    return h


def with_a_map(x):
    return sum(ab.map(helper, [x, x])) + ab.nn.dropout(x, 0.2) + ab.map(helper, [x])[0]


LAYER = ab.nn.Dropout(0.5)


def with_a_layer(x):
    return LAYER(x) + LAYER(x)


def of_a_seed_of_its_own(x):
    return ab.nn.dropout(x, 0.5, seed=8) + ab.nn.dropout(x, 0.5)


FUNCTIONS = [once, twice, with_helpers, nested, of_a_loop, with_a_map, with_a_layer, of_a_seed_of_its_own]


def batch_of(xs):
    return ab.MaskedBatch.from_examples(xs)


def in_halves(f, xs):
    return [*ab.examples(ab.batch(f)(batch_of(xs[:3]))), *ab.examples(ab.batch(f)(batch_of(xs[3:])))]


def given_all(f, xs, more):
    return [f(x) for x in xs]


FORMS = {
    "batch": lambda f, xs: ab.examples(ab.batch(f)(batch_of(xs))),
    "map": ab.map,
    "micro-batches": in_halves,
    "maps in parts": lambda f, xs: [*ab.map(f, xs[:1]), *ab.map(f, iter(xs[1:]))],
    "decorated": lambda f, xs: [ab.batch(f)(x) for x in xs],
    "plain list of a function": lambda f, xs: [f(x) for x in xs],
    "a function without arguments": lambda f, xs: (lambda: [f(x) for x in xs])(),
    "a function of all examples": lambda f, xs: given_all(f, xs, np.ones(3)),
    "mixed": lambda f, xs: [f(xs[0]), *ab.map(f, xs[1:3]), *map(ab.batch(f), xs[3:])],
}


def plain(f, seed=5):
    out = []
    with ab.options(seed=seed, way="loop", warn=False):
        for x in XS:
            out.append(f(x))
    return out


@pytest.mark.parametrize("f", FUNCTIONS, ids=lambda f: f.__name__)
def test_all_forms_draw_what_the_plain_list_draws(f):
    expected = plain(f)
    assert not np.array_equal(expected[0], expected[2]), "one mask for all examples"
    for form, run in FORMS.items():
        for way in WAYS if form in ("batch", "map", "micro-batches") else ("loop", "auto"):
            with ab.options(seed=5, way=way, warn=False):
                out = run(f, XS)
            law.assert_same(list(out), expected, where=f"{form}, {way}")
    with ab.options(seed=5, warn=False):
        law.assert_same([f(x) for x in XS], expected)
    with ab.options(seed=5, warn=False):
        law.assert_same(list(map(f, XS)), expected)


def test_the_calls_of_a_block_draw_on_and_another_block_repeats():
    def run(seed=5):
        with ab.options(seed=seed):
            return [*map(once, [np.ones(64)] * 2), *ab.map(once, [np.ones(64)] * 2), ab.nn.dropout(np.ones(64))]

    first = run()
    assert len({out.tobytes() for out in first}) == len(first)
    law.assert_same(run(), first)
    with ab.options(seed=5):
        outer = [once(np.ones(64))]
        with ab.options(way="loop"):
            outer += map(once, [np.ones(64)])
        law.assert_same(run(6), run(6))
        outer += ab.map(once, [np.ones(64)] * 2)
    law.assert_same(outer, first[:4])


def test_a_call_that_is_drawn_by_the_block_itself():
    with ab.options(seed=5):
        drawn = [ab.nn.dropout(x, 0.5) for x in XS]
    law.assert_same(drawn, plain(once))


def test_seeds_of_several_numbers():
    def drawn(seed):
        return np.stack([once(np.ones(64)) for _ in range(2)]) if seed is None else np.stack(plain_ones(seed))

    def plain_ones(seed):
        with ab.options(seed=seed):
            assert ab.config.seed == seed
            return [once(np.ones(64)) for _ in range(2)]

    seeds = [(1, 2), (2, 1), (1,), 1, (1, 2, 0), (0, 1, 2), (np.int64(3), 0), (-1, 2**70)]
    assert len({drawn(seed).tobytes() for seed in seeds}) == len(seeds)
    for seed in seeds:
        np.testing.assert_array_equal(drawn(seed), drawn(seed))
    law.assert_same(plain(twice, (3, 4)), in_a_block(lambda: ab.map(twice, XS), (3, 4)))
    for wrong in ((), (1, "a"), (1, None), (True, 1), 1.5, [1, 2]):
        with pytest.raises(ab.errors.UnsupportedError, match="expected an integer, a tuple of integers, or None"):
            ab.options(seed=wrong).__enter__()


def in_a_block(run, seed=5, **options):
    with ab.options(seed=seed, **options):
        return run()


def test_gradients():
    w = np.linspace(0.5, 2.0, 16)

    def loss(x, w):
        return (twice(x * w) ** 2).sum()

    batched = ab.batch(loss)
    with ab.options(seed=5):
        whole = ab.grad(lambda w: ab.sum(batched(batch_of(XS), w)))(w)
    with ab.options(seed=5):
        of_a_list = ab.grad(lambda w: sum(loss(x, w) for x in XS))(w)
    with ab.options(seed=5):
        of_decorated = ab.grad(lambda w: sum(batched(x, w) for x in XS))(w)
    with ab.options(seed=5):
        first = ab.grad(lambda w: ab.sum(batched(batch_of(XS[:1]), w)))(w)
        in_parts = first + ab.grad(lambda w: ab.sum(batched(batch_of(XS[1:]), w)))(w)

    def objective(w):
        return sum(loss(x, w) for x in XS)

    def in_halves(w):
        return sum(ab.sum(batched(batch_of(half), w)) for half in (XS[:3], XS[3:]))

    of_functions = [in_a_block(lambda f=f: ab.grad(f)(w)) for f in (objective, in_halves)]
    for other in (of_a_list, of_decorated, in_parts, *of_functions):
        np.testing.assert_allclose(other, whole, rtol=1e-12)
    with ab.options(seed=5):
        each = [ab.grad(loss, argnums=1)(x, w) for x in XS]
    np.testing.assert_allclose(sum(each), whole, rtol=1e-12)
    for way in ("loop", "fly", "compiled"):
        with ab.options(seed=5, way=way, warn=False):
            law.assert_same(ab.map(ab.grad(loss, argnums=1), XS, ab.shared(w)), each)
    of_inputs = lambda x: (with_helpers(x) ** 2).sum()
    with ab.options(seed=5):
        each = [ab.grad(of_inputs)(x) for x in XS]
    with ab.options(seed=5):
        law.assert_same(ab.map(ab.grad(of_inputs), XS), each)


def test_runs_inside_an_example_have_numbers_of_their_own():
    parts = [np.ones(64)] * 2
    inner = lambda x: np.stack(ab.map(once, parts))
    with ab.options(seed=5):
        out = [inner(x) for x in XS]
        more = inner(XS[0])
    rows = np.concatenate([*out, more])
    assert len({row.tobytes() for row in rows}) == len(rows)
    with ab.options(seed=5):
        law.assert_same(ab.map(inner, XS), out)


def test_in_another_thread_with_the_context_of_the_block():
    out = []

    def work():
        out.extend(twice(x) for x in XS)

    with ab.options(seed=5):
        thread = threading.Thread(target=contextvars.copy_context().run, args=(work,))
        thread.start()
        thread.join()
    law.assert_same(out, plain(twice))


@pytest.fixture(name="_seeded")
def _block():
    with ab.options(seed=5):
        yield


@pytest.mark.usefixtures("_seeded")
def test_the_block_of_a_fixture():
    law.assert_same([twice(x) for x in XS], plain(twice))


def test_no_variable_of_a_call_is_kept_after_the_block():
    gone = []

    class Held:
        def __del__(self):
            gone.append(self)

    def f(x):
        held = Held()
        return ab.nn.dropout(x, 0.5) if held else x

    with ab.options(seed=5):
        f(np.ones(4))
        f(np.ones(4))
        assert len(gone) == 1
    assert len(gone) == 2


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("decorated", [True, False])
def test_without_a_seed_too_examples_draw_their_own_numbers_in_maps_of_what_they_share(decorated, way):
    def noise(x, rows):
        of_a_map = sum(ab.map(once, rows))
        if x > 0:
            of_a_map = of_a_map + ab.map(ab.batch(once), rows)[1]
        return x + of_a_map

    xs, rows = [0.0, 0.0, 1.0, 1.0], [np.ones(64), np.ones(64)]
    with ab.options(way=way, warn=False):
        found = ab.batch(noise)(ab.collate(xs), rows).examples() if decorated else ab.map(noise, xs, rows=rows)
    assert len({each.tobytes() for each in found}) == 4
