"""`assert_equivalent`: the proof, for one function and some examples, that every way equals the loop."""

from collections.abc import Callable
from typing import Any

from autobatch.testing.batched_ways import default_ways
from autobatch.testing.equivalence import Report, check_equivalence

__all__ = ["assert_equivalent"]

__tracebackhide__ = True  # of pytest: the user's line and the message say it all


def assert_equivalent(f: Callable[..., Any], *example_sequences: Any, grad: bool = True, **shared: Any) -> Report:
    """Assert that every batched way of running `f` gives what the loop over the examples gives.

    The reference is the undecorated function on plain arrays, one example at a time. Compared with it are lock-step on
    a `MaskedBatch` (its padding zero, then poisoned with NaN and extreme integers), lock-step on a `PackedBatch`, and
    `ab.map`: each on all examples, shuffled, split in two, and one at a time. Compared are values (exact, but for
    floats, which may differ by re-association in the coarsest float dtype among the arguments), dtypes, shapes,
    structure, exceptions (type, message and the index noted), what the call leaves in the shared arguments, and
    gradients along random cotangents of all float outputs, with respect to every float array or `EmbeddingTable` among
    the shared arguments and every float array among the examples. Arguments are copied for each run, so `f` may write
    into them. Not compared: what `f` prints, what it leaves in the examples' own arrays, and batches of no examples.

    Args:
        f: a function of one example; decorated with `ab.batch` or not.
        example_sequences: one sequence per positional argument of `f`, as for `ab.map`. Examples that are no arrays or
            numbers, or trees of them alike in structure, are compared on the fly only; the report says so.
        grad: compare gradients. A function without float outputs has none.
        shared: the keyword arguments of `f`.

    Returns:
        A `Report`: the ways that ran, those that did not and why.

    Raises:
        AssertionError: names the way, the example, the leaf and the first element that differ, with both values.
        ShapeError: no examples, or sequences of different lengths.
        TypeError: `f` does not take these arguments.

    >>> def scaled(x, w):
    ...     return w * x.sum()
    >>> report = assert_equivalent(scaled, [np.ones(3), np.ones(0), np.ones(2)], w=np.float64(2))
    >>> report.examples
    3
    """
    return check_equivalence(f, example_sequences, shared, grad=grad, ways=default_ways())
