"""Arrays of torch and JAX where NumPy's are meant: the error, or a note of it, says what to write."""

import numpy as np
import pytest

import autobatch as ab
from autobatch.errors import UnsupportedError

XS = [np.ones((2, 3)), np.ones((1, 3))]


def f(x, w):
    return (x @ w).sum()


CALLS = {
    "grad": lambda w: ab.grad(lambda p: f(XS[0], p["w"]))({"w": w}),
    "value_and_grad": lambda w: ab.value_and_grad(f, argnums=1)(XS[0], w),
    "lock-step": lambda w: ab.batch(f)(ab.MaskedBatch.from_examples(XS), w),
    "by keyword": lambda w: ab.batch(f)(ab.MaskedBatch.from_examples(XS), w=w),
    "optimiser": lambda w: ab.optim.Adam(0.1).init({"w": w}),
    "proof": lambda w: ab.testing.assert_equivalent(f, XS, w=w),
}


@pytest.mark.parametrize("call", CALLS)
def test_tensors_are_refused(call):
    torch = pytest.importorskip("torch")
    with pytest.raises(
        UnsupportedError, match=r"is a torch tensor, .* write .*\.detach\(\)\.numpy\(\), or .*torch_function"
    ):
        CALLS[call](torch.ones(3, dtype=torch.float64, requires_grad=True))


@pytest.mark.parametrize("call", CALLS)
def test_jax_arrays_are_refused(call):
    jax = pytest.importorskip("jax")
    with pytest.raises(UnsupportedError, match=r"is a JAX array, .* write np\.array\(.*, or .*ab\.jax_function"):
        CALLS[call](jax.numpy.ones(3))


@pytest.mark.filterwarnings("ignore:ab.map could not")
def test_what_fails_in_the_loop_fails_so_with_a_note():
    torch = pytest.importorskip("torch")
    w = torch.ones(3, dtype=torch.float64)
    for call in (lambda: ab.map(f, XS, w=w), lambda: ab.batch(f)(XS[0], w)):
        with pytest.raises(TypeError, match="unsupported operand") as caught:
            call()
        assert any("is a torch tensor" in note for note in caught.value.__notes__)


@pytest.mark.filterwarnings("ignore:ab.map could not")
def test_tensors_that_nobody_computes_with_here_are_objects():
    torch = pytest.importorskip("torch")
    w = torch.ones(3, dtype=torch.float64)
    assert [x.item() for x in ab.map(lambda x, w: (x @ w).sum(), [torch.tensor(x) for x in XS], w=w)] == [6, 3]
    assert ab.nn.relu(np.ones(2)).sum() == 2
