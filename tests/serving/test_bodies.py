"""Bodies of requests and answers: what they say, and that none of them runs code or takes memory it does not fill."""

import contextlib
import dataclasses
import io
import json
import pickle

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from autobatch.serving.bodies import JSON, NPY, SAFETENSORS, UnsuitedResultError, decode, encode
from autobatch.serving.typed_values import BadValueError
from tests.law import assert_same
from tests.serving.models import Tree


def npy(array, **kwargs):
    out = io.BytesIO()
    np.save(out, array, **kwargs)
    return out.getvalue()


ARRAYS = [
    np.arange(6.0).reshape(2, 3),
    np.asfortranarray(np.arange(6.0, dtype=np.float32).reshape(2, 3)),
    np.array(3, np.int8),
    np.zeros((2, 0, 3), np.float16),
    np.array([1, 2], ">i4"),
    np.array([True, False]),
    np.array([1 + 2j]),
]


@pytest.mark.parametrize("array", ARRAYS, ids=str)
def test_arrays_go_through_npy(array):
    found = decode(NPY, npy(array))
    assert_same(found, array)
    assert found.flags.writeable
    assert_same(decode(NPY, encode(NPY, array)), array)


def test_arrays_go_through_safetensors():
    arrays = {"a": ARRAYS[0], "b/c": ARRAYS[2], "d": ARRAYS[3]}
    found = decode(SAFETENSORS, encode(SAFETENSORS, arrays))
    assert_same({name: found[name] for name in sorted(found)}, arrays)
    assert_same(decode(SAFETENSORS, encode(SAFETENSORS, np.float32(2.5))), {"result": np.array(2.5, np.float32)})


def test_other_writers_of_safetensors_are_read():
    library = pytest.importorskip("safetensors.numpy")
    arrays = {"a": np.arange(3.0), "b": np.ones((2, 2), np.int32)}
    assert_same(decode(SAFETENSORS, library.save(arrays)), arrays)
    found = library.load(encode(SAFETENSORS, arrays))
    assert_same({name: found[name] for name in sorted(found)}, arrays)


class Bomb:
    def __reduce__(self):
        return (pytest.fail, ("it was unpickled",))


@pytest.mark.parametrize("kind", [NPY, SAFETENSORS, JSON])
@pytest.mark.parametrize(
    "body",
    [npy(np.array([Bomb()], object), allow_pickle=True), pickle.dumps(Bomb()), b"", b"\x93NUMPY", b"\x00" * 40],
    ids=["objects", "pickle", "nothing", "magic", "zeros"],
)
def test_nothing_is_unpickled(kind, body):
    with pytest.raises(BadValueError, match=r"^\$: expected"):
        decode(kind, body)


def lying(shape, dtype="<f8"):
    header = f"{{'descr': '{dtype}', 'fortran_order': False, 'shape': {shape}, }}".encode()
    header += b" " * (118 - len(header) - 1 + 64) + b"\n"
    return b"\x93NUMPY\x01\x00" + len(header).to_bytes(2, "little") + header + b"\x00" * 16


@pytest.mark.parametrize("shape", ["(1000000000000,)", "(-1,)", "(1,)", "(3,)", "(2.0,)", "(True,)", "(2**70, 0)", "3"])
def test_an_npy_body_that_lies_about_its_size_is_refused(shape):
    with pytest.raises(BadValueError, match=r"^\$: expected"):
        decode(NPY, lying(shape))


def test_a_safetensors_body_that_lies_about_its_size_is_refused():
    for shape, offsets in (
        ([10**12], [0, 8]),
        ([1], [0, 10**12]),
        ([-1], [0, -8]),
        ([2**70, 0], [0, 0]),
        (["1"], [0, 8]),
    ):
        header = json.dumps({"a": {"dtype": "F64", "shape": shape, "data_offsets": offsets}}).encode()
        with pytest.raises(BadValueError, match=r"^\$: expected"):
            decode(SAFETENSORS, len(header).to_bytes(8, "little") + header + b"\x00" * 8)
    with pytest.raises(BadValueError, match=r"^\$: expected"):
        decode(SAFETENSORS, (2**62).to_bytes(8, "little"))


