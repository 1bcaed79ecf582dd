"""What a batched run did, as a table for a person."""
