"""Refusals when a kernel is called: of a problem, dtype, layout and storage it must refuse all values or none.

A kernel that is called again may refuse because of what it remembers, so it is called in another process, in which no
case has run. That process is kept for the next refusal: starting it can take ten seconds if frameworks must be loaded.
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
"""Number of further seeds of the plain distribution: few values may not show a defect that a kernel notices."""
PATIENCE = 10
"""Number of problems of which a kernel that has computed nothing refuses all values, after which it is asked for zeros
alone of each: a kernel that takes nothing took 35 s of processor time for the problems of `standard`."""


def note_computed(invocation: Invocation, recipe: Recipe) -> None:
    """Keep the first call that a kernel has computed."""
    memory = invocation.kernel.memory
    if memory.still_computes is None:
        memory.still_computes = lambda: _computes(invocation, Expectation(recipe).inputs)


def require_refusal_of_all(
    invocation: Invocation, expected: Expected, contract: Contract, refusal: Unsupported
) -> None:
    """Raise KernelFailure if a kernel that has refused a call computes the same problem with other values, or the same
    call another time."""
    memory, workload = invocation.kernel.memory, invocation.workload
    # once the kernel has computed something, all values are tried after all, also of problems that it refuses again
    briefly = memory.still_computes is None and memory.refusals >= PATIENCE
    key = (workload.operator.name, workload.geometry, invocation.dtype, invocation.layout, invocation.storage, briefly)
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
    """Return what contradicts a refusal of all values, and which values were computed; None if nothing does. The
    refused values are asked for last, because a kernel may remember them; before all others the kernel repeats the
    first call that it computed: if it refuses that, it does so by what it has refused before, and is asked in a new
    process."""
    still_computes = invocation.kernel.memory.still_computes
    if still_computes is not None and not still_computes():
        is_new = begin_anew(invocation.bridge)
        # a kernel that found out that it was asked a second time refused all that it gets wrong
        if is_new and still_computes() is False:
            return "refuses a call, and in a new process even the first one that it had computed", "that call, before"
    for words, inputs in values:
        if _computes(invocation, inputs):
            if _computes(invocation, expected.inputs):
                return "refuses a call, and computes the same one another time", words
            return "refuses these values, and computes others of the problem", words
    return None


def _other_values(expected: Expected, contract: Contract, briefly: bool) -> Iterator[tuple[str, Arrays]]:
    """Yield other values for the same problem, in words and as inputs: of the distributions that the kernel is held to,
    of other seeds, and zeros, which hide most of what may be wrong with a kernel; `briefly`, zeros alone."""
    recipe = expected.recipe
    if not expected.dense:
        yield "another seed", Expectation(replace(recipe, seed=recipe.seed + 1)).inputs
        return
    plain, *_ = names = FAMILIES[recipe.workload.operator.family].distributions
    for name in () if briefly else names:
        holds = applies(name, recipe.dtype) and not contract.exempts(name, recipe.dtype)
        if holds and name != recipe.distribution:
            yield f"distribution {name}", Expectation(replace(recipe, distribution=name)).inputs
    for seed in () if briefly else range(recipe.seed + 1, recipe.seed + 1 + SEEDS):
        yield f"distribution {plain}, seed {seed}", Expectation(replace(recipe, distribution=plain, seed=seed)).inputs
    yield "zeros", {name: np.zeros_like(array) for name, array in expected.inputs.items()}


def _computes(invocation: Invocation, inputs: Arrays) -> bool | None:
    """Return whether a call gives results, or is refused. Whatever else it raises is reported when that case itself is
    run; it is None here."""
    try:
        native, _ = invocation.laid_out(inputs)
        invocation.call(native)
    except KernelFailure:  # results of another number, say
        return True
    except Unsupported:
        return False
    except (Crash, Exited, Exception):
        return None
    return True
