"""`ab.serve` as an ASGI application, without a server: what is answered, and with which status."""

import asyncio
import dataclasses
import functools
import io
import json
import logging
import re
import threading

import httpx
import numpy as np
import pytest

import autobatch as ab
from autobatch.errors import OptionError
from tests.law import assert_same
from tests.serving.models import Tree, decode, random_tree, tagger, tree_lstm, weights

PARAMS = weights()


def served(*given, **options):
    """Run a test with a client of an application, in an event loop of its own."""

    def decorate(test):
        @functools.wraps(test)
        def run():
            async def main():
                app = ab.serve(*given, **options)
                try:
                    async with client_of(app) as client:
                        await test(client, app)
                finally:
                    await asyncio.to_thread(app.batcher.close)

            asyncio.run(asyncio.wait_for(main(), 240))

        del run.__wrapped__  # or pytest would look for fixtures of these names
        return run

    return decorate


def client_of(app):
    return httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url="http://test")


def npy(array):
    out = io.BytesIO()
    np.save(out, array)
    return out.getvalue()


def as_json(tree):
    return {"word": tree.word, "children": [as_json(child) for child in tree.children]}


@served(tagger, params=PARAMS)
async def test_an_array_in_json(client, app):
    answers = await asyncio.gather(*[client.post("/", json=[1] * size) for size in range(1, 20)])
    for size, answer in enumerate(answers, start=1):
        expected = tagger(np.ones(size, np.int64), PARAMS)
        assert answer.status_code == 200
        assert answer.json()["tags"] == expected["tags"].tolist()
        np.testing.assert_allclose(answer.json()["last"], expected["last"], rtol=1e-5)
    assert app.batcher.metrics.batches.count < 10


@served(tree_lstm, params=PARAMS)
async def test_trees_in_json(client, app):
    trees = [random_tree(np.random.default_rng(i), i) for i in range(1, 12)]
    answers = await asyncio.gather(*[client.post("/", json=as_json(tree)) for tree in trees])
    for tree, answer in zip(trees, answers, strict=True):
        np.testing.assert_allclose(answer.json(), tree_lstm(tree, PARAMS), rtol=1e-5)
    assert app.batcher.metrics.batches.count < 10


@served(decode, params=PARAMS)
async def test_several_parameters_by_name(client, app):
    answer = await client.post("/", json={"start": 3, "length": 5})
    assert answer.json() == decode(3, 5, PARAMS)
    for body, path in (({"start": 3}, "$.length"), ([3, 5], "$"), ({"start": 3, "length": 5, "x": 1}, "$.x")):
        answer = await client.post("/", json=body)
        assert (answer.status_code, answer.json()["error"]["path"]) == (422, path)


@served(lambda x, w: x @ w, w=np.eye(3, dtype=np.float32))
async def test_arrays_in_npy_keep_their_dtype(client, app):
    x = np.arange(6, dtype=np.float32).reshape(2, 3)
    answer = await client.post("/", content=npy(x), headers={"content-type": "application/x-npy"})
    assert answer.headers["content-type"] == "application/x-npy"
    assert_same(np.load(io.BytesIO(answer.content)), x)
    headers = {"content-type": "application/x-npy", "accept": "application/json"}
    assert (await client.post("/", content=npy(x), headers=headers)).json() == x.tolist()


@served(lambda tree, w: {"y": tree["x"] @ w, "n": tree["n"] + 1}, w=np.eye(2))
async def test_arrays_by_name_in_safetensors(client, app):
    library = pytest.importorskip("safetensors.numpy")
    body = library.save({"x": np.arange(4.0).reshape(2, 2), "n": np.array([3], np.int8)})
    answer = await client.post("/", content=body, headers={"content-type": "application/safetensors"})
    found = library.load(answer.content)
    assert_same(
        {name: found[name] for name in sorted(found)}, {"n": np.array([4], np.int8), "y": np.arange(4.0).reshape(2, 2)}
    )


@served(lambda x: {"total": x["x"].sum(), "of": "x"})
async def test_a_result_that_safetensors_does_not_have_is_json(client, app):
    library = pytest.importorskip("safetensors.numpy")
    headers = {"content-type": "application/safetensors"}
    answer = await client.post("/", content=library.save({"x": np.arange(4.0)}), headers=headers)
    assert answer.headers["content-type"] == "application/json"
    assert answer.json() == {"total": 6.0, "of": "x"}


