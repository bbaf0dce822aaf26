"""The schema of records and of benchmark files: the one definition of a verdict, for all code that writes or reads it.

A record is one line of strict JSON (UTF-8); `kind` distinguishes the five kinds. Every run begins with a header and
ends with a footer, which are lines of their own and not verdicts. JSON has no infinity: a measured number is a number
or one of the texts "inf", "-inf" and "nan", see `Number`. A field that is left out has its default; fields that a
reader does not know are ignored.
A change that an older reader would misunderstand needs another SCHEMA, and a note in the changelog.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import Annotated, Literal, get_args

from msgspec import Meta, Struct, field

from conformance.failure import Failure, Undeclared, in_brief
from conformance.implementations.source_files import CHANGED, Covers
from conformance.problems.case import Case
from conformance.problems.table import Origin

SCHEMA: Literal[3] = 3

Status = Literal["pass", "fail", "error", "unsupported", "waived", "unavailable"]
STATUSES: tuple[Status, ...] = get_args(Status)
VERIFIED: frozenset[Status] = frozenset({"pass", "fail", "waived"})
"""Statuses that say something about a kernel's results."""

Number = float | Literal["inf", "-inf", "nan"]
"""A measured value; float(...) reads every form of it."""
Whole = Annotated[int, Meta(gt=-(10**18), lt=10**18)]
Count = Annotated[int, Meta(ge=0, lt=10**18)]
Positive = Annotated[int, Meta(ge=1, lt=10**18)]
Seconds = Annotated[float, Meta(ge=0, lt=1e12)]
Sha256 = Annotated[str, Meta(pattern=r"\A[0-9a-f]{64}\Z")]
Text = Annotated[str, Meta(pattern=r"\S")]
"""Text that is not blank."""


def number(value: float) -> Number:
    """Convert a float to the form that records have."""
    if math.isfinite(value):
        return float(value)
    return "nan" if math.isnan(value) else "inf" if value > 0 else "-inf"


class WaiverRecord(Struct, frozen=True, kw_only=True):
    """Why a failure is expected, and where it is tracked."""

    reason: Text
    url: Text

    def __str__(self) -> str:
        return f"{self.reason} ({self.url})"


class Inferred(Struct, frozen=True, kw_only=True):
    """The precision that the errors of an output are consistent with.

    rank           place among the known precisions; a higher rank is less precise
    conservative   whether the inferred precision is more precise than the declared one
    """

    precision: str
    rank: Count
    conservative: bool


