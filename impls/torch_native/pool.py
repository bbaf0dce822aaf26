"""avg_pool2d and its gradient; where their padding is not torch's own, the same sums over an image padded before."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch.nn.functional import avg_pool2d, pad

from .layout import empty, nchw, restored, wide


@dataclass(frozen=True)
class Axis:
    """Windows along one axis of an image."""

    size: int
    window: int
    step: int
    before: int
    after: int

    def outputs(self, ceil_mode):
        """How many windows; the last one may not start behind the image and the padding before it."""
        spare = self.size + self.before + self.after - self.window
        if not ceil_mode:
            return spare // self.step + 1
        outputs = -(-spare // self.step) + 1
        return outputs - (outputs > 1 and (outputs - 1) * self.step >= self.size + self.before)

    def counts(self, outputs, count_include_pad):
        """Of each window: positions inside the image, with its padding or without."""
        low, high = (-self.before, self.size + self.after) if count_include_pad else (0, self.size)
        starts = (number * self.step - self.before for number in range(outputs))
        return [min(start + self.window, high) - max(start, low) for start in starts]

    def border(self, outputs):
        """Padding so that the windows fill the axis; negative at the end where they leave elements unread."""
        return self.before, (outputs - 1) * self.step + self.window - self.before - self.size


def overlapping(geometry) -> bool:
    """Whether windows share elements, so that gradients are added up."""
    return geometry.stride[0] < geometry.r or geometry.stride[1] < geometry.s


def overlapping_and_composed(geometry) -> bool:
    """Of those, where the shares are made here, because the padding is not torch's own."""
    return overlapping(geometry) and _own(geometry.padding, (geometry.r, geometry.s)) is None


def avg_pool_forward(x, *, kernel_size, stride, padding, ceil_mode, count_include_pad, divisor_override, layout):
    """y through avg_pool2d."""
    x = nchw(x, layout)
    if own := _own(padding, kernel_size):
        y = avg_pool2d(x, kernel_size, stride, own, ceil_mode, count_include_pad, divisor_override)
        return restored(y, layout)
    axes = _axes(x.shape[2:], kernel_size, stride, padding)
    outputs = [axis.outputs(ceil_mode) for axis in axes]
    image = pad(x.to(wide(x.dtype)), _border(axes, outputs))
    sums = avg_pool2d(image, kernel_size, stride, divisor_override=1)
    divisors = divisor_override or _counts(axes, outputs, count_include_pad, sums)
    return restored((sums / divisors).to(x.dtype), layout)


def avg_pool_backward(
    dy, *, input_size, kernel_size, stride, padding, ceil_mode, count_include_pad, divisor_override, layout
):
    """dx through aten's avg_pool2d_backward, which rounds every share to the storage format and adds them up in it."""
    dy = nchw(dy, layout)
    if own := _own(padding, kernel_size):
        x = empty((*dy.shape[:2], *input_size), layout, dy)
        dx = _backward(dy, x, kernel_size, stride, own, ceil_mode, count_include_pad, divisor_override)
        return restored(dx, layout)
    axes = _axes(input_size, kernel_size, stride, padding)
    left, right, top, bottom = _border(axes, dy.shape[2:])
    image = empty((*dy.shape[:2], top + input_size[0] + bottom, left + input_size[1] + right), layout, dy)
    wider = dy.to(wide(dy.dtype))
    shares = wider / (divisor_override or _counts(axes, dy.shape[2:], count_include_pad, wider))
    dx = _backward(shares.to(dy.dtype), image, kernel_size, stride, (0, 0), False, True, 1)
    return restored(pad(dx, (-left, -right, -top, -bottom)), layout)


def _own(padding, kernel_size):
    """Padding that avg_pool2d does itself: the same before and behind, at most half a window. None if it is not."""
    (top, bottom), (left, right) = padding
    halves = 2 * top <= kernel_size[0] and 2 * left <= kernel_size[1]
    return (top, left) if top == bottom and left == right and halves else None


def _axes(size, kernel_size, stride, padding):
    extents = zip(size, kernel_size, stride, padding, strict=True)
    return [Axis(length, window, step, *pads) for length, window, step, pads in extents]


def _border(axes, outputs):
    """(left, right, top, bottom)"""
    rows, columns = (axis.border(count) for axis, count in zip(axes, outputs, strict=True))
    return *columns, *rows


def _counts(axes, outputs, count_include_pad, like):
    """Divisors of all windows, [P, Q]."""
    rows, columns = (
        torch.tensor(axis.counts(count, count_include_pad), dtype=like.dtype, device=like.device)
        for axis, count in zip(axes, outputs, strict=True)
    )
    return torch.outer(rows, columns)


def _backward(dy, x, kernel_size, stride, padding, ceil_mode, count_include_pad, divisor_override):
    return torch.ops.aten.avg_pool2d_backward(
        dy, x, kernel_size, stride, padding, ceil_mode, count_include_pad, divisor_override
    )
