"""Average pooling in the first generation of the API: a window is two axes of an index expression."""

import neuronxcc.nki as nki
import neuronxcc.nki.language as nl


def windows(image, side):
    """[C, H // side, W // side, side, side] of an image [C, H, W] on chip."""
    channels, height, width = image.shape
    grid = nl.mgrid[0:channels, 0 : height // side, 0 : width // side, 0:side, 0:side]
    c, p, q, r, s = grid
    return image[c, p * side + r, q * side + s]


@nki.jit
def pool_rounding_between(x, side):
    """Sums in the type of x, and then divides: two roundings."""
    channels, height, width = x.shape
    y = nl.ndarray((channels, height // side, width // side), dtype=x.dtype, buffer=nl.shared_hbm)
    sums = nl.sum(windows(nl.load(x), side), axis=[3, 4])
    nl.store(y, value=sums / (side * side))
    return y


@nki.jit
def pool(x, side):
    """Sums in float32 and rounds once."""
    channels, height, width = x.shape
    y = nl.ndarray((channels, height // side, width // side), dtype=x.dtype, buffer=nl.shared_hbm)
    sums = nl.sum(windows(nl.load(x), side), axis=[3, 4], dtype=nl.float32)
    nl.store(y, value=nl.multiply(sums, 1.0 / (side * side), dtype=x.dtype))
    return y
