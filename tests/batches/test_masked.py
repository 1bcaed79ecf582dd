"""`MaskedBatch`: what goes in comes out, and what does not fit is refused with what to write instead."""

import copy
import operator
import pickle

import hypothesis
import hypothesis.extra.numpy as hnp
import hypothesis.strategies as st
import numpy as np
import pytest

import autobatch as ab
from autobatch import MaskedBatch
from autobatch.batches.objects import ObjectBatch
from autobatch.errors import DTypeError, ShapeError, UnsupportedError
from tests import inspect

DTYPES = [np.bool_, np.int8, np.int64, np.uint8, np.float16, np.float32, np.float64, np.complex128]


def same(got, expected):
    assert len(got) == len(expected)
    for a, b in zip(got, expected, strict=True):
        assert a.dtype == b.dtype
        assert a.shape == b.shape
        np.testing.assert_array_equal(a, b)


@st.composite
def ragged_arrays(draw):
    rank = draw(st.integers(0, 3))
    varies = draw(st.lists(st.booleans(), min_size=rank, max_size=rank))
    static = draw(st.lists(st.integers(0, 3), min_size=rank, max_size=rank))
    dtype = draw(st.sampled_from(DTYPES))
    count = draw(st.integers(1, 5))
    shapes = [
        tuple(draw(st.integers(0, 4)) if v else n for v, n in zip(varies, static, strict=True)) for _ in range(count)
    ]
    return [draw(hnp.arrays(dtype, shape, elements=st.integers(0, 1))) for shape in shapes]


@hypothesis.given(ragged_arrays())
@hypothesis.settings(max_examples=150, deadline=None)
def test_examples_returns_what_from_examples_took(arrays):
    batch = MaskedBatch.from_examples(arrays)
    same(batch.examples(), arrays)
    assert batch.batch_size == len(arrays)
    assert batch.dims == tuple(len({x.shape[axis] for x in arrays}) > 1 for axis in range(arrays[0].ndim))
    rebuilt = MaskedBatch(batch.data, mask=batch.mask, dims=batch.dims)
    if sum(batch.dims) <= 1:  # with several, a mask cannot tell (0, 3) from (0, 0)
        same(rebuilt.examples(), arrays)
    if any(batch.dims):
        same(MaskedBatch(batch.data, lengths=batch.lengths, dims=batch.dims).examples(), arrays)
    same(pickle.loads(pickle.dumps(batch)).examples(), arrays)


@hypothesis.given(ragged_arrays())
@hypothesis.settings(max_examples=50, deadline=None)
def test_mask_marks_exactly_the_examples(arrays):
    batch = MaskedBatch.from_examples(arrays)
    counted = np.broadcast_to(batch.mask, batch.data.shape).reshape(len(arrays), -1).sum(axis=1)
    assert counted.tolist() == [x.size for x in arrays]
    assert batch.mask.shape == (
        len(arrays),
        *(n if v else 1 for n, v in zip(batch.data.shape[1:], batch.dims, strict=True)),
    )


@pytest.mark.parametrize("padding", [np.nan, -1e18])
def test_padding_is_not_an_example(padding):
    data = np.full((3, 4), padding)
    data[0, :2] = 1, 2
    data[2, :4] = 3, 4, 5, 6
    batch = MaskedBatch(data, lengths=[2, 0, 4])
    same(batch.examples(), [np.array([1.0, 2.0]), np.array([]), np.array([3.0, 4.0, 5.0, 6.0])])


