"""Tests of the ops: a batch equals the loop over its examples, forward and backward."""