class Profile(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """The accuracy of one output on the fixed distribution, in the units of `conformance.judge.accuracy.profile`.

    `effective_bits`, `gain_z` and `offset_z` are known only for plain sums.
    """

    lambda_: Number = field(name="lambda")
    lambda_limit: Annotated[float, Meta(gt=0)] | Literal["inf"]
    rms: Number
    effective_bits: Number | None = None
    gain_z: Number | None = None
    offset_z: Number | None = None
    inferred: Inferred

    @property
    def share(self) -> float:
        """Worst error as a share of the error that the contract allows."""
        return float(self.lambda_) / float(self.lambda_limit)

    @property
    def numbers(self) -> dict[str, Number]:
        """Numbers that are known, by their names in records."""
        numbers = {
            "lambda": self.lambda_,
            "lambda_limit": self.lambda_limit,
            "effective_bits": self.effective_bits,
            "rms": self.rms,
            "gain_z": self.gain_z,
            "offset_z": self.offset_z,
        }
        return {name: value for name, value in numbers.items() if value is not None}


class Work(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Traffic and instructions of one call, as an emulator counts them; `least_bytes` is every tensor moved once."""

    least_bytes: Positive
    dma_bytes: Count = 0
    instructions: Count = 0
    matmuls: Count = 0
    sbuf_peak: Count = 0
    psum_peak: Count = 0


class SavedForBackward(Struct, frozen=True, kw_only=True):
    """Memory that one autograd variant saves for the backward pass of one call."""

    variant: str
    buffers: Count
    activation_bytes: Count
    parameter_bytes: Count
    vector_bytes: Count


class TrainingStep(Struct, frozen=True, kw_only=True):
    """Memory of one training step of one autograd variant, at its peak and after its forward pass."""

    variant: str
    batch: Count
    peak_bytes: Count
    forward_bytes: Count


class BatchDifference(Struct, frozen=True, kw_only=True):
    """Bits of an image that differ from those in its batch when it is computed in another way: the image of a way and
    an output with the largest difference.

    how        how it was computed again: `alone`, `in reverse order` of the batch, `beside images of zeros`
    image      its place in the batch, counted from 0
    images     size of the batch
    results    number of elements of the output that the image has
    differing  number of these that differ
    ulps       largest distance of two of them, counted in numbers of their format
    """

    output: str
    how: str
    image: Count
    images: Positive
    results: Count
    differing: Count
    ulps: Count

    def __str__(self) -> str:
        """`image 2 of a batch of 5 has other bits alone: 37 of 512 results of y differ, by up to 3 ulps`."""
        return (
            f"image {self.image} of a batch of {self.images} has other bits {self.how}: {self.differing:,} of "
            f"{self.results:,} results of {self.output} differ, by up to {self.ulps:,} ulp{'s' * (self.ulps != 1)}"
        )


class BatchInvariance(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Differences of images' bits by their batch, and whether the implementation declares that there are none."""

    declared: bool
    differences: tuple[BatchDifference, ...] = ()


class Facts(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Findings of a behaviour check that it does not judge.

    repeatable           whether calls repeat to the bit
    batch_invariance     whether the bits of images depend on their batch
    accepted             invalid arguments that were accepted
    contradictions       fields of the declared contract, and the contract that was read off the kernel
    saved_for_backward   a row for each autograd variant
    training_steps       a row for each autograd variant
    """

    repeatable: bool | None = None
    batch_invariance: BatchInvariance | None = None
    accepted: tuple[str, ...] = ()
    contradictions: tuple[str, ...] = ()
    saved_for_backward: tuple[SavedForBackward, ...] = ()
    training_steps: tuple[TrainingStep, ...] = ()


class Scores(Struct, frozen=True, kw_only=True):
    """How a network learnt; `baseline` is the test accuracy of always answering the majority class."""

    first_loss: Number
    last_loss: Number
    accuracy: Number
    test_loss: Number
    test_accuracy: Number
    baseline: Number


class TrainingRun(Struct, frozen=True, kw_only=True):
    """One training; `verified` tensors were compared with their bound. A training without scores did not finish."""

    network: str
    steps: Count
    verified: Count
    losses: tuple[Number, ...] = ()
    scores: Scores | None = None
    configuration: dict[str, bool | Whole | float | str] = {}


Checks = dict[str, dict[str, tuple[Number, float]]]
"""Output -> check -> value and limit."""
Contract = dict[str, str | Whole | dict[str, str | Whole]]
"""Field of the declared arithmetic -> value, or the fields of an `Accumulator` or of `Slices`."""


class Record(Struct, tag_field="kind", frozen=True, kw_only=True, omit_defaults=True):
    """Fields that every record has, or that a reader may ask of any record; a kind of record requires more of them.

    cases        number of cases that it stands for: one, unless they could not be attempted
    versions     of packages and of the machine, by name; `process` is "not isolated" where a kernel can find its judge
    reason       why the case did not pass, for people; the first line is the result, the others are the diagnosis
    failure      the reason as data, if the case fails, is an error or is waived
    undeclared   what the implementation does not declare, if cases are unsupported for that reason
    causes       known mistakes that explain a failure, each as well as the others
    waiver       present if the status is `waived`, and only then
    run_level    level that the run was asked for
    in_process   whether kernels ran in the judge's process, which they could change
    command      one line that reproduces the verdict
    origin       where the problem comes from, see `conformance.problems.table.Origin`
    storage      how operands lie in memory; empty if all are contiguous
    check        name of the behaviour check; empty for other records
    source       SHA-256 of the files that the kernel was loaded from
    covers       files and packages beside the named file, unless an earlier record of the process lists them
    terms        contraction length, by output
    unverified   outputs that pass because their limits exceed most of their results, so that nothing is known of them
    printed      the last lines that the kernel printed, if it did not pass
    refused      whether the kernel raised Unsupported when it was called, although it had declared to support the case
    reading      findings from calls with single terms on this problem, if no known mistake explains a failure
    host         name of the host, if a device of its own was given to the process: its number among all of that kind
                 there is `device_index`, the number that its driver reports `device_serial`
    """

    schema: Literal[3]
    implementation: str
    operator: str
    device: str
    status: Status
    cases: Positive
    versions: dict[str, str]
    reason: str
    failure: Failure | None = None
    undeclared: Undeclared | None = None
    causes: tuple[str, ...] = ()
    waiver: WaiverRecord | None = None
    run_level: str = ""
    in_process: bool = False
    command: str = ""
    source: str = ""
    covers: Covers | None = None
    problem: str = ""
    origin: Origin = "table"
    descriptor: str = ""
    dtype: str = ""
    layout: str = ""
    distribution: str = ""
    storage: str = ""
    check: str = ""
    seed: Count | None = None
    generator: str = ""
    method: str = ""
    level: str = ""
    contract: Contract | None = None
    terms: dict[str, Count] = {}
    checks: Checks = {}
    unverified: tuple[str, ...] = ()
    profile: dict[str, Profile] = {}
    seconds: dict[str, Seconds] = {}
    work: Work | None = None
    printed: tuple[str, ...] = ()
    refused: bool = False
    reading: str = ""
    host: str = ""
    device_index: Count | None = None
    device_serial: str = ""

    def __post_init__(self) -> None:
        if (self.status == "waived") != (self.waiver is not None):
            raise ValueError("a record has a waiver where its status is 'waived', and only there")

    @property
    def case(self) -> Case:
        """Identity of the case."""
        return Case(
            self.operator, self.descriptor or self.problem, self.dtype, self.layout, self.distribution, self.storage,
            self.seed or 0, self.check,
        )  # fmt: skip

    @property
    def headline(self) -> str:
        """Reason why the case did not pass, on one line."""
        return str(self.waiver) if self.waiver else self.reason.partition("\n")[0]

    @property
    def explanation(self) -> str:
        """The whole reason: the waiver, if there is one, above the diagnosis, and the lines that were printed."""
        return self._with(self.reason)

    @property
    def brief(self) -> str:
        """The explanation without details, and without what the heading of a group of failures says."""
        return self._with(in_brief(self.reason, self.failure, headed=True))

    def _with(self, reason: str) -> str:
        printed = [f"printed: {line}" for line in self.printed]
        return "\n".join(filter(None, (f"waived: {self.waiver}" if self.waiver else "", reason, *printed)))

    def text(self, name: str) -> str:
        """Return a field that only some kinds have, as text."""
        value = getattr(self, name)
        return "" if value is None else str(value)


class Attempt(Record, frozen=True, kw_only=True):
    """One case: an implementation on a problem, in a dtype and a layout, on inputs of a distribution."""

    source: Sha256
    problem: str
    dtype: str
    layout: str
    distribution: str
    seed: Count
    checks: Checks
    seconds: dict[str, Seconds]
    command: str


def covered(records: Iterable[Record]) -> dict[tuple[str, str], Covers]:
    """Return implementation and source -> the files and packages that any record says it covers; a file of which two
    records have different contents is marked as changed."""
    covers: dict[tuple[str, str], Covers] = {}
    for record in records:
        key = record.implementation, record.source
        if record.covers is not None:
            earlier = covers.get(key, Covers())
            changed = {n: CHANGED for n, now in record.covers.files.items() if earlier.files.get(n, now) != now}
            covers[key] = earlier.with_more(record.covers).with_more(Covers(later=changed))
    return covers


class CaseRecord(Attempt, frozen=True, kw_only=True, tag="case"):
    """A case whose results were compared with the reference; for a torch module at its own shape also its time."""

    descriptor: str
    generator: str
    method: str
    terms: dict[str, Count]
    module_time: ModuleTime | None = None


class CheckRecord(Attempt, frozen=True, kw_only=True, tag="check"):
    """The result of a behaviour check."""

    descriptor: str
    generator: str
    method: str
    terms: dict[str, Count]
    check: Text
    facts: Facts = Facts()


class TrainingRecord(Attempt, frozen=True, kw_only=True, tag="training"):
    """A network trained through an implementation's kernels; `level` chose its configuration."""

    level: str
    contracts: dict[str, Contract]
    training: TrainingRun


class AbsenceRecord(Record, frozen=True, kw_only=True, tag="absence"):
    """Cases that could not be attempted, counted together."""


class BrokenRecord(Record, frozen=True, kw_only=True, tag="broken"):
    """A file that could not be used, or a test that took its process down before it began: `implementation` is its
    name."""


AnyRecord = CaseRecord | CheckRecord | TrainingRecord | AbsenceRecord | BrokenRecord


class Part(Struct, frozen=True, kw_only=True):
    """A unit of a run that was divided: its number, from 1, and how many units there are."""

    number: Count
    count: Count

    def __str__(self) -> str:
        return f"{self.number}/{self.count}"


class Header(Struct, tag_field="kind", tag="header", frozen=True, kw_only=True, omit_defaults=True):
    """The first line of a run.

    started      UTC, ISO 8601
    command      the words of its command line
    versions     as in a record
    level, seed, method    values of the options of these names
    golden       SHA-256 of the manifest of goldens; empty if it cannot be read
    selection    option -> values that were given, for the options that choose cases
    environment  digest of the variables that were named to be passed to kernels; empty without any
    unit         the part of a divided run that this one is
    plan         SHA-256 of all units of the divided run, by the names of their cases; empty if it was not divided
    resumed      whether the run continues the one above it in the file, which was cut off
    """

    schema: Literal[3]
    started: Text
    command: tuple[str, ...]
    versions: dict[str, str]
    level: str
    seed: Count
    method: str
    golden: str
    selection: dict[str, tuple[str, ...]] = {}
    environment: str = ""
    unit: Part | None = None
    plan: str = ""
    resumed: bool = False


class Footer(Struct, tag_field="kind", tag="footer", frozen=True, kw_only=True):
    """The last line of a run; a run without one was cut off.

    cases         by status, including the cases of the runs that this one continues
    exit_status   see `conformance.exit_codes`
    interrupted   whether the run ended before all of its tests had run
    digest        SHA-256 of all bytes from the run's header to where this value stands: the last field of the line
    """

    schema: Literal[3]
    ended: Text
    cases: dict[Status, Count]
    exit_status: Count
    interrupted: bool
    digest: Sha256


Line = Record | Header | Footer


class CeilingsRecord(Struct, frozen=True, kw_only=True):
    """Rates that a machine was measured to reach; `spread` is a share."""

    flop_per_s: float
    byte_per_s: float
    spread: float


class MachineState(Struct, frozen=True, kw_only=True):
    """Whether the times of a run can be believed, and reasons against it: see `conformance.timing.conditions`."""

    state: Literal["stable", "noisy", "unusable"]
    reasons: tuple[str, ...] = ()


class ModuleTime(Struct, frozen=True, kw_only=True):
    """Seconds of a torch module at its own shape, and of its reference, which was timed just after in each round."""

    module_s: tuple[Seconds, ...]
    reference_s: tuple[Seconds, ...]
    machine: MachineState


class Timing(Struct, frozen=True, kw_only=True):
    """A verified kernel's time: seconds, bytes and rates.

    finding   why the share of the roofline is above 100%; with the status `finding` the time is not to be believed
    low_s     with `high_s` the interval that contains the time with 95% confidence, from the visits
    visits    number of rounds of each visit to the kernel, in order; their sum is `rounds`. If empty, one visit has all
    machine   state of the machine during the run; None if it was not judged
    """

    status: Literal["recorded", "finding"] = "recorded"
    finding: str = ""
    clock: str = ""
    median_s: Seconds | None = None
    minimum_s: Seconds | None = None
    low_s: Seconds | None = None
    high_s: Seconds | None = None
    wall_median_s: Seconds | None = None
    rounds: Count | None = None
    visits: tuple[Count, ...] = ()
    first_call_s: Seconds | None = None
    copy_in_s: Seconds | None = None
    copy_out_s: Seconds | None = None
    gflop_per_s: float | None = None
    gb_per_s: float | None = None
    flop_per_byte: float | None = None
    roofline_share: float | None = None
    ratio_to_torch: float | None = None
    host_growth_bytes: Whole | None = None
    device_growth_bytes: Whole | None = None
    rotated_bytes: Count | None = None
    cache_bytes: Count | None = None
    cold: bool | None = None
    ceilings: CeilingsRecord | None = None
    machine: MachineState | None = None

    @property
    def doubt(self) -> str:
        """Reason not to believe the time; empty if it can be believed."""
        return (self.finding or "doubted") if self.status == "finding" else ""


class Extras(Struct, frozen=True, kw_only=True):
    """Fields of a benchmark's `extra_info` beside the record. A finding has neither rates nor a share."""

    timing: Timing = Timing()
    flops: float | None = None
    roofline_share: float | None = None
