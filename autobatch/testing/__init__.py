"""Proof that a batch equals the loop over its examples: `ab.testing`."""

from autobatch.testing.compared_ways import forms
from autobatch.testing.equivalence import EquivalenceReport, assert_equivalent
from autobatch.testing.gradients import check_grads
from autobatch.testing.own_batch_proof import assert_same
from autobatch.testing.ragged_examples import ragged

__all__ = ["EquivalenceReport", "assert_equivalent", "assert_same", "check_grads", "forms", "ragged"]
__dir__ = __all__.copy
