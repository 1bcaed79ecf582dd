"""Tables of rows: look-ups, bags and segments as one reduction, sparse gradients."""
