"""Files of checkpoints as an attacker writes them: the JSON in them says something else, and its checksums are right.

    python -m tests.checkpoint.fuzz --count 1000

Whatever is read from them is a tree, or a CheckpointError; and it takes no more memory than a small file may.
"""

import contextlib
import copy
import functools
import json
import pathlib
import random
import re
import sys
import tempfile
import tracemalloc
import warnings
import zlib
from collections.abc import Iterator
from typing import Any

import numpy as np

import autobatch as ab
from autobatch.checkpoint.trees import ANY
from autobatch.errors import BadIdError, CheckpointError, DTypeError, ShapeError, StructureError, UnsupportedError
from tests.checkpoint.training import Training
from tests.fuzz import by_seed, main

_MOST_MEMORY = 1 << 27  # bytes, for files of some 50,000
_OTHER: list[Any] = [
    None, True, 0, 1, -1, 3, 64, 10**12, 2**63, 2**70, -(2**40), 1.5, float("nan"), "", "x", "0", "\u0000", "F32",
    "BF16", "<U0", "|V0", "O", "<f8", "(9,)f8", "M8", "nan", "PCG64", "MT19937", "builtins:eval", "builtins:int",
    "numpy:no", ":", "os:system", "collections:OrderedDict", "types:SimpleNamespace",
    "autobatch.tables.table:EmbeddingTable", "Vocabulary", "QuantizedTable", "SparseRows", "EmbeddingVariable",
    "../../00000001.safetensors", "00000001.safetensors", [], {}, [0], [10**12], [0, 10**12], [-1], [[]], [1] * 70,
    [None, None], {"value": 1}, {"float": "x"}, {"list": []}, {"dict": [[]]}, {"tuple": [{"slice": []}]},
    {"array": "w"}, {"array": "w", "dtype": "<f8", "shape": [10**12]}, {"bytes": "*"}, {"dtype": [["a", "<f8"], ["a",
    "<f8"]]}, {"enum": "re:RegexFlag", "member": "no"}, {"generator": {}}, {"name": "x"}, {"object": [["__class__",
    {"name": "builtins:int"}]], "class": "types:SimpleNamespace"}, {"parts": []}, {"kind": 1}, {"slot": "x",
    "token": 1}, {"array": "none", "dtype": "<U0", "shape": [10**12]}, {"range": [{"value": 0}]},
]  # fmt: skip


def tree() -> dict[str, Any]:
    """Something of all that a file holds."""
    x = np.arange(6.0)
    users = ab.EmbeddingVariable(3, seed=0, admission=ab.admission.count(1))
    users[np.array([3, 1, 7])]
    return {
        "w": np.eye(3), "x": x, "view": x[1:4], "text": np.array(["ab", "c"]), "none": np.zeros((2, 0)),
        3: np.float32(1),
        "fields": np.zeros(2, [("a", "i4"), ("b", "f8", (2,))]), "table": ab.EmbeddingTable(np.eye(2)), "users": users,
        "words": ab.Vocabulary(["a", "b"]),
        ("a", 1): (1, 2.5, b"x", 1j, slice(1, 2), range(3), ..., np.tanh, re.A, re),
        "rng": np.random.default_rng(1), "kind": np.dtype("f4"), "parts": users.partition(2),
        "turned": np.ones((2, 3)).T,
        "rows": ab.SparseRows(np.array([1]), np.ones((1, 2)), 3), "packed": ab.QuantizedTable.from_weights(np.eye(4)),
    }  # fmt: skip


def _places(value: Any) -> list[tuple[Any, Any]]:
    """(container, key) of everything in a JSON value."""
    keys = list(value) if isinstance(value, dict) else range(len(value)) if isinstance(value, list) else ()
    return [place for key in keys for place in [(value, key), *_places(value[key])]]


def _nested(rng: random.Random, value: Any) -> Any:
    for _ in range(rng.choice([70, 300, 2000])):
        value = rng.choice([lambda x: {"list": [x]}, lambda x: [x], lambda x: {"tuple": [x]}])(value)
    return value


def _mutate(rng: random.Random, value: Any) -> None:
    """Change one or a few places of a JSON value."""
    for _ in range(rng.choice([1, 1, 1, 2, 5])):
        others = _places(value)
        if not others:  # all is deleted
            return
        container, key = rng.choice(others)
        kind = rng.randrange(6)
        if kind == 0:
            del container[key]
        elif kind == 1 and isinstance(container, dict):
            container[rng.choice([*(k for _, k in others if isinstance(k, str)), "x", ""])] = container.pop(key)
        elif kind == 2:
            other, name = rng.choice(others)
            container[key] = copy.deepcopy(other[name])
        elif kind == 3:
            container[key] = _nested(rng, container[key])
        else:
            container[key] = copy.deepcopy(rng.choice(_OTHER))


