"""A case to verify, and its place in the run; cases that are absent, and whether an implementation can run here; and
claims: what an implementation once verified must not be lost unnoticed (files: `conformance.results.claims_file`)."""

from __future__ import annotations

import shlex
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from importlib.metadata import PackageNotFoundError, version
from importlib.util import find_spec
from pathlib import Path

from conformance.execution.invocation import Invocation
from conformance.failure import Failure, Undeclared
from conformance.implementations.devices import Unavailable, missing
from conformance.implementations.implementation import Implementation, Kernel, Waiver
from conformance.inputs import Recipe
from conformance.operators import OPERATORS, Operator, Workload, takes
from conformance.problems import Problem, Variant
from conformance.problems.case import Case
from conformance.problems.table import Origin, unlisted


@dataclass(frozen=True, slots=True)
class Named:
    """How a command line names an implementation: by its file, or by its name alone."""

    kernel: str
    name: str = ""
    """Its name, where the file defines several."""
    timeout: float | None = None
    """Seconds that a call may take, if they are not the usual ones."""

    @property
    def options(self) -> list[str]:
        """Options behind the kernel."""
        name = ["--impl", self.name] if self.name else []
        return [*name, *([] if self.timeout is None else [f"--timeout={self.timeout:g}"])]


@dataclass(frozen=True, slots=True, eq=False)
class Trial:
    """An implementation on one variant of one problem."""

    implementation: Implementation
    operator: Operator
    problem: Problem
    variant: Variant
    seed: int
    method: str = "auto"
    """How the verdict is reached: `exact` (full reference), `probes`, or by cost."""
    named: Named | None = None
    """How a command names the implementation; None where its name is enough."""
    after: tuple[Trial, ...] = ()
    """Cases whose calls come before, in the same process: a kernel with a state may fail only then."""
    explained: bool = True
    """Whether an explanation of wrong results is looked for, which takes longer than finding these."""
    place: int = 0
    """Place in the ranking of its operator, or a number that puts an unranked case before or behind it."""

    @classmethod
    def of(
        cls, implementation: Implementation, case: Case, origin: Origin, method: str = "auto",
        named: Named | None = None,
    ) -> Trial:  # fmt: skip
        """Return the trial of an implementation on a case that is in no table."""
        problem, operator = unlisted(case.geometry, origin, "standard", (case.variant,)), OPERATORS[case.operator]
        return cls(implementation, operator, problem, case.variant, case.seed, method, named)

    @property
    def workload(self) -> Workload:
        """Operator on the problem's geometry."""
        return self.operator.on(self.problem.geometry)

    @property
    def case(self) -> Case:
        """Identity of the case, whatever the kernel."""
        return Case.of(self.operator.name, self.problem.geometry, self.variant, self.seed)

    @property
    def recipe(self) -> Recipe:
        """Recipe that determines the inputs."""
        return Recipe(self.workload, self.variant.dtype, self.variant.distribution, self.seed)

    @property
    def kernel(self) -> Kernel:
        """Kernel to run. Raises Unsupported with the reason if there is none."""
        variant = self.variant
        return self.implementation.find(self.operator.name, self.problem.geometry, variant.dtype, variant.layout)

    def invocation(self) -> Invocation:
        """Return the kernel bound to the problem. Raises Unsupported if there is none."""
        variant, bridge = self.variant, self.implementation.arrays
        return Invocation(self.kernel, bridge, self.workload, variant.dtype, variant.layout, variant.storage)

    def waiver(self, distributions: Sequence[str]) -> Waiver | None:
        """Return the first waiver that covers the problem on one of these distributions."""
        named, variant = (self.operator.name, self.problem.geometry, self.variant.dtype), self.variant
        waivers = (
            self.implementation.waiver(*named, distribution, variant.storage, variant.layout)
            for distribution in distributions
        )
        return next((waiver for waiver in waivers if waiver is not None), None)

    @property
    def id(self) -> str:
        """Part of a test's name in brackets, in which -k finds where a problem comes from: `drawn.`, `own.`."""
        v, problem = self.variant, self.problem
        name = problem.name if problem.origin == "table" else f"{problem.origin}.{problem.name}"
        words = (self.implementation.name, name, v.dtype, v.layout, v.distribution, v.storage)
        return "-".join(filter(None, words))

    @property
    def command(self) -> str:
        """Command line that reproduces the case, whatever table it came from."""
        return self.repeats()

    def repeats(self, check: str = "") -> str:
        """Return a command line that verifies it again, or makes a behaviour check on it: with the implementation's
        name if a file defines several, and the operator's if the implementation has several for the problem."""
        named = self.named or Named(self.implementation.name)
        possible = {
            kernel.operator for kernel in self.implementation.kernels if takes(kernel.operator, self.problem.geometry)
        }
        problem, *options = replace(self.case, check=check).words(operator=len(possible) != 1)
        method = ["--method", self.method] if self.method != "auto" else []
        return shlex.join(["conformance", "check", named.kernel, problem, *named.options, *options, *method])


@dataclass(frozen=True, slots=True)
class Absence:
    """Cases of one implementation and operator that cannot run here, counted together."""

    implementation: str
    operator: str
    device: str
    status: str
    reason: str
    cases: int
    failure: Failure | None = None
    """Reason as data, if the status is `fail`."""
    undeclared: Undeclared | None = None

    @property
    def id(self) -> str:
        """Part of a test's name in brackets."""
        return f"{self.implementation}-{self.status}"


def absence_reason(implementation: Implementation) -> str | None:
    """Return why an implementation cannot run here; None if it can."""
    try:
        implementation.require()
    except Unavailable as absence:
        return str(absence)
    return None


@dataclass(frozen=True, slots=True)
class Claim:
    """Cases that one implementation has verified, as a file beside it says."""

    implementation: str
    source: Path
    """The implementation's own file or folder."""
    file: Path
    device: str
    packages: tuple[str, ...]
    problems: Mapping[str, str]
    """Name of a problem -> its descriptor."""
    cases: frozenset[Case]
    """Cases with seed 0: a claim is of every seed."""

    @property
    def can_run(self) -> bool:
        """Return whether the device and the packages that the implementation was verified with are here."""
        return not missing(self.device) and all(map(_installed, self.packages))

    @property
    def place(self) -> str:
        """File as messages name it: acme.claims.json, or acme/claims.json for a folder."""
        return self.file.relative_to(self.source.parent).as_posix()

    def lost(self, status: str, reason: str) -> str:
        """Return the reason of the failure that a claimed case is `status`."""
        anew = f"write the claims again with `conformance claims write {self.source} RECORDS`"
        return f"claimed in {self.place}, but {status}: {reason}; support it again, or {anew}"


def with_claims(absence: Absence, claims: Iterable[Claim], selected: Sequence[Case]) -> Iterator[Absence]:
    """Yield absent cases as they are reported: claimed ones have failed, unless what they need is not here."""
    due = [claim for claim in claims if absence.status == "unsupported" or claim.can_run]
    keys = frozenset[Case]().union(*(claim.cases for claim in due))
    count = min(absence.cases, sum(key in keys for key in selected))
    if count:
        reason = due[0].lost(absence.status, absence.reason)
        # the claimed device: a file that cannot be imported names none
        lost = Failure(kind="claim")
        yield replace(
            absence, device=due[0].device, status="fail", reason=reason, cases=count, failure=lost, undeclared=None
        )
    if absence.cases > count:
        yield replace(absence, cases=absence.cases - count)


def _installed(package: str) -> bool:
    try:
        return bool(version(package))
    except PackageNotFoundError:
        return find_spec(package) is not None
