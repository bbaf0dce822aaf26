"""Check whether a declared contract leaves anything to verify.

Limits follow from what a kernel declares, and may exceed the errors that should be seen. The judge must tell wrong
results from the right one: zeros, on at least one problem that the kernel takes; the main output times 1.01, and the
result without one tap, on at least one problem of the tables. Each is judged as a kernel's output would be; no kernel
is called. The factor is tried only on the main output, which has many elements, and not in batch normalisation: there
an error of the variance is passed on to all results, so that honest accumulators of 8 bits are further off than 1%.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from conformance.contract import Contract
from conformance.dtypes import FORMATS, STORAGE, WHOLE
from conformance.execution.trial import Trial
from conformance.failure import Failure
from conformance.implementations.errors import KernelFailure
from conformance.implementations.implementation import ImplementationError, Kernel, Unsupported
from conformance.inputs import Expectation, Recipe
from conformance.judge import Exact, passes
from conformance.judge.accuracy import KNOWN
from conformance.operators import Geometry, Workload, takes
from conformance.operators.spatial import Index
from conformance.problems import PROBLEMS, of_family
from conformance.problems.table import usual

LARGEST = 1 << 25, 1 << 18
"""FLOPs and elements of the largest problem that is tried."""
MAX_TRIED = 48
FACTOR = 1.01
ZEROS, SCALED, WITHOUT_TAP = "zeros", f"times {FACTOR}", "without one tap"


def require_adequate(trial: Trial, kernel: Kernel) -> None:
    """Raise KernelFailure if no problem of a kernel shows whether its results are right, in the case's dtype."""
    contract, dtype = kernel.contract, trial.variant.dtype
    formats = [contract.accumulator(dtype), *([FORMATS[contract.partials]] if contract.splits > 1 else [])]
    exact = contract.inputs == "exact" and all(f.precision >= FORMATS["fp32"].precision for f in formats)
    plain = exact and contract.algorithm == "direct" and not contract.is_cut
    if dtype in WHOLE or plain:  # sums as precise as fp32, of inputs as given: something is to be seen
        return
    key, weaknesses = (trial.operator.name, dtype, trial.problem.geometry.rank), kernel.memory.weaknesses
    if key not in weaknesses:
        weaknesses[key] = _weakness(trial, kernel)
    if (reason := weaknesses[key]) is not None:
        message = "the declared contract is too weak to verify anything"
        raise KernelFailure(f"{message}: {reason}", Failure(kind="contract", message=message))


def _weakness(trial: Trial, kernel: Kernel) -> str | None:
    """Return which wrong results are accepted on every problem, and what to declare; None if none is."""
    problems = of_family(PROBLEMS, trial.operator.family)
    listed = {p.geometry for p in usual(problems) if takes(trial.operator.name, p.geometry)}
    workloads = map(trial.operator.on, {trial.problem.geometry} | listed)
    most_flops, most_elements = LARGEST
    small = [w for w in workloads if w.flops <= most_flops and w.bytes(1) <= most_elements]
    small.sort(key=lambda workload: (workload.flops, workload.geometry.descriptor))
    accepted = _some([workload for workload in small if _takes(trial, kernel, workload.geometry)])
    # of each number of dimensions apart, so that problems of one do not change what is tried of another
    ranks = dict.fromkeys((2, trial.problem.geometry.rank))
    tried = [*accepted, *(w for rank in ranks for w in _some([w for w in small if w.geometry.rank == rank]))]

    def hidden(contract: Contract) -> list[str]:
        return [
            *_hidden(trial, accepted, contract, (ZEROS,)),
            *_hidden(trial, tried, contract, (SCALED, WITHOUT_TAP)),
        ]

    if not (mistakes := hidden(kernel.contract)):
        return None
    adequate = (candidate for candidate in reversed(KNOWN) if not hidden(candidate))
    declare = next(
        (f"declare {candidate.arithmetic} or better" for candidate in adequate), "no contract known shows it"
    )
    return (
        f"{kernel.contract.describe(trial.variant.dtype)} allows {' and '.join(mistakes)} on every problem; {declare}"
    )


def _some(workloads: list[Workload]) -> list[Workload]:
    """Return at most MAX_TRIED of the problems, evenly spaced."""
    return workloads[:: -(-len(workloads) // MAX_TRIED)] if workloads else []


def _takes(trial: Trial, kernel: Kernel, geometry: Geometry) -> bool:
    name, dtype, layout = trial.operator.name, trial.variant.dtype, trial.variant.layout
    try:
        return trial.implementation.find(name, geometry, dtype, layout) is kernel
    except (Unsupported, ImplementationError):
        return False


def _hidden(trial: Trial, workloads: list[Workload], contract: Contract, sought: tuple[str, ...]) -> list[str]:
    """Return which wrong outputs are within the limits on every problem that has them, as `dx times 1.01`."""
    visible, allowed = set[str](), dict[str, None]()
    # zeros are wrong for all outputs; the others leave some as they are, or on some problems
    certain = {f"{n} {ZEROS}" for workload in workloads for n in workload.outputs if ZEROS in sought}
    for workload in workloads:
        expected = Exact(Expectation(Recipe(workload, trial.variant.dtype, "fixed", trial.seed)))
        for what, passed in _judged(expected, contract, sought):
            if passed:
                allowed[what] = None
            else:
                visible.add(what)
        if visible and certain <= visible and allowed.keys() <= visible:
            return []
    return [what for what in allowed if what not in visible]


def _judged(expected: Exact, contract: Contract, sought: tuple[str, ...]) -> Iterator[tuple[str, bool]]:
    """Yield wrong outputs of one problem, and whether the judge lets them pass."""
    workload, dtype, reference = expected.recipe.workload, expected.recipe.dtype, expected.tensors.reference
    geometry, operand = workload.geometry, workload.operator.operand
    without = expected.inputs[operand].copy()
    last: Index = (..., *[-1] * geometry.rank)
    without[last] = 0
    wrongs = {
        ZEROS: {name: np.zeros_like(exact) for name, exact in reference.items()},
        WITHOUT_TAP: workload.reference(expected.inputs | {operand: without}),
    }
    if workload.errors.propagate is None:
        main = next(iter(reference))
        wrongs[SCALED] = reference | {main: reference[main] * FACTOR}
    for what, wrong in ((what, wrongs[what]) for what in sought if what in wrongs):
        outputs = {
            name: values.astype(STORAGE[workload.outputs[name].stored_as(dtype)])
            for name, values in wrong.items()
            if not np.array_equal(values, reference[name])
        }
        for output in expected.outputs(outputs):
            yield f"{output.name} {what}", passes(output, "fixed", contract.on(geometry, dtype))
