"""Grouped weight gradients by split-K, in layouts that have groups as an axis: which declared contracts pass.

The sum over images and places is cut into stretches, each is summed in fp32, and the partial sums are stored, in fp32
or bf16, before they are added; or each is added in bf16 to what the output holds, as atomics in it are. Nothing but the
arithmetic differs.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np

from conformance.contract import Contract
from conformance.dtypes import FORMATS
from conformance.execution.check import CheckResult, check
from conformance.implementations.implementation import Implementation
from conformance.layouts import arranged
from conformance.operators import OPERATORS, parse
from conformance.operators.known_kernels import sums
from conformance.operators.known_kernels.sums import Sum

OPERATOR = OPERATORS["conv_backward_weight"]
SPLITS = (16, 128)
BF16 = FORMATS["bf16"]
KERNELS: dict[str, tuple[Any, ...]] = {
    "fp32": (),
    "bf16": ({"kept": BF16},),
    "bf16, added in bf16": ({"kept": BF16, "combine": partial(sums.in_turn_stored, BF16)},),
}
"""Partial sums of the kernel -> how they are kept and combined."""
PROBLEMS = {
    "gnwc": ("n2 c12 w66 k15 s3 g3", "n4 c12 w1026 k15 s3 g3"),
    "nhwgc": ("n2 c12 h10 w10 k15 r3 s3 g3", "n4 c12 h34 w34 k15 r3 s3 g3"),
    "gndhwc": ("n2 c6 d6 h6 w6 k9 t3 r3 s3 g3", "n4 c6 d10 h10 w18 k9 t3 r3 s3 g3"),
}
"""Layout -> problems whose sums have 128 and 4,096 terms."""


@dataclass(frozen=True, slots=True)
class ContractVerdicts:
    """Verdicts of one kernel on one problem under each declared contract: whether it passed, and its largest error in
    units of the limit."""

    layout: str
    problem: str
    terms: int
    dtype: str
    splits: int
    partials: str
    passed: tuple[bool, ...]
    error: tuple[float, ...]


def contracts(splits: int) -> tuple[Contract, ...]:
    """What such a kernel may declare: nothing, fp32 partial sums, bf16 ones."""
    return Contract(), Contract(splits=splits), Contract(splits=splits, partials="bf16")


def kernel(layout: str, problem: str, dtype: str, splits: int, partials: str, contract: Contract) -> Implementation:
    """An implementation that takes images and returns weights in the layout."""
    geometry, made = parse(problem), Implementation(f"split-k{splits}", contract=contract)
    total = Sum(lanes=sums.always(splits), **(KERNELS[partials] or ({},))[0])
    tensors = OPERATOR.inputs(geometry) | OPERATOR.outputs(geometry)
    place = {name: arranged(tensor, layout, geometry) for name, tensor in tensors.items()}

    @made.implements(OPERATOR.name, dtypes=(dtype,), layouts=(layout,))
    def conv_backward_weight(x: Any, dy: Any) -> np.ndarray:
        given = {"x": place["x"].from_memory(x), "dy": place["dy"].from_memory(dy)}
        return place["dw"].to_memory(sums.direct(total, OPERATOR, geometry, given, dtype)["dw"])

    return made


def share(result: CheckResult) -> float:
    """The largest error in units of its limit."""
    found = result.outputs["dw"]
    assert found.error is not None
    assert found.limit is not None
    return float(np.max(np.abs(found.error) / found.limit))


def measured() -> Iterator[ContractVerdicts]:
    """All of them, in the order of sizes, dtypes, splits."""
    for layout, problems in PROBLEMS.items():
        for problem in problems:
            geometry = parse(problem)
            terms = geometry.y.size // geometry.k
            for dtype in ("fp32", "bf16"):
                for splits in (count for count in SPLITS if count <= terms // 8):
                    for partials in KERNELS:
                        yield _row(layout, problem, terms, dtype, splits, partials)


def _row(layout: str, problem: str, terms: int, dtype: str, splits: int, partials: str) -> ContractVerdicts:
    made = [kernel(layout, problem, dtype, splits, partials, one) for one in contracts(splits)]
    results = [check(one, problem, dtype=dtype, layout=layout) for one in made]
    passed = tuple(result.passed for result in results)
    return ContractVerdicts(layout, problem, terms, dtype, splits, partials, passed, tuple(map(share, results)))
