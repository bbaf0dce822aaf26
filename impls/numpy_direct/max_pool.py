"""Max pooling and its gradient: one comparison per tap, then one addition per window."""

from __future__ import annotations

import numpy as np

from .avg_pool import _output_size, _overhang
from .declared import direct, small_pool
from .windows import accumulator, cropped, empty_image, taps


def _windows(x, kernel_size, stride, padding, dilation, ceil_mode):
    """Return the padding that holds every window; and for every tap the values at it in all windows, and whether they
    are of the image.

    Raises ValueError for a window of padding only.
    """
    size, spans = x.shape[2:], [d * (taps - 1) + 1 for taps, d in zip(kernel_size, dilation, strict=True)]
    count = _output_size(size, spans, stride, padding, ceil_mode)
    over = _overhang(size, spans, stride, padding, count)
    reach = [(before, after + rest) for (before, after), (_, rest) in zip(padding, over, strict=True)]
    image = np.pad(x.astype(accumulator(x)), ((0, 0), (0, 0), *reach), constant_values=-np.inf)
    inside = np.pad(np.ones(size, bool), reach)
    places = [seen for _, seen in taps(kernel_size, stride, dilation, count)]
    if not np.all(np.any([inside[seen] for seen in places], axis=0)):
        raise ValueError(f"padding {padding}: a window of {tuple(kernel_size)} holds nothing else")
    return reach, places, [(image[seen], inside[seen]) for seen in places]


@direct("max_pool_forward", when=small_pool)
def max_pool_forward(x, *, kernel_size, stride, padding, dilation, ceil_mode):
    """Return y; a NaN in the window is its maximum."""
    _, _, views = _windows(x, kernel_size, stride, padding, dilation, ceil_mode)
    y = views[0][0]
    for seen, _ in views[1:]:
        y = np.maximum(y, seen)
    return y.astype(x.dtype)


@direct("max_pool_backward", when=small_pool)
def max_pool_backward(dy, x, *, kernel_size, stride, padding, dilation, ceil_mode):
    """Return dx, every gradient at the first maximum of its window."""
    reach, places, views = _windows(x, kernel_size, stride, padding, dilation, ceil_mode)
    best, chosen = np.full(dy.shape, -np.inf), np.full(dy.shape, -1)
    for tap, (seen, inside) in enumerate(views):
        better = inside & ((seen > best) | (np.isnan(seen) & ~np.isnan(best)) | (chosen < 0))
        best[better], chosen[better] = seen[better], tap
    wide = accumulator(dy)
    image = empty_image(dy.shape[:2], x.shape[2:], reach, wide)
    for tap, place in enumerate(places):
        image[place] += np.where(chosen == tap, dy, dy.dtype.type(0)).astype(wide)
    return cropped(image, reach, x.shape[2:]).astype(dy.dtype)
