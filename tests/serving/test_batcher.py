"""`Batcher`: every answer is that of the single call, whatever comes, goes or fails beside it."""

import asyncio
import collections
import concurrent.futures
import functools
import gc
import threading
import time
import weakref

import numpy as np
import pytest

import autobatch as ab
from autobatch.errors import ClosedError, OptionError, OverloadedError, UnsupportedError
from autobatch.serving.request_rounds import Model, Request, Round
from tests.law import assert_same
from tests.serving.models import Tree, decode, random_tree, tagger, tree_lstm, weights

PARAMS = weights()


def in_loop(test):
    """Run a test that is a coroutine function in an event loop of its own."""

    @functools.wraps(test)
    def run(*args, **kwargs):
        asyncio.run(asyncio.wait_for(test(*args, **kwargs), 240))

    return run


def outcome(f, *args, **shared):
    try:
        return f(*args, **shared)
    except Exception as error:
        return error


def same_outcome(given, expected):
    if isinstance(expected, Exception):
        assert type(given) is type(expected)
        assert str(given) == str(expected)
    else:
        assert_same(given, expected)


def sentences(count, seed=0):
    rng = np.random.default_rng(seed)
    return [rng.integers(0, 50, size) for size in rng.integers(1, 12, count)]


def trees(count, seed=0):
    rng = np.random.default_rng(seed)
    return [random_tree(rng, int(size)) for size in rng.integers(1, 9, count)]


def starts(count, seed=0):
    rng = np.random.default_rng(seed)
    return list(zip(rng.integers(0, 50, count).tolist(), rng.integers(1, 12, count).tolist(), strict=True))


def gate(x, w):
    """Waits at `Gate.opened`, so that a test can say what comes meanwhile."""
    Gate.entered.release()
    Gate.opened.acquire(timeout=240)
    return x * w


class Gate:
    entered, opened = threading.Semaphore(0), threading.Semaphore(0)


MODELS = [(tagger, sentences), (tree_lstm, trees), (decode, starts)]


@pytest.mark.parametrize(("f", "examples"), MODELS, ids=["tagger", "tree_lstm", "decode"])
@in_loop
async def test_answers_are_those_of_the_single_call(f, examples):
    given = [each if type(each) is tuple else (each,) for each in examples(20)]
    async with ab.Batcher(ab.batch(f), params=PARAMS) as batcher:
        answers = await asyncio.gather(*[batcher(*each) for each in given])
    for answer, example in zip(answers, given, strict=True):
        assert_same(answer, f(*example, params=PARAMS))


@pytest.mark.chosen
@in_loop
async def test_answers_are_those_of_the_single_call_by_any_way():
    examples = sentences(30)
    async with ab.Batcher(tagger, params=PARAMS) as batcher:
        for _ in range(12):
            answers = await asyncio.gather(*[batcher(each) for each in examples])
            for answer, example in zip(answers, examples, strict=True):
                assert_same(answer, tagger(example, PARAMS))


@in_loop
async def test_calls_of_one_moment_are_one_batch():
    async with ab.Batcher(tagger, max_wait=5.0, params=PARAMS) as batcher:
        await asyncio.gather(*[batcher(each) for each in sentences(40)])
        await asyncio.gather(*[batcher(each) for each in sentences(40)])
    assert (batcher.metrics.batches.count, batcher.metrics.batches.total) == (2, 80)


def noting():
    """A function that notes that it runs, and the note."""
    ran = threading.Event()

    def f(x):
        ran.set()
        return x

    return f, ran


@in_loop
async def test_no_batch_begins_in_the_turn_in_which_calls_come():
    f, ran = noting()
    async with ab.Batcher(f, max_wait=5.0) as batcher:

        async def ask(x):
            assert not ran.wait(0.02)  # the loop stands still, and the batcher's thread has time to begin
            return await batcher(x)

        assert await asyncio.gather(*[ask(x) for x in range(3)]) == [0, 1, 2]
    assert (batcher.metrics.batches.count, batcher.metrics.batches.total) == (1, 3)


@in_loop
async def test_a_turn_that_does_not_end_does_not_hold_its_calls_up():
    f, ran = noting()
    async with ab.Batcher(f) as batcher:
        asking = asyncio.ensure_future(batcher(1))
        await asyncio.sleep(0)
        assert ran.wait(30.0)  # in the same turn as the call
        assert await asking == 1


