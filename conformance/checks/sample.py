"""The inputs of a behaviour check: a kernel, tensors that the check chooses, and the results that they must give."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field, replace
from typing import Any

import msgspec
import numpy as np

from conformance.dtypes import WHOLE
from conformance.execution import verify
from conformance.execution.invocation import Invocation
from conformance.execution.process import Crash
from conformance.execution.refusals import require_refusal_of_all
from conformance.execution.status import BehaviourError, Verdict, conclude
from conformance.execution.trial import Trial
from conformance.execution.workers import begin_anew
from conformance.failure import Failure
from conformance.implementations.bridges.base import ArrayBridge
from conformance.implementations.errors import KernelFailure
from conformance.implementations.implementation import (
    BEHAVIOUR,
    ImplementationError,
    Kernel,
    Unsupported,
    Waiver,
)
from conformance.inputs.golden import check as check_golden
from conformance.judge import Contract, Expected, Judgement
from conformance.judge.expected import expect_few
from conformance.judge.judgement import told
from conformance.operators import FAMILIES, Arrays
from conformance.problems import Problem, Variant
from conformance.problems.table import unlisted
from conformance.results.schema import Facts

WRONG, NOT_CHECKED = "results are wrong on plain inputs", "not checked, results are wrong"
"""How the reason of the check that reports wrong results begins, and how the reason of the other checks begins."""
NOTHING_JUDGED = "nothing was judged: all calls of the check are refused, waived or outside the declared capability"
"""Why a check is unsupported although it raised nothing."""


class NotChecked(Unsupported):
    """The case was not checked: another check of it has reported that the results are wrong."""


class WrongResultError(BehaviourError):
    """A wrong result of a call that a check has made, on this sample."""

    def __init__(self, when: str, wrong: Sequence[Judgement], sample: Sample) -> None:
        lines, failure = told("elements", wrong)
        message = "\n".join([f"wrong result ({when})", *lines])
        super().__init__(message, failure.below(1), wrong_on=sample.expected.recipe.distribution)
        self.sample = sample


@dataclass(frozen=True, slots=True, eq=False)
class Sample:
    """One set of inputs, the expected results, and the invocation that computes them."""

    invocation: Invocation
    expected: Expected
    contract: Contract
    judged: list[str] = field(default_factory=list)
    """The list of the subject that the sample belongs to."""

    @property
    def stored(self) -> list[np.ndarray | None]:
        """Arguments on the host, in the case's layout."""
        return self.invocation.stored(self.expected.inputs)

    def inputs(self) -> list[Any]:
        """Return fresh device copies of the arguments."""
        return self.invocation.to_device(self.expected.inputs)

    def holding(self, inputs: Arrays) -> Sample:
        """Return this sample with other input values."""
        return replace(self, expected=self.expected.holding(inputs))

    def call(self, inputs: Sequence[Any]) -> tuple[Any, ...]:
        """Call the kernel and return its results, finished. Raises KernelFailure where the call is refused and others
        on the problem are not, and Unsupported where the file has kernels and launches none."""
        with self.refusing_all():
            results, audit = self.invocation.audited(inputs)
        if audit.launches == 0:
            raise Unsupported(verify.NOT_LAUNCHED)
        return results

    def audited(self, inputs: Sequence[Any]) -> tuple[Any, ...]:
        """Call the kernel as `call` does. Raises BehaviourError if it writes to its inputs or returns their memory."""
        with self.refusing_all():
            results, audit = self.invocation.audited(inputs)
        if audit.changed:
            message = "\n".join(map(str, audit.changed))
            raise BehaviourError(message, Failure(kind="memory", message=audit.changed[0].what))
        return results

    @contextmanager
    def refusing_all(self) -> Iterator[None]:
        """Require that a kernel which refuses a call in this block refuses it with any values: a kernel that refuses
        after its hundredth call was counted as one that does not support the check."""
        try:
            yield
        except Unsupported as refusal:
            require_refusal_of_all(self.invocation, self.expected, self.contract, refusal)
            raise

    def hosts(self, results: Sequence[Any]) -> list[np.ndarray]:
        """Return host copies of results as they are now."""
        return [np.array(host) for host in self.invocation.fetch(results)]

    def require_right(self, results: Sequence[Any], when: str) -> None:
        """Judge results as `verify` does; `when` says in a failure which ones they were. Raises
        WrongResultError."""
        if failed := self.failed(results):
            raise WrongResultError(when, failed, self)
        self.judged.append(when)

    def failed(self, results: Sequence[Any]) -> list[Judgement]:
        """Return the judgements of the outputs that are wrong."""
        outputs = self.invocation.outputs(results)
        if self.expected.passes(outputs, self.contract):
            return []
        return [judgement for judgement in self.expected.judge(outputs, self.contract) if not judgement.passed]


