"""The runtime that rewritten code calls: regions of lanes, loops over ragged data, calls and items per lane."""
