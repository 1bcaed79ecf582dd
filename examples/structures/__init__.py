"""Trees, molecules, collisions: examples that are no arrays, and a test of another library's batch."""
