"""Two-dimensional convolution and its two gradients.

`family` has all of it. Nothing is imported here: a kernel's process loads `geometry` alone.
"""
