"""What an implementation declares about its arithmetic. Every limit of a verdict follows from it."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any

from conformance.dtypes import FORMATS, Format

_CHOICES = {
    "inputs": ("exact", "tf32x3", "bf16x3", "tf32", "fp16", "bf16"),
    "accumulate": ("auto", "fp64", "fp32", "fp16", "bf16"),
    "rounding": ("nearest", "zero"),
    "algorithm": ("direct", "winograd-f2", "winograd-f4", "fft"),
    "partials": ("fp32", "fp16", "bf16"),
    "subnormals": ("kept", "flushed"),
    "between": ("accumulator", "storage"),
    "variance": ("centred", "raw"),
}


class ContractError(ValueError):
    """A contract field without meaning; the message names the field and its choices."""


@dataclass(frozen=True, slots=True)
class Contract:
    """How a kernel computes.

    inputs       rounding applied to the inputs before they are multiplied; x3: split in two parts, three products
    accumulate   format of the accumulator; `auto` is fp32, or fp64 for fp64 tensors
    rounding     of the accumulator: to nearest, or toward zero as some tensor cores do
    algorithm    direct (any order of the same products), winograd F(2x2,3x3) or F(4x4,3x3), or fft (other products)
    subnormals   kept, or flushed to zero on the way in or out
    splits       split-K: number of partial sums that are stored before they are added
    partials     format that they are stored in
    between      where a fused operator keeps what lies between its parts: in the accumulator's format, or rounded to
                 that of the tensors, as separate kernels do
    variance     of distances from the mean, or the mean of squares less the square of the mean
    """

    inputs: str = "exact"
    accumulate: str = "auto"
    rounding: str = "nearest"
    algorithm: str = "direct"
    subnormals: str = "kept"
    splits: int = 1
    partials: str = "fp32"
    between: str = "accumulator"
    variance: str = "centred"

    def __post_init__(self) -> None:
        for field, choices in _CHOICES.items():
            if getattr(self, field) not in choices:
                raise ContractError(f"Contract({field}={getattr(self, field)!r}): must be one of {', '.join(choices)}")

        if not isinstance(self.splits, int) or self.splits < 1:
            raise ContractError(f"Contract(splits={self.splits!r}): must be a whole number, at least 1")

    def accumulator(self, dtype: str) -> Format:
        """The accumulator's format for tensors of `dtype`."""
        if self.accumulate == "auto":
            return FORMATS["fp64" if dtype == "fp64" else "fp32"]
        return FORMATS[self.accumulate]

    def exact_on_integers(self, dtype: str) -> bool:
        """Whether the small integers of `conformance.inputs` must come out exact.

        True of every order of a direct sum whose accumulator and partials hold what the storage format (up to fp32's
        24 bits) holds. Inputs fit in 8 bits, so that no input rounding touches them.
        """
        needed = min(FORMATS[dtype].precision, FORMATS["fp32"].precision)
        held = [self.accumulator(dtype), *([FORMATS[self.partials]] if self.splits > 1 else [])]
        return self.algorithm == "direct" and all(format.precision >= needed for format in held)

    def exempts(self, distribution: str, dtype: str) -> str:
        """Why a kernel under this contract is not held to an input distribution; empty if it is."""
        if distribution in ("special", "nonfinite") and self.algorithm != "direct":
            return f"{self.algorithm} spreads NaN and Inf over its whole tile (declared)"
        if distribution == "subnormal" and self.subnormals == "flushed":
            return "subnormal numbers are flushed (declared)"
        if distribution == "range" and dtype == "fp16" and self.between == "storage":
            return "the result of the convolution leaves the range of fp16, in which it is stored (declared)"
        if distribution in ("range", "subnormal") and not self.exact_on_integers(dtype):
            return "results near the ends of the range are known for sums that are exact on integers only"
        if distribution in ("wide", "range", "subnormal"):
            if self.algorithm in ("winograd-f4", "fft"):
                return f"{self.algorithm} enlarges its data and leaves the range first (declared)"
            stages = [self.accumulator(dtype)]
            stages += [] if self.inputs == "exact" else [FORMATS[self.inputs.removesuffix("x3")]]
            stages += [FORMATS[self.partials]] if self.splits > 1 else []
            if any(format.emax < FORMATS[dtype].emax for format in stages):
                return f"the declared arithmetic has less range than {dtype}"
            if distribution == "subnormal" and any(
                format.smallest_subnormal > FORMATS[dtype].smallest_subnormal for format in stages
            ):
                return f"the declared arithmetic has coarser subnormal numbers than {dtype}"
        return ""

    @property
    def arithmetic(self) -> str:
        """Inputs and accumulator, for a table."""
        given = "" if self.inputs == "exact" else f"{self.inputs} inputs, "
        accumulator = "fp32 or storage" if self.accumulate == "auto" else self.accumulate
        return f"{given}{accumulator} accumulation{'' if self.rounding == 'nearest' else ' toward zero'}"

    def describe(self, dtype: str) -> str:
        """One phrase for a message or a report."""
        given = "inputs as given" if self.inputs == "exact" else f"inputs rounded to {self.inputs}"
        toward = "" if self.rounding == "nearest" else " toward zero"
        flushed = ", subnormals flushed" if self.subnormals == "flushed" else ""
        split = "" if self.splits == 1 else f", {self.splits} partial sums in {self.partials}"
        split += f", rounded to {dtype} in between" if self.between == "storage" else ""
        split += ", variance from raw moments" if self.variance == "raw" else ""
        return (
            f"{self.algorithm}, {given}, {self.accumulator(dtype).name} accumulation{toward}, "
            f"one rounding to {dtype}{flushed}{split}"
        )

    def as_record(self) -> dict[str, Any]:
        return asdict(self)
