"""The compiled forms of a program: for the operands that have a batch axis and those that carry a gradient."""

from collections.abc import Sequence
from typing import Any

import numpy as np

from autobatch.core.cotangent import Product
from autobatch.fusion.code import backward_code, forward_code, take_products
from autobatch.fusion.emit import emit
from autobatch.fusion.polymorphic import Flat, flatten
from autobatch.fusion.program import Program

__all__ = ["Form", "form_of"]

_FEW_ROWS = 512  # products of fewer rows are joined with others of the same matrix


class Form:
    """A program compiled for one kind of call.

    Attributes:
        outputs: how many results the program has; the rest of what `forward` returns is saved for `backward`.
        forward: of the operands' data, all in order; returns the outputs and what is saved.
        batched: which outputs have the batch axis.
        flags: which operands have it; wanted: the positions of those that carry a gradient.
    """

    __slots__ = ("_backward", "_flat", "_saved", "batched", "flags", "forward", "outputs", "wanted")

    def __init__(self, flat: Flat, flags: tuple[bool, ...], wanted: tuple[int, ...]) -> None:
        code, self._saved = forward_code(flat)
        self._flat = flat
        self._backward: Any = None
        self.flags = flags
        self.wanted = wanted
        self.batched = flat.batched
        self.outputs = len(flat.outputs)
        self.forward = emit(code)

    def backward(self, operands: Sequence[Any], cts: Sequence[Any], saved: Sequence[Any]) -> list[Any]:
        """The cotangent of each wanted operand, None where there is none."""
        if self._backward is None:
            code = backward_code(self._flat, self._saved)
            products = take_products(code)
            self._backward = emit(code), products
        run, products = self._backward
        found = iter(run(*operands, *cts, *saved))
        return [_product(next(found), next(found)) if product else next(found) for product in products]


def _product(left: np.ndarray, right: np.ndarray) -> Any:
    return Product(left, right) if left.shape[0] < _FEW_ROWS else np.matmul(left.T, right)


def form_of(program: Program, batched: tuple[bool, ...], wanted: tuple[int, ...]) -> Form | None:
    """The compiled form for a kind of call; None if there is none, and the program runs step by step."""
    key = (batched, wanted)
    try:
        return program.forms[key]
    except KeyError:
        pass
    given = [bool(wanted) and aval.dtype.kind in "fc" for aval in program.results]
    flat = flatten(program, batched, wanted, given)
    form = program.forms[key] = None if flat is None else Form(flat, batched, wanted)
    return form
