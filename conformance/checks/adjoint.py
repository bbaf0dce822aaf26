"""The adjoint identity, which ties an implementation's three directions together:

<dy, conv(x, w)> = <backward_data(dy, w), x> = <backward_weight(x, dy), w>
"""

from __future__ import annotations

import itertools
from dataclasses import replace

import numpy as np

from conformance.checks.sample import BehaviourError, Subject
from conformance.implementations.implementation import Unsupported
from conformance.judge.limits import limits
from conformance.operators import OPERATORS

COFACTORS = {name: operator.cofactor for name, operator in OPERATORS.items() if operator.cofactor}
"""Direction -> the tensor that its result is multiplied with."""


def directions_are_adjoint(subject: Subject) -> None:
    """The three inner products agree: exactly on integers, within the contracts' bounds on fixed-point data.

    Errors of the elements of a result are independent, so that their bounds add in squares.
    """
    geometry = replace(subject.case.problem.geometry, bias=False)
    problem, dtype = replace(subject.case.problem, geometry=geometry), subject.case.variant.dtype
    for distribution in ("integer", "fixed"):
        directions = []
        for name in COFACTORS:
            case = replace(subject.case, operator=OPERATORS[name], problem=problem)
            try:
                directions.append(Subject(case, case.kernel).sample(distribution=distribution))
            except Unsupported as refusal:
                raise Unsupported(f"has no {name} for this problem: {refusal}") from None
        forward, backward_data, _ = directions
        shared = forward.expected.inputs | {"dy": backward_data.expected.inputs["dy"]}  # x, w and dy
        products = []
        for (direction, cofactor), sample in zip(COFACTORS.items(), directions, strict=True):
            sample = sample.holding({name: shared[name] for name in sample.expected.inputs})
            result = next(iter(sample.invocation.outputs(sample.call(sample.inputs())).values())).astype(np.float64)
            other = shared[cofactor].astype(np.float64)
            allowance = 0.0
            if distribution != "integer" or not sample.contract.exact_on_integers(dtype):
                output = next(iter(sample.tensors))
                terms = sample.invocation.operator.errors(geometry).terms[output]
                magnitude = sample.expected.magnitude[output].astype(np.float64)
                allowed = limits(sample.contract, dtype, terms, result.size)
                allowance = float(np.linalg.norm(allowed.bound(sample.expected.reference[output], magnitude) * other))
            products.append((direction, float(np.vdot(result, other)), allowance))
        for (first, value, room), (second, other_value, other_room) in itertools.combinations(products, 2):
            if not abs(value - other_value) <= room + other_room:
                raise BehaviourError(
                    f"{first} and {second} are not adjoint on the {distribution} distribution: inner products "
                    f"{value!r} and {other_value!r}, limit of their difference {room + other_room:.3g}",
                    wrong_on=distribution,
                )
