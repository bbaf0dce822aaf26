"""Known-bad kernels of convolution: less precision than declared, paths that forget, races, and errors that hardly
show."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import partial
from operator import attrgetter

import numpy as np

from conformance.contract import Contract
from conformance.dtypes import BF16, FORMATS, FP16, FP32, TF32, Format
from conformance.operators import CONVOLUTIONS, Arrays, ConvGeometry, Operator
from conformance.operators.spatial import is_padded
from tests.calibration.conv import known_bad_formats
from tests.calibration.kernels import sums
from tests.calibration.kernels.arithmetic import EXACT, KernelArithmetic, scaled_in_fp32, to
from tests.calibration.kernels.kernel import (
    DEFAULT,
    FP32_ONLY,
    SHORT,
    STORED,
    Mutant,
    Run,
    exact,
    on_inputs,
    on_outputs,
    stored,
)
from tests.calibration.kernels.lowering import lowered
from tests.calibration.kernels.memory import masked_reads, without_nan
from tests.calibration.kernels.rounding import bits, flushed, outward, rounded
from tests.calibration.kernels.structure import Paths, on_paths
from tests.calibration.kernels.sums import Sum, direct


def _factors_and_partials() -> Iterator[tuple[str, KernelArithmetic, tuple[str, ...]]]:
    for format in (TF32, BF16, FP16):
        yield f"inputs rounded to {format.name}", KernelArithmetic(to(format), to(format)), ("fp32", "fp16")
        yield f"weights (dy) rounded to {format.name}", KernelArithmetic(first=to(format)), ("fp32", "fp16")
        yield f"data rounded to {format.name}", KernelArithmetic(second=to(format)), ("fp32", "fp16")
    for format, splits in itertools.product((BF16, FP16), (4, 16, 64)):
        yield f"{splits} partial sums stored in {format.name}", KernelArithmetic(splits=splits, partials=format), STORED


EMULATED: tuple[tuple[str, KernelArithmetic, tuple[str, ...]], ...] = (
    *_factors_and_partials(),
    ("fp16 accumulator", KernelArithmetic(accumulate=(FP16, np.rint)), STORED),
    ("bf16 accumulator", KernelArithmetic(accumulate=(BF16, np.rint)), STORED),
    ("accumulator in the storage dtype", KernelArithmetic(in_storage=True), SHORT),
    ("fp32 accumulator toward zero", KernelArithmetic(accumulate=(FP32, np.trunc)), FP32_ONLY),
    ("fp32 accumulator upward", KernelArithmetic(accumulate=(FP32, np.ceil)), FP32_ONLY),
    ("accumulator with a bit less than fp32", KernelArithmetic(accumulate=(bits(23), np.rint)), STORED),
    ("accumulator with two bits less than fp32, toward zero", KernelArithmetic(accumulate=(bits(22), np.trunc)), SHORT),
    ("20-bit accumulator", KernelArithmetic(accumulate=(bits(20), np.rint)), FP32_ONLY),
    ("14-bit accumulator toward zero", KernelArithmetic(accumulate=(bits(14), np.trunc)), FP32_ONLY),
    ("bf16 result rounded twice, first to 11 bits", KernelArithmetic(after=to(bits(11))), ("bf16",)),
    ("bf16 result rounded by way of fp16", KernelArithmetic(after=to(FP16)), ("bf16",)),
    ("fp16 result rounded twice, first to 14 bits", KernelArithmetic(after=to(bits(14))), ("fp16",)),
    ("fp16 result rounded by way of bf16", KernelArithmetic(after=to(BF16)), ("fp16",)),
    ("fp32 result rounded by way of bf16", KernelArithmetic(after=to(BF16)), FP32_ONLY),
    ("fp32 result rounded by way of fp16", KernelArithmetic(after=to(FP16)), FP32_ONLY),
    ("fp32 result rounded to 18 bits", KernelArithmetic(after=to(bits(18))), FP32_ONLY),
    ("fp32 result truncated to 20 bits", KernelArithmetic(after=to(bits(20), np.trunc)), FP32_ONLY),
    *(
        (f"{dtype} result {said}", KernelArithmetic(after=to(FORMATS[dtype], way)), (dtype,))
        for said, way in (("truncated", np.trunc), ("rounded up", np.ceil))
        for dtype in STORED
    ),
    ("fp32 result rounded away from zero", KernelArithmetic(after=to(FP32, outward)), FP32_ONLY),
    ("subnormal results flushed", KernelArithmetic(after=flushed), STORED),
    ("subnormal inputs flushed", KernelArithmetic(flushed, flushed), STORED),
    ("sum scaled by 256 in fp32 before it is scaled back", KernelArithmetic(after=scaled_in_fp32(256.0)),
     ("fp32", "bf16")),
    ("sum scaled by 1/256 in fp32 before it is scaled back", KernelArithmetic(after=scaled_in_fp32(1 / 256)),
     ("fp32", "bf16")),
)  # fmt: skip


def _atomic(operator: Operator, geometry: ConvGeometry, inputs: Arrays, dtype: str) -> Arrays:
    """Add gradients of the images one by one in the storage dtype."""
    total = stored({name: np.zeros(t.shape) for name, t in operator.outputs(geometry).items()}, dtype)
    for n in range(geometry.n):
        image = {name: array[n : n + 1] for name, array in inputs.items()}
        part = operator.reference(replace(geometry, n=1), image)
        total = stored({name: total[name].astype(np.float64) + part[name] for name in total}, dtype)
    return total


def _cut_off(format: Format) -> Mutant:
    """Return a kernel that does what it declares, but for the direction of a rounding: only the gain of all results
    shows it."""
    declared = Sum(lanes=sums.always(4), kept=format)
    cut = replace(declared, keeps=partial(rounded, way=np.trunc))
    return Mutant(
        f"4 declared partial sums cut off to {format.name}", "precision", partial(direct, cut),
        Contract(splits=4, partials=format.name), dtypes=FP32_ONLY, base=partial(direct, declared),
    )  # fmt: skip


_WHOLE, _MANY = 32, 512
_WIDE: dict[str, Callable[[ConvGeometry], bool]] = {
    "1x1": lambda g: g.groups == 1 and {*g.window} == {1},
    "3x3": lambda g: g.groups == 1 and {*g.window} == {3},
    "depthwise": lambda g: g.groups == g.c,
    "grouped": lambda g: 1 < g.groups < g.c,
}
"""Paths that a kernel takes for many channels and filters, in whole tiles, alone."""


def _is_wide(path: str) -> Callable[[ConvGeometry], bool]:
    def is_wide(g: ConvGeometry) -> bool:
        return g.c + g.k >= _MANY and g.c % _WHOLE == g.k % _WHOLE == 0 and _WIDE[path](g)

    return is_wide


_PRECISION: tuple[Mutant, ...] = (
    *(Mutant(name, "precision", run, dtypes=dtypes, base=EXACT) for name, run, dtypes in EMULATED),
    *map(_cut_off, (BF16, FP16)),
    *(
        Mutant(f"inputs rounded to tf32 from {_MANY} channels and filters on, {path} alone", "precision",
               KernelArithmetic(to(TF32), to(TF32)), dtypes=FP32_ONLY, when=_is_wide(path), base=EXACT, ranks=(2,))
        for path in _WIDE
    ),
    Mutant(
        "dw of the images added in the storage dtype", "precision", _atomic, DEFAULT, CONVOLUTIONS[2:], dtypes=SHORT,
        base=exact,
    ),
)  # fmt: skip


PEEK = 3
LONG = 4096
MANY = 1000

_ROUNDED = KernelArithmetic(to(BF16), to(BF16))
_SHORTER = KernelArithmetic(accumulate=(bits(19), np.rint))


def _skipping_zeros(operator: Operator, geometry: ConvGeometry, inputs: Arrays, dtype: str) -> Arrays:
    """Take rows of the data that begin with zeros for empty, as a kernel for sparse data might."""
    data = inputs[operator.data]
    if data.shape[-1] <= PEEK:
        return exact(operator, geometry, inputs, dtype)
    empty = (data[..., :PEEK] == 0).all(axis=-1, keepdims=True)
    return exact(operator, geometry, inputs | {operator.data: np.where(empty, np.zeros_like(data), data)}, dtype)


def _without_last_product(operator: Operator, geometry: ConvGeometry, inputs: Arrays, dtype: str) -> Arrays:
    """Leave out the last product of a long sum, which is less than the declared rounding of the inputs."""
    w = inputs["w"].copy()
    w.reshape(geometry.k, -1)[:, -1] = 0
    return _ROUNDED(operator, geometry, inputs | {"w": w}, dtype)


def _one_element(operator: Operator, geometry: ConvGeometry, inputs: Arrays, dtype: str) -> Arrays:
    """Sum one element of many in a shorter accumulator; among few, the rms would show it."""
    outputs, other = (kernel(operator, geometry, inputs, dtype) for kernel in (EXACT, _SHORTER))
    main = next(iter(outputs))
    middle = outputs[main].size // 2
    if outputs[main].size >= MANY:
        outputs[main].reshape(-1)[middle] = other[main].reshape(-1)[middle]
    return outputs


_SUBTLE: tuple[Mutant, ...] = (
    Mutant("rows of data that begin with zeros skipped", "subtle", _skipping_zeros, dtypes=FP32_ONLY, base=exact),
    Mutant(
        "last product of a long sum left out, inputs declared bf16", "subtle", _without_last_product,
        Contract(inputs="bf16"), CONVOLUTIONS[:1], lambda geometry: geometry.c >= LONG, FP32_ONLY, base=_ROUNDED,
    ),
    Mutant("one element summed in 19 bits", "subtle", _one_element, dtypes=FP32_ONLY, base=EXACT),
    Mutant("fp32 result packed in 22 bits", "subtle", KernelArithmetic(after=to(bits(22))), dtypes=FP32_ONLY,
           base=EXACT),
)  # fmt: skip
"""Kernels that only a single distribution or a single statistic of the judge detects."""

CHUNK = 8
LOST = 0.01
"""Share of the outputs that miss a chunk of their sum."""


def _racing(chunk_of: Callable[[int], int]) -> Run:
    """Leave the products of one chunk out of a few outputs; `chunk_of` says which chunk, given how many there are."""

    def run(operator: Operator, geometry: ConvGeometry, inputs: Arrays, dtype: str) -> Arrays:
        product = lowered(operator, geometry, inputs)
        start = CHUNK * chunk_of(-(-product.a.shape[2] // CHUNK))
        part = slice(start, start + CHUNK)
        lost = product.restored(product.a[..., part] @ product.b[:, part])
        outputs = operator.reference(geometry, inputs)
        main = next(iter(outputs))
        hit = np.random.default_rng(lost.size).random(lost.shape) < LOST
        hit.reshape(-1)[lost.size // 2] = True
        return stored(outputs | {main: outputs[main] - np.where(hit, lost, 0)}, dtype)

    return run


_RACES: dict[str, Run] = {
    "updates lost: first chunk of the sum": _racing(lambda chunks: 0),
    "updates lost: last chunk of the sum": _racing(lambda chunks: chunks - 1),
    "updates lost: a chunk in the middle": _racing(lambda chunks: chunks // 2),
}
"""Races in convolutions, whose sums are long enough to be split."""

_GRADIENTS: dict[str, Run] = {
    "reads of another filter's gradient, times zero": masked_reads(1, 1, attrgetter("operand")),
    "NaN in a filter's gradient becomes zero": on_inputs(without_nan, "dy"),
}
"""Defects in gradients of weights, where the gradient is the operand."""

_EMPTY_BATCH: dict[str, Callable[[np.ndarray], np.ndarray]] = {
    "never written (NaN)": lambda zeros: zeros + np.nan,
    "never written (what the batch before left)": lambda zeros: np.random.default_rng(0).random(zeros.shape),
    "divided by the images": lambda zeros: zeros / 0,
    "of one image of ones": np.ones_like,
    "one element never written": lambda zeros: np.where(np.arange(zeros.size).reshape(zeros.shape), 0, 1.0),
    "never written (subnormal)": lambda zeros: zeros + FORMATS["bf16"].smallest_subnormal,
}

_EMPTY_BATCHES: tuple[Mutant, ...] = tuple(
    Mutant(
        f"empty batch: gradient {name}",
        "partial-requests",
        on_outputs(lambda zeros, _, left=left: left(zeros)),  # type: ignore[misc]
        operators=("conv_backward_weight",),
        when=lambda geometry: geometry.n == 0,
    )
    for name, left in _EMPTY_BATCH.items()
)
"""Gradients of parameters on an empty batch that are not zero, as empty sums are."""

_PARAMETERS = (
    "stride ignored",
    "strides swapped",
    "dilation ignored",
    "dilations swapped",
    "padding ignored",
    "padding swapped between H and W",
    "padding mirrored (before and after exchanged)",
)
_OTHERS = ("bias (dbias) missing", "image n uses image n-1")
_KERNEL = ("filter flipped in H and W", "filter transposed (R and S swapped)")
_GROUPS = ("group off by one", "input channels interleaved over groups")
_ALL = (*_PARAMETERS, *_OTHERS, *_KERNEL, *_GROUPS)
_NO_DILATION = tuple(name for name in _PARAMETERS if "dilation" not in name)

_PATHS: Paths = {
    "pointwise": (lambda g: max(g.window) == 1, (*_NO_DILATION, *_OTHERS, *_GROUPS)),
    # a kernel may be declared for these problems alone, and then it is run on no grouped problem
    "ungrouped pointwise": (lambda g: max(g.window) == g.groups == 1, (*_NO_DILATION, *_OTHERS)),
    "pointwise, padded after alone": (
        lambda g: max(g.window) == 1 and is_padded(g.padding) and not any(before for before, _ in g.padding),
        ("padding repeats the edge instead of zero",),
    ),
    "one-axis window": (lambda g: min(g.window) == 1 < max(g.window), _ALL),
    "even window": (lambda g: any(taps % 2 == 0 for taps in g.window), _ALL),
    "large window": (lambda g: max(g.window) >= 5, _ALL),
    "depthwise": (lambda g: 1 < g.groups == g.c, (*_PARAMETERS, *_OTHERS, *_KERNEL, "group off by one")),
    "grouped": (lambda g: 1 < g.groups < g.c, _ALL),
    "strided": (lambda g: max(g.stride) > 1, _ALL),
    "dilated": (lambda g: max(g.dilation) > 1, _ALL),
    "strided and dilated": (lambda g: max(g.stride) > 1 and max(g.dilation) > 1, _ALL),
    "unpadded": (lambda g: not is_padded(g.padding), (*_PARAMETERS[:4], *_OTHERS, *_KERNEL, *_GROUPS)),
    "single image": (lambda g: g.n == 1, (*_PARAMETERS, _OTHERS[0], *_KERNEL, *_GROUPS)),
    "wide channels": (lambda g: g.c >= 64 or g.k >= 64, _ALL),
    "odd channels": (lambda g: g.c // g.groups % 4 > 0, _ALL),
}

KNOWN_BAD: tuple[Mutant, ...] = (
    *on_paths(_PATHS, CONVOLUTIONS, "paths", "{mistake}, on the {path} path"),
    *(*_PRECISION, *_SUBTLE),
    *(Mutant(name, "memory", run, operators=CONVOLUTIONS, base=exact) for name, run in _RACES.items()),
    *(Mutant(name, "memory", run, operators=CONVOLUTIONS[2:], base=exact) for name, run in _GRADIENTS.items()),
    *(*_EMPTY_BATCHES, *known_bad_formats.KNOWN_BAD),
)
