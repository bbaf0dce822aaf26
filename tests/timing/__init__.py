"""Times, and who gets none."""