def test_no_more_run_at_once_than_allowed():
    waiting = [Request((start, length), None) for start, length in starts(40)]
    requests = waiting[:]
    running, rooms = [waiting.pop(0) for _ in range(5)], []

    def more(room):
        rooms.append(room)
        assert sum(not each.ended for each in running) <= 8 - room
        joined = [waiting.pop(0) for _ in range(min(room, len(waiting)))]
        running.extend(joined)
        return joined

    model = Model(decode, {"params": PARAMS}, 1)
    Round(model, running[:], True, more).run(8)
    while waiting:  # if all of a round end at once, the next round takes the others
        running.append(waiting.pop(0))
        Round(model, running[-1:], True, more).run(8)
    assert [each.answer.value for each in requests] == [decode(*each.example, PARAMS) for each in requests]
    assert not waiting
    assert min(rooms) >= 0


@in_loop
async def test_a_single_client_does_not_wait_for_others():
    async with ab.Batcher(lambda x: x + 1, max_wait=1000.0) as batcher:
        assert [await batcher(i) for i in range(5)] == [1, 2, 3, 4, 5]
        await asyncio.gather(*[batcher(i) for i in range(20)])
        assert await batcher(1) == 2  # not 19 others either: at most as long as the last batch took
    assert batcher.metrics.batches.count == 7


@in_loop
async def test_requests_join_a_decoding_loop():
    steps = collections.Counter()

    def endless(x, w):
        h = np.full(4, float(x))
        for _ in range(400):
            h = np.tanh(h @ w)
            if h[0] > 2.0:
                break
        return h

    w = np.eye(4)
    async with ab.Batcher(endless, w=w) as batcher:
        first = asyncio.ensure_future(batcher(1))
        while not batcher.metrics.running:
            await asyncio.sleep(0)
        others = [await batcher.answer(i) for i in range(2)]
        assert_same((await first), endless(1, w))
        for i, each in enumerate(others):
            assert_same(each.value, endless(i, w))
    assert batcher.metrics.batches.count <= 3
    assert not steps


@pytest.mark.chosen
@in_loop
async def test_clients_that_come_and_go_get_their_answers_by_any_way():
    async def client(batcher, seed):
        for start, length in starts(12, seed):
            assert await batcher(start, length) == decode(start, length, PARAMS)

    async with ab.Batcher(decode, max_batch=6, params=PARAMS) as batcher:
        await asyncio.gather(*[client(batcher, seed) for seed in range(10)])
    assert batcher.metrics.answered == 120


@in_loop
async def test_a_short_answer_does_not_wait_for_a_long_one():
    async with ab.Batcher(decode, max_wait=5.0, params=PARAMS) as batcher:
        order = []

        async def ask(length):
            await batcher(3, length)
            order.append(length)

        await asyncio.gather(*[ask(length) for length in (200, 3, 60)])
    assert order == [3, 60, 200]
    assert batcher.metrics.batches.count == 1


def raising(x, w):
    if x % 5 == 3:
        raise ValueError(f"{x} is unlucky")
    h = w[x] * 2.0
    if x % 7 == 6:
        h = np.linalg.inv(np.zeros((2, 2)) * h.sum())
    return h.sum()


@pytest.mark.parametrize("chosen", [True, False])
@in_loop
async def test_a_request_that_raises_does_not_touch_the_others(chosen):
    w = np.arange(40.0).reshape(20, 2)
    with ab.options(way="auto" if chosen else "fly"):
        batcher = ab.Batcher(raising, w=w)
    async with batcher:
        for _ in range(4):
            answers = await asyncio.gather(*[batcher(x) for x in range(25)], return_exceptions=True)
            for x, answer in enumerate(answers):
                same_outcome(answer, outcome(raising, x, w=w))
    assert batcher.metrics.failed == 4 * sum(isinstance(outcome(raising, x, w=w), Exception) for x in range(25))


def of_python(x, w):
    return {"n": len(x), "first": float(x[0]) if len(x) else None, "pair": (x, [x.sum() > 0.5])}


def constant(x, w):
    return 3, "text", w


def stopping(x, w):
    h = np.zeros(2, np.float32)
    for each in x:
        if each > 0.9:
            raise ValueError(f"too large: {each:.3f}")
        h = np.tanh(h @ w + each)
    return h


