"""The smallest batch on which a user's batched function differs, found by hypothesis."""

import importlib.util
from typing import Any

from autobatch.testing.calling import Padding
from autobatch.testing.own_batch import BatchDiffers, Pair

_TRIES = 60  # calls for the search; shrinking has as many again
_LONGEST_BATCH = 4


def smallest(pair: Pair, found: BatchDiffers) -> BatchDiffers:
    """The mismatch with the fewest, shortest examples: those of `found`, cut, and its padding or less of it.

    Without hypothesis, and where nothing smaller differs, it is `found` itself.
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
    kinds = ["given"] if found.padding.kind == "given" else ["given", found.padding.kind]
    paddings = st.builds(Padding, st.sampled_from(kinds), st.integers(0, max(found.padding.extra, 1)))
    batches = st.tuples(st.lists(st.one_of(cuts), min_size=1, max_size=min(len(examples), _LONGEST_BATCH)), paddings)
    mismatches: dict[Any, BatchDiffers] = {}

    def differs(drawn: Any) -> bool:
        batch = [convention.cut(examples[i], own) for i, *own in drawn[0]]
        try:
            for example in batch:
                pair.reference(example)
        except Exception:  # the user's own: an example that is cut may be none
            return False
        try:
            pair.check(batch, drawn[1])
            if found.kind == "gradient":
                pair.check_gradients(batch, drawn[1])
        except BatchDiffers as mismatch:
            mismatches[repr(drawn)] = mismatch
            return mismatch.kind == found.kind
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
