"""Kernels that are wrong about inputs of 8 bits: the number that a bit pattern stands for, and the width of their
sums."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import ml_dtypes
import numpy as np

from conformance.dtypes import BF16, FP16, TRAINED
from conformance.operators import CONVOLUTIONS, Arrays, Operator
from tests.calibration.kernels.arithmetic import EXACT, KernelArithmetic, folded, short, to, to_storage
from tests.calibration.kernels.kernel import FP8, INT8, UINT8, Mutant, Run, exact, of_operator, on_inputs, on_outputs
from tests.calibration.kernels.lowering import lowered
from tests.calibration.kernels.rounding import bits

FORWARD = CONVOLUTIONS[:1]
E4M3, E5M2 = FP8[:1], FP8[1:]
FACTORS = ("x", "w", "dy", "a", "b")
OF_PRODUCTS = {"x": "a", "w": "b"}

Change = Callable[[np.ndarray], np.ndarray]


def _mutant(
    name: str,
    run: Run,
    dtypes: tuple[str, ...],
    operators: tuple[str, ...] = CONVOLUTIONS,
    base: Run = exact,
    **more: Any,
) -> Mutant:
    return Mutant(name, "formats", run, operators=operators, dtypes=dtypes, ranks=(1, 2, 3), base=base, **more)


def _reading(change: Change, *names: str) -> Run:
    """Return the exact kernel of other factors: of those named, or else of both. Those of a matrix product are named by
    those of a convolution."""
    return on_inputs(change, *(names or FACTORS), *(OF_PRODUCTS[name] for name in names if name in OF_PRODUCTS))


def _writing(change: Change) -> Run:
    """Return the exact kernel, with results changed before they are stored."""
    return on_outputs(lambda array, _: change(array))


def _as(dtype: Any) -> Change:
    """Read the bits as numbers of another format."""
    return lambda array: array.view(dtype).astype(np.float64)


def _rounded(dtype: Any) -> Change:
    """Round the numbers to another format, as a kernel does that has one for all operands."""
    return lambda array: array.astype(dtype).astype(np.float64)


def _within(largest: float) -> Change:
    return lambda array: np.clip(array.astype(np.float64), -largest, largest)


def _wrapped(width: int) -> Change:
    """Wrap whole numbers around in `width` bits."""
    half = 2.0 ** (width - 1)
    return lambda array: (array.astype(np.float64) + half) % (2 * half) - half


def _saturated(width: int) -> Change:
    half = 2.0 ** (width - 1)
    return lambda array: np.clip(array.astype(np.float64), -half, half - 1)


def _replaced(which: Change, value: Change) -> Change:
    def changed(array: np.ndarray) -> np.ndarray:
        wide = array.astype(np.float64)
        return np.where(which(wide), value(wide), wide)

    return changed


def _flushed(smallest_normal: float) -> Change:
    return _replaced(lambda wide: np.abs(wide) < smallest_normal, np.zeros_like)


def _number(value: float) -> Change:
    """Return the value with the sign of the number that it replaces."""
    return lambda wide: np.copysign(value, wide)


_CODES = (
    *(
        _mutant(f"{name} read as {other}", _reading(_as(getattr(ml_dtypes, dtype))), (name,))
        for name, other, dtype in (
            ("fp8_e4m3", "e5m2", "float8_e5m2"),
            ("fp8_e4m3", "e4m3fnuz, whose bias is 8", "float8_e4m3fnuz"),
            ("fp8_e4m3", "e4m3 with infinities", "float8_e4m3"),
            ("fp8_e4m3", "e4m3b11fnuz", "float8_e4m3b11fnuz"),
            ("fp8_e5m2", "e4m3", "float8_e4m3fn"),
            ("fp8_e5m2", "e5m2fnuz, whose bias is 16", "float8_e5m2fnuz"),
        )
    ),
    *(
        _mutant(f"{name}: {of} read as the other format", _reading(_as(dtype), *names), (name,), operators)
        for name, dtype in (("fp8_e4m3", ml_dtypes.float8_e5m2), ("fp8_e5m2", ml_dtypes.float8_e4m3fn))
        for of, names, operators in (("w", ("w",), CONVOLUTIONS[:2]), ("x", ("x",), CONVOLUTIONS[::2]))
    ),
    *(
        _mutant(f"dy in e5m2, x and w in e4m3: {name}", _reading(change, *names), tuple(TRAINED), CONVOLUTIONS[1:])
        for name, change, names in (
            ("dy read as e4m3", _as(ml_dtypes.float8_e4m3fn), ("dy",)),
            ("x and w read as e5m2", _as(ml_dtypes.float8_e5m2), ("x", "w")),
            ("dy rounded to e4m3", _rounded(ml_dtypes.float8_e4m3fn), ("dy",)),
            ("x and w rounded to e5m2", _rounded(ml_dtypes.float8_e5m2), ("x", "w")),
        )
    ),
    _mutant("e4m3: data beyond 240 clamped", _reading(_within(240.0), "x"), E4M3, FORWARD),
    _mutant("e4m3: filters beyond 240 clamped", _reading(_within(240.0), "w"), E4M3, CONVOLUTIONS[:2]),
    _mutant("e5m2: data clamped to the range of e4m3", _reading(_within(448.0), "x"), E5M2, CONVOLUTIONS[::2]),
    _mutant("e5m2: filters clamped to the range of e4m3", _reading(_within(448.0), "w"), E5M2, CONVOLUTIONS[:2]),
    _mutant("e4m3: subnormal data flushed", _reading(_flushed(2.0**-6), "x"), E4M3, CONVOLUTIONS[::2]),
    _mutant("e4m3: subnormal filters flushed", _reading(_flushed(2.0**-6), "w"), E4M3, CONVOLUTIONS[:2]),
    _mutant("e5m2: subnormal data flushed", _reading(_flushed(2.0**-14), "x"), E5M2, CONVOLUTIONS[::2]),
    _mutant("e5m2: subnormal filters flushed", _reading(_flushed(2.0**-14), "w"), E5M2, CONVOLUTIONS[:2]),
    _mutant("e4m3: NaN read as 480", _reading(_replaced(np.isnan, _number(480.0))), E4M3),
    _mutant("e4m3: NaN read as 448", _reading(_replaced(np.isnan, _number(448.0))), E4M3),
    _mutant("e4m3: NaN read as infinity", _reading(_replaced(np.isnan, _number(np.inf))), E4M3),
    _mutant("e5m2: infinity read as 65536", _reading(_replaced(np.isinf, _number(65536.0))), E5M2),
    _mutant("e5m2: infinity read as 57344", _reading(_replaced(np.isinf, _number(57344.0))), E5M2),
    _mutant("e5m2: infinity read as NaN", _reading(_replaced(np.isinf, lambda wide: np.full_like(wide, np.nan))), E5M2),
)
"""Mistakes about the number that a bit pattern stands for."""


def _in_format_of_inputs(array: np.ndarray) -> np.ndarray:
    """Round to e4m3, whose range the intermediate result then has."""
    return array.astype(np.float32).astype(ml_dtypes.float8_e4m3fn).astype(np.float64)


_ARITHMETIC = {
    "summed in fp16": KernelArithmetic(accumulate=(FP16, np.rint)),
    "summed in bf16": KernelArithmetic(accumulate=(BF16, np.rint)),
    "summed in 14 bits": KernelArithmetic(accumulate=(bits(14), np.rint)),
    "summed in 14 bits, toward zero": KernelArithmetic(accumulate=(bits(14), np.trunc)),
    "summed in the format of the inputs": KernelArithmetic(in_storage=True),
    "partial sums in bf16": KernelArithmetic(splits=4, partials=BF16),
    "result rounded to fp16": KernelArithmetic(after=to(FP16)),
    "result rounded to bf16": KernelArithmetic(after=to(BF16)),
    "result rounded to the format of the inputs": KernelArithmetic(after=to_storage),
}

_SUMS = (
    *(_mutant(f"fp8: {name}", run, FP8, base=EXACT) for name, run in _ARITHMETIC.items()),
    _mutant("fp8: result saturates at 448", _writing(_within(448.0)), FP8),
    _mutant("fp8: result through e4m3", _writing(_in_format_of_inputs), FP8),
    _mutant("fp8: result saturates at 65504", _writing(_within(65504.0)), E5M2),
    _mutant("fp8: bias in bf16", _reading(lambda bias: bias.astype(ml_dtypes.bfloat16), "bias"), FP8, FORWARD),
    _mutant("fp8: bias in fp16", _reading(lambda bias: bias.astype(np.float16), "bias"), FP8, FORWARD),
    _mutant("fp8: bias in e4m3", _reading(_in_format_of_inputs, "bias"), FP8, FORWARD),
)
"""Mistakes about the width of sums, and of numbers that are added to them."""


def _summed(step: Callable[[np.ndarray, np.ndarray], np.ndarray], terms: int) -> Run:
    """Add `terms` products at a time to a sum of int32, by `step(sum, their sum)`."""

    def run(operator: Operator, geometry: Any, inputs: Arrays, dtype: str) -> Arrays:
        product, (name,) = lowered(operator, geometry, inputs), operator.outputs(geometry)
        y = product.restored(folded(product.a, product.b, terms, step))
        if geometry.bias:
            y += inputs["bias"].reshape(-1, *(1 for _ in geometry.size))
        return of_operator(operator, geometry, {name: y}, dtype)

    return run


def _pairs_saturated(total: np.ndarray, pair: np.ndarray) -> np.ndarray:
    """Add two products in 16 bits, as vpmaddubsw of x86 does without VNNI."""
    return total + _saturated(16)(pair)


def _summed_in_16_bits(change: Change) -> Run:
    return _summed(lambda total, product: change(total + product), 1)


def _in_fp32(operator: Operator, geometry: Any, inputs: Arrays, dtype: str) -> Arrays:
    outputs = operator.reference(geometry, inputs, np.float32)
    return {name: np.clip(array, -(2.0**31), 2.0**31 - 128).astype(np.int32) for name, array in outputs.items()}


def _added_in_fp32(total: np.ndarray, block: np.ndarray) -> np.ndarray:
    return (total.astype(np.float32) + block.astype(np.float32)).astype(np.float64)


def _as_unsigned(
    operator: Operator, geometry: Any, inputs: Arrays, dtype: str, pad: float, compensated: bool
) -> Arrays:
    """Shift data by 128 to unsigned, and subtract 128 times the sum of the filter. Padding is 0 after the shift, where
    it has to be shifted too; `pad` is its value in the end."""
    wide = {name: array.astype(np.float64) for name, array in inputs.items()}
    y = operator.reference(geometry, wide)["y"]
    whole = np.ones_like(wide["x"])
    taps = {"x": whole, "w": wide["w"]} | ({"bias": np.zeros_like(wide["bias"])} if geometry.bias else {})
    inside = operator.reference(geometry, taps)["y"]
    of_filter = wide["w"].reshape(geometry.k, -1).sum(axis=1).reshape(-1, *(1 for _ in geometry.size))
    y = y + (pad * (of_filter - inside) if compensated else 128 * inside)
    return of_operator(operator, geometry, {"y": y}, dtype)


def _unsigned(array: np.ndarray) -> np.ndarray:
    return array.astype(np.float64) % 256


def _whole(name: str, run: Run, **more: Any) -> Mutant:
    return _mutant(f"int8: {name}", run, INT8, FORWARD, **more)


_WHOLE = (
    _whole("sums wrap around at 16 bits", _summed_in_16_bits(_wrapped(16)), when=short),
    _whole("sums saturate at 16 bits", _summed_in_16_bits(_saturated(16)), when=short),
    _whole("two products are added in 16 bits", _summed(_pairs_saturated, 2), when=short),
    _whole("sums in fp32", _in_fp32),
    _whole("exact sums of 1,024 products are added in fp32", _summed(_added_in_fp32, 1024)),
    _whole("sums saturate at 24 bits", _writing(_saturated(24))),
    _whole("result wraps around at 24 bits", _writing(_wrapped(24))),
    _whole("result wraps around at 16 bits", _writing(_wrapped(16))),
    _whole("result saturates at 16 bits", _writing(_saturated(16))),
    _whole("result wraps around at 8 bits", _writing(_wrapped(8))),
    _whole("result saturates at 8 bits", _writing(_saturated(8))),
    _whole("result in fp32", _writing(lambda array: array.astype(np.float32))),
    _whole("data read as unsigned", _reading(_unsigned, "x")),
    _whole("filters read as unsigned", _reading(_unsigned, "w")),
    _whole("data and filters read as unsigned", _reading(_unsigned)),
    _whole("-128 of the data read as -127", _reading(_within(127.0), "x")),
    _whole("-128 of the filters read as -127", _reading(_within(127.0), "w")),
    _whole("filters have 7 bits", _reading(lambda w: w.astype(np.float64) - w % 2, "w")),
    _whole("data have 7 bits", _reading(lambda x: x.astype(np.float64) - x % 2, "x")),
    _whole("data saturate at 7 bits", _reading(_saturated(7), "x")),
    _whole("bias wraps around at 16 bits", _reading(_wrapped(16), "bias")),
    _whole("bias saturates at 16 bits", _reading(_saturated(16), "bias")),
    _whole("bias in fp32", _reading(lambda bias: bias.astype(np.float32), "bias")),
    _whole("bias ignored", _reading(lambda bias: np.zeros_like(bias, np.float64), "bias")),
    _whole("zero point of padding not taken off", partial(_as_unsigned, pad=-128.0, compensated=True)),
    _whole("zero point added to padding", partial(_as_unsigned, pad=128.0, compensated=True)),
    _whole("zero point not taken off", partial(_as_unsigned, pad=0.0, compensated=False)),
)
"""Mistakes in sums of whole numbers."""


def _always(geometry: Any) -> bool:
    return True


def _signed(array: np.ndarray) -> np.ndarray:
    """Read bytes without a sign as if they had one."""
    return array.view(np.int8).astype(np.float64)


_UNSIGNED = tuple(
    _mutant(f"uint8: {name}", run, UINT8, FORWARD, when=short if "16 bits" in name else _always)
    for name, run in (
        ("data read as signed", _reading(_signed, "x")),
        ("filters read as unsigned", _reading(_unsigned, "w")),
        ("two products are added in 16 bits", _summed(_pairs_saturated, 2)),
        ("sums saturate at 16 bits", _summed_in_16_bits(_saturated(16))),
        ("sums wrap around at 16 bits", _summed_in_16_bits(_wrapped(16))),
        ("sums in fp32", _in_fp32),
        ("data saturate at 127", _reading(_within(127.0), "x")),
        ("data saturate at 254", _reading(_within(254.0), "x")),
        ("data have 7 bits", _reading(lambda x: x.astype(np.float64) - x % 2, "x")),
        ("data less 128, not made up for", _reading(lambda x: x.astype(np.float64) - 128, "x")),
        ("zero point of padding not taken off", partial(_as_unsigned, pad=128.0, compensated=True)),
        ("result saturates at 8 bits", _writing(lambda y: np.clip(y.astype(np.float64), 0, 255))),
        ("result saturates at 0", _writing(lambda y: np.maximum(y.astype(np.float64), 0))),
        ("bias ignored", _reading(lambda bias: np.zeros_like(bias, np.float64), "bias")),
    )
)
"""Mistakes about bytes without a sign, beside filters that have one."""

KNOWN_BAD: tuple[Mutant, ...] = (*_CODES, *_SUMS, *_WHOLE, *_UNSIGNED)
