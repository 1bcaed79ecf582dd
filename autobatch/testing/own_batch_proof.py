"""`assert_same`: tests a user's own batched function against the user's function of one example."""

import importlib.util
from collections.abc import Callable, Sequence
from typing import Any, Literal

from autobatch.bridges.frameworks import framework_of
from autobatch.errors import ShapeError
from autobatch.lazy.example_map import examples_in
from autobatch.testing.calling import Convention, Padding, example_arguments
from autobatch.testing.compare import first_of, largest_error
from autobatch.testing.difference_diagnosis import diagnosis
from autobatch.testing.equivalence import EquivalenceReport, orders
from autobatch.testing.own_batch import BatchDiffersError, Pair, unchanged

__tracebackhide__ = True

_NONE = "no batch is made of no examples there"


def assert_same(
    per_example: Callable[..., Any],
    batched: Callable[..., Any],
    examples: object,
    *,
    grad: bool = True,
    layout: Literal["padded", "list", "packed", "batch"] | None = None,
    framework: Literal["numpy", "torch", "jax"] | None = None,
    padding: object = 0,
    poison: Literal["finite", "nan"] = "finite",
    collate: Callable[[list[Any]], Any] | None = None,
    empty: bool = True,
    **shared: object,
) -> EquivalenceReport:
    """Assert that your own batched function gives, for each example, what your function of one example gives.

    Each may use NumPy, Numba, torch or JAX. The parameters of `batched` decide what it gets. Each argument
    of an example arrives as one array, padded at the end to the longest, with the axis of examples in front:
    `batched(padded)`. Any other parameter is filled by its name, for the first argument whose length varies or, as in
    `src_mask`, for the argument of that name:

    - `lengths` (also `lens`, `sizes`): (B,) int64.
    - `mask` (also `valid`): (B, T) bool, True at an example's own elements. `attention_mask`: the same as int64.
    - `key_padding_mask` (also `padding_mask`): (B, T) bool, True at the padding, as torch's layers take it.
    - `offsets` (B + 1,) or `segment_ids` (N,): then arguments arrive end to end, without padding.

    The comparison covers values (floats up to re-association), dtypes, shapes, structure, and gradients along random
    cotangents (torch's autograd, `jax.vjp`, `ab.grad`) with respect to the float arrays of the examples, those of
    `shared`, and the parameters of torch modules that both functions name; on all examples, shuffled, split, one at a
    time and none, padded to the longest and beyond. What `batched` knows to be padding is also filled with other ids
    or values, which must not matter. A result with an axis as long as the padding is cut to the example's own part. If
    they differ, hypothesis looks for the smallest batch that does, and the message says what changes the result there.

    Args:
        per_example: the reference: a function of one example.
        batched: a function of a batch, such as a torch module. It returns what `per_example` returns, each array with
            an axis of examples in front; or a list of results, a jagged tensor or one of our batches.
        examples: a sequence of examples. A tuple is several arguments; anything else, arrays in a dict too, is one.
        grad: compare gradients.
        layout: "padded"; "list" (each argument a list of arrays, also chosen by an annotation); "packed" (end to end);
            "batch" (what `ab.collate` gives). By default as the parameters say. `collate` makes any other.
        framework: whose arrays `batched` takes, where its code does not show it.
        padding: the value you pad with, such as a padding id. A function without lengths or a mask may rely on it.
        poison: "finite" fills padding with values ten times larger than the largest; "nan" with NaN, after which
            `(x * mask).sum(1)` differs too, as 0 * NaN is NaN.
        collate: makes the arguments of `batched` from a list of examples, as the `collate_fn` of a torch loader does: a
            tuple is positional, a dict by keyword. It also does the padding.
        empty: whether a batch without examples must work, too.
        shared: keyword arguments of both functions: parameters.

    Returns:
        An `EquivalenceReport`: what ran, and what was not compared and why.

    Raises:
        AssertionError: with the smallest batch that differs, the first elements that do, and a diagnosis.
        ShapeError: no examples, or of different structures. UnsupportedError: a parameter of `batched` with
            another name. Exception: whatever `per_example` raises for an example.

    >>> import numpy as np
    >>> def mean(x):
    ...     return x.mean(0)
    >>> xs = [np.ones((2, 3)), np.arange(12.0).reshape(4, 3)]
    >>> def batched_mean(padded, mask):
    ...     return (padded * mask[..., None]).sum(1) / mask.sum(1)[:, None]
    >>> assert_same(mean, batched_mean, xs).examples
    2
    >>> assert_same(mean, lambda padded: padded.mean(1), xs)  # doctest: +ELLIPSIS
    Traceback (most recent call last):
        ...
    AssertionError: ...
    so: it divides by the padded length, as padded.mean(1) does: sum an example's own elements and divide by its length
    """
    found = example_arguments(examples_in(examples, "ab.testing.assert_same"))
    if not found:
        raise ShapeError("no examples: nothing would be proved; give a non-empty sequence of examples")
    if len({len(x) for x in found}) > 1:
        raise ShapeError(f"examples with {sorted({len(x) for x in found})} arguments; expected the same number in each")
    source, own = framework_of(None, found), framework_of(per_example, found)
    theirs = framework_of(batched, found, framework)
    convention = Convention(
        batched, found, theirs, source, shared, layout=layout, padding=padding, collate=collate, poison=poison
    )
    with unchanged(per_example, batched):
        pair = Pair(per_example, batched, convention, own, found, shared)
        report = EquivalenceReport(examples=len(found))
        try:
            _check(pair, report, grad, "" if empty and convention.takes_none else "empty=False" if not empty else _NONE)
        except BatchDiffersError as mismatch:
            least = smallest(pair, mismatch)
            lines = [*_difference(pair, least), *diagnosis(pair, mismatch)]
            raise AssertionError("\n".join(lines)) from least.__cause__
    return report


