"""Transposed convolution with output padding, and its two gradients, in one to three dimensions.

`family` has all of it. Nothing is imported here: a kernel's process loads `geometry` alone.
"""
