"""Common code of convolution and pooling: accumulator, padding and the slices of an image that one tap reads."""

from __future__ import annotations

import itertools

import numpy as np

ACCUMULATORS = {
    **{"float64": np.float64, "float32": np.float32, "float16": np.float32, "bfloat16": np.float32},
    **{"float8_e4m3fn": np.float32, "float8_e5m2": np.float32, "int8": np.int32, "uint8": np.int32, "int32": np.int32},
}


def accumulator(array: np.ndarray) -> type:
    """Return fp64 for fp64, int32 for whole numbers, fp32 for formats of fewer bits. Raises TypeError for others."""
    if array.dtype.name not in ACCUMULATORS:
        raise TypeError(f"{array.dtype.name}: must be one of {', '.join(ACCUMULATORS)}")
    return ACCUMULATORS[array.dtype.name]


def result(array: np.ndarray) -> np.dtype:
    """Return the format of an operator's result: that of its inputs, unless these have 8 bits."""
    return array.dtype if array.itemsize > 1 else np.dtype(accumulator(array))


def require_fit(size, kernel_size, padding, dilation):
    for extent, window, pad, d in zip(size, kernel_size, padding, dilation, strict=True):
        span, room = d * (window - 1) + 1, extent + sum(pad)
        if span > room:
            raise ValueError(f"the window spans {span}, more than the padded image's {room}")


def output_size(size, kernel_size, stride, padding, dilation):
    """Count the windows that fit into the padded image, on every axis."""
    require_fit(size, kernel_size, padding, dilation)
    return tuple(
        (extent + sum(pad) - d * (window - 1) - 1) // u + 1
        for extent, window, u, pad, d in zip(size, kernel_size, stride, padding, dilation, strict=True)
    )


def padded(image: np.ndarray, padding) -> np.ndarray:
    return np.pad(image, ((0, 0),) * (image.ndim - len(padding)) + tuple(padding))


def cropped(image: np.ndarray, padding, size) -> np.ndarray:
    return image[(..., *(slice(before, before + extent) for (before, _), extent in zip(padding, size, strict=True)))]


def empty_image(lead, size, padding, dtype) -> np.ndarray:
    return np.zeros((*lead, *(extent + sum(pad) for extent, pad in zip(size, padding, strict=True))), dtype)


def taps(kernel_size, stride, dilation, output_size):
    """Yield, for every tap, its place in the window, and the slice of the padded image that it reads over all outputs.
    Raises ValueError for steps that are not positive."""
    if min(*stride, *dilation) < 1:
        raise ValueError(f"stride {tuple(stride)}, dilation {tuple(dilation)}: each must be at least 1")
    for tap in itertools.product(*map(range, kernel_size)):
        axes = zip(tap, dilation, output_size, stride, strict=True)
        yield tap, (..., *(slice(t * d, t * d + (count - 1) * u + 1, u) for t, d, count, u in axes))


def per_channel(values, size):
    """Return [K] in a shape that can be added to [..., K, *size]."""
    return values.reshape(-1, *(1 for _ in size))


def places(images):
    """Return all axes of [N, K, *size] but the channels'."""
    return (0, *range(2, images.ndim))
