"""Batches: padded (`MaskedBatch`) and packed (`PackedBatch`), their conversions and their NumPy face.

The classes make one another, by the names in `any_batch.FORMS`: whoever imports one of them has all.
"""

import autobatch.batches.data.collate
import autobatch.batches.data.example_sequence
import autobatch.batches.objects
import autobatch.batches.packed_batch
import autobatch.batches.padded_batch  # noqa: F401