@served(lambda x: [int(x.sum()), "of x"])
async def test_a_result_that_npy_does_not_have_is_json(client, app):
    answer = await client.post("/", content=npy(np.arange(4)), headers={"content-type": "application/x-npy"})
    assert answer.headers["content-type"] == "application/json"
    assert answer.json() == [6, "of x"]


def untyped(x):
    return x


@served(untyped)
async def test_without_annotations_a_value_is_what_json_says(client, app):
    for value in (None, True, 3, 0.5, "text", [1, [2, "a"]], {"a": {"b": []}}):
        answer = await client.post("/", content=json.dumps(value))
        assert answer.json() == value


def failing(x: int, w):
    if x == 1:
        raise RuntimeError("no answer to 1")
    return w[x]


@served(failing, w=np.arange(5.0))
async def test_one_that_raises_is_answered_500_and_no_other(client, app):
    answers = await asyncio.gather(*[client.post("/", json=x) for x in (0, 1, 2, 77)])
    assert [each.status_code for each in answers] == [200, 500, 200, 422]
    assert answers[1].json() == {"error": {"type": "RuntimeError", "message": "no answer to 1"}}
    assert answers[3].json()["error"]["type"] == "IndexError"


@served(lambda ids, table: table[ids].sum(0), table=ab.EmbeddingTable(np.eye(3)))
async def test_an_id_outside_of_its_table_is_bad_input(client, app):
    answers = await asyncio.gather(*[client.post("/", json=ids) for ids in ([0, 1], [7], [2])])
    assert [each.status_code for each in answers] == [200, 422, 200]
    assert answers[1].json()["error"]["type"] == "BadIdError"


class SpeechlessError(Exception):
    def __str__(self):
        raise ZeroDivisionError


ENDS = {
    "exit": SystemExit(3), "interrupt": KeyboardInterrupt(), "generator": GeneratorExit(), "stop": StopIteration(),
    "cancelled": asyncio.CancelledError(), "speechless": SpeechlessError(),
}  # fmt: skip


def ends(how: str):
    if how in ENDS:
        raise ENDS[how]
    return how


@served(ends)
async def test_whatever_a_request_raises_ends_nothing_else(client, app):
    answers = await asyncio.gather(*[client.post("/", json=how) for how in [*ENDS, "well"]])
    assert [each.status_code for each in answers] == [500] * len(ENDS) + [200]
    for each, error in zip(answers, ENDS.values(), strict=False):
        assert each.json()["error"]["type"] == type(error).__name__
    assert (await client.post("/", json="again")).json() == "again"


def unsayable(what: str):
    if what == "long":
        return 10**5000
    nested: list = []
    if what == "itself":
        nested.append(nested)
    else:
        for _ in range(100_000):
            nested = [nested]
    return nested


@served(unsayable)
async def test_a_result_without_end_is_named(client, app):
    for what, said in [("long", "4300 digits"), ("itself", "contains itself"), ("deep", "nested too deeply")]:
        answer = await client.post("/", json=what)
        assert answer.status_code == 500
        assert said in answer.json()["error"]["message"]


@dataclasses.dataclass
class Picky:
    n: int

    def __post_init__(self):
        self.inverse = 1 / self.n


def inverse(x: Picky):
    return x.inverse


@served(inverse)
async def test_what_a_record_refuses_is_bad_input(client, app):
    answer = await client.post("/", json={"n": 0})
    assert answer.status_code == 422
    assert answer.json()["error"]["given"] == "division by zero"
    assert (await client.post("/", json={"n": 2})).json() == 0.5


@served(untyped, max_body=100, max_depth=3)
async def test_what_is_too_large_or_too_deep_is_refused(client, app):
    async def chunks():
        for _ in range(30):
            yield b"1" * 10

    assert (await client.post("/", content=b"1" * 101)).status_code == 413
    answer = await client.post("/", content=chunks())
    assert answer.status_code == 413
    assert answer.json()["error"]["message"] == "a request has at most 100 bytes"
    answer = await client.post("/", json=[[[[1]]]])
    assert answer.status_code == 422
    assert answer.json()["error"]["expected"] == "at most 3 levels"
    assert (await client.post("/", json=[[[1]]])).status_code == 200


