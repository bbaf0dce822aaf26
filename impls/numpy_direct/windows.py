"""What convolution and pooling share: accumulator, padding and the slices of an image that one tap reads."""

from __future__ import annotations

import itertools

import numpy as np

ACCUMULATORS = {"float64": np.float64, "float32": np.float32, "float16": np.float32, "bfloat16": np.float32}


def accumulator(array: np.ndarray) -> type:
    """fp64 for fp64, fp32 for fp32 and 16 bits; raises TypeError for integers."""
    if array.dtype.name not in ACCUMULATORS:
        raise TypeError(f"{array.dtype.name}: must be one of {', '.join(ACCUMULATORS)}")
    return ACCUMULATORS[array.dtype.name]


def require_fit(size, kernel_size, padding, dilation):
    for extent, window, pad, d in zip(size, kernel_size, padding, dilation, strict=True):
        span, room = d * (window - 1) + 1, extent + sum(pad)
        if span > room:
            raise ValueError(f"the window spans {span}, more than the padded image's {room}")


def output_size(size, kernel_size, stride, padding, dilation):
    """(P, Q): windows that fit into the padded image."""
    require_fit(size, kernel_size, padding, dilation)
    return tuple(
        (extent + sum(pad) - d * (window - 1) - 1) // u + 1
        for extent, window, u, pad, d in zip(size, kernel_size, stride, padding, dilation, strict=True)
    )


def padded(image: np.ndarray, padding) -> np.ndarray:
    return np.pad(image, ((0, 0),) * (image.ndim - 2) + tuple(padding))


def cropped(image: np.ndarray, padding, size) -> np.ndarray:
    (top, _), (left, _) = padding
    return image[..., top : top + size[0], left : left + size[1]]


def empty_image(lead, size, padding, dtype) -> np.ndarray:
    return np.zeros((*lead, *(extent + sum(pad) for extent, pad in zip(size, padding, strict=True))), dtype)


def taps(kernel_size, stride, dilation, output_size):
    """For every tap (r, s): the slice of the padded image that it reads over all output positions."""
    for r, s in itertools.product(*map(range, kernel_size)):
        first = (r * dilation[0], s * dilation[1])
        rows, columns = (
            slice(start, start + (count - 1) * u + 1, u)
            for start, count, u in zip(first, output_size, stride, strict=True)
        )
        yield r, s, (..., rows, columns)