def test_lengths_apply_to_the_dims_that_vary():
    data = np.arange(24).reshape(2, 3, 4)
    assert [x.shape for x in MaskedBatch(data, lengths=[1, 3]).examples()] == [(1, 4), (3, 4)]
    assert [x.shape for x in MaskedBatch(data, lengths=[1, 3], dims=(False, True)).examples()] == [(3, 1), (3, 3)]
    assert [x.shape for x in MaskedBatch(data, lengths=[1, 3], dims=(True, True)).examples()] == [(1, 1), (3, 3)]
    both = MaskedBatch(data, lengths=[[1, 4], [0, 2]])
    assert [x.shape for x in both.examples()] == [(1, 4), (0, 2)]
    assert both.lengths.tolist() == [[1, 4], [0, 2]]
    assert MaskedBatch(data).lengths.shape == (2, 0)


def test_dims_given_to_from_examples():
    batch = MaskedBatch.from_examples([np.zeros((2, 3)), np.zeros((2, 3))], dims=(True, False))
    assert batch.dims == (True, False)
    with pytest.raises(ShapeError, match=r"dimension 0 is static, but it is 1 in example 1 and 2 in example 0"):
        MaskedBatch.from_examples([[1, 2], [3]], dims=(False,))
    with pytest.raises(ShapeError, match=r"expected 1 bools"):
        MaskedBatch.from_examples([[1, 2]], dims=(True, False))


def test_no_examples():
    with pytest.raises(
        ShapeError, match=r"an empty sequence of examples .* give MaskedBatch\(data of shape \(0, \.\.\.\)\)"
    ):
        MaskedBatch.from_examples([])
    batch = MaskedBatch(np.zeros((0, 3, 2)), lengths=[])
    assert (batch.batch_size, batch.examples(), batch.mask.shape) == (0, [], (0, 3, 1))


def test_an_empty_list_takes_the_dtype_of_the_others():
    same(MaskedBatch.from_examples([[], [1, 2]]).examples(), [np.array([], np.int64), np.array([1, 2])])
    assert MaskedBatch.from_examples([[], []]).dtype == np.float64


@pytest.mark.parametrize(
    ("examples", "error", "match"),
    [
        ([[1], [[2]]], ShapeError, r"example 1 has 2 dimensions \(shape \(1, 1\)\), example 0 has 1"),
        ([[1], [2.5]], DTypeError, r"example 1 is float64, example 0 is int64; .*asarray\(x, 'float64'\)"),
        ([np.ones(2, np.float32), np.ones(2)], DTypeError, r"example 1 is float64, example 0 is float32"),
        ([["a"]], DTypeError, r"example 0 is <U1"),
        (["a", "ab"], DTypeError, r"example 0 is <U1; a batch of arrays holds numbers"),
        ([1, "a"], DTypeError, r"example 1 is <U1; .* numbers: ab\.Vocabulary .* ab\.map takes strings"),
        ([[[1], [1, 2]]], ShapeError, r"example 0 is not one array .*ab\.map takes any objects.* depth=2"),
    ],
)
def test_examples_that_do_not_fit(examples, error, match):
    with pytest.raises(error, match=match):
        MaskedBatch.from_examples(examples)


@pytest.mark.parametrize(
    ("given", "error", "match"),
    [
        ({"lengths": [1.0, 2.0]}, DTypeError, "lengths have dtype float64; expected integers"),
        ({"lengths": [1, -1]}, ShapeError, r"length -1 of example 1 is not in 0\.\.3"),
        ({"lengths": [4, 1]}, ShapeError, r"length 4 of example 0 is not in 0\.\.3"),
        ({"lengths": [1]}, ShapeError, r"lengths of shape \(1,\) for data of shape \(2, 3, 2\)"),
        ({"lengths": [[1], [2]], "dims": (True, True)}, ShapeError, "lengths have 1 columns"),
        ({"lengths": [1, 2], "dims": (False, False)}, ShapeError, "no dimension varies"),
        ({"lengths": [[1, 1, 1]] * 2}, ShapeError, "name 3 varying dimensions, but the examples have 2"),
        ({"lengths": [1, 2], "dims": (1, 0)}, ShapeError, "expected 2 bools"),
        ({"lengths": [1, 2], "mask": [[True]]}, ShapeError, "both lengths and mask"),
        ({"mask": [[1, 0, 0]] * 2}, DTypeError, "the mask is int64; expected bool"),
        ({"mask": [[True, False]] * 2}, ShapeError, r"a mask of shape \(2, 2\) for data of shape \(2, 3, 2\)"),
        (
            {"mask": [[True, True, True], [True, False, True]]},
            ShapeError,
            "mask of example 1 is not True on one leading",
        ),
        ({"mask": [[True, False, False]] * 2, "dims": (False, True)}, ShapeError, "varies along dimension 0"),
    ],
)
def test_lengths_and_masks_that_do_not_fit(given, error, match):
    with pytest.raises(error, match=match):
        MaskedBatch(np.zeros((2, 3, 2)), **given)


