"""Proof that a batch equals the loop over its examples: `ab.testing`."""

from autobatch.testing.equivalence import EquivalenceReport, assert_equivalent
from autobatch.testing.gradients import check_grads
from autobatch.testing.ragged_examples import ragged
from autobatch.testing.sameness import assert_same

__all__ = ["EquivalenceReport", "assert_equivalent", "assert_same", "check_grads", "ragged"]