def _paddings(convention: Convention) -> list[Padding]:
    if not convention.pads:
        return [Padding()]
    told = [Padding("high", 2), Padding("low", 1)] if convention.knows_padding else []
    return [Padding(), Padding(extra=2), *told]


def _check(pair: Pair, report: EquivalenceReport, grad: bool, no_empty: str) -> None:
    """Check the values of all orders with all paddings, and the gradients of some."""
    skip = "grad=False"
    paddings = _paddings(pair.convention)
    for name, order in orders(len(pair.examples)):
        batch = [pair.examples[i] for i in order]
        for padding in paddings:
            pair.check(batch, padding)
            report.runs += 1
        if name == "all examples":
            skip = pair.no_gradient() if grad else skip
            report.max_error = _largest(pair, batch)
        if not skip and name in ("all examples", "shuffled"):
            for padding in (paddings[0], paddings[-1])[: len(paddings)]:
                pair.check_gradients(batch, padding)
        report.ways.append(name)
    if no_empty:
        report.skipped["no examples"] = no_empty
    else:
        pair.check([], Padding())
        report.ways.append("no examples")
    if skip:
        report.skipped["gradients"] = skip
    report.ways += [str(padding) for padding in paddings[1:]]


def _largest(pair: Pair, batch: Sequence[Any]) -> float:
    return max(largest_error(pair.reference(x), y) for x, y in zip(batch, pair.run(batch, Padding()), strict=True))


def _difference(pair: Pair, found: BatchDiffersError) -> list[str]:
    names = [getattr(f, "__name__", type(f).__name__) for f in (pair.batched, pair.per_example)]
    lines = [f"{names[0]} differs from {names[1]} of each example", f"  {_batch_text(pair, found)}"]
    where = f"example {found.place} of it: " if found.place is not None else ""
    return lines + first_of([f"{where}{line}" for line in found.lines])


def _batch_text(pair: Pair, found: BatchDiffersError) -> str:
    if not found.examples:
        return "a batch of no examples:"
    lengths = pair.convention.lengths(found.examples)
    count = len(found.examples)
    text = f"the smallest batch found that differs: {count} example{'s' * (count > 1)}"
    if lengths[0]:
        shown = [own[0] if len(own) == 1 else own for own in lengths]
        text += f" of length{'s' * (count > 1)} {', '.join(map(str, shown))}"
    padding = str(found.padding)
    return text + (f", {padding}" if padding else "") + ":"


_TRIES = 60  # batches to try in the search; shrinking may try as many again


def smallest(pair: Pair, found: BatchDiffersError) -> BatchDiffersError:
    """The mismatch with the fewest and shortest examples: cut examples of `found`, with its padding or less.

    It is `found` itself if hypothesis is not installed or nothing smaller differs.
    """
    if not found.examples or importlib.util.find_spec("hypothesis") is None:
        return found
    from hypothesis import HealthCheck, Phase, find, settings  # noqa: PLC0415 - only tests have it
    from hypothesis import strategies as st  # noqa: PLC0415
    from hypothesis.errors import HypothesisException  # noqa: PLC0415

    convention = pair.convention
    examples = found.examples
    lengths = convention.lengths(examples)
    least = [min(column) and 1 for column in zip(*convention.lengths(pair.examples), strict=True)]  # 0 if one is empty
    cuts = [
        st.tuples(st.just(i), *(st.integers(min(low, size), size) for low, size in zip(least, own, strict=True)))
        for i, own in enumerate(lengths)
    ]
    kinds = ["given"] if found.padding.filling == "given" else ["given", found.padding.filling]
    paddings = st.builds(Padding, st.sampled_from(kinds), st.integers(0, max(found.padding.extra, 1)))
    # Four examples: two differ, one is padded, and one more.
    batches = st.tuples(st.lists(st.one_of(cuts), min_size=1, max_size=min(len(examples), 4)), paddings)
    mismatches: dict[Any, BatchDiffersError] = {}

    def differs(drawn: Any) -> bool:
        batch = [convention.cut(examples[i], own) for i, *own in drawn[0]]
        try:
            for example in batch:
                pair.reference(example)
        except Exception:  # the user's function may reject a cut example
            return False
        try:
            pair.check(batch, drawn[1])
            if found.what == "gradient":
                pair.check_gradients(batch, drawn[1])
        except BatchDiffersError as mismatch:
            mismatches[repr(drawn)] = mismatch
            return mismatch.what == found.what
        return False

    how = settings(
        max_examples=_TRIES,
        deadline=None,
        database=None,
        derandomize=True,
        phases=[Phase.generate, Phase.shrink],
        suppress_health_check=list(HealthCheck),
    )
    try:
        return mismatches[repr(find(batches, differs, settings=how))]
    except (HypothesisException, KeyError):
        return found
