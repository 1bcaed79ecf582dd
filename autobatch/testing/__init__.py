"""Proof that a batch equals the loop over its examples: `ab.testing`."""

from autobatch.testing.equivalence import Report, assert_equivalent
from autobatch.testing.gradients import check_grads
from autobatch.testing.ragged_examples import ragged

__all__ = ["Report", "assert_equivalent", "check_grads", "ragged"]
