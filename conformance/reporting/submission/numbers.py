"""The numbers of a pass, derived once more from what its record declares: the outputs and checks that it must have,
each limit, and the least error that a result in the output's format can have.

No kernel is needed for that. The limits come from the code that judges, so that the two cannot disagree.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Iterator, Mapping
from dataclasses import asdict, replace
from functools import lru_cache
from typing import Any

import numpy as np

from conformance.dtypes import FORMATS, STORAGE
from conformance.execution.behaviour import SMALL
from conformance.inputs import Expectation, Recipe
from conformance.inputs.probing import Probes, worthwhile
from conformance.judge import Contract, ContractError, Output, outputs_of
from conformance.judge.accuracy import KNOWN, ladder
from conformance.judge.judgement import EQUALITY_DISTRIBUTIONS, checked
from conformance.judge.limits import LAMBDA, limits
from conformance.judge.probes import projection_limit
from conformance.judge.residuals import Residuals, measure
from conformance.operators import OPERATORS, parse
from conformance.results.reading import shown
from conformance.results.schema import CaseRecord, CheckRecord, Number, Profile, TrainingRecord
from conformance.storage import repeats, with_repeats
from conformance.training.tables import DIRECTIONS, configuration

ROUNDING = 1e-9
"""Relative difference of a logarithm or a root between two machines, and of the six digits that no record has."""
BOUND, RMS, GAIN, OFFSET = "worst error / bound", "rms", "gain z", "offset z"
expectation = lru_cache(maxsize=1)(Expectation)
"""Layouts share tensors: records are looked at in the order of their recipes."""


def recipe_of(record: CaseRecord) -> Recipe:
    operator, geometry = OPERATORS[record.operator], parse(record.descriptor)
    return Recipe(operator, geometry, record.dtype, record.distribution, record.seed)


def contract_of(fields: Mapping[str, Any]) -> Contract:
    """The contract that a record declares. Raises ContractError for fields and values that no contract has."""
    try:
        found = Contract(**fields)
    except TypeError:
        raise ContractError(f"Contract({', '.join(fields)}): has other fields") from None
    if found.as_record() != fields:
        raise ContractError(f"Contract({', '.join(fields)}): has more fields")
    return found


def defects(record: CaseRecord) -> Iterator[str]:
    """What cannot be true of a pass; its operator, problem and variant are those of a table."""
    recipe = recipe_of(record)
    try:
        contract = contract_of(record.contract or {})
    except ContractError as problem:
        yield f"declares no contract: {shown(problem)}"
        return
    contract = contract.on(recipe.geometry)
    if exempt := contract.exempts(recipe.distribution, recipe.dtype):
        yield f"passes, although it is not verified: {exempt}"
    if record.terms != recipe.operator.errors(recipe.geometry).terms:
        yield f"terms are {shown(record.terms)}, which are not the lengths of its sums"
    if record.method not in ("exact", "probes") or (record.method == "probes" and not worthwhile(recipe)):
        yield f"method {shown(record.method)}: results of this problem are compared in full; run it without --method"
        return
    blank = {n: np.broadcast_to(0.0, tensor.shape) for n, tensor in recipe.operator.outputs(recipe.geometry).items()}
    outputs = outputs_of(recipe.operator, recipe.geometry, recipe.dtype, {}, blank, blank, dict)
    if record.checks.keys() != blank.keys():
        yield f"has numbers of {shown(', '.join(record.checks)) or 'no output'}; its outputs are {', '.join(blank)}"
        return
    for place, output in enumerate(outputs):
        probed = record.method == "probes" and not place  # the main output; others are small and known exactly
        found = list(_limits(record, recipe, output, contract, probed)) or list(_profile(record, output, contract))
        yield from (f"{output.name} {defect}" for defect in found)
        if not found and not probed and recipe.operator.flops(recipe.geometry) < SMALL:
            yield from (f"{output.name} {defect}" for defect in _impossible(record, recipe, output, contract))


def check_defects(record: CheckRecord) -> Iterator[str]:
    """What cannot be true of a behaviour check that passed."""
    try:
        contract_of(record.contract or {})
    except ContractError as problem:
        yield f"declares no contract: {shown(problem)}"
    if record.checks:
        yield "has numbers, as no behaviour check has"


def training_defects(record: TrainingRecord) -> Iterator[str]:
    """What cannot be true of a training that passed."""
    run = record.training
    try:
        known = configuration(record.problem, record.level, record.device)
        for fields in record.contracts.values():
            contract_of(fields)
    except (KeyError, ContractError) as problem:
        yield shown(problem.args[0])
        return
    if run.configuration != asdict(known):
        yield "its configuration is not that of the level"
    if record.contracts.keys() != set(DIRECTIONS):
        yield f"has contracts of {shown(', '.join(record.contracts))}, not of {', '.join(DIRECTIONS)}"
    errors = [(check, pair) for checks in record.checks.values() for check, pair in checks.items()]
    if not errors or any(check != BOUND or pair[1] != 1 or float(pair[0]) < 0 for check, pair in errors):
        yield f"must have {BOUND} of every role, from 0 to 1"
    losses = [float(loss) for loss in run.losses]
    if run.scores is None or (run.steps, len(losses)) != (known.steps, known.steps) or not run.verified:
        yield f"did not verify {known.steps} steps to the end"
        return
    first, last = losses[0], statistics.fmean(losses[-(known.images // known.batch) :])
    if not (_same(run.scores.first_loss, first) and _same(run.scores.last_loss, last)):
        yield f"scores a loss from {run.scores.first_loss} to {run.scores.last_loss}; its steps give {first} and {last}"
    if not last <= known.falls_to * first:
        yield f"the loss went from {first:.4g} to {last:.4g}; it must fall to {known.falls_to:.3g} of its first value"


def _limits(record: CaseRecord, recipe: Recipe, output: Output, contract: Contract, probed: bool) -> Iterator[str]:
    """The checks that `conformance.judge` makes, each with the limit that it has there."""
    compared = replace(output, actual=np.zeros(len(Probes(recipe, {}).index))) if probed else output
    required, given = checked(compared, recipe.distribution, contract), record.checks[output.name]
    if probed:
        exact = recipe.distribution in EQUALITY_DISTRIBUTIONS and contract.exact_on_integers(output.dtype)
        projection = None if exact else expectation(recipe).probes.projection
        limit = projection and projection_limit(projection, output.allowed(contract), output.dtype)
        required["projection error"] = limit or 0.0
    if given.keys() != required.keys():
        yield f"has the checks {shown(', '.join(given))}; it must have {', '.join(required)}"
        return
    for name, (value, limit) in given.items():
        expected = required[name]
        if name == RMS and expected < float(value) <= limit:  # then equal results count once
            known = expectation(recipe)
            reference = known.probes.samples[0] if probed else known.reference[output.name]
            expected = output.allowed(contract).rms(Residuals(reference, reference).groups.count)
        if not _same(limit, expected):
            yield f"{name} has the limit {limit}; the contract gives {expected}"
        if name not in (GAIN, OFFSET) and float(value) < 0:
            yield f"{name} is {value}, which is negative"


def _profile(record: CaseRecord, output: Output, contract: Contract) -> Iterator[str]:
    """The accuracy profile is that of the same errors under the same contract."""
    checks, profile = record.checks[output.name], record.profile.get(output.name)
    if (RMS in checks) != (profile is not None):
        yield "has no accuracy profile" if profile is None else "has an accuracy profile of results that are equal"
    if profile is None:
        return
    allowed = output.allowed(contract)
    unit = contract.accumulator(output.dtype).unit_roundoff * math.sqrt(output.terms)
    fan_out = math.sqrt(allowed.fan_out)
    expected = {"lambda_limit": allowed.relative / unit, "rms": checks[RMS][0]}
    if output.propagated is not None:
        expected["lambda_limit"] = LAMBDA
    if GAIN in checks:
        expected |= {"gain_z": float(checks[GAIN][0]) / fan_out, "offset_z": float(checks[OFFSET][0]) / fan_out}
    numbers = profile.numbers
    known = {"lambda", "lambda_limit", "rms"}
    known |= {"effective_bits", "gain_z", "offset_z"} if output.propagated is None else set()
    if numbers.keys() != known:
        yield f"has a profile of {', '.join(numbers)}; it must have {', '.join(sorted(known))}"
        return
    for name, value in expected.items():
        if not _same(numbers[name], value):
            yield f"{name} is {numbers[name]} in the profile; checks and contract give {value}"
    yield from _inferred(profile, output, contract, unit)


def _inferred(profile: Profile, output: Output, contract: Contract, unit: float) -> Iterator[str]:
    """The inferred precision is one of those known, and allows the error."""
    found, rungs = profile.inferred, ladder(output.dtype, output.terms)
    rung = KNOWN[found.rank] if found.rank < len(KNOWN) else None
    conservative = False
    if rung is not None:
        conservative = rungs.get(rung, 0) < limits(contract, output.dtype, output.terms).relative
    named = rung.arithmetic if rung else "unknown"
    if (found.precision, found.conservative) != (named, conservative) or (rung is not None and rung not in rungs):
        yield f"inferred precision {shown(found.precision)} (rank {found.rank}) is not one that its numbers can have"
        return
    if profile.effective_bits is None:
        return
    largest = {f"{profile.effective_bits} effective bits": 2.0 ** -float(profile.effective_bits)}
    if rung is not None:
        largest[f"the inferred precision, {named},"] = output.allowed(rung).relative
    for what, most in largest.items():
        if not 0 <= float(profile.lambda_) * unit <= most * (1 + ROUNDING):
            yield f"lambda is {profile.lambda_}; {what} allows {most / unit:.6g}"


def _impossible(record: CaseRecord, recipe: Recipe, output: Output, contract: Contract) -> Iterator[str]:
    """Errors below those of the exact result, rounded once to the output's format: nothing in that format is nearer."""
    checks = record.checks[output.name]
    if BOUND not in checks:
        return
    known = expectation(recipe)
    if repeats(record.storage):
        known = known.holding(with_repeats(known.inputs, record.storage))
    (nearest,) = (
        o
        for o in outputs_of(
            recipe.operator, recipe.geometry, recipe.dtype, known.inputs,
            {output.name: known.reference[output.name].astype(STORAGE[output.dtype])}, known.reference,
            lambda: known.magnitude, known.rest,
        )
    )  # fmt: skip
    allowed, s2 = nearest.limits(contract)
    found = measure(nearest.actual, nearest.reference, s2, allowed, nearest.rest)
    least = {BOUND: found.worst_share}
    if RMS in checks and not allowed.gain:  # otherwise what the contract's own constants add is taken off first
        least[RMS] = found.statistics(allowed).rms
    for name, value in least.items():
        if float(checks[name][0]) < value * (1 - rounding(recipe.terms)):
            yield f"{name} is {checks[name][0]}; a result in {output.dtype} has {value:.6g} at least"


def rounding(terms: int) -> float:
    """Relative difference between two machines in a number of the same results: they may add up the squares of `terms`
    products, which errors are measured in and which are fp32, in another order."""
    return terms * FORMATS["fp32"].unit_roundoff


def _same(one: Number, other: Number) -> bool:
    return math.isclose(float(one), float(other), rel_tol=ROUNDING, abs_tol=ROUNDING)
