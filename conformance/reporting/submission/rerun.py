"""A random sample of a submission's verdicts, reached once more on this machine."""

from __future__ import annotations

import math
import random
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from conformance.checks import CHECKS, check_behaviour
from conformance.checks.required import VERIFIED
from conformance.checks.sample import NOT_CHECKED, WRONG, NotChecked
from conformance.dtypes import DECLARABLE
from conformance.execution.case import Absence, Case
from conformance.execution.claims import Claim, Key
from conformance.execution.plan import Plan
from conformance.execution.process import Limits
from conformance.execution.selection import BEHAVIOUR, Selection, SelectionError
from conformance.execution.verify import verify
from conformance.execution.workers import Workers, share
from conformance.implementations.devices import Unavailable
from conformance.implementations.implementation import ImplementationError, Unsupported
from conformance.inputs import DISTRIBUTIONS
from conformance.inputs.golden import SEED
from conformance.operators import OPERATORS
from conformance.problems import LAYOUTS, PROBLEMS
from conformance.reporting.submission import numbers
from conformance.reporting.submission.contents import Contents
from conformance.resources import IMPLS
from conformance.results import build, claims
from conformance.results.reading import shown
from conformance.results.schema import Attempt, CheckRecord, Record, TrainingRecord
from conformance.training.required import Training, trainings
from conformance.training.tables import DISTRIBUTION, OPERATOR, networks

AGREES, NUMBERS, OTHER, NOT_HERE = "agrees", "agrees, other numbers", "DIFFERS", "not run"
SIGNIFICANCE = 1e-3
"""Of the sign test on numbers that differ: it accuses one honest submission in a thousand."""


@dataclass(frozen=True, slots=True)
class Outcome:
    """What became of one verdict, or of an implementation that is not here.

    `smaller` says of other numbers, of the same versions, whether the recorded error is the smaller one.
    """

    word: str
    text: str
    smaller: bool | None = None


@dataclass(frozen=True, slots=True)
class Sample:
    """What became of verdicts that were reached again.

    drawn     how many were drawn at random
    of        from how many
    declared  how many others are unsupported, as the sources here declare too
    fresh     how many problems were drawn now, which the submission cannot have known
    """

    outcomes: tuple[Outcome, ...]
    drawn: int = 0
    of: int = 0
    declared: int = 0
    fresh: int = 0

    def escape(self, forged: int) -> float:
        """The probability that none of `forged` verdicts is in a sample of this size (hypergeometric)."""
        from scipy import stats  # takes half a second, and every command imports this file

        return float(stats.hypergeom.pmf(0, self.of, forged, self.drawn))

    @property
    def bias(self) -> float:
        """P-value of the sign test: that so many recorded errors are the smaller ones by chance.

        Of two runs of one kernel on one machine, which may differ in the order of its sums, neither is preferred.
        """
        from scipy import stats

        signs = [outcome.smaller for outcome in self.outcomes if outcome.smaller is not None]
        return float(stats.binomtest(sum(signs), len(signs), alternative="greater").pvalue) if signs else 1.0


@dataclass(frozen=True, slots=True)
class Candidate:
    """A verdict that can be reached again; `recorded` is None where an absence of many cases stands for it."""

    case: Case | Training
    check: str = ""
    recorded: Attempt | None = None

    @property
    def has_kernel(self) -> bool:
        """Whether the sources here declare one for the case."""
        try:
            return isinstance(self.case, Training) or self.case.kernel is not None
        except Unsupported:
            return False
        except ImplementationError:  # which its verdict reports
            return True

    @property
    def key(self) -> Key:
        case = self.case
        if isinstance(case, Training):
            return Key(OPERATOR, case.configuration.network, "fp32", case.layout, DISTRIBUTION)
        v = case.variant
        where = (case.operator.name, case.problem.name, v.dtype, v.layout, v.distribution)
        return Key(*where, self.check, v.storage)


def repeated(found: Contents, count: int, drawn: int, paths: Sequence[Path]) -> Sample:
    """Reach `count` verdicts again, drawn by the seed `drawn` among all that the level requires of what is here.

    Nothing of the archive is executed: kernels are those of this machine, whose sources must be the recorded ones, and
    cases come from the tables. One that is recorded as if it had no kernel, and has one here, is called before any that
    are drawn. What is claimed beside the sources and is unsupported has failed.
    """
    selection = Selection(
        () if paths else found.statement.implementations, tuple(paths), found.statement.level, PROBLEMS,
        tuple(OPERATORS), DECLARABLE, LAYOUTS, (*DISTRIBUTIONS, BEHAVIOUR, DISTRIBUTION), SEED, "auto",
    )  # fmt: skip
    with Workers(Limits(memory=share(1))) as workers:
        try:
            plan = Plan(selection, IMPLS, claims.load([*paths, *claims.sources(IMPLS)]), workers)
        except (SelectionError, claims.ClaimsError) as problem:
            return Sample((Outcome(NOT_HERE, "; ".join(str(problem).splitlines())),))
        return _repeated(found, count, drawn, plan)


