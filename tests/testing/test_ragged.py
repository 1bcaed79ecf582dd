"""The hypothesis strategy draws ragged examples: every length from 0, the sizes and dtypes asked for."""

import numpy as np
import pytest
from hypothesis import HealthCheck, find, given, settings
from hypothesis import strategies as st

from autobatch.testing import ragged


@pytest.mark.parametrize(
    "dtype", [np.float16, np.float32, np.float64, np.int8, np.uint8, np.int64, np.bool_, np.complex64]
)
@settings(max_examples=20, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(data=st.data())
def test_examples_are_as_asked(dtype, data):
    examples = data.draw(ragged(dtype, ndim=2, max_length=3, min_examples=2, max_examples=4, static={1: 2}))
    assert 2 <= len(examples) <= 4
    for x in examples:
        assert x.dtype == dtype
        assert x.ndim == 2
        assert x.shape[0] <= 3
        assert x.shape[1] == 2


@pytest.mark.parametrize(
    "wanted",
    [
        lambda examples: any(len(x) == 0 for x in examples),
        lambda examples: len({len(x) for x in examples}) > 2,
        lambda examples: len(examples) == 1,
        lambda examples: any(len(x) == 6 for x in examples),
    ],
)
def test_every_kind_of_raggedness_is_found(wanted):
    assert wanted(find(ragged(), wanted))


def test_elements_can_be_given():
    assert find(ragged(np.int64, elements=st.just(7)), lambda examples: len(examples[0]) == 2)[0].tolist() == [7, 7]


def test_static_axes_must_exist():
    with pytest.raises(ValueError, match="outside the 1 of an example"):
        ragged(static={1: 2})
