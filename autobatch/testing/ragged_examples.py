"""`ragged`: a hypothesis strategy for examples whose lengths vary."""

from collections.abc import Mapping
from typing import Any

import numpy as np

from autobatch.errors import ShapeError


def ragged(
    dtype: Any = np.float64,
    ndim: int = 1,
    max_length: int = 6,
    min_examples: int = 1,
    max_examples: int = 5,
    static: Mapping[int, int] | None = None,
    elements: Any = None,
) -> Any:
    """A hypothesis strategy for lists of arrays of one rank and dtype, each dimension of any length from 0 up.

    Args:
        dtype: of all examples. Floats are drawn from [-10, 10], integers from [-100, 100] (from 0 where unsigned).
        ndim: the rank of an example.
        max_length: the maximum size of a dimension.
        min_examples, max_examples: the minimum and maximum number of examples.
        static: by axis, the sizes of dimensions that are equal in all examples.
        elements: another strategy for the elements.

    Returns:
        A strategy (`hypothesis.strategies.SearchStrategy`) of lists of arrays.

    Raises:
        ShapeError: `static` names an axis that the examples do not have.

    Needs hypothesis, which is imported on the first call.

    >>> from hypothesis import HealthCheck, given, settings
    >>> @settings(deadline=None, suppress_health_check=list(HealthCheck))
    ... @given(ragged(np.float32, ndim=2, static={1: 4}))
    ... def check(examples):
    ...     assert all(x.shape[1] == 4 for x in examples)
    >>> check()
    """
    from hypothesis import strategies as st  # noqa: PLC0415 - only tests have it
    from hypothesis.extra.numpy import arrays, from_dtype  # noqa: PLC0415

    fixed = dict(static or {})
    if any(not 0 <= axis < ndim for axis in fixed):
        raise ShapeError(f"static={fixed} names an axis outside the {ndim} of an example")
    dtype = np.dtype(dtype)
    if elements is None:
        low, high = {"f": (-10, 10), "u": (0, 100)}.get(dtype.kind, (-100, 100))
        finite: dict[str, Any] = {"allow_nan": False, "allow_infinity": False, "allow_subnormal": False}
        elements = from_dtype(dtype, min_value=low, max_value=high, max_magnitude=10, **finite)
    lengths = st.tuples(
        *(st.just(fixed[axis]) if axis in fixed else st.integers(0, max_length) for axis in range(ndim))
    )
    example = lengths.flatmap(lambda shape: arrays(dtype, shape, elements=elements))
    return st.lists(example, min_size=min_examples, max_size=max_examples)
