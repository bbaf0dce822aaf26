"""What is required of an implementation, as data: the suites collect it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from conformance.checks.adjoint import directions_are_adjoint
from conformance.checks.behaviour import BEHAVIOUR
from conformance.checks.invalid_arguments import invalid_arguments
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
from conformance.checks.tutorial import worked_example_is_exact
from conformance.execution.plan import Lacks
from conformance.operators import OPERATORS
from conformance.problems import Problem, partial
from conformance.problems.normalised import MEMORY_PAIRS, MEMORY_STEPS


def dense(geometry: Any) -> bool:
    return bool(geometry.groups == 1)


def grouped(geometry: Any) -> bool:
    """Depthwise convolutions included."""
    return bool(geometry.groups > 1)


@dataclass(frozen=True, slots=True)
class RequiredCheck:
    """A check and what it is made on: a few small problems of each operator, or problems and dtypes of its own.

    of_right_kernels  whether it says nothing about a kernel that is wrong on plain inputs, and is not made there
    judges            whether it can fail: a run in which only others pass has verified nothing
    paths             on how many of a kernel's paths at most, see `conformance.execution.paths`; 0 as many as the level
                      asks for. None: on the first few problems that it takes
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
    RequiredCheck(
        outputs_asked_for_alone, _capable("output_mask"), partial.PROBLEMS, ("fp32", "bf16"), lacks=lacks_output_mask
    ),
    RequiredCheck(
        gradients_asked_for_alone,
        tuple(name for name, operator in OPERATORS.items() if operator.gradients),
        partial.PROBLEMS,
        ("fp32", "bf16"),
        lacks=lacks_autograd,
    ),
    RequiredCheck(results_are_added_to_arrays, _capable("into"), partial.PROBLEMS, ("fp32", "bf16"), lacks=lacks_into),
)
CHECKS: dict[str, RequiredCheck] = {required.check.__name__: required for required in _CHECKS}
"""Name of a check -> the check and what it is required on."""
