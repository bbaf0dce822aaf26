"""The schema of records and of benchmark files: what a verdict is, once, for whoever writes or reads it.

A record is one line of strict JSON (UTF-8); `kind` tells the five apart. Every run begins with a header and ends with a
footer, which are lines of their own and no verdicts. JSON has no infinity: a measured number is a number or one of the
texts "inf", "-inf" and "nan", see `Number`. A field that is left out has its default; fields that a reader does not
know are passed over.
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
"""A measured value; float(...) reads all of them."""
Whole = Annotated[int, Meta(gt=-(10**18), lt=10**18)]
Count = Annotated[int, Meta(ge=0, lt=10**18)]
Positive = Annotated[int, Meta(ge=1, lt=10**18)]
Seconds = Annotated[float, Meta(ge=0, lt=1e12)]
Sha256 = Annotated[str, Meta(pattern=r"\A[0-9a-f]{64}\Z")]
Text = Annotated[str, Meta(pattern=r"\S")]
"""Not blank."""


def number(value: float) -> Number:
    """A float as records write it."""
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
    """The precision that errors are consistent with.

    rank           its place among the known precisions; a higher one is less precise
    conservative   whether it is more precise than the declared one
    """

    precision: str
    rank: Count
    conservative: bool


class Profile(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """The accuracy of one output on the fixed distribution, in the units of `conformance.judge.accuracy.profile`.

    `effective_bits`, `gain_z` and `offset_z` are known of plain sums only.
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
        """The worst error as a share of what the contract allows."""
        return float(self.lambda_) / float(self.lambda_limit)

    @property
    def numbers(self) -> dict[str, Number]:
        """What is known, by the names that records give it."""
        found = {
            "lambda": self.lambda_,
            "lambda_limit": self.lambda_limit,
            "effective_bits": self.effective_bits,
            "rms": self.rms,
            "gain_z": self.gain_z,
            "offset_z": self.offset_z,
        }
        return {name: value for name, value in found.items() if value is not None}


