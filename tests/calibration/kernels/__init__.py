"""Kernels whose verdict is known beforehand: their parts, and the kernels of several families.

Kernels of one family alone are in its folder, `known_bad.py` and `known_good.py`. No usual run imports any of them.
"""
