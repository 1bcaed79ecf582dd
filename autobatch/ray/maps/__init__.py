"""Maps over tables and files: a function of an example mapped over a table, over a row group, and over many files."""
