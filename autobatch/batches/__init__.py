"""Batches: padded (`MaskedBatch`) and packed (`PackedBatch`), their conversions and their NumPy face."""
