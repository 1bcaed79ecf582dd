"""What is launched together: calls that differ in sizes, chains of additions, blocks taken apart."""
