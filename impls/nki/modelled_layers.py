"""`python -m impls.nki.modelled_layers`, in a checkout: layers of networks at full size on a model of the device.

Without a device and without arithmetic: the kernels run in an emulator that only issues their instructions and counts
the time of each engine, by the vendor's formulas. The numbers are modelled, never measured.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import product
from pathlib import Path

import numpy as np

from conformance.dtypes import STORAGE
from conformance.execution.invocation import Invocation
from conformance.implementations import registry
from conformance.implementations.implementation import Implementation, Kernel, Unsupported
from conformance.operators import OPERATORS, Operator
from conformance.problems import Problem, of_section

LAYERS: tuple[Problem, ...] = of_section("conv", "unet", "networks")
DIRECTIONS = {
    "forward": "conv_forward",
    "backward-data": "conv_backward_data",
    "backward-weight": "conv_backward_weight",
}
DTYPES = ("fp32", "bf16")
IMPLEMENTATIONS = ("nki@emu", "nki@emu-gen3")
DOCUMENT = Path(__file__).parents[2] / "nki_emulator" / "docs" / "modelled-time.md"
BEGIN, END = "<!-- neuron-model: begin -->\n", "<!-- neuron-model: end -->"
SHORT = 512
"""Bytes of a run of a DMA below which it spends most of its time on overhead."""


@dataclass(frozen=True, slots=True)
class LayerTime:
    """One layer in one direction: microseconds, and bytes of contiguous runs in HBM; `refused` where it has none."""

    target: str
    dtype: str
    layer: str
    direction: str
    lower_us: float = 0.0
    scheduled_us: float = 0.0
    upper_us: float = 0.0
    roofline_us: float = 0.0
    limit: str = ""
    shortest_run: int = 0
    short_share: float = 0.0
    refused: str = ""


def modelled(layers: Sequence[Problem] = LAYERS) -> Iterator[LayerTime]:
    """Yield a row for each generation of the chip, dtype, layer and direction."""
    implementations = registry.load([Path(__file__).parent]).implementations
    for name, dtype, layer, direction in product(IMPLEMENTATIONS, DTYPES, layers, DIRECTIONS):
        yield _row(implementations[name], dtype, layer, direction)


def _row(implementation: Implementation, dtype: str, layer: Problem, direction: str) -> LayerTime:
    operator = OPERATORS[DIRECTIONS[direction]]
    kernel = next(k for k in implementation.kernels if k.operator == operator.name and dtype in k.dtypes)
    target = implementation.arrays.describe()["target"]
    try:
        with implementation.arrays.modelled() as report:  # type: ignore[attr-defined]
            _issued(implementation, kernel, operator, layer, dtype)
    except Unsupported as refusal:
        return LayerTime(target, dtype, layer.name, direction, refused=str(refusal))
    geometry = layer.geometry
    least = operator.on(geometry).bytes(STORAGE[dtype].itemsize)
    return LayerTime(
        target, dtype, layer.name, direction, report.lower_us, report.scheduled_us, report.upper_us,
        report.roofline_us(dtype, operator.flops(geometry), least), report.limit, report.shortest_run,
        report.share_below(SHORT),
    )  # fmt: skip


def _issued(implementation: Implementation, kernel: Kernel, operator: Operator, layer: Problem, dtype: str) -> None:
    """Call a kernel on zeros: instructions are only issued, so that values have no influence."""
    workload = operator.on(layer.geometry)
    inputs = {
        name: np.zeros(tensor.shape, STORAGE[tensor.stored_as(dtype)]) for name, tensor in workload.inputs.items()
    }
    invocation = Invocation(kernel, implementation.arrays, workload, dtype, "nchw")
    invocation.start(invocation.to_device(inputs))


def _told(row: LayerTime) -> str:
    place = f"{row.target} {row.dtype} {row.layer} {row.direction}"
    if row.refused:
        return f"{place}: refused, {row.refused}"
    ratios = f"{row.lower_us / row.roofline_us:.2f} to {row.upper_us / row.roofline_us:.2f} x roofline"
    return f"{place}: modelled {row.lower_us:,.0f} to {row.upper_us:,.0f} us, {ratios}, {row.limit}"


HEADS = (
    "layer", "direction", "modelled us", "scheduled", "roofline us", "ratio", "limit", "shortest run",
    f"below {SHORT} B",
)  # fmt: skip


def markdown(rows: Sequence[LayerTime]) -> Iterator[str]:
    """Yield a table for each target and dtype."""
    for place in dict.fromkeys((row.target, row.dtype) for row in rows):
        yield from (f"{place[0]}, {place[1]}:", "", f"| {' | '.join(HEADS)} |")
        yield f"|{'---|' * 2}{'---:|' * (len(HEADS) - 2)}"
        for row in rows:
            if (row.target, row.dtype) == place:
                yield f"| {' | '.join(_cells(row))} |"
        yield ""


def _cells(row: LayerTime) -> Iterator[str]:
    yield from (row.layer, row.direction)
    if row.refused:
        yield from ("refused: " + row.refused.replace("|", "/"), *[""] * 6)
        return
    yield from (f"{row.lower_us:,.0f} to {row.upper_us:,.0f}", f"{row.scheduled_us:,.0f}", f"{row.roofline_us:,.0f}")
    ratio = f"{row.lower_us / row.roofline_us:.2f} to {row.scheduled_us / row.roofline_us:.2f}"
    yield from (ratio, row.limit, f"{row.shortest_run:,} B", f"{row.short_share:.0%}")


if __name__ == "__main__":
    rows = []
    for row in modelled():
        rows.append(row)
        print(_told(row), flush=True)
    document = DOCUMENT.read_text(encoding="utf-8")
    start, rest = document.split(BEGIN, 1)
    table = "\n".join(markdown(rows))
    DOCUMENT.write_text(f"{start}{BEGIN}\n{table}\n\n{END}{rest.split(END, 1)[1]}", encoding="utf-8")
    sys.exit(any(row.refused for row in rows))
