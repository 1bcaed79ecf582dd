"""`vjp`: a function's value now, and its gradient along cotangents that come later, from another library."""

import contextlib
from collections.abc import Callable, Sequence
from typing import Any

from autobatch.autodiff import tape as tapes
from autobatch.autodiff.grad import DifferentiatedInput, batch_data, settled, unboxed
from autobatch.autodiff.tape import Tape, TapeArray
from autobatch.core import pytree
from autobatch.core.memory import collector_paused, keep_freed_memory
from autobatch.core.op import BATCH_RANK, rank_of

# From one cotangent for each leaf of the result, None for a leaf without one, to one gradient for each input.
Back = Callable[[Sequence[Any]], list[Any]]


def vjp(f: Callable[[list[Any]], Any], inputs: Sequence[Any]) -> tuple[Any, Back]:
    """The value of a function of a list of float arrays and batches, and what gives gradients from cotangents.

    Args:
        f: takes as many values as there are inputs; returns a tree of arrays, batches and anything else.
        inputs: float arrays, and batches of them.

    Returns:
        (value, back). Cotangents and gradients of a batch are arrays like its `data` or `values`. `back` may be called
        again, until nobody holds it.

    Source: JAX's `jax.vjp`.

    >>> import numpy as np
    >>> value, back = vjp(lambda xs: {"y": xs[0] * xs[0], "n": 2}, [np.array([1.0, 2.0])])
    >>> value["y"], back([np.array([1.0, 10.0]), None])
    (array([1., 4.]), [array([ 2., 40.])])
    """
    keep_freed_memory()
    tape = Tape()
    slots = [DifferentiatedInput.of(tape, x) for x in inputs]
    with contextlib.ExitStack() as stack:
        stack.enter_context(collector_paused())
        stack.callback(tapes.set_active, tapes.active_tape())
        tapes.set_active(tape)
        found, structure = pytree.flatten(f([slot.boxed for slot in slots]))
        found = [settled(leaf, tape) for leaf in found]
    recorded = [_recorded(leaf, tape) for leaf in found]

    def back(cotangents: Sequence[Any]) -> list[Any]:
        pairs = [(top, ct) for top, ct in zip(recorded, cotangents, strict=True) if top is not None and ct is not None]
        leaves: list[Any] = [slot.leaf for slot in slots]
        grads: Sequence[Any] = [None] * len(slots)
        if pairs and slots:
            outputs, cts = zip(*pairs, strict=True)
            grads = tape.backward_from(outputs, cts, leaves)
        taken: set[int] = set()
        finished = [slot.finish(g, taken) for slot, g in zip(slots, grads, strict=True)]
        return [batch_data(g) if rank_of(g) == BATCH_RANK else g for g in finished]

    return pytree.unflatten(structure, [unboxed(leaf, tape) for leaf in found]), back


def _recorded(leaf: Any, tape: Tape) -> TapeArray | None:
    """The array on the tape that a leaf of a result is or holds."""
    inner = batch_data(leaf) if rank_of(leaf) == BATCH_RANK and type(leaf).__name__ != "ObjectBatch" else leaf
    return inner if type(inner) is TapeArray and inner.tape is tape and inner.index >= 0 else None
