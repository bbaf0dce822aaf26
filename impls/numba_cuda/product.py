"""The three directions as one grouped matrix product whose operands are addressed, never copied.

    out[row, column] = sum over depth of a[row, depth] * b[column, depth]

| direction       | rows          | columns       | depth         | a  | b  |
|-----------------|---------------|---------------|---------------|----|----|
| forward         | K/g           | (n, p, q)     | (c, r, s)     | w  | x  |
| backward-data   | C/g           | (n, h, w)     | (k, r, s)     | w  | dy |
| backward-weight | K/g           | (c, r, s)     | (n, p, q)     | dy | x  |

A column and a depth are numbers of three digits. The address in b, its image row and its image column are each the sum
of a part that the column gives and one that the depth gives, both linear in the digits; where row or column leaves the
image, the element is zero. Backward-data of a stride is one product for each residue of the pixels modulo the stride:
the taps that reach a residue are an arithmetic progression, and so are the outputs they read.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import product as cartesian
from math import gcd, prod

from .memory import Tensor

Pair = tuple[int, int]
Padding = tuple[Pair, Pair]
Digit = tuple[int, int, int, int, int]
"""Count; what one more adds to the address in b, to the image row, to the image column, and to the other address."""
Table = tuple[tuple[int, int, int, int], ...]
"""Counts, addresses in b, rows, columns and other addresses: of the start, and of each of three digits."""


@dataclass(frozen=True)
class Composite:
    """A column or a depth: three digits, the first the slowest. `start` is what all digits zero stand for."""

    start: tuple[int, int, int, int]
    digits: tuple[Digit, Digit, Digit]

    @property
    def total(self) -> int:
        return prod(count for count, *_ in self.digits)

    @property
    def table(self) -> Table:
        """As kernels take it."""
        return tuple(zip((self.total, *self.start), *self.digits, strict=True))

    @property
    def by_channel(self) -> Composite:
        """A window with its channel as the first digit. Only channels leave the place in the image as it is."""
        order = (0, 1, 2) if self.digits[0][2:4] == (0, 0) else (2, 0, 1)
        first, second, third = (self.digits[i] for i in order)
        return Composite(self.start, (first, second, third))

    def nearest(self, which: int) -> int:
        """Elements between neighbours in b (1) or in the other tensor (4)."""
        return next((abs(digit[which]) for digit in reversed(self.digits) if digit[0] > 1), 1 << 62)


@dataclass(frozen=True)
class Product:
    """One launch: all groups. Steps are from row to row and group to group; `image` bounds b's rows and columns."""

    rows: int
    groups: int
    columns: Composite
    depth: Composite
    a_steps: Pair
    b_step: int
    out_steps: Pair
    image: Pair
    pixels: Composite
    """Which of columns and depth are pixels."""

    @property
    def arguments(self) -> tuple[Table, Table, tuple[int, ...]]:
        """Columns, depth and scalars."""
        return self.columns.table, self.depth.table, self.scalars

    @property
    def scalars(self) -> tuple[int, ...]:
        """Rows, groups, steps and bounds."""
        return self.rows, self.groups, *self.a_steps, self.b_step, *self.out_steps, *self.image

    @property
    def over_pixels(self) -> bool:
        """Whether the sum is over pixels, as in backward-weight, not over a window."""
        return self.pixels is self.depth

    @property
    def depthwise(self) -> bool:
        """Whether a group has one channel on a side: a matrix product of one row, or of one channel's window."""
        return self.groups > 1 and min(self.rows, self.window.digits[0][0]) == 1

    @property
    def window(self) -> Composite:
        """Channel, row and column of the window."""
        return (self.columns if self.over_pixels else self.depth).by_channel

    @property
    def a_along_depth(self) -> bool:
        """Whether neighbours in depth lie closer together in a than neighbouring rows."""
        return self.depth.nearest(4) < self.a_steps[0]

    @property
    def b_along_depth(self) -> bool:
        """Whether neighbours in depth lie closer together in b than neighbouring columns."""
        return self.depth.nearest(1) < self.columns.nearest(1)

    @property
    def out_along_rows(self) -> bool:
        """Whether neighbouring rows lie closer together in the result than neighbouring columns."""
        return self.out_steps[0] < self.columns.nearest(4)


@dataclass(frozen=True)
class Lattice:
    """One axis: output `target + i * target_step` sums over taps `tap + j * tap_step`, which read source row
    `start + i * step + j * reach`, for i < count, j < taps."""

    count: int
    target: int
    target_step: int
    taps: int
    tap: int
    tap_step: int
    start: int
    step: int
    reach: int


