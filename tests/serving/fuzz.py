"""Bodies of requests as an attacker writes them, by their size against the processor time that reading them takes.

    python -m tests.serving.fuzz --count 1000

Each seed makes one kind of body at sizes n, 2 n and 4 n, for one kind of function. None may be answered 500, no answer
repeats much of the request, the log stays short, and no body is read longer than a generous multiple of its bytes.
"""

import asyncio
import contextlib
import dataclasses
import gc
import io
import json
import logging
import random
import sys
import time
from typing import Any, Literal

import httpx
import numpy as np
import numpy.typing as npt

import autobatch as ab
from autobatch.serving.bodies import JSON, NPY, SAFETENSORS, encode
from autobatch.serving.typed_values import BadValueError
from tests.fuzz import by_seed, main

_SECONDS, _SECONDS_A_BYTE = 0.05, 5e-6  # of processor time: ten times what the slowest takes, far below n ** 2


@dataclasses.dataclass
class Plus:
    left: "Plus | Minus | Leaf"
    right: "Plus | Minus | Leaf | None"
    op: Literal["+"]


@dataclasses.dataclass
class Minus:
    left: "Plus | Minus | Leaf"
    right: "Plus | Minus | Leaf | None"
    op: Literal["-"]


@dataclasses.dataclass
class Leaf:
    ids: np.ndarray
    weight: float = 1.0


@dataclasses.dataclass
class Even:
    inner: "Even | Odd | list[Even | Odd] | None" = None
    name: str | int = ""


@dataclasses.dataclass
class Odd:
    inner: "Odd | Even | list[Odd] | None" = None
    name: int | list[int] | None = None


def _of(annotation: Any) -> Any:
    """A function of one example that looks at the whole of it, as models do."""

    def model(example, table):
        if isinstance(example, np.ndarray):
            return table[example].sum()
        if isinstance(example, list | tuple):
            return [model(each, table) for each in example][-1]
        if isinstance(example, dict):
            return model(list(example.values()), table)
        if dataclasses.is_dataclass(example):
            return model(list(vars(example).values()), table)
        return 0.0 if example is None or isinstance(example, str) else table[int(example)]

    model.__annotations__ = {"example": annotation}
    return model


_ANNOTATIONS: list[Any] = [
    Plus | Minus, Even | Odd, Any, np.ndarray, npt.NDArray[np.int64], np.float32, list[int], list[dict[str, float]],
    dict[str, np.ndarray | list[str]], tuple[int, ...], list[Plus | Minus | Even], Literal["a", 3], float, str | None,
]  # fmt: skip


def _text(rng: random.Random, n: int) -> str:
    return rng.choice(["\\u00e9", "\\ud83d\\ude00", "\\n", "x", "é", "\\\\", "\\u0000"]) * n


def _number(rng: random.Random, n: int) -> str:
    digits = "".join(rng.choices("0123456789", k=n))
    return rng.choice([f"1{digits}", f"-1{digits}", f"0.{digits}", f"1e{digits}", f"1{digits}.{digits}e-{digits}"])


def _nested(rng: random.Random, n: int) -> str:
    before, after = rng.choice([("[", "]"), ('{"a":', "}"), ("[[],", "]"), ('{"inner":', "}"), ('{"inner":[', "]}")])
    return before * n + rng.choice(["", "1", "null"]) + after * rng.choice([n, n, 0, n - 1])


def _union(rng: random.Random, n: int) -> str:
    """Records within records whose tags, right or wrong, stand last."""
    kind = rng.choice(["op", "name"])
    out = rng.choice(['{"ids":[1,2]}', '{"ids":[1],"weight":"x"}', "{}", "7", '{"name":[1,"x"]}'])
    for _ in range(min(n, 95)):
        tag = rng.choice(['"+"', '"-"']) if kind == "op" else rng.choice(['"x"', "3", "null", "[1]"])
        inside = f'"left":{out},"right":null' if kind == "op" else f'"inner":{out}'
        out = f'{{{inside},"{kind}":{tag}}}'
    return out


def _names(rng: random.Random, n: int) -> str:
    twice = rng.choice(["", '"0":1,', '"name":1,"name":2,'])
    return f"{{{twice}{','.join(f'{json.dumps(str(i % rng.choice([7, n])))}:{i}' for i in range(n))}}}"


def _items(rng: random.Random, n: int) -> str:
    item = rng.choice(["1", "1.5", "true", "null", "[]", "{}", '"x"', "[1,2]", '{"ids":[1],"name":2}', "-0", "1e5"])
    last = rng.choice([item, "1", '"x"', "[]", "1e999", "18446744073709551616"])
    return f"[{f'{item},' * n}{last}]"


def _broken(rng: random.Random, n: int) -> bytes:
    body = bytearray(rng.choice([_items, _names, _union])(rng, n).encode())
    for _ in range(rng.randint(1, 5)):
        body[rng.randrange(len(body))] = rng.randrange(256)
    return bytes(body[: rng.randint(0, len(body))])


