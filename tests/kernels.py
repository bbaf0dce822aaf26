"""Right fp32 kernels to plant defects on, in float32 and NumPy alone: they run where there is no reference."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np


def conv_forward(x, w, bias, *, stride, padding, dilation, groups):
    x, w = (np.asarray(array, np.float32) for array in (x, w))
    extents = [dilation[axis] * (w.shape[2 + axis] - 1) + 1 for axis in (0, 1)]
    size = [1 + (x.shape[2 + a] + sum(padding[a]) - extents[a]) // stride[a] for a in (0, 1)]
    image, weights = _grouped(_padded(x, padding), groups, 1), _grouped(w, groups, 0)
    y = np.zeros((len(x), groups, weights.shape[1], *size), np.float32)
    with np.errstate(invalid="ignore"):
        for r, s, seen in _taps(w.shape[2:], size, stride, dilation):
            y += np.einsum("ngchw,gkc->ngkhw", image[seen], weights[..., r, s])
        y = y.reshape(len(x), len(w), *size)
        return y if bias is None else y + np.asarray(bias, np.float32)[:, None, None]


def conv_backward_data(dy, w, *, input_size, stride, padding, dilation, groups):
    dy, w = (np.asarray(array, np.float32) for array in (dy, w))
    gradient, weights = _grouped(dy, groups, 1), _grouped(w, groups, 0)
    padded = [input_size[axis] + sum(padding[axis]) for axis in (0, 1)]
    dx = np.zeros((len(dy), groups, w.shape[1], *padded), np.float32)
    with np.errstate(invalid="ignore"):
        for r, s, seen in _taps(w.shape[2:], dy.shape[2:], stride, dilation):
            dx[seen] += np.einsum("ngkhw,gkc->ngchw", gradient, weights[..., r, s])
    (top, _), (left, _) = padding
    inside = dx[..., top : top + input_size[0], left : left + input_size[1]]
    return np.ascontiguousarray(inside).reshape(len(dy), -1, *input_size)


def conv_backward_weight(x, dy, *, kernel_size, with_bias, stride, padding, dilation, groups):
    x, dy = (np.asarray(array, np.float32) for array in (x, dy))
    image, gradient = _grouped(_padded(x, padding), groups, 1), _grouped(dy, groups, 1)
    dw = np.zeros((groups, gradient.shape[2], image.shape[2], *kernel_size), np.float32)
    with np.errstate(invalid="ignore"):
        for r, s, seen in _taps(kernel_size, dy.shape[2:], stride, dilation):
            dw[..., r, s] = np.einsum("ngkhw,ngchw->gkc", gradient, image[seen])
        dw = dw.reshape(dy.shape[1], -1, *kernel_size)
        return (dw, dy.sum((0, 2, 3), np.float32)) if with_bias else dw


def _padded(image: np.ndarray, padding) -> np.ndarray:
    return np.pad(image, ((0, 0), (0, 0), *padding))


def _grouped(array: np.ndarray, groups: int, axis: int) -> np.ndarray:
    """Channels of `axis` as (groups, channels of a group)."""
    return array.reshape(*array.shape[:axis], groups, array.shape[axis] // groups, *array.shape[axis + 1 :])


def _taps(window, size, stride, dilation) -> Iterator[tuple[int, int, tuple]]:
    """Row and column of each tap, and what it sees of the padded image."""
    for r, s in np.ndindex(*window):
        starts = (r * dilation[0], s * dilation[1])
        slices = (slice(f, f + n * t, t) for f, n, t in zip(starts, size, stride, strict=True))
        yield r, s, (..., *slices)
