"""Average pooling in the present generation of the API: a window is two dimensions of an access pattern."""

import nki
import nki.isa as nisa
import nki.language as nl


def windows(image, side):
    """[C, H // side, W // side, side, side] of an image [C, H, W] on chip."""
    channels, height, width = image.shape
    pattern = [
        [height * width, channels],
        [side * width, height // side],
        [side, width // side],
        [width, side],
        [1, side],
    ]
    return image.ap(pattern)


def divided(x, sums, side):
    """sums / side^2 in a new output like x."""
    y = nl.ndarray(sums.shape, dtype=x.dtype, buffer=nl.shared_hbm)
    means = nl.ndarray(sums.shape, dtype=x.dtype, buffer=nl.sbuf)
    nisa.tensor_scalar(dst=means, data=sums, op0=nl.multiply, operand0=1.0 / (side * side))
    nisa.dma_copy(dst=y, src=means)
    return y


@nki.jit
def pool_rounding_between(x, side):
    """Sums in the type of x, and then divides: two roundings."""
    return divided(x, nl.sum(windows(nl.load(x), side), axis=[3, 4]), side)


@nki.jit
def pool(x, side):
    """Sums in float32 and rounds once."""
    return divided(x, nl.sum(windows(nl.load(x), side), axis=[3, 4], dtype=nl.float32), side)
