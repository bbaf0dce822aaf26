"""Convolution fused with batch normalisation. Nothing is imported here: a kernel's process loads `geometry` alone."""
