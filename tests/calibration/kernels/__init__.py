"""Kernels whose verdict is known beforehand: what they are made of, and those of several families.

What is one family's alone stands in its folder, `known_bad.py` and `known_good.py`. No usual run imports any of them.
"""
