"""Data in and out: of other libraries and as columns of records; batches as sequences of examples, and in parts."""
