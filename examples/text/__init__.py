"""Words and characters: tagging, parsing, translating, pointing."""
