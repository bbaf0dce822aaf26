"""Contracts, each with a kernel that is one step worse than it: a bit less, twice the partial sums, a part of an input
less, cut where nearest is declared."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import partial
from itertools import chain, product
from typing import NamedTuple

from conformance.accumulator import UNITS
from conformance.contract import Contract
from conformance.dtypes import FP32, TF32, sums_of
from conformance.slices import Slices
from tests.calibration.conv.transforms import fft_with_steps
from tests.calibration.kernels.arithmetic import KernelArithmetic, to
from tests.calibration.kernels.emulated import Emulated, accumulator_of
from tests.calibration.kernels.kernel import DEFAULT, FP8, FP32_ONLY, INT8, SHORT, STORED, Run, on_inputs
from tests.calibration.kernels.rounding import bits, narrowed, outward

NORMALISED = ("conv_bn_forward", "conv_bn_inference", "conv_bn_backward")
FORWARD, POOL, REQUANTIZED = "conv_forward", "avg_pool_forward", "conv_requantized"


class Row(NamedTuple):
    """A kernel under a contract, as it is declared: an honest one (without `step`), or one that is a step worse."""

    operator: str
    dtype: str
    contract: str
    step: str = ""


@dataclass(frozen=True, slots=True)
class Step:
    """A kernel that is one step worse than a contract, in each of some dtypes.

    name    what is worse
    """

    contract: Contract
    name: str
    kernel: Run
    dtypes: tuple[str, ...] = STORED
    operator: str = FORWARD


def _dtypes_of(unit: str) -> tuple[str, ...]:
    """Return the dtypes of the inputs that a unit is made for."""
    if "fp8" in unit or "fp4" in unit:
        return FP8
    return FP32_ONLY if "tf32" in unit else ("bf16",) if "amx" in unit else SHORT


def _accumulators(contract: Contract, dtypes: tuple[str, ...], operator: str = FORWARD) -> Iterator[Step]:
    """Yield an accumulator with a bit less, and one that cuts bits off where nearest is declared; but for fp64, in
    which kernels are emulated."""
    yield Step(contract, "a bit less", Emulated(contract, shorter=1), dtypes, operator)
    for dtype in (dtype for dtype in dtypes if not contract.is_cut and dtype != "fp64"):
        cut = replace(accumulator_of(contract, sums_of(dtype)), rounding="zero")
        yield Step(contract, "cut", Emulated(replace(contract, accumulate=cut)), (dtype,), operator)


def _units() -> Iterator[Step]:
    for name, unit in UNITS.items():
        contract = Contract(accumulate=name, inputs="tf32" if "tf32" in name else "exact")
        yield from _accumulators(contract, _dtypes_of(name))
        if unit.promote:
            for promote, text in ((0, "no promotion"), (2 * unit.promote, "half the promotions")):
                worse = replace(contract, accumulate=replace(unit, promote=promote))
                yield Step(contract, text, Emulated(worse), _dtypes_of(name))


def _ordinary(operator: str) -> Iterator[Step]:
    """Yield accumulators of the formats, to nearest and toward zero."""
    dtypes = (*STORED, "fp64", *(FP8 if operator == FORWARD else ()))
    yield from _accumulators(DEFAULT, dtypes, operator)
    yield Step(Contract(accumulate="fp64"), "fp32", Emulated(Contract(accumulate="fp32")), FP32_ONLY, operator)
    for name in SHORT:
        yield from _accumulators(Contract(accumulate=name), (name,), operator)
        yield from _accumulators(Contract(accumulate=name, rounding="zero"), (name,), operator)
    yield from _accumulators(Contract(rounding="zero"), STORED, operator)
    if operator == FORWARD:
        yield Step(Contract(rounding="zero"), "away", KernelArithmetic(accumulate=(FP32, outward)), STORED)
    yield Step(DEFAULT, "subnormals flushed", Emulated(Contract(subnormals="flushed")), STORED, operator)


def _inputs() -> Iterator[Step]:
    """Yield inputs with a part, or a bit, less, and such that are cut where nearest is declared."""
    fewer = {
        "exact": ("bf16x3", "tf32", "fp16", "bf16"),
        "bf16x9": ("bf16x6",),
        "bf16x6": ("bf16x3",),
        "tf32x3": ("bf16x3", "tf32"),
        "bf16x3": ("tf32", "bf16"),
        "tf32": ("bf16",),
        "fp16": ("bf16",),
        "bf16": (),
    }
    for inputs, worse in fewer.items():
        for rounding in ("nearest", "zero"):
            declared = Contract(inputs=inputs, rounding=rounding)
            for other in worse:
                yield Step(declared, other, Emulated(replace(declared, inputs=other)), FP32_ONLY)
            if inputs != "exact":
                yield Step(declared, "inputs with a bit less", Emulated(declared, coarser=1), FP32_ONLY)
        if inputs != "exact":
            nearest = Contract(inputs=inputs)
            yield from _accumulators(nearest, FP32_ONLY)
            cut = replace(nearest, accumulate=accumulator_of(nearest, "fp32"), rounding="zero")
            yield Step(nearest, "inputs cut", Emulated(cut), FP32_ONLY)


def _sliced() -> Iterator[Step]:
    """Yield slices of one less, or of a bit less, and slices where inputs as given are declared."""
    for declared, dtype in ((Slices(4), "fp32"), (Slices(2), "fp32"), (Slices(2), "bf16"), (Slices(2), "fp16"),
                            (Slices(8), "fp64")):  # fmt: skip
        for rounding in ("nearest", "zero"):
            contract = Contract(inputs=declared, rounding=rounding)
            fewer = replace(contract, inputs=replace(declared, count=declared.count - 1))
            yield Step(contract, "a slice less", Emulated(fewer), (dtype,))
    coarse = Contract(inputs=Slices(3, bits=8))
    yield Step(coarse, "slices with a bit less", Emulated(Contract(inputs=Slices(3))), FP32_ONLY)
    yield Step(DEFAULT, "4 slices", Emulated(Contract(inputs=Slices(4))), (*STORED, "fp64"))
    largest, formed = Contract(inputs=Slices(4)), Contract(inputs=Slices(4, products="all"))
    yield Step(formed, "a slice less", Emulated(Contract(inputs=Slices(3, products="all"))), FP32_ONLY)
    yield Step(formed, "the largest products", Emulated(largest), FP32_ONLY)


def _pooled() -> Iterator[Step]:
    """Yield inputs and partial sums of sums without products."""
    for inputs, worse in (("exact", "tf32"), ("tf32", "bf16")):
        yield Step(Contract(inputs=inputs), worse, Emulated(Contract(inputs=worse)), FP32_ONLY, POOL)
    declared = Contract(splits=4, partials="bf16")
    yield Step(declared, "twice the splits", Emulated(replace(declared, splits=8)), ("bf16",), POOL)
    unit = Contract(accumulate="ampere-16")
    yield from _accumulators(unit, SHORT, POOL)


def _partials() -> Iterator[Step]:
    kinds = ((4, "fp32", STORED), (16, "fp32", STORED), (4, "fp16", ("fp32", "fp16")), (8, "fp16", ("fp16",)),
             (4, "bf16", ("fp32", "bf16")), (8, "bf16", ("bf16",)))  # fmt: skip
    for splits, partials, dtypes in kinds:
        declared = Contract(splits=splits, partials=partials)
        yield Step(declared, "twice the splits", Emulated(replace(declared, splits=2 * splits)), dtypes)
        if partials != "bf16":
            coarse = {"fp32": "fp16", "fp16": "bf16"}[partials]
            yield Step(declared, f"{coarse} partials", Emulated(replace(declared, partials=coarse)), dtypes)
        yield from _accumulators(declared, dtypes)


def _algorithms() -> Iterator[Step]:
    for declared, worse in (("direct", ("winograd-f2", "winograd-f4", "fft")), ("winograd-f2", ("winograd-f4",))):
        for algorithm in worse:
            yield Step(Contract(algorithm=declared), algorithm, Emulated(Contract(algorithm=algorithm)), FP32_ONLY)
    for algorithm in ("winograd-f2", "winograd-f4"):
        yield from _accumulators(Contract(algorithm=algorithm), FP32_ONLY)
    transformed = on_inputs(partial(narrowed, format=TF32), "x", "w", base=fft_with_steps)
    yield Step(Contract(algorithm="fft"), "tf32", transformed, FP32_ONLY)


def _results() -> Iterator[Step]:
    for dtype, first in (("bf16", 11), ("fp16", 14)):
        yield Step(DEFAULT, "result rounded twice", KernelArithmetic(after=to(bits(first))), (dtype,))
    yield Step(DEFAULT, "result with a bit less", KernelArithmetic(after=to(bits(23))), FP32_ONLY)


def _normalised() -> Iterator[Step]:
    between, moments = Contract(between="storage"), Contract(variance="raw")
    both = replace(between, variance="raw")
    for operator in NORMALISED:
        yield Step(DEFAULT, "rounded between", Emulated(between), SHORT, operator)
        yield Step(moments, "rounded between", Emulated(both), SHORT, operator)
        if operator != "conv_bn_inference":
            yield Step(DEFAULT, "raw variance", Emulated(moments), (*STORED, "fp64"), operator)
            yield Step(between, "raw variance", Emulated(both), SHORT, operator)
        for dtype in SHORT:
            yield Step(both, f"{dtype} sums", Emulated(replace(both, accumulate=dtype)), (dtype,), operator)


def _requantized() -> Iterator[Step]:
    kinds = ("even", "away", "up")
    for declared in kinds:
        for ties in kinds:
            if ties != declared:
                yield Step(Contract(ties=declared), f"ties {ties}", Emulated(Contract(ties=ties)), INT8, REQUANTIZED)
    for declared, other in (("saturates", "nonfinite"), ("nonfinite", "saturates")):
        yield Step(Contract(overflow=declared), other, Emulated(Contract(overflow=other)), FP8, REQUANTIZED)


STEPS: tuple[Step, ...] = tuple(
    chain(
        _units(),
        _ordinary(FORWARD),
        _ordinary(POOL),
        _inputs(),
        _sliced(),
        _partials(),
        _pooled(),
        _algorithms(),
        _results(),
        _normalised(),
        _requantized(),
    )
)


@dataclass(frozen=True, slots=True)
class Hidden:
    """Steps that level standard cannot tell, by formula: each of these under each of the contracts, in each dtype.

    Once data or limits tell them, the campaign fails until they are taken out.
    """

    reason: str
    contracts: tuple[Contract, ...]
    steps: tuple[str, ...]
    dtypes: tuple[str, ...]
    operator: str = FORWARD

    def rows(self) -> Iterator[Row]:
        """Yield the rows of the campaign's table."""
        for contract, step, dtype in product(self.contracts, self.steps, self.dtypes):
            yield Row(self.operator, dtype, contract.declaration, step)


