"""Values of lanes in converted code: lists, items and attributes, operators, and per-lane sequences for loops."""
