"""Convolution fused with batch normalisation.

`family` has all of it. Nothing is imported here: a kernel's process loads `geometry` alone.
"""
