"""The search for the condition under which kernels fail, for a run and for a single case that somebody asks about."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field, replace

from msgspec import structs

from conformance import interrupts
from conformance.checks import CHECKS
from conformance.checks.state import changes
from conformance.contract import Contract
from conformance.diagnosis import sums, terms
from conformance.diagnosis.diagnose import GENERAL
from conformance.diagnosis.where import WorkLeft
from conformance.dtypes import DECLARABLE
from conformance.engine.perform import perform
from conformance.engine.tasks import VERIFIED, Task, place
from conformance.execution.arithmetic import arithmetic_of
from conformance.execution.process import Crash
from conformance.execution.remote import Exited
from conformance.execution.required import Demand, VerificationDemand, required
from conformance.execution.selection import Selection
from conformance.execution.share import Ranked
from conformance.execution.trial import Absence, Named, Trial
from conformance.execution.workers import Workers, begin_anew, home_of
from conformance.explaining import explaining
from conformance.implementations.errors import KernelFailure
from conformance.implementations.implementation import Implementation, ImplementationError, Unsupported
from conformance.inputs import DISTRIBUTIONS
from conformance.judge.accuracy import KNOWN
from conformance.judge.expected import expect_once
from conformance.layouts import LAYOUTS
from conformance.operators import Arrays, Geometry, takes
from conformance.problems import PROBLEMS, Variant
from conformance.problems.case import BEHAVIOUR, Case
from conformance.reporting.evidence import RunEvidence, Verified
from conformance.reporting.failures import confused, differs, has, is_not_run, is_wrong
from conformance.reporting.groups import ALONE, Group, group, located
from conformance.results.schema import Record

MAX_WHOLE = 3
"""Groups of an implementation whose smallest case is shown with all that is known of it, and for which further problems
are run."""
JUDGED = 3
"""Cases of a group that are judged, beside one of each distribution, under a contract that may explain the group."""
UNSUPPORTED, TOO_LARGE = (
    "the kernel supports none of the others that were drawn",
    "the others that were drawn are too large",
)
"""Reasons why so few problems are run."""


@dataclass(frozen=True, slots=True)
class Searched:
    """An implementation whose failures are searched.

    asked     the selection whose seed and method the further problems have
    named     how a command names the implementation
    workers   the processes that it runs in, if it has one
    take      is given the record of each further problem that the implementation takes
    left_out  why other problems are not run -> how many
    again     second records of cases: of those that are right in a new process, and of those that are read
    """

    implementation: Implementation
    selection: Selection
    named: Named | None
    workers: Workers | None
    take: Callable[[Record], Record]
    left_out: Counter[str] = field(default_factory=Counter)
    again: list[Record] = field(default_factory=list)

    def decide(self, groups: Iterable[Group], evidence: RunEvidence) -> None:
        """Run further problems that show where the implementation fails, for each of its first groups."""
        for _, kind in zip(range(MAX_WHOLE), groups, strict=False):
            failing = kind.smallest
            if self._is_right_alone(failing):
                continue  # what fails depends on the calls before it
            if not failing.check or CHECKS[failing.check].of_its_problem or confused(failing):
                evidence.decide(kind.records, self._verifier(failing))

    def _is_right_alone(self, failing: Record) -> bool:
        """Return whether a wrong case is right in a new process, where no call comes before; if so, record that too."""
        if failing.check or not failing.descriptor or not is_wrong(failing) or differs(failing):
            return False
        if self.workers is None or not begin_anew(self.implementation.arrays):
            return False
        trial = Trial.of(self.implementation, failing.case, "where", self.selection.method, self.named)
        record = perform(Task("", trial), self.workers, {}).record
        if record.status == "pass":
            self.again.append(self.take(record))
        return record.status == "pass"

    def read(self, groups: Iterable[Group]) -> None:
        """Read off the kernel what becomes of single terms, for each of its first groups that no known mistake
        explains; for the first of which that says nothing, its arithmetic. The smallest case then has a second record,
        with that. A transform is asked for before sums, which it rounds as if they had few bits."""
        if self.implementation.arrays.stands_for:
            return  # a simulator takes a minute for it
        contracts = dict[tuple[str, str], Contract | None]()
        """What is read of an operator in a dtype: of the first alone, as it takes half a second."""
        for _, kind in zip(range(MAX_WHOLE), groups, strict=False):
            failing = kind.smallest
            is_plain = has(failing, "elements") and not (failing.check or failing.storage)
            if not is_plain or kind.text.endswith(ALONE) or (kind.cause and kind.cause not in GENERAL):
                continue
            trial = Trial.of(self.implementation, failing.case, "where", self.selection.method, self.named)
            text, key = _read(trial, terms.read), (failing.operator, failing.dtype)
            if not text and not contracts:
                contracts[key] = arithmetic_of(self.implementation, trial.operator, trial.variant.dtype).whole
            contract = contracts.get(key)
            if contract is None or contract.algorithm == "direct":
                text = text or _read(trial, sums.read, trial.kernel.contract)
            if not text and contract is not None and self._explains(contract, kind):
                words = contract.arithmetic if contract in KNOWN else contract.weakness
                text = f"elements mismatched, errors as large as with {words}; if that is meant, declare "
                text += contract.declaration
            if text:
                read = structs.replace(failing, origin="where", problem=trial.problem.name, reading=text)
                self.again.append(self.take(read))

    def _explains(self, contract: Contract, kind: Group) -> bool:
        """Return whether some of a group's cases, of each distribution, pass under a contract that its text does not
        name already."""
        plain = [r.case for r in kind.records if has(r, "elements") and not (r.check or r.storage)]
        # whole numbers, whose sums are exact, told results that were cut from cut inputs
        of_each = {case.distribution: case for case in reversed(plain)}.values()
        cases = [*dict.fromkeys((kind.smallest.case, *plain[: JUDGED - 1], *of_each))]
        cases = cases[:1] + [case for case in cases[1:] if not contract.exempts(case.distribution, case.dtype)]
        trials = (Trial.of(self.implementation, case, "where", self.selection.method, self.named) for case in cases)
        try:
            return not kind.text.endswith(contract.declaration) and all(passes(trial, contract) for trial in trials)
        except (Crash, Exited, Unsupported, KernelFailure, ImplementationError):
            return False

    def _verifier(self, failing: Record) -> Verified:
        """Return a function that verifies an operator, or makes a behaviour check of it, on further problems, as far as
        the work that there is for a group of failures covers them."""
        operator, check, work = failing.operator, failing.check, WorkLeft()
        _, parameter = confused(failing) or ("", "")

        def verified(geometry: Geometry, variant: Variant) -> Record | None:
            interrupts.require_none()
            if not (takes(operator, geometry) and variant.suits(operator, geometry)):
                return None
            if parameter and not changes(parameter, operator, geometry):
                return None
            try:
                supported = self.implementation.supports(operator, geometry, variant.dtype, variant.layout)
            except ImplementationError:  # it has crashed too often to be asked
                return None
            if not supported or not work.covers(geometry):
                self.left_out[TOO_LARGE if supported else UNSUPPORTED] += 1
                return None
            case = Case.of(operator, geometry, variant, self.selection.seed)
            trial = Trial.of(self.implementation, case, "where", self.selection.method, self.named)
            if parameter:  # else the first call is wrong already, after those on other problems
                begin_anew(self.implementation.arrays)
            record = perform(Task("", trial, check), self.workers, {}).record
            if is_not_run(record):
                return None
            return record if record.status in ("unsupported", "unavailable") else self.take(record)

        return verified


def passes(trial: Trial, contract: Contract) -> bool:
    """Tell whether a kernel's results pass under another contract than its own, which must not exempt the case."""
    if contract.exempts(trial.variant.distribution, trial.variant.dtype):
        return False
    invocation, expected = trial.invocation(), expect_once(trial.recipe, trial.method)
    outputs = invocation.outputs(invocation.call(invocation.to_device(expected.inputs)))
    return expected.passes(outputs, contract)


