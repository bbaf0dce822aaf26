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

In three dimensions there are planes too: a fourth digit, and a third coordinate. One dimension is a single row.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import product as cartesian
from math import gcd, prod

from conformance.implementations.windows import Extents, Pair, Window

from .memory import Tensor

Digit = tuple[int, ...]
"""Count; and the increments of the address in b, of each coordinate in the image (plane, row, column), and of the other
address."""
Table = tuple[tuple[int, ...], ...]
"""Counts, addresses in b, planes, rows, columns and other addresses: of the start, and of each digit."""
Windows = tuple[Window, ...]
NO_BIAS = -(1 << 30)
"""Stands for the step of an absent bias. An expanded bias has the step 0."""


@dataclass(frozen=True)
class Composite:
    """A column or a depth: its digits, the first the slowest. `start` is the place where all digits are zero."""

    start: tuple[int, ...]
    digits: tuple[Digit, ...]

    @property
    def total(self) -> int:
        return prod(count for count, *_ in self.digits)

    @property
    def table(self) -> Table:
        return tuple(zip((self.total, *self.start), *self.digits, strict=True))

    @property
    def by_channel(self) -> Composite:
        """Return a window with its channel as the first digit: the only digit that does not move the place in the
        image."""
        *taps, last = self.digits
        return Composite(self.start, (last, *taps) if any(self.digits[0][2:-1]) else self.digits)

    def nearest(self, which: int) -> int:
        """Return the number of elements between neighbours in b (1) or in the other tensor (-1)."""
        return next((abs(digit[which]) for digit in reversed(self.digits) if digit[0] > 1), 1 << 62)


@dataclass(frozen=True)
class Product:
    """One launch: all groups. Steps are from row to row and group to group; `image` bounds b's coordinates."""

    rows: int
    groups: int
    columns: Composite
    depth: Composite
    a_steps: Pair
    b_step: int
    out_steps: Pair
    image: Extents
    pixels: Composite
    """The one of columns and depth that is pixels."""

    @property
    def arguments(self) -> tuple[Table, Table, tuple[int, ...]]:
        """Arguments of a kernel: the tables, and `scalars` last."""
        return self.columns.table, self.depth.table, self.scalars

    @property
    def scalars(self) -> tuple[int, ...]:
        return self.rows, self.groups, *self.a_steps, self.b_step, *self.out_steps, *self.image

    @property
    def rank(self) -> int:
        """Number of axes of space, two or three."""
        return len(self.image)

    @property
    def over_pixels(self) -> bool:
        """Tell whether the sum is over pixels, as in backward-weight, not over a window."""
        return self.pixels is self.depth

    @property
    def depthwise(self) -> bool:
        """Tell whether a group has one channel on a side: a matrix product of one row, or of one channel's window."""
        return self.groups > 1 and min(self.rows, self.window.digits[0][0]) == 1

    @property
    def window(self) -> Composite:
        """Channel, and plane, row and column of the window."""
        return (self.columns if self.over_pixels else self.depth).by_channel

    @property
    def a_along_depth(self) -> bool:
        """Tell whether neighbours in depth lie closer together in a than neighbouring rows."""
        return self.depth.nearest(-1) < self.a_steps[0]

    @property
    def b_along_depth(self) -> bool:
        """Tell whether neighbours in depth lie closer together in b than neighbouring columns."""
        return self.depth.nearest(1) < self.columns.nearest(1)

    @property
    def out_along_rows(self) -> bool:
        """Tell whether neighbouring rows lie closer together in the result than neighbouring columns."""
        return self.out_steps[0] < self.columns.nearest(-1)


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


Lattices = tuple[Lattice, ...]


def forward_lattice(window: Window) -> Lattice:
    """Return the lattice of a forward convolution, in which outputs gather from the input."""
    return Lattice(window.outputs, 0, 1, window.kernel, 0, 1, -window.before, window.stride, window.dilation)


