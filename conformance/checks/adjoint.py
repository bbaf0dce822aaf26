"""The adjoint identity, which ties an implementation's three directions together:

<dy, conv(x, w)> = <backward_data(dy, w), x> = <backward_weight(x, dy), w>
"""

from __future__ import annotations

import itertools
from dataclasses import dataclass, replace

import numpy as np

from conformance.execution import verify
from conformance.execution.trial import BrokenPromise, Draw, Trial
from conformance.implementations.implementation import Kernel, Unsupported
from conformance.judge.limits import limits
from conformance.operators import OPERATORS, Arrays
from conformance.problems import Problem

COFACTORS = {name: operator.cofactor for name, operator in OPERATORS.items() if operator.cofactor}
"""Direction -> the tensor that its result is multiplied with."""


@dataclass(frozen=True, slots=True)
class Product:
    """One side of the identity: its value, and how far the contract lets it be from the exact one."""

    direction: str
    value: float
    allowance: float


def directions_are_adjoint(trial: Trial) -> None:
    """The three inner products agree: exactly on integers, within the contracts' bounds on fixed-point data."""
    geometry = replace(trial.case.problem.geometry, bias=False)
    problem = replace(trial.case.problem, geometry=geometry)
    for distribution in ("integer", "fixed"):
        shared = _shared(trial, problem, distribution)
        products = [_product(trial, problem, distribution, direction, shared) for direction in COFACTORS]
        for first, second in itertools.combinations(products, 2):
            _require_equal(first, second, distribution)


def _shared(trial: Trial, problem: Problem, distribution: str) -> Arrays:
    """x, w and dy of one problem."""
    return _draw(trial, problem, distribution, "conv_forward").expected.inputs | {
        "dy": _draw(trial, problem, distribution, "conv_backward_data").expected.inputs["dy"]
    }


def _draw(trial: Trial, problem: Problem, distribution: str, direction: str) -> Draw:
    other = Trial(replace(trial.case, operator=OPERATORS[direction]), trial.kernel)
    return other.draw(distribution=distribution, problem=problem)


def _product(trial: Trial, problem: Problem, distribution: str, direction: str, shared: Arrays) -> Product:
    """Call one direction on the shared tensors. Errors of its elements are independent: their bounds add in squares."""
    draw = _draw(trial, problem, distribution, direction)
    draw = draw.holding({name: shared[name] for name in draw.expected.inputs})
    variant = draw.case.variant
    kernel = draw.case.implementation.find(direction, problem.geometry, variant.dtype, variant.layout)
    if not isinstance(kernel, Kernel):
        raise Unsupported(f"has no {direction} for this problem: {kernel}")
    other = Trial(draw.case, kernel)
    host = other.hosts(other.call(other.inputs(draw), draw))[0]
    (name, tensor), *_ = draw.outputs.items()
    result = verify.canonical(draw.case, name, tensor, host).astype(np.float64)
    cofactor = shared[COFACTORS[direction]].astype(np.float64)
    if distribution == "integer" and kernel.contract.exact_on_integers(variant.dtype):
        return Product(direction, float(np.vdot(result, cofactor)), 0.0)
    terms = draw.case.operator.errors(problem.geometry).terms[name]
    allowed = limits(kernel.contract, variant.dtype, terms, result.size)
    bound = allowed.bound(draw.expected.reference[name], draw.expected.magnitude[name].astype(np.float64))
    return Product(direction, float(np.vdot(result, cofactor)), float(np.linalg.norm(bound * cofactor)))


def _require_equal(first: Product, second: Product, distribution: str) -> None:
    difference = abs(first.value - second.value)
    if not difference <= first.allowance + second.allowance:
        raise BrokenPromise(
            f"{first.direction} and {second.direction} are not adjoint on the {distribution} distribution: "
            f"inner products {first.value!r} and {second.value!r}, allowed apart "
            f"{first.allowance + second.allowance:.3g}"
        )