def _read(trial: Trial, reads: Callable[..., str], *contracts: Contract) -> str:
    """Return what a function reads off the kernel on a problem, in words; empty if it does not answer. The function may
    need the contract that is declared."""
    workload, dtype = trial.workload, trial.variant.dtype

    def compute(inputs: Arrays) -> Arrays:
        return invocation.outputs(invocation.call(invocation.to_device(inputs)))

    with explaining(trial.id):  # an AttributeError here ended runs of kernels whose weights have 4 bits
        try:
            invocation = trial.invocation()
            declared = (contract.on(workload.geometry, dtype) for contract in contracts)
            return reads(workload, dtype, compute, *declared)
        except (Crash, Exited, Unsupported, KernelFailure, ImplementationError):
            return ""
    return ""


def explained(trial: Trial, check: str, level: str) -> list[str]:
    """Return what a run of the trial's operator at a level, or of a behaviour check, says of the trial's failure: what
    it is, and where. Empty if the trial does not fail."""
    implementation = trial.implementation
    home = home_of(implementation.arrays)
    workers = home.workers if home else None
    selection = Selection(
        implementations=(), paths=(), level=level, problems=PROBLEMS, operators=(trial.operator.name,),
        dtypes=DECLARABLE, layouts=LAYOUTS, distributions=(*DISTRIBUTIONS, BEHAVIOUR), seed=trial.seed,
        method=trial.method,
    ).with_declared(implementation.layouts)  # fmt: skip
    evidence, taken = RunEvidence(), list[Record]()

    def take(record: Record) -> Record:
        evidence.add(record)
        taken.append(record)
        return record

    def groups() -> list[Group]:
        return group((record for record in taken if record.status in ("fail", "error")), evidence)

    def of_case() -> list[Record]:
        return [record for record in taken if record.case == case and record.status != "pass"]

    case = replace(trial.case, check=check)
    begin_anew(implementation.arrays)  # the case itself was called there
    for task in _of_level(implementation, selection, check):
        take(perform(task, workers, {}).record)
    if not groups() and not of_case():
        take(perform(Task("", trial, check), workers, {}).record)
    searched = Searched(implementation, selection, trial.named, workers, take)
    searched.decide(groups(), evidence)
    searched.read(groups())
    if not of_case():  # the case may be one that a run has found in its search, and none of the level's
        drawn = Trial.of(implementation, replace(case, check=""), "where", trial.method, trial.named)
        take(perform(Task("", drawn, check), workers, {}).record)
    for kind in groups():
        if any(record in kind.records for record in of_case()):
            return [*filter(None, (kind.title, located(kind, evidence)))]
    return []


def _of_level(implementation: Implementation, selection: Selection, check: str) -> list[Task]:
    """Return the tasks of a run of one operator, or of one check of it, in their order."""
    ranked = Ranked(selection)
    demands: list[Demand] = [
        VerificationDemand(ranked, operator, when)
        for operator, when in VERIFIED.values()
        if operator in selection.operators
    ]
    if check:
        demands = [demand for demand in CHECKS[check].demands(ranked) if demand.is_asked]
    subjects = (subject for demand in demands for subject in required(implementation, demand))
    tasks = [Task("", subject, check) for subject in subjects if not isinstance(subject, Absence)]
    return sorted(tasks, key=lambda task: place(task, None))
