"""Products added to a matrix. Nothing is imported here: a kernel's process loads `geometry` alone."""