@pytest.mark.parametrize("way", ["auto", "lockstep", "fly"])
@pytest.mark.parametrize("f", [of_python, constant, stopping])
@in_loop
async def test_arrays_may_run_as_one_batch(f, way):
    rng = np.random.default_rng(0)
    xs = [rng.random(size).astype(np.float32) for size in (3, 0, 1, 7, 3, 3, 2, 5)]
    with ab.options(way=way):
        batcher = ab.Batcher(ab.batch(f), w=np.eye(2, dtype=np.float32))
    async with batcher:
        for _ in range(8):
            answers = await asyncio.gather(*[batcher(x) for x in xs], return_exceptions=True)
            for answer, x in zip(answers, xs, strict=True):
                same_outcome(answer, outcome(f, x, w=np.eye(2, dtype=np.float32)))


@in_loop
async def test_exceptions_keep_the_place_where_they_were_raised():
    async with ab.Batcher(raising, w=np.ones((5, 2))) as batcher:
        answers = await asyncio.gather(*[batcher(x) for x in range(5)], return_exceptions=True)
    where = answers[3].__traceback__
    while where.tb_next is not None:
        where = where.tb_next
    assert where.tb_frame.f_code.co_name == "raising"


@in_loop
async def test_whatever_is_raised_reaches_its_request_only():
    class Odd(BaseException):
        pass

    def f(x):
        if x == 1:
            raise StopIteration
        if x == 2:
            raise Odd("no Exception")
        return x

    async with ab.Batcher(f) as batcher:
        answers = await asyncio.gather(*[batcher.answer(x) for x in (0, 1, 3)], return_exceptions=True)
        assert answers[0].value == 0
        assert isinstance(answers[1], RuntimeError)  # as `await` has it
        assert answers[2].value == 3
        with pytest.raises(Odd, match="no Exception"):
            batcher.submit(2).result()
        assert await batcher(4) == 4


@in_loop
async def test_effects_happen_once_for_each_request():
    seen = []

    def f(x, w):
        seen.append(x)
        if x == 3:
            raise KeyError(x)
        return float((np.full(2, x) @ w).sum())

    async with ab.Batcher(f, w=np.eye(2)) as batcher:
        answers = await asyncio.gather(*[batcher(x) for x in range(6)], return_exceptions=True)
    assert sorted(seen) == [0, 1, 2, 3, 4, 5]
    assert [type(each) for each in answers].count(KeyError) == 1
    assert answers[5] == 10.0


@in_loop
async def test_random_numbers_are_those_of_the_single_call():
    def f(x):
        return ab.nn.dropout(np.ones(8) * x, 0.5, training=True)

    expected = []
    for x in range(5):
        with ab.options(seed=3):
            expected.append(ab.batch(f)(float(x)))
    with ab.options(seed=3):
        batcher = ab.Batcher(f)
    async with batcher:
        answers = await asyncio.gather(*[batcher(float(x)) for x in range(5)])
    for answer, each in zip(answers, expected, strict=True):
        assert_same(answer, each)


@pytest.mark.parametrize("seed", range(6))
@in_loop
async def test_cancelling_at_random_loses_no_other_answer(seed):
    rng = np.random.default_rng(seed)
    examples = starts(60, seed)
    async with ab.Batcher(decode, max_batch=7, params=PARAMS) as batcher:
        tasks = []
        for start, length in examples:
            tasks.append(asyncio.ensure_future(batcher(start, length)))
            if rng.random() < 0.3:
                await asyncio.sleep(0.001 * rng.random())
            if rng.random() < 0.4:
                tasks[rng.integers(len(tasks))].cancel()
        answers = await asyncio.gather(*tasks, return_exceptions=True)
    for answer, (start, length) in zip(answers, examples, strict=True):
        if not isinstance(answer, asyncio.CancelledError):
            assert answer == decode(start, length, PARAMS)
    came = sum(not isinstance(answer, asyncio.CancelledError) for answer in answers)
    assert came <= batcher.metrics.answered <= 60
    assert batcher.queue_length == 0


@in_loop
async def test_a_cancelled_request_that_waits_never_runs():
    ran = []

    def f(x, w):
        ran.append(x)
        return gate(x, w)

    async with ab.Batcher(f, max_batch=1, w=2) as batcher:
        first = asyncio.ensure_future(batcher(1))
        await asyncio.to_thread(Gate.entered.acquire)
        second, third = (asyncio.ensure_future(batcher(x)) for x in (2, 3))
        await asyncio.sleep(0)
        second.cancel()
        await asyncio.sleep(0)
        assert batcher.queue_length == 1
        Gate.opened.release(2)
        assert await first == 2
        assert await third == 6
        Gate.entered.acquire()
    assert ran == [1, 3]
    assert batcher.metrics.cancelled == 1