ACCUMULATOR = ("a bit less", "cut")
SPLIT = {(splits, name): Contract(splits=splits, partials=name) for splits in (4, 8, 16) for name in ("fp32", *SHORT)}
SHORT_PARTIALS = {name: (SPLIT[4, name], SPLIT[8, name]) for name in SHORT}

HIDDEN: tuple[Hidden, ...] = (
    Hidden(
        "binades of e4m3 are 15, and data of absorbed one operand of ones: no term is 2^-23 of another; it needs the "
        "large term in both operands",
        (DEFAULT,), ACCUMULATOR, FP8[:1],
    ),
    Hidden("binades of e4m3 are 15: no term is 2^-25 of another", (Contract(accumulate="blackwell-fp8"),),
           ACCUMULATOR[:1], FP8[:1]),
    Hidden("35 bits: the sum is stored with 24", (Contract(accumulate="blackwell-fp4"),), ACCUMULATOR[:1], FP8),
    Hidden(
        "two parts of 128/32 groups each may lose: all that the large terms' own parts of 256 lose",
        (Contract(accumulate="hopper-fp8-promoted"),), ("half the promotions",), FP8,
    ),
    Hidden(
        "a gain of 0.36*u_acc*KS in errors of u_out: beyond z = 6.2 for N*KS^2 of 2^29 in fp16 and 2^35 in bf16, where "
        "cases have 2^27",
        (Contract(rounding="zero"),), ("away",), SHORT,
    ),
    Hidden("storing fp32 sums in fp32 loses nothing", (SPLIT[4, "fp32"], SPLIT[16, "fp32"]), ("twice the splits",),
           STORED),
    Hidden(
        "large terms of absorbed are in two parts, which lose 2*KS/splits units where KS are allowed, for parts of any "
        "length",
        (SPLIT[4, "fp32"],), ACCUMULATOR, ("bf16",),
    ),
    Hidden("2*KS/splits units of KS that are allowed", (SPLIT[4, "fp32"],), ACCUMULATOR[:1], ("fp16",)),
    Hidden("2*KS/splits units of KS that are allowed", (SPLIT[16, "fp32"],), ACCUMULATOR, SHORT),
    *(
        Hidden("u_part*sqrt(splits) hides u_acc*sqrt(KS) until KS is 2^26 or 2^32 times splits", SHORT_PARTIALS[name],
               ACCUMULATOR, (name,))
        for name in SHORT
    ),
    *(
        Hidden("u_part*sqrt(splits) hides u_acc*sqrt(KS) until KS is 2^26 or 2^32 times splits", (SPLIT[4, name],),
               ACCUMULATOR, FP32_ONLY)
        for name in SHORT
    ),
    *(
        Hidden("rms grows by sqrt(2), from 0.3 of u_part*sqrt(splits) to 0.42, and the limit is 0.5", contracts,
               ("twice the splits",), (name,))
        for name, contracts in SHORT_PARTIALS.items()
    ),
    Hidden(
        "three, six or nine roundings for each of KS products are allowed; of parts that are small beside the sum most "
        "round nothing: rms grows from 0.38 of the limit to 0.76",
        tuple(Contract(inputs=name) for name in ("bf16x3", "tf32x3", "bf16x6", "bf16x9")), ACCUMULATOR[:1], FP32_ONLY,
    ),
    Hidden(
        "three parts of 7 bits, each with its sign, hold 23 bits: 2^-24 of the input is left, where 2*2^-24 and "
        "4*2^-24*sqrt(6*KS) are allowed",
        (Contract(inputs="bf16x6"), Contract(inputs="bf16x9"), Contract(inputs="bf16x9", rounding="zero")),
        ("inputs with a bit less",), FP32_ONLY,
    ),
    Hidden(
        "two parts of 10 bits leave 2^-22 of the input, where 4*2^-22 and 4*2^-24*sqrt(3*KS) are allowed",
        tuple(Contract(inputs="tf32x3", rounding=way) for way in ("nearest", "zero")), ("inputs with a bit less",),
        FP32_ONLY,
    ),
    Hidden(
        "products that x6 leaves out are 2*2^-24 of the product at most, where 4*2^-24*sqrt(9*KS) are allowed",
        tuple(Contract(inputs="bf16x9", rounding=way) for way in ("nearest", "zero")), ("bf16x6",), FP32_ONLY,
    ),
    Hidden(
        "what is left out is 3*2^-28 of the powers of two above the largest numbers, where 8*2^-28 of these and norms, "
        "and 4*2^-24*sqrt(16) of the sum, are allowed",
        (Contract(inputs=Slices(4, products="all")),), ("the largest products",), FP32_ONLY,
    ),
    Hidden(
        "rms of 0.6*sqrt(KS) units where 0.5*(1 + sqrt(KS)) are allowed: seen for KS above 25, and sums of few inputs "
        "are mostly exact",
        (DEFAULT,), ACCUMULATOR[:1], ("fp64",), POOL,
    ),
    Hidden("rms grows by sqrt(2), from 0.3 of u_part*sqrt(splits) to 0.42, and the limit is 0.5", (SPLIT[4, "bf16"],),
           ("twice the splits",), ("bf16",), POOL),
    *(
        Hidden("z is rounded to 2^-9, and raw moments of data 1 +- 2^-6 lose 4^6*2^-24 = 2^-12",
               (Contract(between="storage"),), ("raw variance",), ("bf16",), operator)
        for operator in NORMALISED[:1] + NORMALISED[2:]
    ),
)  # fmt: skip
"""What level standard does not tell, with the reason. A step that it tells, or a step of no table, is no entry."""