@pytest.mark.parametrize(
    ("body", "said"),
    [
        (b"[1,", r"expected JSON, got Input data was truncated"),
        (b"\xff", r"expected JSON, got JSON is malformed: invalid character"),
        (b"[Infinity]", r"got JSON is malformed: invalid character \(byte 1\)"),
        (b"1" * 5000, r"got Integer value out of range"),
        (b"[" * 100_000, r"not nested so deep"),
        (b'{"a":' * 100_000, r"not nested so deep"),
    ],
)
def test_what_is_no_json_is_named(body, said):
    with pytest.raises(BadValueError, match=said):
        decode(JSON, body)


@dataclasses.dataclass
class Result:
    tags: np.ndarray
    tree: Tree


def test_results_become_json():
    value = {
        "a": [np.float32(0.5), (1, None), "x", True],
        "b": np.array([[1, 2]]),
        "c": np.array([np.nan, 1.0, -np.inf]),
        "d": Result(np.array([False]), Tree(1)),
        "e": float("nan"),
        "f": np.array("text"),
    }
    assert json.loads(encode(JSON, value)) == {
        "a": [0.5, [1, None], "x", True],
        "b": [[1, 2]],
        "c": ["NaN", 1.0, "-Infinity"],
        "d": {"tags": [False], "tree": {"word": 1, "children": []}},
        "e": "NaN",
        "f": "text",
    }


@pytest.mark.parametrize(
    ("kind", "value", "said"),
    [
        (JSON, [{1, 2}], r"the result at \$\[0\] is of type set, unknown to JSON"),
        (JSON, {"a": np.array([1j])}, r"the result at \$.a is an array of complex128; ask for it with Accept"),
        (JSON, {3: 1}, r"the result at \$ is a dict with the key 3, not text"),
        (JSON, {"a": b"x"}, r"the result at \$.a is of type bytes"),
        (NPY, [1, 2], r"the result at \$ is of type list, not an array"),
        (NPY, np.array([None]), r"the result at \$ is of type ndarray, not an array"),
        (SAFETENSORS, {"a": "x"}, r"the result at \$.a is of type str, not an array"),
        (SAFETENSORS, {"a": np.array(["x"])}, r"safetensors has no dtype"),
        (SAFETENSORS, {1: np.ones(2)}, r"the result is a dict with the key 1, not text"),
    ],
)
def test_results_without_a_form_are_named(kind, value, said):
    with pytest.raises(UnsuitedResultError, match=said):
        encode(kind, value)


@settings(deadline=None, max_examples=50)
@given(st.binary(max_size=200), st.sampled_from([JSON, NPY, SAFETENSORS]), st.sampled_from([b"", b"\x93NUMPY\x01\x00"]))
def test_any_bytes_are_read_or_refused(body, kind, start):
    with contextlib.suppress(BadValueError):
        assert encode(kind, decode(kind, start + body))  # what is read can be written


@settings(deadline=None, max_examples=50)
@given(st.data())
def test_a_damaged_body_is_read_or_refused(data):
    kind = data.draw(st.sampled_from([NPY, SAFETENSORS]))
    body = bytearray(encode(kind, np.arange(3.0)))
    for _ in range(data.draw(st.integers(1, 4))):
        body[data.draw(st.integers(0, len(body) - 1))] = data.draw(st.integers(0, 255))
    with contextlib.suppress(BadValueError):
        decode(kind, bytes(body[: data.draw(st.integers(0, len(body)))]))


@settings(deadline=None, max_examples=50)
@given(
    st.recursive(
        st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(),
        lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner),
        max_leaves=20,
    )
)
def test_json_goes_round(value):
    assert decode(JSON, encode(JSON, value)) == value