def test_masks_that_fit():
    data = np.arange(12).reshape(2, 3, 2)
    leading = np.array([[True, False, False], [True, True, True]])
    for mask in (leading, leading[:, :, None], np.broadcast_to(leading[:, :, None], data.shape)):
        batch = MaskedBatch(data, mask=mask, dims=(True, False))
        assert [x.tolist() for x in batch.examples()] == [[[0, 1]], [[6, 7], [8, 9], [10, 11]]]
    assert MaskedBatch(data, mask=leading[:, :, None]).dims == (True, False)
    assert MaskedBatch(np.zeros((2, 1)), mask=[[True], [False]]).lengths.tolist() == [1, 0]


@pytest.mark.parametrize("size", [1, 3])
def test_batch_length_and_width_may_coincide(size):
    arrays = [np.full((n + 1, size), float(n)) for n in range(size)]
    batch = MaskedBatch.from_examples(arrays)
    assert batch.data.shape == (size, size, size)
    same(batch.examples(), arrays)


def test_the_face_is_the_examples():
    batch = MaskedBatch.from_examples([np.zeros((2, 4), np.float32), np.zeros((3, 4), np.float32)])
    assert batch.ndim == 2
    assert batch.dtype == np.float32
    assert batch.shape[1] == 4
    assert batch.shape[0].examples() == [2, 3]
    assert [type(n) for n in batch.shape[0].examples()] == [int, int]
    assert batch.size.examples() == [8, 12]
    assert [x.shape for x in batch.T.examples()] == [(4, 2), (4, 3)]
    assert MaskedBatch(np.zeros((2, 3, 4))).size == 12


def test_what_no_single_value_can_say_is_refused():
    batch = MaskedBatch.from_examples([[1.0, 2.0], [3.0]])
    with pytest.raises(UnsupportedError, match=r"len\(\) of a batch: write \.batch_size"):
        len(batch)
    with pytest.raises(UnsupportedError, match=r"iteration over a batch.*\.examples\(\) lists"):
        iter(batch)
    with pytest.raises(UnsupportedError, match=r"iteration over a batch.*np.concatenate\(batch.examples\(\)\) joins"):
        np.hstack(batch)
    with pytest.raises(UnsupportedError, match=r"a batch is not one array; \.examples\(\)"):
        np.asarray(batch)
    with pytest.raises(UnsupportedError, match="not hashable"):
        hash(batch)
    differing = batch.shape[0]
    with pytest.raises(UnsupportedError, match=r"int\(\) of a batch, which holds 2 examples"):
        int(differing)
    with pytest.raises(UnsupportedError, match=r"bool\(\) of a batch, which holds 2 examples"):
        bool(differing == 2)
    with pytest.raises(UnsupportedError, match=r"index\(\) of a batch, which holds 2 examples"):
        [1, 2, 3][differing]


