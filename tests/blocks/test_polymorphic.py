"""What holds for every number of examples."""

import math

import numpy as np
import pytest

from autobatch.blocks.batched_program import B, flatten
from autobatch.blocks.tracing import trace
from autobatch.core.abstract_eval import Affine, aval_of, sizes_at, unknown_lengths
from autobatch.errors import Unsupported

N, M = Affine({"n": 1}), Affine({"m": 1})
VECTOR = aval_of((4,), np.dtype(np.float64))


def test_sizes_compute_like_integers():
    rows = 4 * B + 8
    assert (rows // 4, rows % 2, rows - 4 * B, 3 - B + B) == (B + 2, 0, 8, 3)
    assert (rows // (B + 2), rows == 4 * (B + 2), rows == rows + 1) == (4, True, False)
    assert (B > 1, B >= 2, B < 2, 1 - B < 0, rows > B + 1, math.prod((2, B, 3))) == (
        True,
        True,
        False,
        True,
        True,
        6 * B,
    )
    assert (B > 1000, B == 7, N == 1, N == N + 1) == (True, False, False, False)
    assert sizes_at((rows, ("a", B), 7), {"B": 5}) == (28, ("a", 5), 7)
    assert unknown_lengths((rows, 7)) == {"B"}


@pytest.mark.parametrize(
    ("compute", "what"),
    [
        (lambda: B * B, "a product"),
        (lambda: B // 2, "a quotient"),
        (lambda: 6 // B, "the number"),
        (lambda: N < 3, "a comparison"),
        (lambda: max(N, 5), "a comparison"),
        (lambda: N == 5, "a comparison"),
        (lambda: (N, 3) == (M, 3), "a comparison"),
        (lambda: np.zeros(B), "the number"),
        (lambda: range(B), "the number"),
        (lambda: int(B), "the number"),
    ],
)
def test_what_depends_on_the_number_is_declined(compute, what):
    with pytest.raises(Unsupported, match=what):
        compute()


@pytest.mark.parametrize(
    ("body", "shapes", "want"),
    [
        (lambda x, y: x @ y, [(B, 3), (3, 4)], (B, 4)),
        (lambda x, y: np.concatenate([x, y, np.ones((2, 3))]), [(B, 3), (N, 3)], (B + N + 2, 3)),
        (lambda x: x.reshape(3, 2 * x.shape[0]) + 1.0, [(B, 6)], (3, 2 * B)),
        (lambda x: x.reshape(-1, 2) + 1.0, [(B, 6)], (3 * B, 2)),
        (lambda x: x[1:] - x[:-1], [(N,)], (N - 1,)),
        (lambda x: x.reshape(-1) + 1.0, [(B, N)], None),
        (lambda x: x[:9] + 1.0, [(N,)], None),
        (lambda x: x[-9:] + 1.0, [(N,)], None),
        (lambda x: x[::2] + 1.0, [(N,)], None),
        (lambda x, y: x + y, [(B, 3), (N, 3)], None),
        (lambda x, y: x + y, [(B, 3), (4, 3)], None),
    ],
)
def test_sizes_of_results(body, shapes, want):
    program = trace(body, [aval_of(shape, np.dtype(np.float64)) for shape in shapes])
    assert (program and program.results[0].shape) == want


def test_sizes_of_the_trace_are_none_of_the_program_s():
    """A rule that looks at sizes must not take the number of examples for one of them."""
    kinds = [aval_of((n,), np.dtype(np.float64)) for n in (5, 8, 11, 14)]
    flat = flatten(trace(lambda a, b, c, d: a.sum() + b.sum() * c + d[:11], kinds), [True] * 4, (0, 1), [True])
    assert [flat.kinds[slot].shape for slot in flat.outputs] == [(B, 11)]
    assert [flat.kinds[slot].shape for slot in flat.gradients] == [(B, 5), (B, 8)]


def test_what_is_asked_for_is_what_is_given():
    program = trace(lambda x, y: (x * y, np.tanh(y)), [VECTOR, VECTOR])
    forward = flatten(program, [True, False], (), [False, False])
    assert (forward.forward, forward.gradients) == (len(forward.steps), [])
    assert forward.batched == [True, False]
    both = flatten(program, [True, False], (1,), [True, True])
    assert both.kinds[both.gradients[0]].shape == (4,)
    assert both.cotangents == 2
