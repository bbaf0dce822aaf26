"""Refusals when a kernel is called: of a problem, a dtype, a layout or a storage it may refuse all values or none.

A kernel that is asked again may refuse by what it remembers, so another process of it is asked, in which no case has
run. That one is kept for the next refusal: to begin it can take ten seconds where frameworks are to be loaded.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import replace

import numpy as np

from conformance.contract import Contract
from conformance.execution.invocation import Invocation
from conformance.execution.process import Crash
from conformance.execution.remote import Exited
from conformance.execution.workers import another_process, begin_anew
from conformance.failure import Failure
from conformance.implementations.errors import KernelFailure
from conformance.implementations.implementation import Unsupported
from conformance.inputs import Expectation, Recipe
from conformance.judge import Expected
from conformance.operators import FAMILIES, Arrays
from conformance.problems.table import applies

SEEDS = 3
"""More seeds of the plain distribution: what is wrong with a kernel, and noticed by it, few values may not show."""
PATIENCE = 10
"""Problems of which a kernel that has computed nothing refuses all values, after which of each it is asked for zeros
alone: a kernel that takes nothing took 35 s of processor time for the problems of `standard`."""


def note_computed(invocation: Invocation, recipe: Recipe) -> None:
    """Keep the first call that a kernel has computed."""
    memory = invocation.kernel.memory
    if memory.still_computes is None:
        memory.still_computes = lambda: _computes(invocation, Expectation(recipe).inputs)


def require_refusal_of_all(
    invocation: Invocation, expected: Expected, contract: Contract, refusal: Unsupported
) -> None:
    """Raises KernelFailure where a kernel that has refused a call computes the same problem with other values, or the
    same call another time."""
    memory, operator = invocation.kernel.memory, invocation.operator.name
    # all values after all, of problems too that are refused again, from when it has computed something
    briefly = memory.still_computes is None and memory.refusals >= PATIENCE
    key = (operator, invocation.geometry, invocation.dtype, invocation.layout, invocation.storage, briefly)
    if key not in memory.refused:
        values = _other_values(expected, contract, briefly)
        with another_process(invocation.bridge):
            memory.refused[key] = _contradiction(invocation, expected, values)
        memory.refusals += memory.refused[key] is None
    if (contradiction := memory.refused[key]) is not None:
        what, computed = contradiction
        first = f"{what}: {refusal}"
        raise KernelFailure(f"{first}\ncomputed: {computed}", Failure(kind="refusal", message=first.partition("\n")[0]))


def _contradiction(
    invocation: Invocation, expected: Expected, values: Iterable[tuple[str, Arrays]]
) -> tuple[str, str] | None:
    """What says that a refusal is none of all values. The refused values are asked for last, because a kernel may
    remember them; and before all others what the kernel has computed first: where it refuses that now, it refuses by
    what it has refused before, and is asked in a new process."""
    still_computes = invocation.kernel.memory.still_computes
    if still_computes is not None and not still_computes():
        begin_anew(invocation.bridge)
    for words, inputs in values:
        if _computes(invocation, inputs):
            if _computes(invocation, expected.inputs):
                return "refuses a call, and computes the same one another time", words
            return "refuses these values, and computes others of the problem", words
    return None


def _other_values(expected: Expected, contract: Contract, briefly: bool) -> Iterator[tuple[str, Arrays]]:
    """Values for the same problem, in words and as inputs: of the distributions that the kernel is held to, of other
    seeds, and zeros, which hide most of what may be wrong with a kernel; briefly, these alone."""
    recipe = expected.recipe
    if not expected.dense:
        yield "another seed", Expectation(replace(recipe, seed=recipe.seed + 1)).inputs
        return
    plain, *_ = names = FAMILIES[recipe.operator.family].distributions
    for name in () if briefly else names:
        held = applies(name, recipe.dtype) and not contract.exempts(name, recipe.dtype)
        if held and name != recipe.distribution:
            yield f"distribution {name}", Expectation(replace(recipe, distribution=name)).inputs
    for seed in () if briefly else range(recipe.seed + 1, recipe.seed + 1 + SEEDS):
        yield f"distribution {plain}, seed {seed}", Expectation(replace(recipe, distribution=plain, seed=seed)).inputs
    yield "zeros", {name: np.zeros_like(array) for name, array in expected.inputs.items()}


def _computes(invocation: Invocation, inputs: Arrays) -> bool:
    """Whether a call gives results. What it raises besides is reported where such a case itself is run."""
    try:
        native, _ = invocation.laid_out(inputs)
        invocation.call(native)
    except KernelFailure:  # results of another number, say
        return True
    except (Crash, Exited, Exception):
        return False
    return True
