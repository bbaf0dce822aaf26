"""Products with weights of 4 bits. Nothing is imported here: a kernel's process loads `geometry` alone."""
