"""Maps over tables and files: the function as one of tables, row groups as units, and who works on them."""
