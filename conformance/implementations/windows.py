"""Extents of windows and the order of axes, for kernels that no framework tells them.

The reference of the operators shares nothing with this file: a mistake here gives results of a wrong shape, which fail.
What decides which element meets which (offsets, taps, lattices) is each implementation's own, so that no two of them
are wrong for the same reason.
"""

from __future__ import annotations

from dataclasses import dataclass

Pair = tuple[int, int]
Padding = tuple[Pair, Pair]
"""((top, bottom), (left, right))"""


@dataclass(frozen=True)
class Window:
    """One axis of a convolution or a pooling; `before` and `after` are its padding."""

    size: int
    kernel: int
    stride: int
    before: int
    after: int
    dilation: int = 1
    ceil: bool = False

    @property
    def room(self) -> int:
        """How far a window can move; negative where it is larger than the padded image."""
        return self.size + self.before + self.after - self.dilation * (self.kernel - 1) - 1

    @property
    def outputs(self) -> int:
        """Windows. In ceil mode the last may overhang, but not start behind the image and the padding before it."""
        if not self.ceil:
            return self.room // self.stride + 1
        return min(-(-self.room // self.stride), (self.size + self.before - 1) // self.stride) + 1


def windows(
    size: Pair, kernel: Pair, stride: Pair, padding: Padding, dilation: Pair = (1, 1), ceil: bool = False
) -> tuple[Window, Window]:
    """Rows and columns. Raises ValueError for a window that is larger than the padded image."""
    rows, columns = (Window(size[i], kernel[i], stride[i], *padding[i], dilation[i], ceil) for i in (0, 1))
    if rows.room < 0 or columns.room < 0:
        raise ValueError(f"a window of {kernel}, dilation {dilation}, is larger than the image {size} with {padding}")
    return rows, columns


def axes(extents: tuple[int, ...], layout: str) -> tuple[int, int, int, int]:
    """Sizes or strides in the order N, channels, rows, columns (K, C, R, S of weights)."""
    first, second, third, fourth = extents
    return (first, second, third, fourth) if layout == "nchw" else (first, fourth, second, third)


def sizes(shape: tuple[int, ...], layout: str) -> tuple[int, int, Pair]:
    """N, channels, (rows, columns)."""
    n, channels, rows, columns = axes(shape, layout)
    return n, channels, (rows, columns)


def shape_of(n: int, channels: int, size: Pair, layout: str) -> tuple[int, int, int, int]:
    """The shape of an image or weight tensor in its layout."""
    return (n, channels, *size) if layout == "nchw" else (n, *size, channels)