@in_loop
async def test_swapping_mixes_no_answer_and_loses_none():
    """The two values of one version belong together; an answer of both would show."""

    def f(x, params):
        h = np.full(4, float(x))
        for _ in range(10):
            h = h + params["a"]
            if h[0] < -1e9:
                break
            h = h - params["b"]
        return h

    def params(version):
        return {"a": np.full(4, float(version)), "b": np.full(4, float(version))}

    async with ab.Batcher(f, max_batch=8, params=params(1)) as batcher:

        async def ask(x):
            answer = await batcher.answer(x)
            assert_same(answer.value, np.full(4, float(x)))
            return answer.version

        async def swap():
            for version in range(2, 30):
                assert batcher.swap(params(version)) == version
                await asyncio.sleep(0.002)

        async def client(x):
            return [await ask(x) for _ in range(15)]

        versions, *_ = await asyncio.gather(asyncio.gather(*[client(x) for x in range(20)]), swap())
    seen = [version for each in versions for version in each]
    assert len(seen) == 300
    assert all(each == sorted(each) for each in versions)
    assert len(set(seen)) > 1


@in_loop
async def test_what_runs_when_values_are_swapped_ends_with_the_old_ones():
    async with ab.Batcher(gate, w=2) as batcher:
        first = asyncio.ensure_future(batcher.answer(10))
        await asyncio.to_thread(Gate.entered.acquire)
        assert batcher.swap(w=3, version=7) == 7
        second = asyncio.ensure_future(batcher.answer(10))
        Gate.opened.release(2)
        assert [(each.value, each.version) for each in await asyncio.gather(first, second)] == [(20, 1), (30, 7)]
        Gate.entered.acquire()


def test_swap_refuses_names_that_are_not_shared():
    with ab.Batcher(lambda x, a, b: x * a + b, a=1, b=2) as batcher:
        with pytest.raises(TypeError, match=r"swap got c; shared is a, b"):
            batcher.swap(c=1)
        with pytest.raises(TypeError, match=r"swap takes values by name; shared is a, b: write swap\(name=value\)"):
            batcher.swap(1)
        assert (batcher.swap(b=5), batcher.submit(1).result(), batcher.shared) == (2, 6, {"a": 1, "b": 5})


@in_loop
async def test_more_requests_than_may_wait_are_refused():
    async with ab.Batcher(gate, max_batch=1, max_queue=2, w=1) as batcher:
        tasks = [asyncio.ensure_future(batcher(0))]
        await asyncio.to_thread(Gate.entered.acquire)
        tasks += [asyncio.ensure_future(batcher(x)) for x in (1, 2)]
        await asyncio.sleep(0)
        with pytest.raises(OverloadedError, match=r"2 requests wait, and max_queue=2"):
            await batcher(3)
        Gate.opened.release(3)
        assert await asyncio.gather(*tasks) == [0, 1, 2]
        for _ in range(2):
            Gate.entered.acquire()
    assert batcher.metrics.rejected == 1


@in_loop
async def test_closing_answers_what_was_taken_and_takes_no_more():
    batcher = ab.Batcher(tagger, max_batch=4, params=PARAMS)
    examples = sentences(30)
    tasks = [asyncio.ensure_future(batcher(each)) for each in examples]
    await asyncio.sleep(0)
    await asyncio.to_thread(batcher.close)
    with pytest.raises(ClosedError, match="accepts no more requests"):
        await batcher(examples[0])
    for task, example in zip(tasks, examples, strict=True):
        assert_same(await task, tagger(example, PARAMS))
    batcher.close()


def test_many_threads_and_event_loops_call_at_once():
    examples = sentences(24)
    batcher = ab.Batcher(tagger, params=PARAMS)

    async def client(part):
        return await asyncio.gather(*[batcher(each) for each in part])

    def by_future(part):
        return [batcher.submit(each).result() for each in part]

    with batcher, concurrent.futures.ThreadPoolExecutor(6) as pool:
        parts = [examples[i::6] for i in range(6)]
        calls = [
            pool.submit(by_future, part) if i % 2 else pool.submit(lambda part: asyncio.run(client(part)), part)
            for i, part in enumerate(parts)
        ]
        for call, part in zip(calls, parts, strict=True):
            for answer, example in zip(call.result(), part, strict=True):
                assert_same(answer, tagger(example, PARAMS))