@dataclass(frozen=True)
class Window:
    """One axis of a convolution."""

    size: int
    kernel: int
    stride: int
    before: int
    after: int
    dilation: int

    @property
    def outputs(self) -> int:
        return (self.size + self.before + self.after - self.dilation * (self.kernel - 1) - 1) // self.stride + 1

    @property
    def forward(self) -> Lattice:
        """Outputs gather from the input."""
        return Lattice(self.outputs, 0, 1, self.kernel, 0, 1, -self.before, self.stride, self.dilation)

    @property
    def backward(self) -> list[Lattice]:
        """Inputs gather from the outputs, by residue modulo the stride. One that no tap reaches has none: zeros."""
        return [self._residue(target) for target in range(min(self.stride, self.size))]

    def _residue(self, target: int) -> Lattice:
        distances = [target + self.before - tap * self.dilation for tap in range(self.kernel)]
        taps = [tap for tap, distance in enumerate(distances) if distance % self.stride == 0]
        first = taps[0] if taps else 0
        every = self.stride // gcd(self.stride, self.dilation)
        count = -(-(self.size - target) // self.stride)
        start, reach = distances[first] // self.stride, -(every * self.dilation // self.stride)
        return Lattice(count, target, self.stride, len(taps), first, every, start, 1, reach)


def windows(size: Pair, kernel: Pair, stride: Pair, padding: Padding, dilation: Pair) -> tuple[Window, Window]:
    """The two axes. Raises ValueError where the window does not fit."""
    rows, columns = (Window(size[i], kernel[i], stride[i], *padding[i], dilation[i]) for i in (0, 1))
    if rows.outputs < 1 or columns.outputs < 1:
        raise ValueError(f"a window of {kernel} with dilation {dilation} does not fit into the padded image of {size}")
    return rows, columns


def axes(steps: tuple[int, ...], layout: str) -> tuple[int, int, int, int]:
    """Sizes or strides in the order N, channels, rows, columns (K, C, R, S of weights)."""
    first, second, third, fourth = steps
    return (first, second, third, fourth) if layout == "nchw" else (first, fourth, second, third)


def shape_of(n: int, channels: int, size: Pair, layout: str) -> tuple[int, ...]:
    """The shape of an image tensor in a layout."""
    return (n, channels, *size) if layout == "nchw" else (n, *size, channels)


def _ordered(channel: Digit, row: Digit, column: Digit, layout: str) -> tuple[Digit, Digit, Digit]:
    """Channels where memory has them, so that neighbouring depths are neighbours there."""
    return (channel, row, column) if layout == "nchw" else (row, column, channel)


def _pixels(lattices: tuple[Lattice, Lattice], source: Tensor, target: Tensor, layout: str) -> Composite:
    """Where the windows lie in the source, and the pixels of the target that they belong to."""
    rows, columns = lattices
    by_n, _, by_h, by_w = axes(source.strides, layout)
    to_n, _, to_h, to_w = axes(target.strides, layout)
    address = rows.start * by_h + columns.start * by_w
    return Composite(
        (address, rows.start, columns.start, rows.target * to_h + columns.target * to_w),
        (
            (axes(source.shape, layout)[0], by_n, 0, 0, to_n),
            (rows.count, rows.step * by_h, rows.step, 0, rows.target_step * to_h),
            (columns.count, columns.step * by_w, 0, columns.step, columns.target_step * to_w),
        ),
    )


def _window(
    lattices: tuple[Lattice, Lattice], source: Tensor, groups: int, weights: tuple[int, int, int], layout: str
) -> Composite:
    """Where channels and taps lie in a window of the source, and in the weights: steps by source channel, row and
    column."""
    rows, columns = lattices
    channels = axes(source.shape, layout)[1] // groups
    _, by_c, by_h, by_w = axes(source.strides, layout)
    to_c, to_r, to_s = weights
    return Composite(
        (0, 0, 0, rows.tap * to_r + columns.tap * to_s),
        _ordered(
            (channels, by_c, 0, 0, to_c),
            (rows.taps, rows.reach * by_h, rows.reach, 0, rows.tap_step * to_r),
            (columns.taps, columns.reach * by_w, 0, columns.reach, columns.tap_step * to_s),
            layout,
        ),
    )


def _product(
    out: Pair, a: Pair, source: Tensor, groups: int, parts: tuple[Composite, Composite], layout: str,
    over_pixels: bool = False,
) -> Product:  # fmt: skip
    """`out` is rows in a group and the step from row to row, `a` the steps to the next row and group."""
    _, channels, *image = axes(source.shape, layout)
    rows, by_row = out
    return Product(
        rows=rows,
        groups=groups,
        columns=parts[0],
        depth=parts[1],
        a_steps=a,
        b_step=channels // groups * axes(source.strides, layout)[1],
        out_steps=(by_row, rows * by_row),
        image=(image[0], image[1]),
        pixels=parts[over_pixels],
    )


def forward(x: Tensor, w: Tensor, y: Tensor, window: tuple[Window, Window], groups: int, layout: str) -> list[Product]:
    """y from x and w."""
    by_k, *rest = axes(w.strides, layout)
    lattices = window[0].forward, window[1].forward
    parts = _pixels(lattices, x, y, layout), _window(lattices, x, groups, (rest[0], rest[1], rest[2]), layout)
    targets = axes(w.shape, layout)[0] // groups
    return [_product((targets, axes(y.strides, layout)[1]), (by_k, targets * by_k), x, groups, parts, layout)]


def backward_data(
    dy: Tensor, w: Tensor, dx: Tensor, window: tuple[Window, Window], groups: int, layout: str
) -> list[Product]:
    """dx from dy and w, one product for each pair of residues."""
    by_k, by_c, by_r, by_s = axes(w.strides, layout)
    filters, targets, *_ = axes(w.shape, layout)
    products = []
    for lattices in cartesian(window[0].backward, window[1].backward):
        parts = _pixels(lattices, dy, dx, layout), _window(lattices, dy, groups, (by_k, by_r, by_s), layout)
        steps = by_c, filters // groups * by_k
        products.append(_product((targets, axes(dx.strides, layout)[1]), steps, dy, groups, parts, layout))
    return products


def backward_weight(
    x: Tensor, dy: Tensor, dw: Tensor, window: tuple[Window, Window], groups: int, layout: str
) -> list[Product]:
    """dw from x and dy: forward with the roles of pixels and window changed."""
    to_k, *rest = axes(dw.strides, layout)
    lattices = window[0].forward, window[1].forward
    parts = _window(lattices, x, groups, (rest[0], rest[1], rest[2]), layout), _pixels(lattices, x, dy, layout)
    targets, by_k = axes(dw.shape, layout)[0] // groups, axes(dy.strides, layout)[1]
    return [_product((targets, to_k), (by_k, targets * by_k), x, groups, parts, layout, over_pixels=True)]
