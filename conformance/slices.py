"""Slices of inputs that share an exponent, as data: the Ozaki scheme, by which units for numbers of few bits multiply
numbers of many.

The numbers of a row, which a sum multiplies by a column, are cut into slices of few bits, all by the exponent of the
largest; products of slices are exact sums of integers, or of numbers in fp32, and are added by their powers of two:

- Ozaki, Ogita, Oishi, Rump, "Error-free transformations of matrix multiplication by using fast routines of matrix
  multiplication and its applications", Numerical Algorithms 59, 2012;
- Ootomo, Ozaki, Yokota, "DGEMM on integer matrix multiplication unit", Int. J. High Perform. Comput. Appl. 38, 2024;
- Uchino, Ozaki, Imamura, "Performance enhancement of the Ozaki scheme on integer matrix multiplication unit",
  arXiv:2409.13313, 2024: slices to nearest.

Of a convolution a row is a window of the image and a column a filter; of a gradient, what takes their place.
"""

from __future__ import annotations

from dataclasses import dataclass, fields

from conformance.accumulator import ContractError

PRODUCTS = ("largest", "all")
MOST_SLICES, MOST_BITS = 16, 24
HELD = 24
"""Bits of the narrowest sums in which products of slices are exact, those of fp32; int32 has more."""
INTEGER = 8
"""Bits of the largest integers of `conformance.inputs` and, to nearest, of the bit that rounding up takes."""


@dataclass(frozen=True)
class Slices:
    """How inputs are cut into slices.

    count     slices of an input
    bits      of a slice, beside the sign: 7 in int8, 8 in bf16, 11 in fp16, 4 in e4m3. What is left of an input after
              the last slice is at most 2^-(count*bits) of the power of two above the largest number of its row
    products  `largest`: the pairs whose places add up to at most count + 1, places counted from 1; or `all`
    """

    count: int
    bits: int = 7
    products: str = "largest"

    def __post_init__(self) -> None:
        for field, most in (("count", MOST_SLICES), ("bits", MOST_BITS)):
            value = getattr(self, field)
            if type(value) is not int or not 1 <= value <= most:
                raise ContractError(f"Slices({field}={value!r}): must be a whole number from 1 to {most}")
        if type(self.products) is not str or self.products not in PRODUCTS:
            raise ContractError(f"Slices(products={self.products!r}): must be one of {', '.join(PRODUCTS)}")

    @property
    def pairs(self) -> list[tuple[int, int]]:
        """Places of the slices that are multiplied, from 0, the smallest products first."""
        places = [(i, j) for i in range(self.count) for j in range(self.count)]
        formed = [pair for pair in places if self.products == "all" or sum(pair) < self.count]
        return sorted(formed, key=sum, reverse=True)

    @property
    def unit_roundoff(self) -> float:
        """Largest part of an input that no slice has, in units of the power of two above the largest of its row."""
        return float(2.0 ** -(self.count * self.bits))

    @property
    def dropped(self) -> float:
        """Largest sum of the products that are not formed, in units of `unit_roundoff` times the powers of two above
        the largest numbers of row and column: count - 1 of the first diagonal, each 2^bits times one of the next."""
        return 0.0 if self.products == "all" else (self.count - 1) / (1 - 2.0**-self.bits)

    def additions(self, terms: int) -> int:
        """Return the number of sums that are added for a result of so many terms: of each pair, one for each stretch
        of terms that is added exactly."""
        exact: int = 2 ** max(0, HELD - 2 * self.bits)
        return len(self.pairs) * -(-terms // exact)

    @property
    def hold_integers(self) -> bool:
        """Tell whether products of small integers are formed whole, in whatever row they stand."""
        slices = -(-INTEGER // self.bits)
        return slices <= self.count and (self.products == "all" or 2 * slices <= self.count + 1)

    def __str__(self) -> str:
        formed = "all" if self.products == "all" else "the largest"
        return f"{self.count} slices of {self.bits} bits, {formed} products"

    @property
    def declaration(self) -> str:
        """The slices as they are written in an implementation's file, without fields that have their default."""
        declared = [f.name for f in fields(self) if getattr(self, f.name) != f.default]
        return f"Slices({', '.join(f'{name}={getattr(self, name)!r}' for name in declared)})"