def test_a_loop_that_is_gone_holds_nobody_up():
    with ab.Batcher(gate, w=1) as batcher:

        async def leave():
            batcher_call = asyncio.ensure_future(batcher(1))
            await asyncio.to_thread(Gate.entered.acquire)
            batcher_call.cancel()

        asyncio.run(leave())
        later = batcher.submit(2)
        Gate.opened.release(2)
        assert later.result() == 2
        Gate.entered.acquire()


def test_a_future_of_a_thread_can_be_cancelled():
    with ab.Batcher(gate, max_batch=1, w=1) as batcher:
        first = batcher.submit(1)
        Gate.entered.acquire()
        second = batcher.submit(2)
        assert second.cancel()
        Gate.opened.release()
        assert first.result() == 1
    assert batcher.metrics.cancelled == 1


def test_examples_of_several_parts_do_not_mix():
    def f(x, y=10):
        return x + y

    with ab.Batcher(f) as batcher:
        futures = [batcher.submit(*example) for example in ((1,), (1, 2), (3,), (4, 5))]
        assert [each.result() for each in futures] == [11, 3, 13, 9]


def test_a_batcher_and_its_thread_go_when_nobody_has_them():
    batcher = ab.Batcher(lambda x: x + 1)
    assert batcher.submit(1).result() == 2
    thread, seen = batcher._thread, weakref.ref(batcher)
    del batcher
    thread.join(30)
    gc.collect()
    assert seen() is None


def test_the_thread_starts_again_after_a_rest():
    with ab.Batcher(lambda x: x + 1) as batcher:
        assert batcher.submit(1).result() == 2
        batcher._thread.join(30)
        assert batcher.submit(2).result() == 3


def test_options_are_those_where_it_was_made():
    with ab.options(memory_budget=12345):
        batcher = ab.Batcher(lambda x: x + ab.config.memory_budget)
    with batcher:
        assert batcher.submit(0).result() == 12345


@pytest.mark.parametrize(
    ("kwargs", "error", "match"),
    [
        ({"max_batch": 0}, OptionError, r"max_batch=0; expected at least 1"),
        ({"max_wait": -1.0}, OptionError, r"max_wait=-1.0; expected seconds, from 0 to"),
        ({"max_wait": float("nan")}, OptionError, r"max_wait=nan; expected seconds"),
        ({"max_wait": 1e300}, OptionError, r"max_wait=1e\+300; expected seconds.* what a thread can wait"),
        ({"max_queue": 0}, OptionError, r"max_queue=0; expected at least 1"),
        ({"weights": 1}, TypeError, r"unexpected keyword argument 'weights'.*it takes \(x, w\)"),
    ],
)
def test_bad_options_are_refused(kwargs, error, match):
    with pytest.raises(error, match=match):
        ab.Batcher(gate, **kwargs)


def test_what_is_no_function_of_an_example_is_refused():
    async def f(x):
        return x

    with pytest.raises(UnsupportedError, match="one that has to be awaited"):
        ab.Batcher(f)
    with pytest.raises(UnsupportedError, match="got int"):
        ab.Batcher(3)
    with ab.Batcher(gate, w=1) as batcher, pytest.raises(UnsupportedError, match="one example by position"):
        batcher.submit()


def test_arguments_that_are_written_to_are_the_requests_own():
    def f(x, w):
        x[0] = 7.0
        return x @ w

    examples = [np.ones(3), np.zeros(3)]
    with ab.Batcher(f, w=np.eye(3)) as batcher:
        answers = [each.result() for each in [batcher.submit(x) for x in examples]]
    for answer, example, start in zip(answers, examples, (np.ones(3), np.zeros(3)), strict=True):
        assert_same(answer, f(start, np.eye(3)))
        assert example[0] == 7.0


def test_trees_may_be_deep():
    tree = Tree(1)
    for _ in range(100):
        tree = Tree(2, [tree])
    with ab.Batcher(tree_lstm, params=PARAMS) as batcher:
        answers = [each.result() for each in [batcher.submit(each) for each in (tree, Tree(3))]]
    assert_same(answers[0], tree_lstm(tree, PARAMS))
    assert_same(answers[1], tree_lstm(Tree(3), PARAMS))


def test_time_is_counted_from_the_request_to_its_answer():
    with ab.Batcher(lambda x: time.sleep(0.03) or x) as batcher:
        batcher.submit(1).result()
    assert batcher.metrics.latency.count == 1
    assert batcher.metrics.latency.total >= 0.03
