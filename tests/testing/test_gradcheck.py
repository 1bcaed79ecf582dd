"""`check_grads` passes right gradients and reports wrong ones."""

import numpy as np
import pytest

import autobatch as ab
from autobatch.api.extend import elementwise
from autobatch.errors import UnsupportedError
from autobatch.ops.rules.op_kinds import vjp_columns
from autobatch.testing import assert_equivalent, check_grads
from autobatch.testing.gradients import check_directions
from tests.inspect import Op

wrong_square = Op("wrong_square", lambda x: x * x, vjp=vjp_columns([lambda ct, out, x: 3 * ct * x]))
wrong_at_one = Op("wrong_at_one", lambda x: x * x, vjp=vjp_columns([lambda ct, out, x: ct * np.where(x > 2, x, 2 * x)]))
without_vjp = elementwise(lambda x: x * x, name="square_without_vjp")
right_square = elementwise(np.square, lambda ct, out, x: 2 * ct * x, name="right_square")


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


# Inside of the proof.

EXAMPLES = [np.array([0.3, -0.4, 0.9]), np.array([1.2])]


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("of", ["an example", "what is shared", "a table"])
def test_a_wrong_vjp_does_not_pass_the_proof(dtype, of):
    """All ways share it, so that comparing them with each other does not see it."""
    examples = [x.astype(dtype) for x in EXAMPLES]
    if of == "an example":
        with pytest.raises(AssertionError, match=r"gradient of float 0 of example 0 is wrong: .* ab\.grad gives"):
            assert_equivalent(lambda x: wrong_square(x).sum(), examples)
    elif of == "what is shared":
        with pytest.raises(AssertionError, match="gradient of float 0 of the shared arguments is wrong"):
            assert_equivalent(lambda x, w: wrong_square(w).sum() * len(x), examples, w=np.ones(2, dtype))
    else:
        table = ab.EmbeddingTable(np.ones((4, 2), dtype))
        with pytest.raises(AssertionError, match="gradient of float 0 of the shared arguments is wrong"):
            assert_equivalent(lambda i, t: wrong_square(t[i]).sum(), [np.array([1, 2]), np.array([3])], t=table)


def test_a_gradient_that_is_meant_to_be_another_passes_where_it_is_said():
    assert_equivalent(lambda x: wrong_square(x).sum(), EXAMPLES, central_differences=False)
    report = assert_equivalent(lambda x, w: (x * ab.stop_gradient(w * w)).sum(), EXAMPLES, w=np.float64(2))
    assert report.directions == 0


KINKS = {  # and along how many of three directions (two examples, the weight) they have a slope, for w = 1 and w = 0
    "maximum": (lambda x, w: np.maximum(x * w, 0).sum(), (3, 2)),
    "a kink at the point": (lambda x, w: np.abs(0 * x * w).sum() + w * w, (3, 2)),
    "largest": (lambda x, w: x.max() * w, (3, 3)),
    "where": (lambda x, w: np.where(x * w > 0.3, x, x * x).sum(), (1, 3)),
    "pole": (lambda x, w: 1 / w if w != 0 else w, (3, 2)),
    "rounded inside": (lambda x, w: np.float32(x.sum() * w) * np.float32(3), (3, 3)),
    "steps": (lambda x, w: np.floor(x * w).sum(), (3, 2)),
    "root of 0": (lambda x, w: np.sqrt(0 * x * w).sum() + x[int(np.round(np.abs(w))) % len(x)], (0, 0)),
}


@pytest.mark.parametrize("dtype", [np.float64, np.float32])
@pytest.mark.parametrize("at", [1.0, 0.0])
@pytest.mark.parametrize("name", KINKS)
def test_kinks_steps_and_rounding_are_no_wrong_gradients(name, at, dtype):
    f, expected = KINKS[name]
    examples, w = [(x.astype(dtype),) for x in EXAMPLES], {"w": dtype(at)}
    with np.errstate(all="ignore"):
        assert check_directions(f, examples, w) == expected[at == 0.0]
        if name == "root of 0":  # its gradient is NaN wherever it is taken
            return
        with pytest.raises(AssertionError, match="gradient of float 0 of example 0 is wrong"):
            check_directions(lambda x, w: f(np.sin(x), w) + wrong_square(x).sum(), examples, w)


def test_all_arrays_have_their_direction():
    right = {f"w{i}": np.float64(i) for i in range(9)}
    assert (
        check_directions(lambda x, p: sum(np.tanh(w) for w in p.values()) * x.sum(), [(EXAMPLES[0],)], {"p": right})
        == 6
    )
    with pytest.raises(AssertionError, match=r"shared arguments, \.\.\. is wrong"):
        check_directions(
            lambda x, p: sum(right_square(w) for w in list(p.values())[:-1]) + wrong_square(p["w8"]),
            [(EXAMPLES[0],)],
            {"p": right},
        )
