"""One run of timing: every kernel is verified, then visited several times, and between visits the machine is judged.

Visits to a kernel lie a round apart, in processes that are started anew, so that a kernel with two speeds and a machine
that drifts show as such; the kernels on a problem follow one another, so that they meet the same machine.
"""

from __future__ import annotations

import argparse
import gc
import random
from collections.abc import Callable, Hashable, Sequence
from contextlib import nullcontext, suppress
from dataclasses import dataclass, field, replace
from functools import partial

from threadpoolctl import threadpool_limits

from conformance.execution import remote
from conformance.execution.process import Crash, Process
from conformance.execution.remote import Exited, Raised
from conformance.execution.status import Verdict, conclude
from conformance.execution.trial import Trial
from conformance.execution.verify import verify
from conformance.execution.workers import Workers
from conformance.implementations.devices import Unavailable
from conformance.results.schema import MachineState
from conformance.timing import roofline, scaling
from conformance.timing.clock import CheatError
from conformance.timing.conditions import Conditions
from conformance.timing.measurement import Key, Measurement, Ratio, compared
from conformance.timing.roofline import Ceilings
from conformance.timing.rotation import Rotation
from conformance.worker import ceilings, measuring

DEFAULT_VISITS, MAX_VISITS = 7, 99
UNUSABLE = "The machine was unusable, so that this is not held against the kernel"


def visits(text: str) -> int:
    """Return the number of visits that an option gives. Raises argparse.ArgumentTypeError."""
    if not (text.isascii() and text.isdigit() and 1 <= int(text[:6]) <= MAX_VISITS):
        raise argparse.ArgumentTypeError(f"{text!r} is not a whole number from 1 to {MAX_VISITS}")
    return int(text)


@dataclass(slots=True)
class TimedKernel:
    """A kernel on a problem: its verdict, and its visits as long as the verdict is `pass`."""

    trial: Trial
    verdict: Verdict | None = None
    rotation: Rotation | None = None

    def visit(self, conditions: Conditions) -> None:
        """Verify the first time, then time. Raises nothing that an implementation does, except KeyboardInterrupt.
        Clocks that disagree prove nothing where processes wait for processors: on an unusable machine the kernel has no
        time, and has not failed."""
        if self.verdict is None:
            self.verdict = verify(replace(self.trial, explained=False))
            self.rotation = Rotation(self.trial, self.verdict.seconds.get("kernel", 0.0))
        verdict, rotation = self.verdict, self.rotation
        if verdict.status != "pass" or rotation is None:
            return
        doubts: list[CheatError] = []

        def attempt(_: Verdict) -> None:
            try:
                rotation.visit()
            except CheatError as doubt:
                doubts.append(doubt)
                raise

        ended = conclude(attempt, lambda _: self.trial.waiver((self.trial.variant.distribution,)))
        if doubts:
            conditions.look()
        if doubts and conditions.state.state == "unusable":
            verdict.status, verdict.reason = "unavailable", f"no time: {doubts[0]}. {UNUSABLE}"
        elif ended.status != "pass":
            verdict.status, verdict.waiver, verdict.crashed = ended.status, ended.waiver, ended.crashed
            verdict.reason = f"no time: {ended.reason}" if ended.status == "fail" else ended.reason
            verdict.failure = ended.failure
        if self.trial.implementation.device == "cuda" and not ended.crashed:
            with suppress(Crash, Exited, Raised):  # the error that broke the context has been reported
                self.trial.implementation.arrays.perform(measuring.release)

    @property
    def time(self) -> Measurement | None:
        """Measurement of the kernel; None if it is wrong, or was not visited."""
        if self.verdict is None or self.verdict.status != "pass" or not (self.rotation and self.rotation.visits):
            return None
        return self.rotation.measurement


@dataclass(slots=True)
class Run:
    """The kernels that were timed, and the state of the machine meanwhile."""

    subjects: Sequence[TimedKernel]
    conditions: Conditions = field(default_factory=lambda: Conditions(ceilings.reference_seconds))
    rounds: int = 0

    @property
    def state(self) -> MachineState:
        return self.conditions.state

    @property
    def ceilings(self) -> dict[str, Ceilings]:
        """Best ceilings of each device."""
        return {device: roofline.best(ceilings) for device, ceilings in self.conditions.ceilings.items() if ceilings}

    @property
    def times(self) -> list[Measurement]:
        """Measurements, with the best ceilings of the whole run."""
        ceilings = self.ceilings
        times = (subject.time for subject in self.subjects)
        return [
            replace(measurement, ceilings=ceilings.get(measurement.trial.implementation.device))
            for measurement in times
            if measurement is not None
        ]

    @property
    def ratios(self) -> dict[Key, Ratio]:
        """Ratios to torch on the same device; none on a machine that was unusable."""
        return {} if self.state.state == "unusable" else compared(self.times)


def time_all(
    run: Run, count: int, order: int, workers: Workers | None, report: Callable[[int, TimedKernel], None]
) -> None:
    """Fill a run. The number `order` determines the order of visits. `report` is called before each visit, with its
    round and kernel. Raises KeyboardInterrupt, and the errors of `conformance.timing.conditions.share_threads`; the run
    keeps what was timed until then.

    The judge computes on one core meanwhile: OpenBLAS's threads go on for 30 ms after a product, and a kernel that had
    to share its cores with them took 30 ms instead of 0.1.
    """
    generator, limit = random.Random(order), None if workers is None else 1  # a kernel here has all cores
    with nullcontext() if workers is None else workers.apart() as process, threadpool_limits(limit, "blas"):
        if process is not None:
            run.conditions.reference = partial(remote.run, process, ceilings.reference_seconds)
        for run.rounds in range(1, count + 1):
            measure_ceilings(run, process)
            for group in _shuffled(run.subjects, generator):
                for subject in group:
                    report(run.rounds, subject)
                    run.conditions.look()
                    subject.visit(run.conditions)
                    if workers is not None and subject.verdict is not None:
                        workers.conclude(subject.trial.implementation, subject.verdict)
                scaling.free()  # before the tensors of the next problem are drawn
                gc.collect()
            if workers is not None:
                workers.restart()
        run.conditions.look()


def measure_ceilings(run: Run, process: Process | None) -> None:
    """Measure every device that kernels run on, where possible, in a process that loads no vendor's file."""
    for device in dict.fromkeys(subject.trial.implementation.device for subject in run.subjects):
        ceilings = run.conditions.ceilings.setdefault(device, [])
        with suppress(Unavailable):
            ceilings.append(roofline.measure_ceilings(device, process))


def _shuffled(subjects: Sequence[TimedKernel], generator: random.Random) -> list[list[TimedKernel]]:
    """Group kernels by problem and shuffle the groups, so that no kernel is always timed when the machine is warm or
    busy; kernels on one problem stay together, in random order."""
    groups: dict[Hashable, list[TimedKernel]] = {}
    for subject in subjects:
        groups.setdefault((subject.trial.operator.name, subject.trial.problem), []).append(subject)
    shuffled = list(groups.values())
    generator.shuffle(shuffled)
    for group in shuffled:
        generator.shuffle(group)
    return shuffled
