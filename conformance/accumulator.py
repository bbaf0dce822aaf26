"""Accumulators of processors' matrix units, as data: how products are aligned, cut, added and promoted.

A unit aligns a group of products, and what was accumulated before, to the largest of their exponents, cuts each term to
a number of fraction bits, adds them exactly, and stores the sum in a format. Nothing of this is IEEE 754; what units do
was found out by calls with chosen inputs:

- Fasi, Higham, Mikaitis, Pranesh, "Numerical behavior of NVIDIA tensor cores", PeerJ Computer Science 7:e330, 2021;
- Li, Li, Hong et al., "FTTN: feature-targeted testing for numerical properties of NVIDIA and AMD matrix accelerators",
  arXiv:2403.00232, 2024;
- Xie, Wang, Yang, Yang, "MMA-Sim: bit-accurate reference model of tensor cores and matrix cores", arXiv:2511.10909,
  2025.
"""

from __future__ import annotations

from dataclasses import dataclass, fields
from functools import cached_property
from typing import NamedTuple

from conformance.dtypes import FORMATS, Format

STORED = {name: FORMATS[name] for name in ("fp64", "fp32", "tf32", "fp16", "bf16")}
"""Formats in which a sum may be stored, by name."""
STORED["e8m13"] = Format("e8m13", 14, -126, 127)  # registers of FP8 sums, see MMA-Sim
ROUNDINGS = ("zero", "nearest", "down")
MOST_BITS, MOST_PRODUCTS = 52, 1 << 20


class ContractError(ValueError):
    """Raised for a value that a field of a contract cannot have; the message names the field and its choices."""


class _Roundings(NamedTuple):
    """Roundings of a sum of products; largest errors are in units of the largest number that is rounded with it.

    groups      number of groups, up to a promotion
    products    number of products of a group
    aligned     largest error of an aligned term: a unit of its last place, 2^-bits, or half of it to nearest
    stored      largest error of the sum that is stored after a group: 2u, or u to nearest
    promotions  number of promotions
    promoted    largest error of a promotion: u
    """

    groups: int
    products: int
    aligned: float
    stored: float
    promotions: int
    promoted: float


