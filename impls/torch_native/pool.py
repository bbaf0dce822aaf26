"""avg_pool2d, avg_pool3d and their gradients; for padding that these cannot do, the same sums over an image padded
before. A row is handled as an image of one row, as avg_pool1d does too."""

from __future__ import annotations

from dataclasses import dataclass
from functools import reduce, wraps

import torch
from torch.nn.functional import avg_pool2d, avg_pool3d, pad

from .layout import border_of, empty, nchw, restored, wide

AVERAGE = {2: avg_pool2d, 3: avg_pool3d}


@dataclass(frozen=True)
class Axis:
    """Windows along one axis of an image."""

    size: int
    window: int
    step: int
    before: int
    after: int

    def outputs(self, ceil_mode):
        """Count the windows; the last one may not start behind the image and the padding before it."""
        spare = self.size + self.before + self.after - self.window
        if not ceil_mode:
            return spare // self.step + 1
        outputs = -(-spare // self.step) + 1
        return outputs - (outputs > 1 and (outputs - 1) * self.step >= self.size + self.before)

    def counts(self, outputs, count_include_pad):
        """Return, for each window, the number of positions inside the image, with or without its padding."""
        low, high = (-self.before, self.size + self.after) if count_include_pad else (0, self.size)
        starts = (number * self.step - self.before for number in range(outputs))
        return [min(start + self.window, high) - max(start, low) for start in starts]

    def border(self, outputs):
        """Return the padding with which windows fill the axis; negative at the end where they leave elements unread."""
        return self.before, (outputs - 1) * self.step + self.window - self.before - self.size


def padding_moves_windows(geometry) -> bool:
    """Return whether torch pads itself, and a pixel's windows are not those of its number in the padded image."""
    symmetric = _own(geometry.padding, geometry.window)
    if symmetric is None:
        return False

    def windows(place, taps, step, outputs):
        return max(0, (place - taps + step) // step), min(place // step + 1, outputs)

    axes = zip(geometry.size, geometry.window, geometry.stride, symmetric, geometry.output_size, strict=True)
    return any(
        windows(place, *axis) != windows(place + before, *axis)
        for size, taps, step, before, outputs in axes
        for axis in [(taps, step, outputs)]
        for place in range(size)
    )


LEADING = {"kernel_size": 1, "stride": 1, "dilation": 1, "input_size": 1, "padding": (0, 0)}


def rows_as_images(kernel):
    """Return the kernel of images, made to take a row as an image of one row."""

    @wraps(kernel)
    def run(*tensors, layout, **parameters):
        if len(parameters["stride"]) > 1:
            return kernel(*tensors, layout=layout, **parameters)
        axis = layout.index("w")
        wider = {name: (LEADING[name], *value) if name in LEADING else value for name, value in parameters.items()}
        images = (tensor.unsqueeze(axis) for tensor in tensors)
        return kernel(*images, layout=layout.replace("w", "hw"), **wider).squeeze(axis)

    return run


@rows_as_images
def avg_pool_forward(x, *, kernel_size, stride, padding, ceil_mode, count_include_pad, divisor_override, layout):
    """Compute y through avg_pool2d or avg_pool3d."""
    x = nchw(x, layout)
    if symmetric := _own(padding, kernel_size):
        y = AVERAGE[len(stride)](x, kernel_size, stride, symmetric, ceil_mode, count_include_pad, divisor_override)
        return restored(y, layout)
    axes = _axes(x.shape[2:], kernel_size, stride, padding)
    outputs = [axis.outputs(ceil_mode) for axis in axes]
    image = pad(x.to(wide(x.dtype)), _border(axes, outputs))
    sums = AVERAGE[len(stride)](image, kernel_size, stride, divisor_override=1)
    divisors = divisor_override or _counts(axes, outputs, count_include_pad, sums)
    return restored((sums / divisors).to(x.dtype), layout)


@rows_as_images
def avg_pool_backward(
    dy, *, input_size, kernel_size, stride, padding, ceil_mode, count_include_pad, divisor_override, layout
):
    """Compute dx by aten's avg_pool2d_backward, which rounds every share to the storage format and adds there."""
    dy = nchw(dy, layout)
    if symmetric := _own(padding, kernel_size):
        x = empty((*dy.shape[:2], *input_size), layout, dy)
        dx = _backward(dy, x, kernel_size, stride, symmetric, ceil_mode, count_include_pad, divisor_override)
        return restored(dx, layout)
    axes = _axes(input_size, kernel_size, stride, padding)
    sides = [axis.border(count) for axis, count in zip(axes, dy.shape[2:], strict=True)]
    size = (before + extent + after for extent, (before, after) in zip(input_size, sides, strict=True))
    image = empty((*dy.shape[:2], *size), layout, dy)
    wider = dy.to(wide(dy.dtype))
    shares = wider / (divisor_override or _counts(axes, dy.shape[2:], count_include_pad, wider))
    dx = _backward(shares.to(dy.dtype), image, kernel_size, stride, (0,) * len(stride), False, True, 1)
    return restored(pad(dx, tuple(-side for side in border_of(sides))), layout)


def _own(padding, kernel_size):
    """Return padding that torch does itself: equal on both sides, at most half a window. None for other padding."""
    is_symmetric = all(
        before == after and 2 * before <= taps for (before, after), taps in zip(padding, kernel_size, strict=True)
    )
    return tuple(before for before, _ in padding) if is_symmetric else None


def _axes(size, kernel_size, stride, padding):
    extents = zip(size, kernel_size, stride, padding, strict=True)
    return [Axis(length, window, step, *pads) for length, window, step, pads in extents]


def _border(axes, outputs):
    """Return (left, right, top, bottom)."""
    return border_of([axis.border(count) for axis, count in zip(axes, outputs, strict=True)])


def _counts(axes, outputs, count_include_pad, like):
    """Return the divisors of all windows, in the output's size."""
    by_axis = (
        torch.tensor(axis.counts(count, count_include_pad), dtype=like.dtype, device=like.device)
        for axis, count in zip(axes, outputs, strict=True)
    )
    return reduce(lambda product, counts: product[..., None] * counts, by_axis)


def _backward(dy, x, kernel_size, stride, padding, ceil_mode, count_include_pad, divisor_override):
    aten = torch.ops.aten
    backward = {2: aten.avg_pool2d_backward, 3: aten.avg_pool3d_backward}[len(stride)]
    return backward(dy, x, kernel_size, stride, padding, ceil_mode, count_include_pad, divisor_override)
