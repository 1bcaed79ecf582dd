"""Proof that a batch equals the loop over its examples: `ab.testing`."""

from autobatch.testing.equivalence import Report
from autobatch.testing.gradcheck import check_grads
from autobatch.testing.proof import assert_equivalent
from autobatch.testing.strategies import ragged

__all__ = ["Report", "assert_equivalent", "check_grads", "ragged"]
