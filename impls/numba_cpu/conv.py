"""2-D convolution and its two gradients on the CPU: argument handling around the kernels.

Layouts: "nchw" is x[N, C, H, W], w[K, C/g, R, S], y[N, K, P, Q]; "nhwc" is x[N, H, W, C], w[K, R, S, C/g],
y[N, P, Q, K].  Half-precision inputs are widened exactly to float32 and each result is rounded once.
"""

from __future__ import annotations

from itertools import product

import numpy as np

from conformance.implementations.windows import Padding, Pair, shape_of, sizes, windows

from . import direct, gather, wgrad
from .geometry import backward_axes, forward_axis, image_strides, require_same
from .storage import compute_dtype, converted, widened

NARROW_TARGETS = 3
NARROW_PAIRS = 24


def flat(array: np.ndarray) -> np.ndarray:
    """Flat, widened, read-only view or copy: one array type reaches the kernels, so each compiles once."""
    view = np.ascontiguousarray(widened(array)).reshape(-1).view()
    view.flags.writeable = False
    return view


def conv_forward(
    x: np.ndarray, w: np.ndarray, bias: np.ndarray | None, *, stride: Pair, padding: Padding, dilation: Pair,
    groups: int, layout: str, into: np.ndarray | None = None,
) -> np.ndarray:  # fmt: skip
    """y = x cross-correlated with w, plus bias[K], plus what `into` holds."""
    n, c, size = sizes(x.shape, layout)
    k, per_group, kernel = sizes(w.shape, layout)
    require_same("channels of x", (c,), (per_group * groups,))
    axes = tuple(forward_axis(window) for window in windows(size, kernel, stride, padding, dilation))
    shape = shape_of(n, k, (axes[0].count, axes[1].count), layout)
    if not n:
        return np.empty(shape, x.dtype)
    y = np.empty(shape, compute_dtype(x.dtype))
    w_strides = image_strides(w.shape, layout)
    engine = direct if k // groups < NARROW_TARGETS else gather
    offsets = np.zeros(k, x.dtype) if bias is None else bias
    engine.gather(
        y.reshape(-1), image_strides(shape, layout), flat(x), image_strides(x.shape, layout), flat(w),
        w_strides, k // groups * w_strides[0], flat(offsets), (n, groups, c // groups, k // groups), axes,
    )  # fmt: skip
    return added(y, into, x.dtype)


def added(sums: np.ndarray, into: np.ndarray | None, dtype: np.dtype) -> np.ndarray:
    """The sums, and what `into` holds, rounded once."""
    if into is not None:
        sums += widened(into)
    return converted(sums, dtype)


def conv_backward_data(
    dy: np.ndarray, w: np.ndarray, *, input_size: Pair, stride: Pair, padding: Padding, dilation: Pair,
    groups: int, layout: str, into: np.ndarray | None = None,
) -> np.ndarray:  # fmt: skip
    """dx: every input pixel gathers from the outputs whose window covers it; plus what `into` holds."""
    n, k, seen = sizes(dy.shape, layout)
    filters, c, kernel = sizes(w.shape, layout)
    rows, columns = windows(input_size, kernel, stride, padding, dilation)
    require_same("channels and size of dy", (k, *seen), (filters, rows.outputs, columns.outputs))
    shape = shape_of(n, c * groups, input_size, layout)
    if not n:
        return np.empty(shape, dy.dtype)
    dx = np.zeros(shape, compute_dtype(dy.dtype))
    by_k, by_c, by_r, by_s = image_strides(w.shape, layout)
    source, weights, bias = flat(dy), flat(w), flat(np.zeros(c * groups, dy.dtype))
    engine = direct if c < NARROW_TARGETS else gather
    for axes in product(backward_axes(rows), backward_axes(columns)):
        engine.gather(
            dx.reshape(-1), image_strides(shape, layout), source, image_strides(dy.shape, layout), weights,
            (by_c, by_k, by_r, by_s), k // groups * by_k, bias, (n, groups, k // groups, c), axes,
        )  # fmt: skip
    return added(dx, into, dy.dtype)


def conv_backward_weight(
    x: np.ndarray, dy: np.ndarray, *, kernel_size: Pair, with_bias: bool, stride: Pair, padding: Padding,
    dilation: Pair, groups: int, layout: str,
) -> np.ndarray | tuple[np.ndarray, np.ndarray]:  # fmt: skip
    """dw, or (dw, dbias): sums over all images and output pixels."""
    n, c, size = sizes(x.shape, layout)
    images, k, seen = sizes(dy.shape, layout)
    shape = shape_of(k, c // groups, kernel_size, layout)
    dw = np.empty(shape, compute_dtype(x.dtype))
    axes = windows(size, kernel_size, stride, padding, dilation)
    require_same("images and size of dy", (images, *seen), (n, axes[0].outputs, axes[1].outputs))
    if not n:
        dw, dbias = np.zeros(shape, x.dtype), np.zeros(k, x.dtype)
        return (dw, dbias) if with_bias else dw
    engine = direct if (c // groups) * (k // groups) < NARROW_PAIRS else wgrad
    dbias = engine.weight_gradient(
        dw.reshape(-1), image_strides(shape, layout), flat(x), image_strides(x.shape, layout), flat(dy),
        image_strides(dy.shape, layout), (n, groups, c // groups, k // groups), axes, with_bias,
    )  # fmt: skip
    dw = converted(dw, x.dtype)
    return (dw, converted(dbias, x.dtype)) if with_bias else dw
