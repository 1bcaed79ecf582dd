"""`grad` and `value_and_grad`: of a function in the form that takes gradients into the arrays that it makes."""

import functools
from collections.abc import Callable, Sequence
from typing import Any

from autobatch.autodiff import grad as plain
from autobatch.autodiff.tape import active_tape
from autobatch.rewrite.taped_forms import taped_form

__all__ = ["grad", "taped", "value_and_grad"]


def grad(f: Callable[..., Any], argnums: int | Sequence[int] = 0, has_aux: bool = False) -> Callable[..., Any]:
    """The gradient of a function that returns one real scalar.

    Args:
        f: any function of NumPy arrays and pytrees of them (dict, list, tuple, namedtuple, dataclass).
        argnums: which positional argument(s) to differentiate; with a sequence, the result is a tuple.
        has_aux: `f` returns (scalar, anything), and the result is (gradient, anything).

    Returns:
        A function of the same arguments. The gradient has the structure of the argument: an array of the leaf's shape
        and dtype for a float leaf, `SparseRows` for an `EmbeddingTable`, None for a leaf that is neither an array
        nor a number and for a table for look-ups only. A leaf that does not influence the result gets zeros.

    Raises:
        DTypeError: an integer or complex number or array among the leaves; the message names it.
        ShapeError: the result is not a scalar.
        UnsupportedError: the result is a batch, or an operation has no gradient.

    Arrays that `f` makes and writes into (`h = np.zeros(n)`, `h[0] = x`), and lists that it gives to NumPy functions
    (`np.mean([x, y])`), carry the gradient on: `f` and the functions of the user's that it calls run in a form in which
    these calls are ours. That needs their source; without it they are errors, as is writing into any other array.

    >>> import numpy as np
    >>> grad(lambda p: (p["w"] * p["w"]).sum())({"w": np.array([1.0, 2.0])})
    {'w': array([2., 4.])}
    """
    return _forgetting(plain.grad(taped(f), argnums, has_aux))


def value_and_grad(
    f: Callable[..., Any], argnums: int | Sequence[int] = 0, has_aux: bool = False
) -> Callable[..., Any]:
    """As `grad`, and the value too: (value, gradient), or with `has_aux` ((value, aux), gradient).

    >>> value, gradient = value_and_grad(lambda x: x * x)(3.0)
    >>> value, gradient
    (9.0, 6.0)
    """
    return _forgetting(plain.value_and_grad(taped(f), argnums, has_aux))


def taped(f: Any) -> Any:
    """What calls `f` in its form for gradients; anything that cannot be called as it is."""
    if not callable(f):
        return f

    @functools.wraps(f)
    def call(*args: Any, **kwargs: Any) -> Any:
        return taped_form(f)(*args, **kwargs)

    call.__name__ = getattr(f, "__name__", type(f).__name__)
    return call


def _forgetting(gradient: Callable[..., Any]) -> Callable[..., Any]:
    """Let go of what the outermost call has found, which holds the user's closures."""

    @functools.wraps(gradient)
    def call(*args: Any, **kwargs: Any) -> Any:
        try:
            return gradient(*args, **kwargs)
        finally:
            if active_tape() is None:
                taped_form.forget()

    return call
