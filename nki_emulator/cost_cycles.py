"""Cycles of an instruction on the engine that runs it, by the vendor's formulas.

Formulas: "nki.isa.<name>", section "Estimated instruction cost", Neuron SDK 2.26; later releases leave them out.
Clocks: "Trainium/Inferentia2 Architecture Guide", section "NeuronCore-v2 Compute Engines", and "Trainium2 Architecture
Guide", section "NeuronCore-v3 Compute Engine Updates", SDK 2.32. They count initiation intervals: how soon the next
instruction of the same engine may follow.

Not documented, and assumed: what GpSimd takes for anything but iota and affine_select (150 + n, as those do), and an
instruction whose engine the compiler chooses (Vector where it can, Scalar for activations).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from .storage import Region
from .targets import Target
from .tensor import NkiTensor

MIN_INTERVAL = 64
"""Cycles from one instruction to the next, however small: MIN_II of the API pages, MM_INIT_LATENCY of the guide."""
GPSIMD_START = 150
DEPENDENT = 100
"""Cycles that an instruction's result takes on top where another waits for it: "Vector Engine", cost model."""
STRIDE = 16
"""Bytes between elements beyond which SBUF and PSUM give half of their bandwidth: "Performance Consideration"."""
HALF = ("bfloat16", "float16")


@dataclass(frozen=True, slots=True)
class Clocks:
    """GHz of the compute engines, and TFLOPS of the Tensor Engine, both for a NeuronCore."""

    tensor: float
    vector: float
    scalar: float
    gpsimd: float
    tflops: dict[str, float]

    def of(self, engine: str) -> float:
        return float(getattr(self, engine))


CLOCKS = {
    2: Clocks(2.8, 1.12, 1.4, 1.4, {"fp32": 23.0, "bf16": 92.0, "fp16": 92.0}),
    3: Clocks(2.4, 0.96, 1.2, 1.2, {"fp32": 20.0, "bf16": 79.0, "fp16": 79.0}),
}
"""By generation. gen4 is not modelled."""


@dataclass(slots=True)
class Issue:
    """One instruction as it was issued: operands by the name of the parameter, and what else its cost depends on."""

    name: str
    operands: dict[str, NkiTensor] = field(default_factory=dict)
    engine: str = ""
    """The engine asked for, or none."""
    operators: list[str] = field(default_factory=list)
    flags: dict[str, Any] = field(default_factory=dict)

    def tiles(self, *names: str) -> list[NkiTensor]:
        return [self.operands[name] for name in names if name in self.operands]


def cost(issue: Issue, target: Target) -> tuple[str, float] | None:
    """Engine and cycles; None for what takes no engine's time here (registers, constants), and for DMA."""
    formula = _FORMULAS.get(issue.name)
    return None if formula is None else formula(issue, target)


def _slowed(tile: NkiTensor) -> int:
    """2 where elements lie further apart than the memory's full bandwidth allows, else 1."""
    for size, stride in zip(reversed(tile.shape[1:]), reversed(tile.strides[1:]), strict=True):
        if size > 1:
            return 2 if stride * tile.dtype.itemsize > STRIDE else 1
    return 1


def _elements(issue: Issue, *names: str) -> int:
    """Elements a partition of the named operands, twice where one of them or dst is strided too far."""
    tiles = issue.tiles(*names)
    slowed = max(_slowed(tile) for tile in (*tiles, *issue.tiles("dst")))
    return max(tile.free for tile in tiles) * slowed


def _half(tiles: list[NkiTensor]) -> bool:
    return all(tile.dtype.name in HALF for tile in tiles)


def _in_sbuf(tiles: list[NkiTensor]) -> bool:
    return all(tile.storage.region is Region.sbuf for tile in tiles)


def _contiguous(tiles: list[NkiTensor]) -> bool:
    return all(tile.shape[-1] == 1 or tile.strides[-1] == 1 for tile in tiles)


def _on(issue: Issue, cycles: float, engine: str = "vector") -> tuple[str, float]:
    """On the engine asked for, or the one that the compiler is taken to choose."""
    engine = issue.engine or engine
    if engine == "gpsimd":
        return engine, GPSIMD_START + cycles
    return engine, max(MIN_INTERVAL, cycles)


def _matmul(issue: Issue, target: Target) -> tuple[str, float]:
    """max(min(64, stationary), moving), times 4 in float32, times 2 where one operand is ones and zeros."""
    stationary, moving = issue.operands["stationary"], issue.operands["moving"]
    loads = min(MIN_INTERVAL, stationary.free * _slowed(stationary))
    cycles = max(loads, moving.free * _slowed(moving))
    if moving.dtype.name != "float32":
        return "tensor", cycles
    return "tensor", cycles * (2 if issue.flags.get("onezero") else 4)


