"""Tests of NumPy's functions: whatever stands behind one, a batch equals the loop over its examples."""
