"""Transposed convolution and its two gradients. Nothing is imported here: a kernel's process loads `geometry` alone."""
