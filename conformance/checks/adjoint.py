"""The adjoint identity, which ties an implementation's three directions together.

<dy, conv(x, w)> = <backward_data(dy, w), x> = <backward_weight(x, dy), w>
"""

from __future__ import annotations

import itertools
import math
from dataclasses import replace

import numpy as np

from conformance.checks.sample import Sample, Subject
from conformance.execution.status import BehaviourError
from conformance.implementations.implementation import Unsupported
from conformance.inputs.drawing import room
from conformance.judge.limits import limits
from conformance.operators import FAMILIES, OPERATORS

COFACTORS = {
    name: {operator.name: operator.cofactor for operator in family.operators if operator.cofactor}
    for name, family in FAMILIES.items()
}
"""Family -> direction -> the tensor that the direction's result is multiplied with."""


def sums_are_exact(sample: Sample) -> bool:
    """Return whether no sum of these integers can be rounded: operands were drawn for sums of one direction only."""
    recipe = sample.expected.recipe
    sizes = {name: np.abs(array.astype(np.float64)) for name, array in sample.expected.inputs.items()}
    largest = next(iter(recipe.workload.reference(sizes).values()))
    return bool(largest.max(initial=0) <= room(recipe))


def directions_are_adjoint(subject: Subject) -> None:
    """Check that the three inner products agree: exactly on integers that no sum rounds, else within the contracts'
    bounds.

    Errors of the elements of a result are independent and within their bounds b, so that their sum stays below z *
    sqrt(sum of b^2) but for one time in 2 exp(z^2/2) (Hoeffding, JASA 58, 1963); errors of one sign add up.
    """
    geometry = replace(subject.trial.problem.geometry, bias=False)
    problem, dtype = replace(subject.trial.problem, geometry=geometry), subject.trial.variant.dtype
    cofactors = COFACTORS[subject.trial.operator.family]
    for distribution in ("integer", "fixed"):
        directions = []
        for name in cofactors:
            trial = replace(subject.trial, operator=OPERATORS[name], problem=problem)
            try:
                directions.append(subject.on(trial).sample(distribution=distribution))
            except Unsupported as refusal:
                raise Unsupported(f"has no {name} for this problem: {refusal}") from None
        forward, backward_data, _ = directions
        shared = forward.expected.inputs | {"dy": backward_data.expected.inputs["dy"]}  # x, w and dy
        products, judged = [], []
        for (direction, cofactor), sample in zip(cofactors.items(), directions, strict=True):
            sample = sample.holding({name: shared[name] for name in sample.expected.inputs})
            results = sample.call(sample.inputs())
            result = next(iter(sample.invocation.outputs(results).values())).astype(np.float64)
            other = shared[cofactor].astype(np.float64)
            allowance = linear = 0.0
            exact = distribution == "integer" and sample.contract.exact_on_integers(dtype) and sums_are_exact(sample)
            if exact or distribution != "integer":
                judged.append((direction, sample, results))
            if not exact:
                output = next(iter(sample.invocation.tensors))
                terms = sample.invocation.workload.errors.terms[output]
                magnitude = sample.expected.tensors.magnitude[output].astype(np.float64)
                promised = limits(sample.contract, dtype, terms, result.size)
                errors = promised.bound(sample.expected.tensors.reference[output], magnitude) * np.abs(other)
                if promised.one_sided:
                    linear = float(errors.sum())
                else:
                    allowance = promised.z * float(np.linalg.norm(errors))
            products.append((direction, float(np.vdot(result, other)), allowance, linear))
        for (first, value, *bounds), (second, other_value, *other_bounds) in itertools.combinations(products, 2):
            limit = math.hypot(bounds[0], other_bounds[0]) + bounds[1] + other_bounds[1]
            if not abs(value - other_value) <= limit:
                for direction, sample, results in judged:
                    sample.require_right(results, f"of {direction}")
                raise BehaviourError(
                    f"{first} and {second} are not adjoint on the {distribution} distribution: inner products "
                    f"{value!r} and {other_value!r}, limit of their difference {limit:.3g}",
                    wrong_on=distribution,
                )
        if any(value for _, value, *_ in products):  # kernels that return zeros are adjoint, too
            subject.judged.append(f"inner products on the {distribution} distribution")
