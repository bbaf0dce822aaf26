"""What is required of an implementation, as data: the suites collect it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from conformance.checks.adjoint import directions_are_adjoint
from conformance.checks.behaviour import BEHAVIOUR, invalid_arguments, worked_example_is_exact
from conformance.checks.memory import backward_keeps_what_is_declared, training_holds_what_autograd_shows
from conformance.checks.partial import (
    gradients_asked_for_alone,
    lacks_autograd,
    lacks_into,
    lacks_output_mask,
    outputs_asked_for_alone,
    results_are_added_to_arrays,
)
from conformance.checks.sample import Check
from conformance.checks.state import STATE, calls_in_a_row_are_right
from conformance.execution.plan import Lacks
from conformance.operators import OPERATORS
from conformance.problems import Problem, typed


def dense(geometry: Any) -> bool:
    return bool(geometry.groups == 1)


def grouped(geometry: Any) -> bool:
    """Depthwise convolutions included."""
    return bool(geometry.groups > 1)


PARTIAL: tuple[Problem, ...] = tuple(
    typed(text, "standard")
    for text in (
        *("n1 c5 h7 w9 k7 r3 s3 p1 b1", "n3 c11 h5 w5 k7 r1 s1 b1"),
        *("n3 c9 h9 w9 k9 r3 s3 u2 p1 g9", "n2 c4 h9 w8 k6 r3 s2 u1x2 p0:1x2:0 d2x1 g2 b1"),
        *("bn n3 c5 h7 w9 k7 r3 s3 p1", "bn n3 c11 h5 w5 k7 r1 s1 affine0 run0"),
        *("pool n2 c5 h9 w8 r3 s3 u2 p1", "pool n2 c6 h5 w5 r5 s5"),
        *("maxpool n2 c5 h9 w8 r3 s3 u2 p1", "maxpool n2 c4 h8 w6 r2 s2"),
        *("convt n2 c5 h5 w6 k7 r3 s3 u2 p1 o1 b1", "convt n3 c4 h4 w5 k6 r2 s3 u1x2 p0:1x1:0 d2x1 g2 b1"),
    )
)
"""What partial requests and sums into an array are checked on: one problem for each path that kernels commonly have,
small, and with odd numbers of elements, so that vectors have tails."""
MEMORY_PAIRS = (
    typed("bn n8 c32 h26 w26 k64 r3 s3", "standard"),
    typed("bn n4 c24 h14 w14 k40 r3 s3 u2 p1 affine0 run0", "standard"),
)
MEMORY_STEPS = (
    typed("bn n64 c32 h26 w26 k64 r3 s3 affine0 run0 eps3", "standard"),
    typed("bn n2048 c32 h26 w26 k64 r3 s3 affine0 run0 eps3", "full"),
)
"""For the checks of memory: large enough that what is kept shows; the second step is the tutorial's own."""


@dataclass(frozen=True, slots=True)
class RequiredCheck:
    """A check and what it is made on: a few small problems of each operator, or problems and dtypes of its own.

    of_right_kernels  whether it says nothing about a kernel that is wrong on plain inputs, and is not made there
    judges            whether it can fail: a run in which only others pass has verified nothing
    paths             on how many of a kernel's paths at most, see `conformance.execution.kernel_paths`; 0 as many as
                      the level asks for. None: on the first few problems that it takes
    lacks             why it does not apply to an implementation and operator, which is then said once; empty if it does
    """

    check: Check
    operators: tuple[str, ...] = tuple(OPERATORS)
    problems: tuple[Problem, ...] = ()
    dtypes: tuple[str, ...] = ()
    of_right_kernels: bool = False
    judges: bool = True
    paths: int | None = None
    lacks: Lacks = lambda implementation, operator: ""


def _capable(capability: str) -> tuple[str, ...]:
    return tuple(name for name, operator in OPERATORS.items() if capability in operator.capabilities)


_CHECKS = (
    *(RequiredCheck(check, of_right_kernels=True) for check in BEHAVIOUR),
    RequiredCheck(calls_in_a_row_are_right, of_right_kernels=True, paths=0),
    *(RequiredCheck(check, of_right_kernels=True, paths=1) for check in STATE),
    RequiredCheck(directions_are_adjoint, ("conv_forward", "conv_transpose_forward"), of_right_kernels=True),
    RequiredCheck(
        worked_example_is_exact, tuple(name for name, operator in OPERATORS.items() if operator.worked_example)
    ),
    RequiredCheck(invalid_arguments, of_right_kernels=True, judges=False),
    RequiredCheck(backward_keeps_what_is_declared, ("conv_bn_forward",), MEMORY_PAIRS, ("fp32", "bf16")),
    RequiredCheck(training_holds_what_autograd_shows, ("conv_bn_forward",), MEMORY_STEPS, ("fp32",)),
    RequiredCheck(outputs_asked_for_alone, _capable("output_mask"), PARTIAL, ("fp32", "bf16"), lacks=lacks_output_mask),
    RequiredCheck(
        gradients_asked_for_alone,
        tuple(name for name, operator in OPERATORS.items() if operator.gradients),
        PARTIAL,
        ("fp32", "bf16"),
        lacks=lacks_autograd,
    ),
    RequiredCheck(results_are_added_to_arrays, _capable("into"), PARTIAL, ("fp32", "bf16"), lacks=lacks_into),
)
CHECKS: dict[str, RequiredCheck] = {required.check.__name__: required for required in _CHECKS}
"""Name of a check -> the check and what it is required on."""
