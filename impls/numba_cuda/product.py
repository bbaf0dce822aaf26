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

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import product as cartesian
from math import gcd, prod

from conformance.implementations.windows import Pair, Window

from .memory import Tensor

Digit = tuple[int, int, int, int, int]
"""Count; what one more adds to the address in b, to the image row, to the image column, and to the other address."""
Table = tuple[tuple[int, int, int, int], ...]
"""Counts, addresses in b, rows, columns and other addresses: of the start, and of each of three digits."""
NO_BIAS = -(1 << 30)
"""What stands for the step of a bias that is absent. One that is expanded has the step 0."""


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
        """As kernels take it, with `scalars` last."""
        return self.columns.table, self.depth.table, self.scalars

    @property
    def scalars(self) -> tuple[int, ...]:
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


def forward_lattice(window: Window) -> Lattice:
    """Outputs gather from the input."""
    return Lattice(window.outputs, 0, 1, window.kernel, 0, 1, -window.before, window.stride, window.dilation)


def backward_lattices(window: Window) -> list[Lattice]:
    """Inputs gather from the outputs, by residue modulo the stride. One that no tap reaches has none: zeros."""
    lattices, stride, every = [], window.stride, window.stride // gcd(window.stride, window.dilation)
    for target in range(min(stride, window.size)):
        distances = [target + window.before - tap * window.dilation for tap in range(window.kernel)]
        taps = [tap for tap, distance in enumerate(distances) if distance % stride == 0]
        first, count = taps[0] if taps else 0, -(-(window.size - target) // stride)
        start, reach = distances[first] // stride, -(every * window.dilation // stride)
        lattices.append(Lattice(count, target, stride, len(taps), first, every, start, 1, reach))
    return lattices


def _pixels(lattices: tuple[Lattice, Lattice], source: Tensor, target: Tensor) -> Composite:
    """Where the windows lie in the source, and the pixels of the target that they belong to."""
    rows, columns = lattices
    by_n, _, by_h, by_w = source.steps
    to_n, _, to_h, to_w = target.steps
    address = rows.start * by_h + columns.start * by_w
    return Composite(
        (address, rows.start, columns.start, rows.target * to_h + columns.target * to_w),
        (
            (source.sizes[0], by_n, 0, 0, to_n),
            (rows.count, rows.step * by_h, rows.step, 0, rows.target_step * to_h),
            (columns.count, columns.step * by_w, 0, columns.step, columns.target_step * to_w),
        ),
    )


def _window(lattices: tuple[Lattice, Lattice], source: Tensor, groups: int, to: Sequence[int]) -> Composite:
    """Where channels and taps lie in a window of the source, and in the weights, whose steps by source channel, row and
    column are `to`. Channels come where memory has them, so that neighbouring depths are neighbours there."""
    rows, columns = lattices
    _, by_c, by_h, by_w = source.steps
    channel = source.sizes[1] // groups, by_c, 0, 0, to[0]
    row = rows.taps, rows.reach * by_h, rows.reach, 0, rows.tap_step * to[1]
    column = columns.taps, columns.reach * by_w, 0, columns.reach, columns.tap_step * to[2]
    digits = (channel, row, column) if source.layout == "nchw" else (row, column, channel)
    return Composite((0, 0, 0, rows.tap * to[1] + columns.tap * to[2]), digits)


def _product(
    out: Pair, a: Pair, source: Tensor, groups: int, columns: Composite, depth: Composite, pixels: Composite
) -> Product:
    """`out` is rows in a group and the step from row to row, `a` the steps to the next row and group."""
    _, channels, height, width = source.sizes
    b_step, out_steps = channels // groups * source.steps[1], (out[1], out[0] * out[1])
    return Product(out[0], groups, columns, depth, a, b_step, out_steps, (height, width), pixels)


def forward(x: Tensor, w: Tensor, y: Tensor, window: tuple[Window, Window], groups: int) -> list[Product]:
    by_k, *to = w.steps
    lattices = forward_lattice(window[0]), forward_lattice(window[1])
    pixels, depth, targets = _pixels(lattices, x, y), _window(lattices, x, groups, to), w.sizes[0] // groups
    return [_product((targets, y.steps[1]), (by_k, targets * by_k), x, groups, pixels, depth, pixels)]


def backward_data(dy: Tensor, w: Tensor, dx: Tensor, window: tuple[Window, Window], groups: int) -> list[Product]:
    """One product for each pair of residues."""
    by_k, by_c, *by_tap = w.steps
    filters, targets, *_ = w.sizes
    products = []
    for lattices in cartesian(*map(backward_lattices, window)):
        pixels, depth = _pixels(lattices, dy, dx), _window(lattices, dy, groups, (by_k, *by_tap))
        steps = by_c, filters // groups * by_k
        products.append(_product((targets, dx.steps[1]), steps, dy, groups, pixels, depth, pixels))
    return products


def backward_weight(x: Tensor, dy: Tensor, dw: Tensor, window: tuple[Window, Window], groups: int) -> list[Product]:
    """Forward with the roles of pixels and window changed."""
    to_k, *to = dw.steps
    lattices = forward_lattice(window[0]), forward_lattice(window[1])
    columns, pixels, targets = _window(lattices, x, groups, to), _pixels(lattices, x, dy), dw.sizes[0] // groups
    return [_product((targets, to_k), (dy.steps[1], targets * dy.steps[1]), x, groups, columns, pixels, pixels)]
