"""Average pooling, forward and backward. Nothing is imported here: a kernel's process loads `geometry` alone."""