def _tensor_file(data: bytes, rng: random.Random) -> tuple[bytes, str]:
    """A file of tensors whose header says something else, with its new checksum."""
    size = int.from_bytes(data[:8], "little")
    header = json.loads(data[8 : 8 + size])
    metadata = header["__metadata__"]
    inner = [name for name in ("tree", "tables") if name in metadata]
    if inner and rng.random() < 0.8:
        name = rng.choice(["tree", "tree", "tables"])
        said = {"it": json.loads(metadata[name])}
        _mutate(rng, said)
        metadata[name] = _text(said.get("it"))
    else:
        _mutate(rng, header)
    metadata = header.get("__metadata__")
    if not isinstance(metadata, dict) or not isinstance(metadata.get("header"), str):
        return _with_size(_text(header).encode()) + data[8 + size :], ""
    metadata["header"] = "00000000"
    plain = _with_size(_text(header).encode())
    crc = f"{zlib.crc32(plain):08x}"
    metadata["header"] = crc
    return _with_size(_text(header).encode()) + data[8 + size :], crc


def _with_size(text: bytes) -> bytes:
    return len(text).to_bytes(8, "little") + text


def _text(value: Any) -> str:
    return json.dumps(value, separators=(",", ":"))


@contextlib.contextmanager
def _deep() -> Iterator[None]:
    """Room for crafting what lies deeper than what a process has room to read."""
    limit = sys.getrecursionlimit()
    sys.setrecursionlimit(50_000)
    try:
        yield
    finally:
        sys.setrecursionlimit(limit)


def _manifest(said: dict[str, Any]) -> bytes:
    text = b'{"checkpoint": ' + _text(said).encode()
    return text + b', "crc32": "%08x"}\n' % zlib.crc32(text)


@functools.cache
def _saved() -> tuple[bytes, dict[str, bytes]]:
    """A file of `ab.save`, and the files of a folder of checkpoints with an increment."""
    with tempfile.TemporaryDirectory() as name:
        folder, training = pathlib.Path(name), Training()
        ab.save(folder / "one", tree())
        with ab.Checkpoints(folder / "many") as saver:
            for _ in range(2):
                training.advance()
                training.save(saver)
        return (folder / "one").read_bytes(), {
            path.name: path.read_bytes() for path in (folder / "many").iterdir() if path.name != "lock"
        }


def read_one(seed: int) -> int:
    """Craft a file or a folder, and read it in every way; returns how many of the ways refused it."""
    rng, (one, many) = random.Random(seed), _saved()
    refused = 0
    with tempfile.TemporaryDirectory() as name, warnings.catch_warnings():
        warnings.simplefilter("ignore")
        folder = pathlib.Path(name)
        ways: list[Any] = []
        if seed % 2:
            with _deep():
                (folder / "one").write_bytes(_tensor_file(one, rng)[0])
            for like in (ANY, tree()):
                ways += [functools.partial(ab.load, folder / "one", like, mapped=mapped) for mapped in (False, True)]
        else:
            with _deep():
                _crafted_folder(folder, many, rng)
            saver, training = ab.Checkpoints(folder), Training()
            likes = ({}, {"params": training.params, "state": training.state})
            ways = [functools.partial(saver.restore, **like, mapped=m) for like in likes for m in (False, True)]
            ways += [saver.verify, saver.compact, saver.restore, saver.close]
        for way in ways:
            mismatches = (StructureError, ShapeError, DTypeError, BadIdError, UnsupportedError)
            given = "like" in str(way) or len(getattr(way, "args", ())) > 1 or "params" in getattr(way, "keywords", {})
            tracemalloc.start()
            try:
                way()
            except CheckpointError:
                refused += 1
            except mismatches:
                if not given:
                    raise
            finally:
                peak = tracemalloc.get_traced_memory()[1]
                tracemalloc.stop()
            assert peak < _MOST_MEMORY, f"{peak} bytes in {way}"
    return refused


def _crafted_folder(folder: pathlib.Path, many: dict[str, bytes], rng: random.Random) -> None:
    manifests = {name: json.loads(data)["checkpoint"] for name, data in many.items() if name.endswith(".json")}
    last = max(manifests)
    for name, data in many.items():
        (folder / name).write_bytes(data)
    if rng.random() < 0.3:
        name = rng.choice(sorted(manifests[last]["files"]))
        data, crc = _tensor_file(many[name], rng)
        (folder / name).write_bytes(data)
        for said in manifests.values():
            if name in said["files"]:
                said["files"][name] = {"bytes": len(data), "header": crc}
    else:
        _mutate(rng, manifests[last])
    for name, said in manifests.items():
        with contextlib.suppress(ValueError):
            (folder / name).write_bytes(_manifest(said))


FUZZERS = {"crafted files": by_seed(read_one, lambda seen: f"{sum(seen)} readings refused")}

if __name__ == "__main__":
    sys.exit(main(FUZZERS))