@dataclass(frozen=True, slots=True, eq=False)
class Subject:
    """A kernel and the case that its behaviour is checked on."""

    trial: Trial
    kernel: Kernel
    judged: list[str] = field(default_factory=list)
    """Which results of this subject, and of those made from it, were judged and are right. A check that judged none has
    not passed: a kernel that always raises, with everything waived, had passed checks that leave waived cases out."""

    @property
    def bridge(self) -> ArrayBridge:
        """Bridge of the implementation."""
        return self.trial.implementation.arrays

    @property
    def takes_threads(self) -> bool:
        """Return whether several threads may call the kernel at once. Not with a simulator: its calls wait for one
        another, for seconds, and say nothing about a device's."""
        return "threads" not in self.trial.implementation.unsafe and not self.bridge.stands_for

    def sample(self, number: int = 0, distribution: str = "", problem: Problem | None = None) -> Sample:
        """Return inputs of the case's seed, or the `number`-th set of others; for another problem if one is given.

        They follow the first distribution of the operator's family, unless another one is asked for; whole-number
        dtypes always use the first.
        """
        first = FAMILIES[self.trial.operator.family].distributions[0]
        distribution = first if self.trial.variant.dtype in WHOLE else distribution or first
        variant = replace(self.trial.variant, distribution=distribution)
        trial = replace(
            self.trial, problem=problem or self.trial.problem, variant=variant, seed=self.trial.seed + number
        )
        expected = expect_few(trial.recipe, trial.method)
        check_golden(expected.tensors)
        invocation = Invocation(self.kernel, self.bridge, trial.workload, variant.dtype, variant.layout)
        contract = self.kernel.contract.on(trial.problem.geometry, variant.dtype)
        return Sample(invocation, expected, contract, self.judged)

    def on(self, trial: Trial) -> Subject:
        """Return the subject on another case. Raises Unsupported where there is no kernel for the case."""
        return replace(self, trial=trial, kernel=trial.kernel)

    def overwrite(self, arrays: Sequence[Any], hosts: Sequence[np.ndarray | None]) -> bool:
        """Change arrays in place; return False where the framework's arrays are immutable."""
        pairs = [(a, h) for a, h in zip(arrays, hosts, strict=True) if a is not None and h is not None]
        done = [self.bridge.overwrite(array, host) for array, host in pairs]
        return all(done)


Check = Callable[[Subject], Facts | None]


def check_behaviour(trial: Trial, check: Check, *, of_right_kernels: bool = False) -> Verdict:
    """Return the verdict of one check on a case. Raises nothing that an implementation does, except KeyboardInterrupt.

    A waiver of a distribution excuses results that are wrong on it, or calls on it that fail; everything else has to be
    waived as behaviour, or a waiver of one NaN would allow a kernel to write to its inputs. A waived check that passes
    is not reported. With `of_right_kernels`, if a kernel is wrong on plain inputs, the first check that is made on the
    case reports that, whatever else the run verifies, and the others are unsupported.
    """
    plain = FAMILIES[trial.operator.family].distributions[0]

    def waiver(raised: BaseException | None) -> Waiver | None:
        where = raised.wrong_on if isinstance(raised, BehaviourError) else plain
        return trial.waiver((where, BEHAVIOUR))

    def attempt(verdict: Verdict) -> None:
        kernel = trial.kernel
        verdict.contract = kernel.contract
        if of_right_kernels:
            _require_right_on_plain_inputs(trial, plain, kernel, check)
        try:
            verdict.facts = check(subject := Subject(trial, kernel))
        except WrongResultError as wrong:
            _require_right_alone(trial, wrong, verdict)
            raise
        if not subject.judged:
            raise Unsupported(NOTHING_JUDGED)
        trial.implementation.require_same_source()

    return conclude(attempt, waiver)


