"""Lanes and where they run: regions, branches, loops, and the places where lanes meet again."""