def _transpose(issue: Issue, target: Target) -> tuple[str, float]:
    data, dst = issue.operands["data"], issue.operands["dst"]
    if dst.storage.region is Region.psum and issue.engine != "vector":
        return "tensor", max(data.shape[0], min(MIN_INTERVAL, data.free))
    return "vector", max(MIN_INTERVAL, data.free)


def _elementwise(issue: Issue, target: Target) -> tuple[str, float]:
    """tensor_copy and tensor_scalar, which the Vector Engine of gen3 does for up to four 16-bit elements a cycle.

    "Vector Engine Performance Mode", Trainium2 Architecture Guide.
    """
    tiles = issue.tiles("dst", "src", "data")
    name = "src" if "src" in issue.operands else "data"
    cycles: float = _elements(issue, name)
    if target.generation > 2 and issue.engine in ("", "vector") and _half(tiles):
        dense, inside = _contiguous(tiles), _in_sbuf(tiles)
        both = sum(tile.storage.region is Region.psum for tile in tiles) > 1
        cycles /= 4 if dense and inside else 2 if inside or (dense and not both) else 1
    return _on(issue, cycles)


def _two_tiles(issue: Issue, target: Target) -> tuple[str, float]:
    """tensor_tensor: n where one tile is in PSUM, or all are of 16 bits under the conditions of the page, else 2n."""
    inputs = issue.tiles("data1", "data2")
    tiles = issue.tiles("dst", "data1", "data2")
    n = _elements(issue, "data1", "data2")
    if target.generation > 2:
        fast = _in_sbuf(inputs) and _half(tiles)
    else:
        simple = issue.operators[:1] in (["add"], ["subtract"], ["multiply"])
        fast = simple and all(t.dtype.name == "bfloat16" for t in tiles) and _contiguous(inputs) and _in_sbuf(inputs)
    return _on(issue, n if fast or not _in_sbuf(inputs) else 2 * n)


def _scalar_tensor_tensor(issue: Issue, target: Target) -> tuple[str, float]:
    inputs = issue.tiles("data", "operand1")
    n = _elements(issue, "data", "operand1")
    fast = all(tile.dtype.name == "bfloat16" for tile in inputs) and issue.operators == ["subtract", "multiply"]
    return _on(issue, n if fast and n % 2 == 0 else 2 * n)


def _reduce(issue: Issue, target: Target) -> tuple[str, float]:
    tiles = issue.tiles("data", "dst")
    n = _elements(issue, "data")
    fast = all(tile.dtype.name == "bfloat16" for tile in tiles) and issue.operators[:1] in (["add"], ["maximum"])
    return _on(issue, n / 2 if fast else n)


def _activation(issue: Issue, target: Target) -> tuple[str, float]:
    """One element a cycle, and one more short instruction to read the sums."""
    engine, cycles = _on(issue, _elements(issue, "data"), "scalar")
    return engine, cycles + (MIN_INTERVAL if "reduce_res" in issue.operands else 0)


def _memset(issue: Issue, target: Target) -> tuple[str, float]:
    dst = issue.operands["dst"]
    n = dst.free * _slowed(dst)
    return _on(issue, n / 2 if issue.flags.get("zero") and dst.dtype.name in HALF else n)


def _predicated(issue: Issue, target: Target) -> tuple[str, float]:
    n = _elements(issue, "predicate")
    return _on(issue, 2 * n if _in_sbuf(issue.tiles("src", "predicate")) else n)


def _times(factor: float, name: str, more: int = 0) -> Callable[[Issue, Target], tuple[str, float]]:
    """So many cycles for each element of an operand, and so many more for the instruction."""

    def formula(issue: Issue, target: Target) -> tuple[str, float]:
        engine, cycles = _on(issue, factor * _elements(issue, name))
        return engine, cycles + more

    return formula


def _started(issue: Issue, target: Target) -> tuple[str, float]:
    return "gpsimd", GPSIMD_START + issue.operands["dst"].free


_FORMULAS: dict[str, Callable[[Issue, Target], tuple[str, float]]] = {
    "nc_matmul": _matmul,
    "nc_transpose": _transpose,
    "tensor_copy": _elementwise,
    "tensor_scalar": _elementwise,
    "tensor_tensor": _two_tiles,
    "scalar_tensor_tensor": _scalar_tensor_tensor,
    "tensor_reduce": _reduce,
    "tensor_scalar_reduce": _times(1, "data", MIN_INTERVAL),
    "reciprocal": _times(8, "data"),
    "bn_stats": _times(1, "data"),
    "bn_aggr": _times(13 / 3, "data"),
    "activation": _activation,
    "activation_reduce": _activation,
    "tensor_tensor_scan": _times(2, "data0"),
    "tensor_copy_predicated": _predicated,
    "memset": _memset,
    "iota": _started,
    "affine_select": _started,
}
COSTED = frozenset(_FORMULAS) | {"dma_copy", "dma_transpose"}
"""Instructions that take time; others are registers and constants."""