def backward_lattices(window: Window) -> list[Lattice]:
    """Return the lattices in which inputs gather from outputs, by residue modulo the stride; none for one that no tap
    reaches."""
    lattices, stride, pitch = [], window.stride, window.stride // gcd(window.stride, window.dilation)
    for target in range(min(stride, window.size)):
        distances = [target + window.before - tap * window.dilation for tap in range(window.kernel)]
        taps = [tap for tap, distance in enumerate(distances) if distance % stride == 0]
        first, count = taps[0] if taps else 0, -(-(window.size - target) // stride)
        start, reach = distances[first] // stride, -(pitch * window.dilation // stride)
        lattices.append(Lattice(count, target, stride, len(taps), first, pitch, start, 1, reach))
    return lattices


def _lattices(of: Callable[[Window], Lattice], window: Windows) -> Lattices:
    return tuple(of(axis) for axis in with_row(window))


def with_row(window: Windows) -> Windows:
    """Return the windows with at least two axes: an image of one axis becomes a row."""
    return window if len(window) > 1 else (Window(1, 1, 1, 0, 0), *window)


def _along(axis: int, rank: int, step: int) -> tuple[int, ...]:
    """Return what a step along one axis adds to each coordinate."""
    return tuple(step if other == axis else 0 for other in range(rank))


def _pixels(lattices: Lattices, source: Tensor, target: Tensor) -> Composite:
    """Return the places of the windows in the source, and the pixels of the target that they belong to."""
    rank = len(lattices)
    by_n, _, *by = source.steps
    to_n, _, *to = target.steps
    address = sum(lattice.start * step for lattice, step in zip(lattices, by, strict=True))
    at = sum(lattice.target * step for lattice, step in zip(lattices, to, strict=True))
    image = source.sizes[0], by_n, *_along(0, rank, 0), to_n
    axes = (
        (lattice.count, lattice.step * by[i], *_along(i, rank, lattice.step), lattice.target_step * to[i])
        for i, lattice in enumerate(lattices)
    )
    return Composite((address, *(lattice.start for lattice in lattices), at), (image, *axes))


def _window(lattices: Lattices, source: Tensor, groups: int, to: Sequence[int]) -> Composite:
    """Return the places of channels and taps in a window of the source, and in the weights, whose steps by source
    channel and tap are `to`. Channels are ordered as in memory, so that neighbouring depths are neighbours there."""
    rank, (_, by_c, *by), (by_channel, *by_tap) = len(lattices), source.steps, to
    channel = source.sizes[1] // groups, by_c, *_along(0, rank, 0), by_channel
    taps = tuple(
        (lattice.taps, lattice.reach * by[i], *_along(i, rank, lattice.reach), lattice.tap_step * by_tap[i])
        for i, lattice in enumerate(lattices)
    )
    first = sum(lattice.tap * step for lattice, step in zip(lattices, by_tap, strict=True))
    digits = (channel, *taps) if source.layout[1] == "c" else (*taps, channel)
    return Composite((0, *_along(0, rank, 0), first), digits)


def _product(
    out: Pair, a: Pair, source: Tensor, groups: int, columns: Composite, depth: Composite, pixels: Composite
) -> Product:
    """Return a product. `out` is rows in a group and the step from row to row, `a` the steps to the next row and
    group."""
    _, channels, *image = source.sizes
    b_step, out_steps = channels // groups * source.steps[1], (out[1], out[0] * out[1])
    return Product(out[0], groups, columns, depth, a, b_step, out_steps, tuple(image), pixels)


def forward(x: Tensor, w: Tensor, y: Tensor, window: Windows, groups: int) -> list[Product]:
    by_k, *to = w.steps
    lattices = _lattices(forward_lattice, window)
    pixels, depth, targets = _pixels(lattices, x, y), _window(lattices, x, groups, to), w.sizes[0] // groups
    return [_product((targets, y.steps[1]), (by_k, targets * by_k), x, groups, pixels, depth, pixels)]


def backward_data(dy: Tensor, w: Tensor, dx: Tensor, window: Windows, groups: int) -> list[Product]:
    """Return one product for each residue along every axis."""
    by_k, by_c, *by_tap = w.steps
    filters, targets, *_ = w.sizes
    products = []
    for lattices in cartesian(*map(backward_lattices, with_row(window))):
        pixels, depth = _pixels(lattices, dy, dx), _window(lattices, dy, groups, (by_k, *by_tap))
        steps = by_c, filters // groups * by_k
        products.append(_product((targets, dx.steps[1]), steps, dy, groups, pixels, depth, pixels))
    return products


def backward_weight(x: Tensor, dy: Tensor, dw: Tensor, window: Windows, groups: int) -> list[Product]:
    """Return the product of forward with the roles of pixels and window exchanged."""
    to_k, *to = dw.steps
    lattices = _lattices(forward_lattice, window)
    columns, pixels, targets = _window(lattices, x, groups, to), _pixels(lattices, x, dy), dw.sizes[0] // groups
    return [_product((targets, to_k), (dy.steps[1], targets * dy.steps[1]), x, groups, columns, pixels, pixels)]