def _require_right_on_plain_inputs(trial: Trial, distribution: str, kernel: Kernel, check: Check) -> None:
    """Verify the case on the first distribution of the family, once for all checks of the case.

    Raises what is wrong with the results if this check is the one that reports it, and Unsupported if another check
    does. Raises nothing where a waiver covers the failure.
    """
    # not explained here: the case itself is diagnosed where it is verified
    plain = replace(trial, variant=replace(trial.variant, distribution=distribution), explained=False)
    key = (trial.operator.name, trial.problem.geometry, plain.variant, trial.seed, trial.method)
    reporting = kernel.memory.reported_by.get(key, check)
    if reporting is not check:
        if reporting is None:
            return
        raise NotChecked(NOT_CHECKED)

    def attempt(verdict: Verdict) -> None:
        with suppress(BehaviourError):  # the checks report wrong behaviour
            verify.attempt(plain, verdict)

    verdict = conclude(attempt, lambda _: None)
    if verdict.refusal is not None:  # the kernel refused the call although it declares the case
        raise verdict.refusal
    failed = verdict.status == "fail" or verdict.exception is not None or verdict.crashed
    try:
        waived = failed and trial.waiver((distribution, BEHAVIOUR)) is not None
    except ImplementationError:  # `conclude` reports it
        waived = False
    kernel.memory.reported_by[key] = check if failed and not waived else None
    if verdict.exception is not None and not waived:
        raise verdict.exception
    if verdict.crashed and not waived:
        raise Crash(verdict.reason, verdict.failure)
    if failed and not waived:
        assert verdict.failure is not None
        wrong = KernelFailure(f"{WRONG}: {verdict.reason}", msgspec.structs.replace(verdict.failure, on_plain=True))
        wrong.diagnosis = verdict.diagnosis
        raise wrong


def _require_right_alone(trial: Trial, wrong: WrongResultError, verdict: Verdict) -> None:
    """Verify the case of a wrong result in a new process, where no call comes before it; once for all checks.

    Raises what is wrong with it there, since no state is to blame then; the verdict keeps the case. Raises nothing
    where the result is right there, or where the kernel has no process of its own.
    """
    sample, recipe = wrong.sample, wrong.sample.expected.recipe
    geometry, operator = recipe.workload.geometry, recipe.workload.operator
    operator = getattr(operator, "base", operator)
    variant = Variant(recipe.dtype, sample.invocation.layout, recipe.distribution)
    problem = unlisted(geometry, "alone", "standard", (variant,))
    alone = replace(trial, operator=operator, problem=problem, variant=variant, seed=recipe.seed)
    key, wrong_alone = (operator.name, geometry, variant, recipe.seed), trial.implementation.wrong_alone
    if key not in wrong_alone:
        wrong_alone[key] = None
        if _is_wrong_again(sample) and begin_anew(trial.implementation.arrays):
            failed = verify.verify(alone)
            if failed.status == "fail":
                verdict.alone = alone, failed
                assert failed.failure is not None
                where = f"{geometry.descriptor} {variant.dtype} {variant.layout} {variant.distribution}"
                message = f"{WRONG}, {where} alone in a new process:\n{failed.reason}"
                failure = msgspec.structs.replace(failed.failure.below(1), on_plain=True)
                wrong_alone[key] = message, failure, failed.diagnosis
    if (failing := wrong_alone[key]) is not None:
        raise KernelFailure(*failing)


def _is_wrong_again(sample: Sample) -> bool:
    """Return whether a second call on the sample gives a wrong result too, which it does unless a state or chance made
    the first one wrong. Asked first because beginning a new process can take ten seconds."""
    try:
        return bool(sample.failed(sample.call(sample.inputs())))
    except (Crash, Exception):
        return True
