"""Extents of windows and the order of axes, for kernels whose framework does not provide them.

The reference of the operators shares nothing with this file: a mistake here gives results of a wrong shape, which fail.
Code that decides which elements meet (offsets, taps, lattices) is each implementation's own, so that no two of them
are wrong for the same reason.
"""

from __future__ import annotations

from dataclasses import dataclass

Pair = tuple[int, int]
Extents = tuple[int, ...]
Padding = tuple[Pair, ...]
"""(before, after) of every axis: ((top, bottom), (left, right)) in two dimensions."""


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
        """Number of elements by which a window can move; negative where it is larger than the padded image."""
        return self.size + self.before + self.after - self.dilation * (self.kernel - 1) - 1

    @property
    def outputs(self) -> int:
        """Number of windows. In ceil mode the last may overhang, but not start behind the image and the padding
        before."""
        if not self.ceil:
            return self.room // self.stride + 1
        return min(-(-self.room // self.stride), (self.size + self.before - 1) // self.stride) + 1


def windows(
    size: Extents, kernel: Extents, stride: Extents, padding: Padding, dilation: Extents = (), ceil: bool = False
) -> tuple[Window, ...]:
    """Return a `Window` for each axis. Raises ValueError for a window that is larger than the padded image, and for an
    invalid stride, dilation or padding."""
    if min((*stride, *dilation), default=1) < 1 or min(side for sides in padding for side in sides) < 0:
        steps = f"stride {stride}, dilation {dilation}, padding {padding}"
        raise ValueError(f"{steps}: steps must be at least 1, padding at least 0")
    axes = zip(size, kernel, stride, padding, dilation or (1,) * len(size), strict=True)
    result = tuple(Window(extent, taps, u, *sides, d, ceil) for extent, taps, u, sides, d in axes)
    if any(window.room < 0 for window in result):
        raise ValueError(f"a window of {kernel}, dilation {dilation}, is larger than the image {size} with {padding}")
    return result


def canonical(layout: str) -> str:
    """Return the letters of a layout in the order N, channels, and those of space."""
    return "nc" + "dhw"[-(len(layout) - 2) :]


def axes(extents: Extents, layout: str) -> Extents:
    """Return sizes or strides in the order N, channels, and axes of space (of weights K, C, and the window's axes)."""
    return tuple(extents[layout.index(axis)] for axis in canonical(layout))


def sizes(shape: Extents, layout: str) -> tuple[int, int, Extents]:
    """Return N, channels, and the size in space, which is (rows, columns) in two dimensions."""
    n, channels, *size = axes(shape, layout)
    return n, channels, tuple(size)


def shape_of(n: int, channels: int, size: Extents, layout: str) -> Extents:
    """Return the shape of an image or weight tensor in its layout."""
    by_axis = dict(zip(canonical(layout), (n, channels, *size), strict=True))
    return tuple(by_axis[axis] for axis in layout)
