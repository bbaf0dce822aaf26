"""Trying a kernel: calls on data of a check's choice, and the verdict on what the check saw."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import numpy as np

from conformance.execution import verify
from conformance.execution.case import Case
from conformance.execution.judging import judged
from conformance.execution.verify import MalformedError, Verdict
from conformance.implementations.implementation import ImplementationError, Kernel, Unsupported
from conformance.inputs import DISTRIBUTIONS, Expectation
from conformance.inputs.golden import GoldenError
from conformance.inputs.golden import check as check_golden
from conformance.operators import FAMILIES, Arrays, Tensor
from conformance.problems import Problem

DISTRIBUTION = "contract"
"""What records and `--distribution` call the checks of behaviour."""

Facts = dict[str, Any]
"""What a check found out without judging it, for the record."""


class BrokenPromise(Exception):
    """A kernel that does not keep to a promise; the message says how it showed."""


@dataclass(frozen=True, slots=True, eq=False)
class Draw:
    """One set of inputs and what must come out: a case of its own, whose distribution and seed the check chose."""

    case: Case
    expected: Expectation

    @property
    def names(self) -> tuple[str, ...]:
        """The arguments by position."""
        return self.case.operator.arguments

    @property
    def given(self) -> list[np.ndarray | None]:
        """Their values on the host, in the case's layout."""
        return [verify.argument(self.expected, name, self.case.variant.layout) for name in self.names]

    @property
    def outputs(self) -> dict[str, Tensor]:
        """What must be returned."""
        return self.case.operator.outputs(self.case.problem.geometry)

    def holding(self, inputs: Arrays) -> Draw:
        """The same draw with other values."""
        expected = Expectation(self.expected.recipe)
        expected.inputs = inputs
        return Draw(self.case, expected)


class Trial:
    """A kernel and a case to try it on."""

    def __init__(self, case: Case, kernel: Kernel) -> None:
        self.case = case
        self.kernel = kernel
        self.bridge = case.implementation.arrays

    def draw(self, number: int = 0, distribution: str = "", problem: Problem | None = None) -> Draw:
        """The inputs of the case's seed, or the `number`-th others; of another problem if one is given.

        On the first distribution of the operator's family, unless another one is asked for.
        """
        variant = replace(
            self.case.variant, distribution=distribution or FAMILIES[self.case.operator.family].distributions[0]
        )
        problem = problem or self.case.problem
        case = replace(self.case, problem=problem, variant=variant, seed=self.case.seed + number)
        expected = Expectation(case.recipe)
        check_golden(expected)
        return Draw(case, expected)

    def inputs(self, draw: Draw) -> list[Any]:
        """Fresh device copies of the arguments."""
        return [None if array is None else self.bridge.from_host(array) for array in draw.given]

    def start(self, inputs: Sequence[Any], draw: Draw) -> Any:
        """What the kernel returns, whether the device has finished or not."""
        geometry = draw.case.problem.geometry
        available = {**draw.case.operator.parameters(geometry), "layout": draw.case.variant.layout}
        return self.kernel.function(*inputs, **self.kernel.keyword_arguments(available))

    def call(self, inputs: Sequence[Any], draw: Draw) -> tuple[Any, ...]:
        """The results, finished."""
        result = self.start(inputs, draw)
        self.bridge.synchronize(result)
        return self.parts(result, draw)

    def parts(self, result: Any, draw: Draw) -> tuple[Any, ...]:
        """What was returned, one for each output."""
        return verify.as_tuple(result, draw.outputs)

    def hosts(self, results: Sequence[Any]) -> list[np.ndarray]:
        """Copies of results as they are now."""
        return [np.array(verify.to_host(self.bridge, array)) for array in results]

    def require_right(self, results: Sequence[Any], draw: Draw, when: str) -> None:
        """Judge results as `verify` does; `when` says in a failure which ones they were."""
        outputs = {
            name: verify.canonical(draw.case, name, tensor, host)
            for (name, tensor), host in zip(draw.outputs.items(), self.hosts(results), strict=True)
        }
        failed = [j for j in judged(draw.case, draw.expected, outputs, self.kernel.contract) if not j.passed]
        if failed:
            raise BrokenPromise("\n".join([f"wrong {when}", *(judgement.explain() for judgement in failed)]))

    def overwrite(self, arrays: Sequence[Any], hosts: Sequence[np.ndarray | None]) -> bool:
        """Change arrays in place; False where the framework's arrays never change."""
        pairs = [(a, h) for a, h in zip(arrays, hosts, strict=True) if a is not None and h is not None]
        done = [self.bridge.overwrite(array, host) for array, host in pairs]
        return all(done)


Check = Callable[[Trial], Facts | None]


def conduct(case: Case, check: Check) -> tuple[Verdict, Facts]:
    """The verdict of one check on a case, and what it found. Raises nothing that an implementation does."""
    start = time.perf_counter()
    verdict, facts, excusable = Verdict("pass"), Facts(), True
    try:
        kernel = case.kernel
        if isinstance(kernel, str):
            raise Unsupported(kernel)
        verdict.contract = kernel.contract
        facts = check(Trial(case, kernel)) or facts
    except KeyboardInterrupt:
        raise
    except BaseException as problem:  # SystemExit, or a pytest.skip that would leave the case uncounted
        verdict.status, verdict.reason = _end(problem)
        # a broken golden or declaration is no failure of the kernel, so that no waiver covers it
        excusable = not isinstance(problem, (GoldenError, ImplementationError))
    verdict.seconds = {"total": time.perf_counter() - start}
    return (_unless_waived(case, verdict) if excusable else verdict), facts


_ENDS: dict[type[BaseException], str] = {
    BrokenPromise: "fail",
    MalformedError: "fail",
    Unsupported: "unsupported",
    GoldenError: "error",
    ImplementationError: "error",
}


def _end(problem: BaseException) -> tuple[str, str]:
    status = _ENDS.get(type(problem))
    return (status, str(problem)) if status else ("error", verify.blame(problem))


def _unless_waived(case: Case, verdict: Verdict) -> Verdict:
    """A kernel that is waived on a problem's data cannot keep promises about it. Keeping them is no surprise."""
    find = partial(case.implementation.waiver, case.operator.name, case.problem.geometry, case.variant.dtype)
    if verdict.status not in ("fail", "error"):
        return verdict
    try:
        return verify.excused(verdict, next(filter(None, map(find, DISTRIBUTIONS)), None))
    except ImplementationError as problem:
        return Verdict("error", f"{problem}\n{verdict.reason}")
