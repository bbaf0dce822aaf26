"""Matrix product with a result of 8 bits. Nothing is imported here: a kernel's process loads `geometry` alone."""