class Work(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """What one call moved and issued, as an emulator counts it; `least_bytes` is every tensor moved once."""

    least_bytes: Positive
    dma_bytes: Count = 0
    instructions: Count = 0
    matmuls: Count = 0
    sbuf_peak: Count = 0
    psum_peak: Count = 0


class SavedForBackward(Struct, frozen=True, kw_only=True):
    """What one autograd variant saves for the backward of one call."""

    variant: str
    buffers: Count
    activation_bytes: Count
    parameter_bytes: Count
    vector_bytes: Count


class TrainingStep(Struct, frozen=True, kw_only=True):
    """What one training step of one autograd variant takes at its peak, and holds after its forward."""

    variant: str
    batch: Count
    peak_bytes: Count
    forward_bytes: Count


class Facts(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """What a behaviour check found out without judging it.

    repeatable           whether calls repeat to the bit
    accepted             invalid arguments that were accepted
    saved_for_backward   a row for each autograd variant
    training_steps       the same
    """

    repeatable: bool | None = None
    accepted: tuple[str, ...] = ()
    saved_for_backward: tuple[SavedForBackward, ...] = ()
    training_steps: tuple[TrainingStep, ...] = ()


class Scores(Struct, frozen=True, kw_only=True):
    """How a network learnt; `baseline` is the accuracy of always answering the majority class of the test."""

    first_loss: Number
    last_loss: Number
    accuracy: Number
    test_loss: Number
    test_accuracy: Number
    baseline: Number


class TrainingRun(Struct, frozen=True, kw_only=True):
    """One training; `verified` tensors were compared with their bound. Without scores it did not get to its end."""

    network: str
    steps: Count
    verified: Count
    losses: tuple[Number, ...] = ()
    scores: Scores | None = None
    configuration: dict[str, bool | Whole | float | str] = {}


Checks = dict[str, dict[str, tuple[Number, float]]]
"""Output -> check -> value and limit."""
Contract = dict[str, str | Whole]
"""Field -> value of the declared arithmetic."""


class Record(Struct, tag_field="kind", frozen=True, kw_only=True, omit_defaults=True):
    """What every record says, and what a reader may ask of any of them; a kind requires more.

    cases        how many it stands for: one, unless they could not be attempted
    versions     of packages and of the machine, by name; `process` is "not isolated" where a kernel can find its judge
    reason       why it did not pass, for people; the first line says what, the others are the diagnosis
    failure      the same as data, of what fails, is an error or is waived
    undeclared   what is not declared, where that is why cases are unsupported
    causes       known mistakes that explain a failure, each as well as the others
    waiver       where the status is `waived`, and only there
    run_level    what the run was asked for
    in_process   whether kernels ran in the judge's process, which they could change
    command      one line that reproduces the verdict
    origin       where the problem comes from, see `conformance.problems.table.Origin`
    storage      how operands lie in memory; empty where all are contiguous
    check        of a behaviour check, its name
    source       SHA-256 of what the kernel was loaded from
    covers       what that is beside the file that was named, as far as no earlier record of the process says it
    terms        contraction length, by output
    unverified   outputs that pass because limits exceed most of their results: nothing is known of them
    printed      the last lines that the kernel has printed, where it did not pass
    refused      whether the kernel raised Unsupported when it was called, although it had declared to support the case
    reading      what calls with single terms show of the kernel on this problem, where nothing known explains a failure
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

    def __post_init__(self) -> None:
        if (self.status == "waived") != (self.waiver is not None):
            raise ValueError("a record has a waiver where its status is 'waived', and only there")

    @property
    def case(self) -> Case:
        """Its identity."""
        return Case(
            self.operator, self.descriptor or self.problem, self.dtype, self.layout, self.distribution, self.storage,
            self.seed or 0, self.check,
        )  # fmt: skip

    @property
    def headline(self) -> str:
        """Why it did not pass, on one line."""
        return str(self.waiver) if self.waiver else self.reason.partition("\n")[0]

    @property
    def explanation(self) -> str:
        """All of it: the waiver, if there is one, above the diagnosis, and what was printed."""
        return self._with(self.reason)

    @property
    def brief(self) -> str:
        """The same without details, and without what the heading of a group of failures says."""
        return self._with(in_brief(self.reason, self.failure, headed=True))

    def _with(self, reason: str) -> str:
        printed = [f"printed: {line}" for line in self.printed]
        return "\n".join(filter(None, (f"waived: {self.waiver}" if self.waiver else "", reason, *printed)))

    def text(self, name: str) -> str:
        """A field that only some kinds have, as text."""
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
    """Return what the sources of some records cover: implementation and source -> all that any of them says."""
    found: dict[tuple[str, str], Covers] = {}
    for record in records:
        key = record.implementation, record.source
        if record.covers is not None:
            known = found.get(key, Covers())
            others = {n: CHANGED for n, now in record.covers.files.items() if known.files.get(n, now) != now}
            found[key] = known.with_more(record.covers).with_more(Covers(later=others))
    return found


class CaseRecord(Attempt, frozen=True, kw_only=True, tag="case"):
    """Results compared with the reference; of a torch module at its own shape also how long it takes."""

    descriptor: str
    generator: str
    method: str
    terms: dict[str, Count]
    module_time: ModuleTime | None = None


class CheckRecord(Attempt, frozen=True, kw_only=True, tag="check"):
    """A behaviour check."""

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


class Header(Struct, tag_field="kind", tag="header", frozen=True, kw_only=True, omit_defaults=True):
    """The first line of a run.

    started      UTC, ISO 8601
    command      the words of its command line
    versions     as in a record
    level, seed, method    what the options of these names say
    golden       SHA-256 of the manifest of goldens; empty where it cannot be read
    selection    option -> values that were given, of those that choose cases
    environment  digest of the variables that kernels were given because somebody had named them; empty without any
    resumed      whether it goes on with the run above it in the file, which was cut off
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
    resumed: bool = False


class Footer(Struct, tag_field="kind", tag="footer", frozen=True, kw_only=True):
    """The last line of a run; where there is none, the run was cut off.

    cases         by status, with those of the runs that it goes on with
    exit_status   see `conformance.exit_codes`
    interrupted   whether it ended before all of its tests had run
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
    """What a machine was measured to reach; `spread` is a share."""

    flop_per_s: float
    byte_per_s: float
    spread: float


class MachineState(Struct, frozen=True, kw_only=True):
    """Whether times of a run can be believed, and what speaks against it: see `conformance.timing.conditions`."""

    state: Literal["stable", "noisy", "unusable"]
    reasons: tuple[str, ...] = ()


class ModuleTime(Struct, frozen=True, kw_only=True):
    """Seconds of a torch module at its own shape, and of its reference, which was timed just after in each round."""

    module_s: tuple[Seconds, ...]
    reference_s: tuple[Seconds, ...]
    machine: MachineState


class Timing(Struct, frozen=True, kw_only=True):
    """A verified kernel's time: seconds, bytes and rates.

    finding   why its share of the roofline is above 100%; with the status `finding` the time is not to be believed
    low_s     with `high_s` the interval that holds the time with 95%, from the visits
    visits    rounds of each visit to the kernel, in order; they add up to the rounds. Without any, one visit has all
    machine   its state during the run; None where it was not judged
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
        """Why the time is not to be believed; empty if it is."""
        return (self.finding or "doubted") if self.status == "finding" else ""


class Extras(Struct, frozen=True, kw_only=True):
    """What a benchmark's `extra_info` holds beside a record. A finding has neither rates nor a share."""

    timing: Timing = Timing()
    flops: float | None = None
    roofline_share: float | None = None
