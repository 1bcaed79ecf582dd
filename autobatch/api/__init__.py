"""What users touch: the decorator object."""
