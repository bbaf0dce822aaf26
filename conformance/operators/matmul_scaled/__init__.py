"""Products of narrow numbers with scales. Nothing is imported here: a kernel's process loads `geometry` alone."""
