"""What the suites ask of an implementation, as data: the suites collect it, a submission must answer all of it.

A row is one test function. `tests/test_submission_pack.py` compares the rows with the suites' marks.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

from conformance.checks.behaviour import CHECKS
from conformance.operators import OPERATORS
from conformance.problems import Problem, typed

Predicate = Callable[[Any], bool]


def dense(geometry: Any) -> bool:
    return bool(geometry.groups == 1)


def grouped(geometry: Any) -> bool:
    return bool(geometry.groups > 1)


VERIFIED: tuple[tuple[str, Predicate | None], ...] = (
    *((name, when) for name in ("conv_forward", "conv_backward_data", "conv_backward_weight")
      for when in (dense, grouped)),
    *((name, None) for name in (
        "avg_pool_forward", "avg_pool_backward", "conv_bn_forward", "conv_bn_backward", "conv_bn_inference",
    )),
)  # fmt: skip
"""Operator, and which of its problems."""

BEHAVIOUR: dict[str, tuple[str, ...]] = {
    **{check.__name__: tuple(OPERATORS) for check in CHECKS},
    "impossible_requests": tuple(OPERATORS),
    "directions_are_adjoint": ("conv_forward",),
    "arange_is_exact": ("avg_pool_forward",),
}
"""Check -> operators."""

PAIRS = tuple(map(typed, ("bn n8 c32 h26 w26 k64 r3 s3", "bn n4 c24 h14 w14 k40 r3 s3 u2 p1 affine0 run0")))
STEP = typed("bn n64 c32 h26 w26 k64 r3 s3 affine0 run0 eps3")
PUBLISHED_STEP = replace(typed("bn n2048 c32 h26 w26 k64 r3 s3 affine0 run0 eps3"), level="full")

MEASURED: dict[str, tuple[str, tuple[Problem, ...], tuple[str, ...]]] = {
    "backward_keeps_what_is_declared": ("conv_bn_forward", PAIRS, ("fp32", "bf16")),
    "training_holds_what_autograd_shows": ("conv_bn_forward", (STEP, PUBLISHED_STEP), ("fp32",)),
}
"""Check of memory -> operator, problems and dtypes."""
