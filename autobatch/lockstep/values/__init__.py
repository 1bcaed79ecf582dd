"""What lanes hold: lists, items and attributes, sequences that loops run over, and who may change what."""
