"""Saving and restoring trees of parameters: one file, or a folder of checkpoints that survives crashes."""
