"""Two-dimensional max pooling.

`family` has all of it. Nothing is imported here: a kernel's process loads `geometry` alone.
"""