@served(tagger, params=PARAMS)
async def test_bad_input_is_named(client, app):
    answer = await client.post("/", json=[1, 2, "three"])
    assert answer.status_code == 422
    assert answer.json()["error"] == {
        "type": "BadValueError",
        "message": "$[2]: expected a number, got the string 'three'",
        "path": "$[2]",
        "expected": "a number",
        "given": "the string 'three'",
    }
    assert (await client.post("/", content=b"[1,")).status_code == 422


@served(untyped)
async def test_other_media_types_and_routes_are_refused(client, app):
    answer = await client.post("/", content=b"\x80\x04N.", headers={"content-type": "application/x-pickle"})
    assert answer.status_code == 415
    answer = await client.post("/", content=b"1", headers={"content-encoding": "gzip"})
    assert answer.status_code == 415
    answer = await client.get("/")
    assert (answer.status_code, answer.headers["allow"]) == (405, "POST")
    assert (await client.post("/metrics")).status_code == 405
    assert (await client.get("/other")).status_code == 404


@served(lambda x: {1, 2})
async def test_a_result_that_json_does_not_have_is_named(client, app):
    answer = await client.post("/", json=1)
    assert answer.status_code == 500
    assert answer.json()["error"]["message"] == "the result at $ is of type set, unknown to JSON"


@served(lambda x: [1, "a"])
async def test_a_form_that_the_result_does_not_have_is_answered_406(client, app):
    answer = await client.post("/", json=1, headers={"accept": "application/x-npy"})
    assert answer.status_code == 406
    assert answer.json()["error"]["message"] == "the result at $ is of type list, not an array"


class Gate:
    entered, opened = threading.Semaphore(0), threading.Semaphore(0)


def gate(x):
    Gate.entered.release()
    Gate.opened.acquire(timeout=240)
    return x


@served(gate, max_batch=1, max_queue=2)
async def test_a_full_queue_is_answered_429(client, app):
    first = asyncio.ensure_future(client.post("/", json=0))
    await asyncio.to_thread(Gate.entered.acquire, timeout=240)
    others = [asyncio.ensure_future(client.post("/", json=x)) for x in (1, 2)]
    while app.batcher.queue_length < 2:
        await asyncio.sleep(0.001)
    answer = await client.post("/", json=3)
    assert (answer.status_code, answer.headers["retry-after"]) == (429, "1")
    Gate.opened.release(3)
    assert [each.json() for each in await asyncio.gather(first, *others)] == [0, 1, 2]
    for _ in range(2):
        Gate.entered.acquire()


@served(gate, max_batch=1, timeout=0.05)
async def test_an_answer_that_takes_too_long_is_answered_503(client, app):
    runs = app.batcher.submit(-1)  # what waits for it waits for as long as this test likes
    await asyncio.to_thread(Gate.entered.acquire, timeout=10)
    answers = await asyncio.gather(*[client.post("/", json=x) for x in (0, 1)])
    assert [each.status_code for each in answers] == [503, 503]
    assert app.batcher.queue_length == 0  # what waits is cancelled
    Gate.opened.release()
    assert await asyncio.wrap_future(runs) == -1


async def ask(app, body, after=()):
    """Send one request by hand, and then these messages; returns what was answered."""
    messages = [{"type": "http.request", "body": body, "more_body": False}, *after]
    sent, forever = [], asyncio.Event()

    async def receive():
        if messages:
            return messages.pop(0)
        await forever.wait()

    async def send(message):
        sent.append(message)

    scope = {"type": "http", "method": "POST", "path": "/", "headers": []}
    await app(scope, receive, send)
    return sent


@served(gate, max_batch=1)
async def test_a_client_that_leaves_cancels_its_request(client, app):
    first = asyncio.ensure_future(client.post("/", json=0))
    await asyncio.to_thread(Gate.entered.acquire, timeout=240)
    assert (await ask(app, b"1", [{"type": "http.disconnect"}]))[0]["status"] == 499  # which nobody reads
    assert (app.batcher.queue_length, app.batcher.metrics.cancelled) == (0, 1)
    Gate.opened.release()
    assert (await first).json() == 0


@served(untyped, timeout=0.02)
async def test_a_body_that_does_not_come_is_answered_408(client, app):
    async def receive():
        await asyncio.sleep(60)

    sent = []

    async def send(message):
        sent.append(message)

    await app({"type": "http", "method": "POST", "path": "/", "headers": []}, receive, send)
    assert sent[0]["status"] == 408