def _npy(rng: random.Random, n: int) -> bytes:
    if rng.random() < 0.5:
        out = io.BytesIO()
        kinds = [np.zeros(n, int), np.array(3), np.ones((n, 0)), np.array(["x"] * n), np.zeros(n, bool), np.full(n, 1j)]
        np.save(out, rng.choice([*kinds, np.full(n, 1.5), np.zeros(n, [("a", "i4")])]))
        body = bytearray(out.getvalue())
        for _ in range(rng.choice([0, 0, 1, 3])):
            body[rng.randrange(128)] = rng.randrange(256)
        return bytes(body)
    shape = rng.choice(["(10**12,)", "(1000000000000,)", f"({'9' * n},)", f"({'1,' * n})", "(" * n, "()", "(-1,)"])
    dtype = rng.choice(["'<f8'", "'|O'", "'<i8'", f"'<U{'9' * n}'", "'|V0'", f"[{'(' * n}", "'M8[ns]'"])
    header = f"{{'descr': {dtype}, 'fortran_order': {rng.choice(['False', '0'])}, 'shape': {shape}}}\n".encode()
    version = rng.choice([1, 2, 3, 9])
    size = len(header).to_bytes(4, "little")[: 2 if version == 1 else 4]
    return b"\x93NUMPY" + bytes([version, 0]) + size + header + bytes(rng.choice([0, 8, n]))


def _safetensors(rng: random.Random, n: int) -> bytes:
    shape = rng.choice([[n], [10**12], [-1], [1] * n, [2**63, 2], "x", [0, 2**62], []])
    said = {"dtype": rng.choice(["F64", "I64", "BOOL", "F8", "BF16", 7]), "shape": shape}
    said["data_offsets"] = rng.choice([[0, 8 * n], [8 * n, 0], [0], [0, 10**18], [0, 8]])
    names = rng.choice([["a"], ["ids", "weight"], [str(i) for i in range(n)]])
    header = json.dumps(dict.fromkeys(names, said) | {"__metadata__": {"x": "y" * rng.choice([0, n])}}).encode()
    if rng.random() < 0.3:
        return encode(SAFETENSORS, {name: np.arange(n) for name in names[:9]})
    return rng.choice([len(header), 2**62, n]).to_bytes(8, "little") + header + bytes(8 * n)


_CRAFTED: list[tuple[str, Any, int]] = [  # a content-type, what crafts a body, and the greatest n
    (JSON, _nested, 60_000), (JSON, _union, 20), (JSON, _names, 6_000), (JSON, _items, 10_000), (JSON, _broken, 300),
    (JSON, lambda rng, n: f'"{_text(rng, n)}"', 10_000), (JSON, lambda rng, n: f'{{"{_text(rng, n)}": 1}}', 10_000),
    (JSON, _number, 10_000), (JSON, lambda rng, n: f"[{f'{_number(rng, 300)},' * (n // 300)}{_number(rng, 9)}]", 9_000),
    (NPY, _npy, 2_000), (SAFETENSORS, _safetensors, 2_000), (NPY, lambda rng, n: rng.randbytes(n), 500),
]  # fmt: skip


def read_one(seed: int) -> float:
    """Post one kind of body at three sizes; returns the greatest ratio of the time it took to the time it may take."""
    rng = random.Random(seed)
    annotation = _ANNOTATIONS[seed % len(_ANNOTATIONS)]
    kind, craft, most = rng.choice(_CRAFTED)
    n, inner = int(most ** rng.random()) + 1, rng.randrange(1 << 30)
    bodies = [craft(random.Random(inner), size) for size in (n, 2 * n, 4 * n)]
    bodies = [body.encode() if isinstance(body, str) else body for body in bodies]
    headers = {"content-type": rng.choice([kind, kind, kind, f"{kind}; {'x' * 3000}", "x" * 5000])}
    app = ab.serve(_of(annotation), table=np.arange(10.0))
    messages: list[str] = []
    handler = logging.Handler()
    handler.emit = lambda record: messages.append(record.getMessage())  # type: ignore[method-assign]
    log = logging.getLogger("autobatch.serving")
    log.addHandler(handler)
    log.propagate = False

    async def post() -> list[httpx.Response]:
        async with httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url="http://test") as client:
            return [await client.post("/", content=body, headers=headers) for body in bodies * 2]

    try:
        answers = asyncio.run(post())
        ratios = [_time(app, kind, body) / (_SECONDS + _SECONDS_A_BYTE * len(body)) for body in bodies]
    finally:
        log.removeHandler(handler)
        log.propagate = True
        app.batcher.close()
    for body, answer in zip(bodies * 2, answers, strict=True):
        assert answer.status_code in (200, 406, 413, 415, 422), f"{answer.status_code} {answer.text} for {body[:200]!r}"
        assert answer.status_code == 200 or len(answer.content) < 4000, f"{len(answer.content)} for {body[:200]!r}"
    assert sum(map(len, messages)) < 60_000, f"{len(messages)} messages in the log"
    assert max(ratios) < 1, f"{ratios} of the time that bodies of {[*map(len, bodies)]} may take: {bodies[0][:200]!r}"
    return max(ratios)


def _time(app: Any, kind: str, body: bytes) -> float:
    """The processor time of reading a body, in seconds, of which it may take more than a server would give it."""
    app._max_read, begun = 10.0, time.thread_time()
    gc.disable()  # a collection goes through all that the process has
    try:
        with contextlib.suppress(BadValueError):
            app._example(kind, body)
    finally:
        gc.enable()
    return time.thread_time() - begun


FUZZERS = {"request bodies": by_seed(read_one, lambda seen: f"slowest at {max(seen):.2f} of the time allowed")}

if __name__ == "__main__":
    sys.exit(main(FUZZERS))