NUMBERS = [[2, 2], [2], [np.int64(1)] * 2, [True, True]]
AGREEING = [MaskedBatch.from_examples(each) for each in NUMBERS] + [ObjectBatch(each) for each in NUMBERS]
AGREEING += [make([np.ones(1)] * 2) for make in (MaskedBatch.from_examples, ab.PackedBatch.from_examples)]
ASKS = {
    **{f.__name__: f for f in (bool, int, float, complex, operator.index, operator.not_, range)},
    "item of a list": lambda b: [1, 2, 3][b],
    "slice of a list": lambda b: [1, 2, 3][:b],
    "if": lambda b: 1 if b else 0,
    "and": lambda b: b and 1,
    "any": lambda b: any([b]),
}


@pytest.mark.parametrize("ask", ASKS.values(), ids=ASKS)
def test_a_batch_is_no_number_where_its_examples_agree_either(ask):
    for batch in AGREEING:
        with pytest.raises(UnsupportedError, match=r"(bool|int|float|complex|index)\(\) of a batch, which holds [12]"):
            ask(batch)


def test_repr_is_short():
    assert repr(MaskedBatch([[1, 2], [3, 77]], lengths=[2, 1])) == (
        "MaskedBatch(batch_size=2, example=(?,) int64, lengths=[2 1], examples=[[1 2], [3]])"
    )
    assert len(repr(MaskedBatch(np.zeros((1000, 100, 100)), lengths=np.zeros(1000, int)))) < 1000


def test_copies():
    batch = MaskedBatch.from_examples([[1.0], [2.0, 3.0]])
    deep = copy.deepcopy(batch)
    deep.data[:] = 0
    same(batch.examples(), [np.array([1.0]), np.array([2.0, 3.0])])
    assert np.shares_memory(copy.copy(batch).data, batch.data)
    weak = pickle.loads(pickle.dumps(batch.shape[0]))
    assert weak.examples() == [1, 2]


def test_data_that_is_no_batch():
    with pytest.raises(ShapeError, match=r"data of shape \(\)"):
        MaskedBatch(3.0)
    with pytest.raises(UnsupportedError, match="is itself a batch"):
        MaskedBatch(MaskedBatch([1, 2]))


def test_a_batch_has_no_length():
    """scikit-learn shows this message below its own."""
    with pytest.raises(TypeError, match=r"write \.batch_size, or len\(ab\.Examples\(batch\)\)"):
        len(MaskedBatch([1, 2]))


def test_python_numbers_have_no_length_and_no_items():
    with pytest.raises(TypeError, match="'int' object is not iterable"):
        ab.batch(lambda x: list(x.shape[0]))(MaskedBatch.from_examples([[1], [1, 2]]))
    with pytest.raises(DTypeError, match="the data is <U1"):
        MaskedBatch(["a", "b"])
    with pytest.raises(ShapeError, match=r"the data is not one array .* use MaskedBatch\.from_examples"):
        MaskedBatch([[1], [1, 2]])


@pytest.mark.parametrize("convert", [bool, int, float, complex])
def test_no_lanes_agree_on_nothing(convert):
    with pytest.raises(UnsupportedError, match=rf"{convert.__name__}\(\) of a batch"):
        convert(MaskedBatch(np.zeros(0)))


def test_a_batch_is_formatted_as_its_repr():
    batch = MaskedBatch.from_examples([np.array([-1.0, 2.0]), np.array([1.0])])
    assert f"{batch}" == repr(batch)
    with pytest.raises(TypeError, match=r"format '\.3f' of a batch, .* write ab\.mean"):
        f"{batch:.3f}"


def test_examples_show_what_was_written_into_a_ragged_batch():
    batch = MaskedBatch.from_examples([np.array([-1.0, 2.0, 3.0]), np.array([1.0, -2.0])])
    batch[batch < 0] = 0.0
    batch += 1.0
    assert [each.tolist() for each in batch.examples()] == [[1.0, 3.0, 4.0], [2.0, 1.0]]


def test_a_reduction_of_a_batch_takes_few_calls():
    batch = MaskedBatch.from_examples([np.ones(3), np.ones(5)])
    batch.sum()
    assert inspect.python_calls(batch.sum) <= 15
