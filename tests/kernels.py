"""Correct fp32 kernels to plant defects on: one product for each position of the window.

Files of the tests import them in kernels' processes, where the reference operators are not to be had.
"""

from __future__ import annotations

import numpy as np


def conv_forward(x, w, bias, *, stride, padding, dilation, groups):
    image = np.pad(x, ((0, 0), (0, 0), *padding))
    _, _, r, s = w.shape
    p, q = _extents(image.shape[2:], (r, s), stride, dilation)
    y = np.zeros((len(x), len(w), p, q), np.float32)
    for (i, j), place in _taps((r, s), (p, q), stride, dilation):
        for group in range(groups):
            channels, filters = _group(x.shape[1], groups, group), _group(len(w), groups, group)
            y[:, filters] += np.einsum("nchw,kc->nkhw", image[:, channels][place], w[filters, :, i, j])
    return y if bias is None else y + bias[:, None, None]


def conv_backward_data(dy, w, *, input_size, stride, padding, dilation, groups):
    (top, bottom), (left, right) = padding
    h, wide = input_size
    image = np.zeros((len(dy), w.shape[1] * groups, h + top + bottom, wide + left + right), np.float32)
    for (i, j), place in _taps(w.shape[2:], dy.shape[2:], stride, dilation):
        for group in range(groups):
            channels, filters = _group(image.shape[1], groups, group), _group(len(w), groups, group)
            image[:, channels][place] += np.einsum("nkhw,kc->nchw", dy[:, filters], w[filters, :, i, j])
    return np.ascontiguousarray(image[:, :, top : top + h, left : left + wide])


def conv_backward_weight(x, dy, *, kernel_size, with_bias, stride, padding, dilation, groups):
    image = np.pad(x, ((0, 0), (0, 0), *padding))
    dw = np.zeros((dy.shape[1], x.shape[1] // groups, *kernel_size), np.float32)
    for (i, j), place in _taps(kernel_size, dy.shape[2:], stride, dilation):
        for group in range(groups):
            channels, filters = _group(x.shape[1], groups, group), _group(dy.shape[1], groups, group)
            dw[filters, :, i, j] = np.einsum("nkhw,nchw->kc", dy[:, filters], image[:, channels][place])
    return (dw, dy.sum(axis=(0, 2, 3), dtype=np.float32)) if with_bias else dw


def _extents(image, window, stride, dilation):
    axes = zip(image, window, stride, dilation, strict=True)
    return tuple((size - d * (taps - 1) - 1) // u + 1 for size, taps, u, d in axes)


def _taps(window, extents, stride, dilation):
    """Positions of the window, and what of the padded image they meet."""
    for tap in np.ndindex(*window):
        axes = zip(tap, extents, stride, dilation, strict=True)
        yield tap, (..., *(slice(t * d, t * d + (count - 1) * u + 1, u) for t, count, u, d in axes))


def _group(channels, groups, group):
    size = channels // groups
    return slice(group * size, (group + 1) * size)