def _repeated(found: Contents, count: int, drawn: int, plan: Plan) -> Sample:
    planned, outcomes, declared = list(_planned(plan)), list[Outcome](), 0
    hidden, others, gone = list[Candidate](), list[Candidate](), set[str]()
    for name in found.statement.implementations:
        records = found.of(name)
        try:
            _require_same(plan, name, records)
        except LookupError as problem:
            outcomes.append(Outcome(NOT_HERE, f"{shown(name)}: {problem}"))
            gone.add(name)
            continue
        recorded = {Key._make(getattr(r, field) for field in Key._fields): r for r in records if isinstance(r, Attempt)}
        absent = {(r.operator, r.check): r.status for r in records if not isinstance(r, Attempt)}
        for one in planned:
            if isinstance(one, Absence) and one.implementation == name:
                outcomes.append(Outcome(OTHER, f"{shown(name)} {one.operator}: {one.cases} unsupported, {one.reason}"))
            elif isinstance(one, Candidate) and one.case.implementation.name == name:
                mine = recorded.pop(one.key, None)
                if mine is None and absent.get((one.key.operator, one.key.check)) == "unavailable":
                    continue
                refused = mine is None or (mine.status == "unsupported" and mine.contract is None)
                if lost := _lost(one, mine, plan.claims.get(name)):
                    outcomes.append(Outcome(OTHER, f"{shown(' '.join(one.key))}: {shown(lost, 300)}"))
                elif refused and not one.has_kernel:
                    declared += 1
                else:
                    (hidden if refused else others).append(replace(one, recorded=mine))
        for key in recorded:
            outcomes.append(Outcome(OTHER, f"{shown(' '.join(key))}: the sources here have no such case"))
    dice = random.Random(drawn)
    first = dice.sample(hidden, min(count, len(hidden)))
    sample = dice.sample(others, min(count - len(first), len(others)))
    outcomes += [compared(one, again(one, plan.claims)) for one in (*first, *sample)]
    present = [name for name in found.statement.implementations if name not in gone]
    fresh = [outcome for name in present for outcome in _fresh(plan, name, found.of(name), drawn)]
    contradicting = [outcome for outcome in fresh if outcome.word != AGREES]
    return Sample((*outcomes, *contradicting), len(sample), len(others), declared, len(fresh))


def _lost(one: Candidate, mine: Attempt | None, claim: Claim | None) -> str:
    """What is said of a case that is claimed and that the submission calls unsupported, alone or with others."""
    key = one.key
    if isinstance(one.case, Case):
        key = key._replace(problem=one.case.problem.geometry.descriptor)
    unsupported = mine.status == "unsupported" if mine is not None else not one.has_kernel
    if claim is None or key not in claim.cases or not unsupported:
        return ""
    return claim.lost("unsupported", mine.reason if mine is not None else "no kernel declares it").splitlines()[0]


def _fresh(plan: Plan, name: str, records: Sequence[Record], seed: int) -> Iterator[Outcome]:
    """Verdicts on problems drawn now. A kernel that knows the tables, or the goldens' data, is right nowhere else.

    Who submits a failure of an operator in a dtype does not claim that it is right on others.
    """
    failing = {(r.operator, r.dtype) for r in records if r.status in ("fail", "error", "waived")}
    plan.selection = replace(plan.selection, seed=seed)
    for operator, when in VERIFIED:
        for case in plan.drawn(operator, when):
            if isinstance(case, Absence) or case.implementation.name != name:
                continue
            verdict = verify(case)
            contradicts = verdict.status in ("fail", "error") and (operator, case.variant.dtype) not in failing
            headline = verdict.reason.splitlines()[0] if verdict.reason else ""
            text = f"{operator} {case.id}: drawn now, {verdict.status} ({shown(headline, 300)}): {case.command}"
            yield Outcome(OTHER if contradicts else AGREES, text)


