"""`check_grads` passes right gradients and reports wrong ones."""

import numpy as np
import pytest

from autobatch.api.extend import elementwise
from autobatch.errors import UnsupportedError
from autobatch.ops.rules.kinds import vjp_columns
from autobatch.testing import check_grads
from autobatch.testing.inspect import Op

wrong_square = Op("wrong_square", lambda x: x * x, vjp=vjp_columns([lambda ct, out, x: 3 * ct * x]))
wrong_at_one = Op("wrong_at_one", lambda x: x * x, vjp=vjp_columns([lambda ct, out, x: ct * np.where(x > 2, x, 2 * x)]))
without_vjp = elementwise(lambda x: x * x, name="square_without_vjp")
right_square = elementwise(np.square, lambda ct, out, x: 2 * ct * x)


def test_right_gradients_pass():
    p = {"w": np.array([[0.5, -1.0], [2.0, 0.1]]), "b": np.array(0.3), "n": 2, "name": "p"}
    assert check_grads(lambda p, x: (np.tanh(x * p["w"]) + p["b"], p["n"]), p, np.array([1.0, 2.0])) < 1e-6
    assert check_grads(right_square, np.array([1.0, -3.0])) < 1e-6


@pytest.mark.parametrize("op", [wrong_square, wrong_at_one, without_vjp])
def test_wrong_gradients_are_reported(op):
    with pytest.raises(AssertionError, match=r"float argument 0\[.*ab\.grad gives .*central differences give"):
        check_grads(op, np.array([[1.0, 3.0]]))


def test_an_argument_without_a_vjp_of_its_own_is_an_error():
    first_only = elementwise(lambda x, y: x * y, lambda ct, out, x, y: ct * y, name="product")
    with pytest.raises(UnsupportedError, match=r"no vjp for argument 1 of an op .* with 1; give one for each argument"):
        check_grads(first_only, np.ones(2), np.ones(2))


def test_the_element_is_named():
    with pytest.raises(AssertionError, match=r"argument 0\[0, 1\]"):
        check_grads(wrong_at_one, np.array([[1.0, 3.0]]))


def test_an_argument_that_is_written_into_is_copied():
    x = np.array([1.0, 2.0])
    check_grads(lambda x: x * x, x)
    assert np.array_equal(x, [1.0, 2.0])


@pytest.mark.parametrize("args", [(np.arange(3),), ()])
def test_nothing_to_check(args):
    with pytest.raises(ValueError, match="needs float arrays"):
        check_grads(lambda *args: np.ones(2), *args)


def test_large_arrays_are_sampled():
    assert check_grads(lambda x: x * x, np.linspace(0, 1, 1000)) < 1e-6
