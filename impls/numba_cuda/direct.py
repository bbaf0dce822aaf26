"""Every element of the result by one thread: without shared memory, every element is read in place."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any

from .address import digits, inside, owner, place
from .memory import Tensor, launch
from .plan import grid_for
from .product import NO_BIAS, Product, Table
from .static import natural
from .storage import Format
from .target import cuda


@cache
def kernel(stored: Format, result: Format) -> Any:
    """Return the kernel for a storage format; `result` is that format, or that of partial sums."""
    widen, narrow, wide = stored.widen, result.narrow, stored.wide

    @cuda.jit
    def direct(
        out: Any, a: Any, b: Any, bias: Any, columns: Table, depth: Table, scalars: tuple[int, ...],
        cut: tuple[int, ...],
    ) -> None:  # fmt: skip
        counts, addresses, lines, spots, targets = columns
        lengths, reads, reach_lines, reach_spots, weights = depth
        rows, groups, a_row, a_group, b_group, out_row, out_group, height, width = scalars
        along_channels, share, partial, bias_step = cut
        split = cuda.blockIdx.y
        for element in range(cuda.grid(1), rows * groups * counts[0], cuda.gridsize(1)):
            channel, column = owner(element, rows * groups, counts[0], along_channels)
            group, row = channel // rows, channel % rows
            first, second, third = digits(column, counts)
            read = group * b_group + place(addresses, first, second, third)
            line, spot = place(lines, first, second, third), place(spots, first, second, third)
            weight = group * a_group + row * a_row
            total = wide(0)
            for i in range(split * share, min((split + 1) * share, lengths[1])):
                for j in range(lengths[2]):
                    tap_line, tap_spot = line + place(reach_lines, i, j, 0), spot + place(reach_spots, i, j, 0)
                    at, other, k = weight + place(weights, i, j, 0), read + place(reads, i, j, 0), 0
                    while k < lengths[3]:
                        if inside(tap_line, tap_spot, height, width):
                            total += widen(a[natural(at)]) * widen(b[natural(other)])
                        tap_line, tap_spot = tap_line + reach_lines[3], tap_spot + reach_spots[3]
                        at, other, k = at + weights[3], other + reads[3], k + 1
            if bias_step != NO_BIAS and split == 0:
                total += widen(bias[channel * bias_step])
            at = group * out_group + row * out_row + place(targets, first, second, third)
            out[split * partial + at] = narrow(total)

    return direct


@dataclass(frozen=True)
class Direct:
    """A product by this kernel; its depth is cut by the first digit."""

    product: Product

    @property
    def grid(self) -> tuple[int, int]:
        return grid_for(self.product.rows * self.product.groups * self.product.columns.total)

    @property
    def blocks(self) -> int:
        return self.grid[0]

    def launch(self, out: Tensor, a: Tensor, b: Tensor, bias: Tensor | None, splits: int) -> None:
        product, (blocks, threads) = self.product, self.grid
        share = -(-product.depth.digits[0][0] // splits)
        cut = int(product.out_along_rows), share, out.size // splits, bias.strides[0] if bias else NO_BIAS
        launch(kernel(b.format, out.format), (blocks, splits), threads, out, a, b, bias or b, *product.arguments, cut)


def engine(products: Sequence[Product], stored: Format) -> list[Direct]:
    return [Direct(product) for product in products]