@dataclass(frozen=True)
class Accumulator:
    """How sums of products are computed.

    bits      fraction bits of an aligned term: what lies below 2^-bits times the power of two of the largest term of a
              group is rounded away
    group     number of products that are added at once, together with what was accumulated before
    rounding  of aligned terms, and of the sum that is stored after a group: toward zero (bits are cut off), to nearest,
              or down, toward minus infinity
    stored    format of the sum after a group
    promote   number of products after which the sum is added to another one, to nearest, and begins anew; 0 for never
    into      format of that other sum
    """

    bits: int
    group: int = 1
    rounding: str = "zero"
    stored: str = "fp32"
    promote: int = 0
    into: str = "fp32"

    def __init_subclass__(cls) -> None:
        """Raise ContractError: a subclass could answer anything, but only the fields are declared."""
        raise ContractError(f"{cls.__name__}: Accumulator has no subclasses; declare its fields")

    def __post_init__(self) -> None:
        for field, least, most in (("bits", 1, MOST_BITS), ("group", 1, MOST_PRODUCTS), ("promote", 0, MOST_PRODUCTS)):
            value = getattr(self, field)
            if type(value) is not int or not least <= value <= most:
                raise ContractError(f"Accumulator({field}={value!r}): must be a whole number from {least} to {most}")
        for field, choices in (("rounding", ROUNDINGS), ("stored", STORED), ("into", STORED)):
            value = getattr(self, field)
            if type(value) is not str or value not in choices:
                raise ContractError(f"Accumulator({field}={value!r}): must be one of {', '.join(choices)}")
        if self.promote and (self.promote < self.group or self.promote % self.group):
            raise ContractError(f"Accumulator(promote={self.promote}): must be a multiple of group={self.group}")

    @cached_property
    def format(self) -> Format:
        """Format with the fewest bits that a sum passes through: integers that it holds are added exactly in any
        order."""
        stored = STORED[self.stored]
        precision = min(self.bits + 1, stored.precision)
        return Format(f"{precision}-bit", precision, stored.emin, stored.emax)

    @cached_property
    def is_cut(self) -> bool:
        """Tell whether rounding is one-sided."""
        return self.rounding != "nearest"

    def _roundings(self, terms: int) -> _Roundings:
        alone = min(terms, self.promote or terms)
        stored = STORED[self.stored]
        rounds_once = self.group == 1 and self.bits + 1 >= stored.precision  # as an addition of IEEE 754
        halved = 1.0 if self.is_cut else 0.5
        return _Roundings(
            groups=-(-alone // self.group),
            products=min(self.group, alone),
            aligned=0.0 if rounds_once else halved * 2.0**-self.bits,
            stored=halved * 2 * stored.unit_roundoff,
            promotions=-(-terms // self.promote) if self.promote else 0,
            promoted=STORED[self.into].unit_roundoff,
        )

    def losses(self, terms: int) -> tuple[float, float]:
        """Return the largest error of a sum of so many products, in units of its largest partial sum, and the root of
        the sum of the squares of its roundings.

        In a group each of b products and the sum before are aligned, and the sum is stored. The parts of a sum that
        begins anew after `promote` products have these roundings for their own products, and their partial sums add up
        to those of the whole.
        """
        groups, products, aligned, stored, promotions, promoted = self._roundings(terms)
        largest = groups * ((products + 1) * aligned + stored) + promotions * promoted
        square = groups * ((products + 1) * aligned**2 + stored**2) + promotions * promoted**2
        return largest, square**0.5

    def absorbs(self, terms: int) -> float:
        """Return the largest error of a sum in which one term is larger than all others together, in units of that
        term: each other one loses what its alignment cuts off, and the stored sum what is left of its own rounding. Of
        a sum that begins anew, the part with the large term and the one with its negative lose this."""
        groups, products, aligned, stored, promotions, promoted = self._roundings(terms)
        parts = 2 if promotions > 1 else 1
        return parts * groups * (products * aligned + max(0.0, stored - aligned)) + promotions * promoted

    def __str__(self) -> str:
        groups = f" of {self.group} products" if self.group > 1 else ""
        how = {"zero": "cut to", "nearest": "rounded to", "down": "rounded down to"}[self.rounding]
        promoted = f", promoted to {self.into} every {self.promote}" if self.promote else ""
        return f"{self.stored} sums{groups} {how} {self.bits} fraction bits{promoted}"

    @property
    def declaration(self) -> str:
        """The accumulator as it is written in an implementation's file, without fields that have their default."""
        declared = [f.name for f in fields(self) if getattr(self, f.name) != f.default]
        return f"Accumulator({', '.join(f'{name}={getattr(self, name)!r}' for name in declared)})"


UNITS: dict[str, Accumulator] = {
    "volta-16": Accumulator(bits=23, group=4),
    "turing-16": Accumulator(bits=24, group=8),
    "ampere-16": Accumulator(bits=24, group=8),
    "ampere-tf32": Accumulator(bits=24, group=4),
    "ada-16": Accumulator(bits=24, group=8),
    "ada-fp8": Accumulator(bits=13, group=16, stored="e8m13"),
    "hopper-16": Accumulator(bits=25, group=16),
    "hopper-tf32": Accumulator(bits=25, group=8),
    "hopper-fp8": Accumulator(bits=13, group=32, stored="e8m13"),
    "hopper-fp8-promoted": Accumulator(bits=13, group=32, stored="e8m13", promote=128),
    "blackwell-16": Accumulator(bits=25, group=16),
    "blackwell-fp8": Accumulator(bits=25, group=32),
    "blackwell-fp4": Accumulator(bits=35, group=64),
    "cdna1-16": Accumulator(bits=23, rounding="nearest"),
    "cdna2-16": Accumulator(bits=23, rounding="nearest"),
    "cdna3-16": Accumulator(bits=24, group=8, rounding="down"),
    "trainium-psum": Accumulator(bits=23, rounding="nearest"),
    "amx-bf16": Accumulator(bits=23, rounding="nearest"),
}
"""Name of a unit -> its accumulator, by the sources above: matrix units of NVIDIA for fp16 and bf16 (`-16`), TF32, FP8
and FP4 with block scales; `hopper-fp8-promoted` as DeepSeek-V3 uses it (arXiv:2412.19437, section 3.3.2). Units of
AMD: CDNA1 and CDNA2 add pairs in fp32, CDNA2 flushes subnormals (declare `subnormals="flushed"`). Trainium's PSUM adds
in fp32 (NKI's documentation). Intel's AMX adds pairs of bf16 products in fp32 to nearest, and flushes (TDPBF16PS)."""