@served(failing, w=np.arange(5.0))
async def test_metrics_are_prometheus_text(client, app):
    await asyncio.gather(*[client.post("/", json=x) for x in (0, 1, 2)])
    answer = await client.get("/metrics")
    assert answer.headers["content-type"].startswith("text/plain; version=0.0.4")
    lines = answer.text.splitlines()
    for line in lines:
        assert re.fullmatch(r'# (HELP|TYPE) \w+ .+|\w+(\{\w+="[^"]*"\})? [0-9.e+-]+', line), line
    assert 'autobatch_requests_total{outcome="answered"} 2' in lines
    assert 'autobatch_requests_total{outcome="failed"} 1' in lines
    assert 'autobatch_request_seconds_bucket{le="+Inf"} 3' in lines
    assert "autobatch_queue_length 0" in lines

    async def numbers():
        text = (await client.get("/metrics")).text
        return dict(line.rsplit(" ", 1) for line in text.splitlines() if not line.startswith("#"))

    values = await numbers()
    while not "0" != values["autobatch_batch_size_count"] == values["autobatch_batch_seconds_count"]:
        await asyncio.sleep(0.01)  # a batch is counted a moment after its answers are there
        values = await numbers()
    assert 0 < float(values["autobatch_batch_seconds_sum"]) < 60
    bounds = [float(bound) for bound in re.findall(r'request_seconds_bucket{le="([0-9.]+)"}', answer.text)]
    assert bounds == sorted(bounds)  # by which values are found
    for path in ("/health", "/ready"):
        assert (await client.get(path)).status_code == 200
        assert (await client.head(path)).content == b""


def lifespan(app):
    """Start an application as a server does; returns what stops it."""
    inbox, outbox = asyncio.Queue(), asyncio.Queue()
    task = asyncio.ensure_future(app({"type": "lifespan"}, inbox.get, outbox.put))

    async def say(word):
        await inbox.put({"type": f"lifespan.{word}"})
        assert (await outbox.get())["type"] == f"lifespan.{word}.complete"

    async def stop():
        await say("shutdown")
        await task

    return say("startup"), stop


def test_shutting_down_answers_what_came_and_takes_no_more():
    async def main():
        app = ab.serve(gate, max_batch=1)
        start, stop = lifespan(app)
        await start
        async with client_of(app) as client:
            first = asyncio.ensure_future(client.post("/", json=5))
            await asyncio.to_thread(Gate.entered.acquire, timeout=240)
            stopping = asyncio.ensure_future(stop())
            while (await client.get("/ready")).status_code == 200:
                await asyncio.sleep(0.001)
            assert (await client.post("/", json=6)).status_code == 503
            assert (await client.get("/health")).status_code == 200
            Gate.opened.release()
            assert (await first).json() == 5
            await stopping

    asyncio.run(asyncio.wait_for(main(), 240))


def test_parameters_come_from_the_newest_checkpoint(tmp_path):
    async def main():
        app = ab.serve(lambda x, params: x @ params["w"], params={"w": np.zeros(2)}, checkpoints=tmp_path, poll=0.01)
        start, stop = lifespan(app)
        with ab.Checkpoints(tmp_path) as checkpoints:
            checkpoints.save(10, {"w": np.ones(2)}, state={"m": np.zeros(2)})
            await start

            async def version(wanted):
                while True:
                    answer = await client.post("/", json=[2.0, 3.0])
                    assert (
                        answer.json()
                        == {"1": 0.0, "10": 5.0, "20": 10.0, "30": 15.0}[answer.headers["autobatch-version"]]
                    )
                    if answer.headers["autobatch-version"] == wanted:
                        return

            async with client_of(app) as client:
                await version("10")
                checkpoints.save(20, {"w": np.full(2, 2.0)})
                await version("20")
                checkpoints.save(25, {"w": np.ones(3)})  # another shape
                while not app.batcher.metrics.swap_errors:
                    await asyncio.sleep(0.005)
                await version("20")
                checkpoints.save(30, {"w": np.full(2, 3.0)})
                await version("30")
        await stop()

    asyncio.run(asyncio.wait_for(main(), 240))