def _planned(plan: Plan) -> Iterator[Candidate | Absence]:
    """What the level requires and the implementations here have kernels for, and what they claim and have none for."""
    required: list[tuple[str, Case | Training | Absence]]
    required = [("", case) for operator, when in VERIFIED for case in plan.cases(operator, when)]
    for check, by in CHECKS.items():
        for operator in by.operators:
            measured = plan.measured(check, operator, by.problems, by.dtypes, by.lacks)
            required += [
                (check, case) for case in (measured if by.problems else plan.behaviour(check, operator, by.paths))
            ]
    required += [("", case) for network in networks(plan.selection.level) for case in trainings(plan, network)]
    for check, case in required:
        if not isinstance(case, Absence):
            yield Candidate(case, check)
        elif case.status == "fail":
            yield case


def _require_same(plan: Plan, name: str, records: Sequence[Record]) -> None:
    """Raises LookupError where the implementation that records are about is not here, or cannot run."""
    implementation = plan.registry.implementations.get(name)
    if implementation is None:
        why = [*plan.registry.broken.values(), *plan.registry.unavailable.values()]
        raise LookupError("; ".join(["is not here; give --impl=PATH", *map(shown, why)]))
    if any(record.source != implementation.source for record in records if isinstance(record, Attempt)):
        raise LookupError("the sources here are not those of the submission")
    if any(record.device != implementation.device for record in records):
        raise LookupError(f"runs on {implementation.device} here")
    try:
        implementation.require()
    except Unavailable as absence:
        raise LookupError(str(absence)) from None


def again(candidate: Candidate, claimed: Mapping[str, Claim]) -> Record:
    """The record of a verdict reached here."""
    case, recorded = candidate.case, candidate.recorded
    record: Record
    if isinstance(case, Training):
        from conformance.training.train import verify_training  # torch is needed from here on

        record = verify_training(case)[1]
    elif candidate.check:
        required = CHECKS[candidate.check]
        verdict = check_behaviour(case, required.check, of_right_kernels=required.of_right_kernels)
        record = build.behaviour_record(case, verdict, candidate.check)
        if isinstance(verdict.refusal, NotChecked):  # another check reports it
            return record
    else:
        case = replace(case, method="probes" if recorded and recorded.method == "probes" else "exact")
        record = build.record(case, verify(case))
    return claims.enforced(record, claimed)


def compared(candidate: Candidate, here: Record) -> Outcome:
    """What a verdict reached here says of the recorded one.

    Status, contract and what a check counts must be the same. Errors may differ with the number of threads and the
    processor, as the order of sums does, but not the precision that they are consistent with.
    """
    recorded = candidate.recorded
    before, now = "unsupported" if recorded is None else _status(recorded), _status(here)
    text = f"{shown(' '.join(filter(None, (here.operator, candidate.case.id, candidate.check))))}: {before}"
    if now != before:
        return Outcome(OTHER, f"{text}, here {now}{f' ({shown(here.headline)})' if here.headline else ''}")
    if recorded is None or recorded.status == "unsupported":
        return Outcome(AGREES, text)
    if recorded.contract != here.contract:
        return Outcome(OTHER, f"{text}, under another contract than the kernel here declares")
    if isinstance(recorded, CheckRecord) and isinstance(here, CheckRecord):
        for fact in ("accepted", "saved_for_backward"):
            if (one := getattr(recorded.facts, fact)) != (other := getattr(here.facts, fact)):
                return Outcome(OTHER, f"{text}, {fact.replace('_', ' ')}: {shown(one)}, here {shown(other)}")
    for output, profile in here.profile.items():
        if output in recorded.profile and recorded.profile[output].inferred.rank < profile.inferred.rank:
            known = recorded.profile[output].inferred.precision, profile.inferred.precision
            return Outcome(OTHER, f"{text}, {output} has the precision {shown(known[0])}, here {known[1]}")
    tolerance = numbers.rounding(max(recorded.terms.values(), default=1))
    errors = [
        (output, name, abs(float(recorded.checks.get(output, {}).get(name, (math.inf, 0))[0])), abs(float(value)))
        for output, checks in here.checks.items()
        for name, (value, _) in checks.items()
    ]
    other = [error for error in errors if not math.isclose(*error[2:], rel_tol=tolerance, abs_tol=tolerance)]
    if not other or isinstance(recorded, TrainingRecord):
        return Outcome(AGREES, text)
    output, name, one, two = max(other, key=lambda error: abs(math.log(max(error[2], 1e-300) / max(error[3], 1e-300))))
    smaller = one < two if recorded.versions == here.versions else None
    return Outcome(NUMBERS, f"{text}, {output} {name} {one:.4g}, here {two:.4g}", smaller)


def _status(record: Record) -> str:
    """Which of the checks of a case reports results that are wrong on plain inputs depends on the order of the run."""
    return WRONG if record.reason == NOT_CHECKED or record.reason.startswith(WRONG) else record.status
