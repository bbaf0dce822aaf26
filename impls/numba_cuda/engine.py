"""What the kernels have in common for those who call them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from .memory import Tensor
from .product import Product


class Engine(Protocol):
    """One way to compute products."""

    def blocks(self, products: Sequence[Product], operands: tuple[Tensor, Tensor]) -> int:
        """Blocks of all products together, without splits."""
        ...

    def run(
        self,
        products: Sequence[Product],
        out: Tensor,
        operands: tuple[Tensor, Tensor],
        bias: Tensor | None,
        splits: int,
    ) -> None:
        """All products. Of `splits` parts of the depth, part `i` is added up at `i * size of the result`."""
        ...
