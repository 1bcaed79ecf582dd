"""Groups recorded calls into launches: calls that differ in sizes, chains of additions, blocks split or merged."""
