"""What people click on next: sequences of items, tables, an online learner."""
