"""What every other layer stands on: ops, interpreters, batched operands, pytrees, options."""