def test_a_damaged_checkpoint_is_not_served(tmp_path):
    with ab.Checkpoints(tmp_path) as checkpoints:
        checkpoints.save(1, {"w": np.ones(2)})
    file = next(tmp_path.glob("*.safetensors"))
    content = bytearray(file.read_bytes())
    content[-1] ^= 1
    file.write_bytes(content)

    async def main():
        app = ab.serve(lambda x, params: x @ params["w"], params={"w": np.zeros(2)}, checkpoints=tmp_path)
        async with client_of(app) as client:
            answer = await client.post("/", json=[2.0, 3.0])
            assert (answer.json(), answer.headers["autobatch-version"]) == (0.0, "1")
        assert app.batcher.metrics.swap_errors == 1
        app.batcher.close()

    asyncio.run(asyncio.wait_for(main(), 240))


def test_checkpoints_need_a_name_to_go_to(tmp_path):
    with pytest.raises(OptionError, match="shared is a, b"):
        ab.serve(lambda x, a, b: x, a=1, b=2, checkpoints=tmp_path)
    with pytest.raises(OptionError, match=r"timeout=0; expected a number above 0"):
        ab.serve(untyped, timeout=0)


def test_a_mounted_application_knows_its_place():
    async def main():
        app = ab.serve(untyped)
        sent = []

        async def receive():
            return {"type": "http.request"}

        async def send(message):
            sent.append(message)

        scope = {"type": "http", "method": "GET", "path": "/model/health", "root_path": "/model", "headers": []}
        await app(scope, receive, send)
        assert (sent[0]["status"], json.loads(sent[1]["body"])) == (200, {"status": "ok"})
        app.batcher.close()

    asyncio.run(main())


def test_requests_are_read_as_the_function_says():
    app = ab.serve(tree_lstm, params=PARAMS)
    (tree,) = app._example("application/json", b'{"word": 1}')
    assert type(tree) is Tree
    app.batcher.close()


def first_rows(words: np.ndarray, table):
    rows = [table[words][i] for i in range(len(words))]
    return rows[0]


@served(first_rows, table=np.arange(6.0).reshape(3, 2))
async def test_what_a_clients_values_cause_is_answered_422(client, app):
    for body in (b"[]", b"[3]", b"[1.5]", b"[true]", b"2", b"[1, [2]]", b"[", b"", b"1e999", b'"\\ud800"'):
        answer = await client.post("/", content=body)
        assert answer.status_code == 422, body
        assert answer.json()["error"]["message"], body
    for array in (np.array(2), np.array([1.5]), np.zeros((0, 2), int), np.array([3]), np.array(["a"])):
        answer = await client.post("/", content=npy(array), headers={"content-type": "application/x-npy"})
        assert answer.status_code == 422, array


@served(untyped)
async def test_a_form_that_a_clients_value_does_not_have_is_answered_406(client, app):
    headers = {"content-type": "application/x-npy", "accept": "application/json"}
    answer = await client.post("/", content=npy(np.array([1j])), headers=headers)
    assert answer.status_code == 406


def shouting(text: str):
    raise RuntimeError(text)


@served(shouting)
async def test_no_client_fills_the_log_or_has_its_texts_repeated(client, app):
    records = []
    handler = logging.Handler()
    handler.emit = records.append
    logging.getLogger("autobatch.serving").addHandler(handler)
    try:
        for _ in range(20):
            answer = await client.post("/", json="fill\n" * 10_000)
            assert answer.status_code == 500
            assert len(answer.content) < 3000
    finally:
        logging.getLogger("autobatch.serving").removeHandler(handler)
    (record,) = records
    assert "raise RuntimeError(text)" in record.getMessage()
    assert len(record.getMessage()) < 3000
    assert record.getMessage().count("fill") < 60
    for headers in ({"content-type": "x" * 5000}, {"content-encoding": "x" * 5000}):
        assert len((await client.post("/", content=b"1", headers=headers)).content) < 1000
    assert len((await client.get("/" + "x" * 5000)).content) < 1000


@dataclasses.dataclass
class Thread:
    pad: str
    name: str = ""

    def __post_init__(self):
        self.name = threading.current_thread().name


def thread_of(x: Thread):
    return x.name


@served(thread_of)
async def test_long_bodies_are_read_off_the_event_loop(client, app):
    own = threading.current_thread().name
    assert (await client.post("/", json={"pad": "x" * 5000})).json() != own
    assert (await client.post("/", json={"pad": "x"})).json() == own


@served(thread_of, max_read=1e-9)
async def test_reading_has_a_budget_of_processor_time(client, app):
    answer = await client.post("/", json={"pad": "x"})
    assert answer.status_code == 422
    assert answer.json()["error"]["expected"] == "a request that is read within 1e-09 s"
