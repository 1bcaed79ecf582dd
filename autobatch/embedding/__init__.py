"""Embedding tables, look-ups, bags, segments and the sparse gradients of tables."""
