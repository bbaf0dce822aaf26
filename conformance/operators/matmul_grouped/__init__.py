"""Grouped matrix products. Nothing is imported here: a kernel's process loads `geometry` alone."""
