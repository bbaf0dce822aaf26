"""The arithmetic that an implementation declares. Every limit of a verdict follows from it."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import asdict, dataclass, fields, replace
from typing import Any

from conformance.accumulator import UNITS, Accumulator, ContractError
from conformance.dtypes import FORMATS, SUMS, WHOLE, Format, sums_of
from conformance.slices import Slices

_CHOICES = {
    "inputs": ("exact", "bf16x9", "bf16x6", "tf32x3", "bf16x3", "tf32", "fp16", "bf16"),
    "accumulate": ("auto", "fp64", "fp32", "fp16", "bf16", *UNITS),
    "rounding": ("nearest", "zero"),
    "algorithm": ("direct", "winograd-f2", "winograd-f4", "winograd-f6", "fft", "running-sums", "summed-area"),
    "partials": ("fp32", "fp16", "bf16"),
    "subnormals": ("kept", "flushed"),
    "between": ("accumulator", "storage"),
    "variance": ("centred", "raw"),
    "ties": ("even", "away", "up", "gemmlowp"),
    "overflow": ("saturates", "nonfinite"),
    "stored": ("nearest", "stochastic"),
}
__all__ = ["Contract", "ContractError"]

_REQUANTIZED = ("conv_requantized", "matmul_requantized")
_FUSED = ("conv_bn", "conv_activation", "matmul_activation")
_OF_FAMILIES = {"between": _FUSED, "variance": ("conv_bn",), "ties": _REQUANTIZED,
                "overflow": _REQUANTIZED, "stored": ("conv", "avg_pool", "matmul", "gemm")}  # fmt: skip
"""Field -> beginnings of the names of the operators that it is about; others are about all."""
_DATA: dict[str, type[Accumulator | Slices]] = {"accumulate": Accumulator, "inputs": Slices}
"""Fields that may be data with fields of their own -> the class."""
NONFINITE = ("special", "nonfinite", "mixed")
"""Distributions with NaN or infinities among the inputs."""

SLICED = ("conv", "conv_transpose", "matmul", "matmul_grouped", "gemm")
"""Families whose inputs may be cut into slices: their rows and columns are known."""
PREFIX_SUMS = ("running-sums", "summed-area")
"""Algorithms of average pooling, and of nothing else."""


@dataclass(frozen=True, slots=True)
class Contract:
    """How a kernel computes.

    inputs       rounding applied to the inputs before they are multiplied, or to what winograd and fft made of them,
                 whatever the dtype of the tensors; x3: split in two parts, three products; x6 and x9: in three parts,
                 six or all nine products; or `Slices` that share an exponent (see `on`)
    accumulate   format of the accumulator; `auto` is fp32, or fp64 for fp64 tensors; or what a matrix unit does, by its
                 name in `conformance.accumulator.UNITS` or as an `Accumulator`
    rounding     of the accumulator, and of inputs, or parts of them, that are rounded: to nearest, or toward zero as
                 tensor cores do that cut bits off; an `Accumulator` has its own
    algorithm    direct (any order of the same products), winograd F(2x2,3x3), F(4x4,3x3) or F(6x6,3x3), or fft (other
                 products); winograd stands for direct where it does not exist, see `on`; in average pooling,
                 differences of running sums along each axis, or of a summed-area table
    subnormals   kept, or flushed to zero on the way in or out
    splits       split-K: number of partial sums that are stored before they are added, or one for each product where
                 there are fewer
    partials     format that partial sums are stored in
    between      where a fused operator keeps what lies between its parts: in the accumulator's format, or rounded to
                 that of the tensors, as separate kernels do
    variance     computed from distances from the mean, or as the mean of squares less the square of the mean
    ties         where a requantized result half way between two integers goes: to the even one, away from zero, or up;
                 or `gemmlowp`: a multiplier of 32 bits, whose product is rounded twice
    overflow     what a requantized result beyond the range of fp8 becomes: the largest finite number (`saturates`), or
                 NaN in e4m3 and infinity in e5m2 (`nonfinite`); int8 always saturates
    stored       how results are rounded to the format of the tensors: to nearest, or at random to a neighbour
                 so that the mean is the result (`stochastic`)
    """

    inputs: str | Slices = "exact"
    accumulate: str | Accumulator = "auto"
    rounding: str = "nearest"
    algorithm: str = "direct"
    subnormals: str = "kept"
    splits: int = 1
    partials: str = "fp32"
    between: str = "accumulator"
    variance: str = "centred"
    ties: str = "even"
    overflow: str = "saturates"
    stored: str = "nearest"

    def __init_subclass__(cls) -> None:
        """Raise ContractError: a subclass could answer anything, but only the fields are declared."""
        raise ContractError(f"{cls.__name__}: Contract has no subclasses; declare its fields")

    def __post_init__(self) -> None:
        for field, choices in _CHOICES.items():
            value = getattr(self, field)
            if type(value) is _DATA.get(field):
                continue
            if type(value) is not str or value not in choices:
                raise ContractError(f"Contract({field}={value!r}): must be one of {', '.join(choices)}")

        if self.slices is not None and self.algorithm != "direct":
            raise ContractError(f"Contract(algorithm={self.algorithm!r}): slices are of direct products")
        if type(self.splits) is not int or self.splits < 1:
            raise ContractError(f"Contract(splits={self.splits!r}): must be a whole number, at least 1")

    def on(self, geometry: Any, dtype: str) -> Contract:
        """Return the contract that a problem is judged under: a declared property that it cannot have widens no limit.

        Winograd's F(m x m, 3 x 3) is for windows of 3x3 with stride and dilation 1 (Lavin and Gray 2016); a kernel
        computes others directly. Inputs are not rounded by a format that holds their own, such as fp16 ones to TF32;
        those that a transform has added up are. Whole numbers of 8 bits are held by every format. A matrix product has
        no transforms. Slices are of the families in `SLICED`, and of more than 8 bits, which a slice holds.
        """
        judged, g = self, geometry
        exists = "conv" in g.family and g.window == (3, 3) and g.stride == g.dilation == (1, 1)
        if self.algorithm.startswith("winograd") and not exists:
            judged = replace(judged, algorithm="direct")
        if not g.rank or (self.algorithm in PREFIX_SUMS and g.family != "avg_pool"):
            judged = replace(judged, algorithm="direct")
        if self.slices is not None and (g.family not in SLICED or dtype in SUMS):
            judged = replace(judged, inputs="exact")
        # data in a transform's domain, and filters that a batch norm has scaled, are no longer numbers of dtype
        own = g.family != "conv_bn" and (judged.algorithm == "direct" or "conv" not in g.family)
        if self.narrow and (dtype in WHOLE or (own and FORMATS[self.narrow].holds(FORMATS[dtype]))):
            judged = replace(judged, inputs="exact")
        return judged

    @property
    def narrow(self) -> str:
        """Format that inputs, or their parts, are rounded to; empty where inputs are used as given."""
        return "" if self.inputs == "exact" or isinstance(self.inputs, Slices) else self.inputs.partition("x")[0]

    @property
    def slices(self) -> Slices | None:
        """Slices that inputs are cut into; None where they are used as given, or rounded."""
        return self.inputs if isinstance(self.inputs, Slices) else None

    @property
    def products(self) -> int:
        """Number of products that are added for each product of the definition."""
        return int(str(self.inputs).partition("x")[2] or 1) if self.narrow else 1

    @property
    def parts(self) -> int:
        """Number of parts that an input is split into."""
        return {1: 1, 3: 2, 6: 3, 9: 3}[self.products]

    @property
    def unit(self) -> Accumulator | None:
        """Matrix unit that adds the products; None where the accumulator is that of ordinary additions."""
        return self.accumulate if isinstance(self.accumulate, Accumulator) else UNITS.get(self.accumulate)

    @property
    def is_cut(self) -> bool:
        """Tell whether sums are rounded to one side."""
        return self.rounding == "zero" or (self.unit is not None and self.unit.is_cut)

    def accumulator(self, dtype: str) -> Format:
        """Return the accumulator's format for tensors of `dtype`; whole numbers have none."""
        if self.unit is not None:
            return self.unit.format
        if self.accumulate == "auto":
            return FORMATS["fp64" if dtype == "fp64" else "fp32"]
        return FORMATS[str(self.accumulate)]

    def exact_on_integers(self, dtype: str) -> bool:
        """Return whether the small integers of `conformance.inputs` must come out exact.

        This holds for every order of a direct sum whose accumulator and partials hold what the storage format (up to
        fp32's 24 bits) holds. Inputs fit in 8 bits, so that rounding of inputs changes none, nor do slices of as many.
        """
        if dtype in WHOLE:
            return True
        return (self.slices is None or self.slices.hold_integers) and self._adds(self._integer_bits(dtype), dtype)

    def holds(self, bits: int, dtype: str) -> bool:
        """Return whether sums of products of the inputs that need at most `bits` bits are exact, in every order."""
        return self.inputs == "exact" and self._adds(bits, dtype)

    def _adds(self, bits: int, dtype: str) -> bool:
        held = [self.accumulator(dtype), *([FORMATS[self.partials]] if self.splits > 1 else [])]
        return self.algorithm == "direct" and all(format.precision >= bits for format in held)

    @staticmethod
    def _integer_bits(dtype: str) -> int:
        """Return the bits of the largest sum of the integers of `conformance.inputs`."""
        return min(FORMATS[sums_of(dtype)].precision, FORMATS["fp32"].precision)

    def exempts(self, distribution: str, dtype: str) -> str:
        """Return why a kernel under this contract is not tested with an input distribution; empty if it is. Sums of
        whole numbers have one result under every contract."""
        if dtype in WHOLE:
            return ""
        is_sliced, dtype = self.slices is not None and dtype not in SUMS, sums_of(dtype)
        if distribution in NONFINITE and self.algorithm != "direct":
            reached = "to the end of its row or image" if self.algorithm in PREFIX_SUMS else "over its whole tile"
            return f"{self.algorithm} spreads NaN and Inf {reached} (declared)"
        if distribution in NONFINITE and is_sliced:
            return "slices share an exponent, so that NaN and Inf spread over their row or column (declared)"
        if distribution in ("range", "subnormal", "small") and is_sliced:
            return "slices share an exponent, so that the smallest numbers of a row or column are lost (declared)"
        if distribution == "subnormal" and self.subnormals == "flushed":
            return "subnormal numbers are flushed (declared)"
        if distribution == "range" and dtype == "fp16" and self.between == "storage":
            return "the result of the convolution leaves the range of fp16, in which it is stored (declared)"
        if distribution in ("range", "subnormal", "small") and not self.exact_on_integers(dtype):
            return "results near the ends of the range are known for sums that are exact on integers only"
        if distribution == "absorbed" and self.algorithm != "direct":
            return f"{self.algorithm} adds other products (declared)"
        stages = [self.accumulator(dtype), *([FORMATS[self.partials]] if self.splits > 1 else [])]
        if distribution == "close" and self.narrow:
            return f"numbers that differ in their last bits are the same in {self.narrow} (declared)"
        range_of_sums = min(format.emax for format in stages)
        if (distribution == "large" and dtype == "fp16" and range_of_sums <= FORMATS[dtype].emax) or (
            distribution == "absorbed" and range_of_sums < FORMATS[dtype].emax
        ):
            return "partial sums leave the range of the declared arithmetic"
        if distribution in ("wide", "range", "subnormal", "large", "small"):
            if self.algorithm not in ("direct", "winograd-f2"):
                return f"{self.algorithm} enlarges its data and leaves the range first (declared)"
            stages += [FORMATS[self.narrow]] if self.narrow else []
            if any(format.emax < FORMATS[dtype].emax for format in stages):
                return f"the declared arithmetic has less range than {dtype}"
            if distribution == "subnormal" and any(
                format.smallest_subnormal > FORMATS[dtype].smallest_subnormal for format in stages
            ):
                return f"the declared arithmetic has coarser subnormal numbers than {dtype}"
        if distribution == "integer" and any(format.emax < self._integer_bits(dtype) for format in stages):
            return f"sums of integers of {dtype} leave the range of the declared arithmetic"
        return ""

    def without_effect(self, operators: Collection[str]) -> list[str]:
        """Return the fields that are declared and change nothing of what these operators may compute: whoever declares
        them believes that the kernel does something which nobody looks at."""
        default = Contract()
        declared = [name for name in _OF_FAMILIES if getattr(self, name) != getattr(default, name)]
        sliced = ("conv_forward", "conv_backward", "conv_transpose", "matmul", "gemm")
        families = _OF_FAMILIES | {"algorithm": ("avg_pool",), "inputs": sliced}
        declared += ["algorithm"] if self.algorithm in PREFIX_SUMS else []
        declared += ["inputs"] if self.slices is not None else []
        return [name for name in declared if not any(operator.startswith(families[name]) for operator in operators)]

    @property
    def weakness(self) -> str:
        """Declared properties that make limits wider than those of fp32 sums of inputs as given; empty if none does."""
        weaker = [self._multiplied] if self._multiplied else []
        weaker += [self.sums("sums")] if self.accumulate in ("fp16", "bf16") or self.unit is not None else []
        weaker += ["toward zero"] if self.rounding == "zero" else []
        weaker += [self.algorithm] if self.algorithm != "direct" else []
        weaker += [f"{self.partials} partial sums"] if self.splits > 1 and self.partials != "fp32" else []
        weaker += ["rounded between"] if self.between == "storage" else []
        weaker += ["variance from raw moments"] if self.variance == "raw" else []
        weaker += ["subnormals flushed"] if self.subnormals == "flushed" else []
        weaker += ["results rounded stochastically"] if self.stored == "stochastic" else []
        return ", ".join(weaker)

    @property
    def _multiplied(self) -> str:
        """Numbers that are multiplied, where they are not the inputs as given."""
        return f"inputs in {self.slices}" if self.slices is not None else f"{self.inputs} inputs" if self.narrow else ""

    @property
    def arithmetic(self) -> str:
        """Inputs and accumulator, for a table."""
        given = f"{self._multiplied}, " if self._multiplied else ""
        accumulator = "fp32 or storage accumulation" if self.accumulate == "auto" else self.sums("accumulation")
        toward = "" if self.rounding == "nearest" else " toward zero"
        variance = ", variance from raw moments" if self.variance == "raw" else ""
        return f"{given}{accumulator}{toward}{variance}"

    def sums(self, word: str) -> str:
        """Return sums or accumulation (the `word`) with the name of the accumulator, or what an `Accumulator` does."""
        return str(self.accumulate) if isinstance(self.accumulate, Accumulator) else f"{self.accumulate} {word}"

    @property
    def declaration(self) -> str:
        """The contract as it is written in an implementation's file, without fields that have their default."""
        default, written = Contract(), []
        for field in fields(self):
            if (value := getattr(self, field.name)) != getattr(default, field.name):
                written.append(
                    f"{field.name}={value.declaration if isinstance(value, Accumulator | Slices) else repr(value)}"
                )
        return f"contract=Contract({', '.join(written)})".replace("'", '"')

    def describe(self, dtype: str) -> str:
        """Describe the contract in one phrase, for a message or a report."""
        if dtype in WHOLE:
            return f"exact sums in {sums_of(dtype)}"
        given = f"inputs rounded to {self.inputs}" if self.narrow else self._multiplied or "inputs as given"
        added = f"{self.accumulator(dtype).name} accumulation" if self.unit is None else self.sums("accumulation")
        toward = "" if self.rounding == "nearest" else " toward zero"
        flushed = ", subnormals flushed" if self.subnormals == "flushed" else ""
        split = "" if self.splits == 1 else f", {self.splits} partial sums in {self.partials}"
        split += f", rounded to {dtype} in between" if self.between == "storage" else ""
        split += ", variance from raw moments" if self.variance == "raw" else ""
        rounding = "rounding" if self.stored == "nearest" else "stochastic rounding"
        return f"{self.algorithm}, {given}, {added}{toward}, one {rounding} to {sums_of(dtype)}{flushed}{split}"

    def storing(self, dtype: str) -> str:
        """Describe how a requantized result is stored."""
        if dtype in WHOLE:
            if self.ties == "gemmlowp":
                return "rounded twice, as gemmlowp does, and saturated"
            toward = {"even": "to even", "away": "away from zero", "up": "up"}[self.ties]
            return f"rounded to nearest, ties {toward}, and saturated"
        how = "" if self.stored == "nearest" else "stochastically "
        return f"rounded {how}to {dtype}, {'saturated' if self.overflow == 'saturates' else 'or not finite beyond it'}"

    def as_record(self) -> dict[str, Any]:
        return asdict(self)

    @classmethod
    def of_record(cls, values: Mapping[str, Any]) -> Contract:
        """Return the contract with the fields of a record. Raises ContractError for one that nobody can declare."""
        declared = dict(values)
        try:
            for field, kind in _DATA.items():
                if isinstance(parts := declared.get(field), dict):
                    declared[field] = kind(**parts)
            return cls(**declared)
        except TypeError as error:
            raise ContractError(str(error)) from None
