"""What holds for every number of examples."""

import numpy as np
import pytest

from autobatch.blocks.batched_program import Affine, _template, flatten
from autobatch.blocks.tracing import trace
from autobatch.core.abstract_eval import aval_of
from autobatch.errors import Unsupported

VECTOR = aval_of((4,), np.dtype(np.float64))


@pytest.mark.parametrize(
    ("values", "want"),
    [
        ((3, 3, 3), 3),
        ((6, 9, 12), Affine(1, 1)),
        ((5, 8, 11), Affine(1, 0)),
        ((20, 32, 44), Affine(4, 0)),
        (((5, "a"), (8, "a"), (11, "a")), (Affine(1, 0), "a")),
    ],
)
def test_attributes_that_are_affine(values, want):
    assert _template(values, (5, 8, 11)) == want


@pytest.mark.parametrize(
    "values", [(25, 64, 121), (1, 2, 4), ((1, 2), (1,), (1,)), (1, 1.0, 1), (0.0, -0.0, 0.0), (5, 7, 9)]
)
def test_attributes_that_are_not(values):
    with pytest.raises(Unsupported, match="attributes"):
        _template(values, (5, 8, 11))


def test_sizes_of_the_trace_are_none_of_the_program_s():
    """A rule that looks at sizes must not take the number of examples for one of them."""
    kinds = [aval_of((n,), np.dtype(np.float64)) for n in (5, 8, 11, 14)]
    flat = flatten(trace(lambda a, b, c, d: a.sum() + b.sum() * c + d[:11], kinds), [True] * 4, (0, 1), [True])
    assert [flat.kinds[slot].shape for slot in flat.outputs] == [(Affine(1, 0), 11)]
    assert [flat.kinds[slot].shape for slot in flat.gradients] == [(Affine(1, 0), 5), (Affine(1, 0), 8)]


def test_what_is_asked_for_is_what_is_given():
    program = trace(lambda x, y: (x * y, np.tanh(y)), [VECTOR, VECTOR])
    forward = flatten(program, [True, False], (), [False, False])
    assert (forward.forward, forward.gradients) == (len(forward.steps), [])
    assert forward.batched == [True, False]
    both = flatten(program, [True, False], (1,), [True, True])
    assert both.kinds[both.gradients[0]].shape == (4,)
    assert both.cotangents == 2
