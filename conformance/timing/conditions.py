"""The machine is judged before a time is believed: `stable`, `noisy` or `unusable`, by limits that are stated here.

A run looks at the machine before each visit to a kernel, and at the end. A look times a reference kernel of the suite,
in a process that loads no vendor's file, and reads the system's counters: processor time of other processes, time taken
by a hypervisor, clock frequency, throttling. The ceilings are measured again in each round. All frameworks have the
same number of threads.
"""

from __future__ import annotations

import os
import statistics
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from time import monotonic

import psutil

from conformance.execution.process import Crash
from conformance.execution.remote import Exited, Raised
from conformance.implementations.implementation import Implementation
from conformance.results.schema import MachineState
from conformance.timing.roofline import Ceilings
from conformance.worker import measuring

THROTTLES = "thermal_throttle/*_throttle_count"
PROCESSORS = Path("/sys/devices/system/cpu")
CGROUP = Path("/sys/fs/cgroup/cpu.stat")
SHORTEST = 5.0
"""Fewest seconds between two readings of counters that are judged: counters have a step of a hundredth of one."""


class ThreadsError(RuntimeError):
    """A framework cannot have as many threads as the others; the message says how to settle it."""


def cores() -> int:
    """Count the cores that this process may run on."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def share_threads(implementation: Implementation) -> dict[str, int]:
    """Give frameworks that the kernels have loaded a thread for each core of the process; return each one's number.

    Raises ThreadsError where a framework was started with fewer.
    """
    count, threads = cores(), dict[str, int]()
    with suppress(Crash, Exited, Raised):  # the verdict on its next case reports it
        threads = implementation.arrays.perform(measuring.give_threads, count)
    for name, number in threads.items():
        if number != count:
            raise ThreadsError(
                f"{name} has {number} threads, and others {count}, one for each core: unset NUMBA_NUM_THREADS, or "
                f"start with taskset on fewer cores"
            )
    return threads


@dataclass(frozen=True, slots=True)
class Limit:
    """Values above `noisy` make a run noisy, those above `unusable` make it unusable."""

    what: str
    noisy: float
    unusable: float
    text: str


LIMITS = {
    "reference": Limit(
        "the reference kernel", 0.25, 1.0, "a tenth of the looks took {:.0%} more than the fastest tenth"
    ),
    "ceilings": Limit("the ceilings", 0.25, 1.0, "the best round reached {:.0%} more than the median one"),
    "others": Limit("other processes", 0.15, 0.8, "they took {:.2g} cores"),
    "steal": Limit("the hypervisor", 0.02, 0.2, "it took {:.0%} of the processors' time"),
    "frequency": Limit("the clock frequency", 0.1, 1.0, "its highest was {:.0%} above its lowest"),
    "throttled": Limit("throttling", 0, float("inf"), "processors were slowed down {:.0f} times"),
}
"""Values that are judged: shares, but for `others` (cores) and `throttled` (events). On a virtual machine of two cores
that did nothing else, the reference kernel's product came to 3% and its copy to 14%, the ceilings to 2% and 2%; beside
four busy processes, others to more than a core."""


@dataclass(frozen=True, slots=True)
class Look:
    """State of the machine at one moment: seconds of the reference kernel's parts; counters that only grow, in seconds.

    busy, own, stolen   of all processors together: for any process, for this run's processes, for other machines
    """

    at: float
    reference: tuple[float, ...]
    busy: float
    own: float
    stolen: float
    frequency: float | None
    throttled: int


@dataclass(slots=True)
class Conditions:
    """Watches the machine of a run. `reference` times the parts of the reference kernel, in seconds."""

    reference: Callable[[], tuple[float, ...]]
    looks: list[Look] = field(default_factory=list)
    ceilings: dict[str, list[Ceilings]] = field(default_factory=dict)
    """Device -> ceilings that it reached, in each round of the run."""

    def look(self) -> None:
        times = psutil.cpu_times()
        stolen = float(getattr(times, "steal", 0.0))
        idle = times.idle + float(getattr(times, "iowait", 0.0))
        # time of guests is counted in `user` as well
        busy = sum(times) - idle - stolen - sum(float(getattr(times, name, 0.0)) for name in ("guest", "guest_nice"))
        self.looks.append(Look(monotonic(), self.reference(), busy, _own_seconds(), stolen, _frequency(), _throttled()))

    def values(self) -> dict[str, float]:
        """Return the values that `LIMITS` judges, the worst of the run each; unreadable ones are left out."""
        worst: dict[str, float] = {}
        parts = [part for part in zip(*(look.reference for look in self.looks), strict=True) if len(part) > 1]
        if parts:
            worst["reference"] = max(_excess(part) for part in parts)
        for measured in self.ceilings.values():
            for rates in zip(*((ceilings.flops, ceilings.bandwidth) for ceilings in measured), strict=True):
                worst["ceilings"] = max(worst.get("ceilings", 0.0), max(rates) / statistics.median(rates) - 1)
        for first, last in _windows(self.looks):
            seconds = last.at - first.at
            other_load = (last.busy - first.busy - (last.own - first.own)) / seconds
            steal = (last.stolen - first.stolen) / seconds / (os.cpu_count() or 1)
            for name, value in (("others", other_load), ("steal", steal)):
                worst[name] = max(worst.get(name, 0.0), value)
        if frequencies := [look.frequency for look in self.looks if look.frequency]:
            worst["frequency"] = max(frequencies) / min(frequencies) - 1
        if self.looks:
            worst["throttled"] = self.looks[-1].throttled - self.looks[0].throttled
        return worst

    @property
    def state(self) -> MachineState:
        return judged(self.values())


def judged(values: Mapping[str, float]) -> MachineState:
    """Return the state that the values give the machine, with reasons, worst first."""
    noisy = {name: value for name, value in values.items() if value > LIMITS[name].noisy}
    unusable = {name: value for name, value in noisy.items() if value > LIMITS[name].unusable}
    reasons = []
    for name, value in {**unusable, **noisy}.items():
        limit, bound = LIMITS[name], LIMITS[name].unusable if name in unusable else LIMITS[name].noisy
        reasons.append(f"{limit.what}: {limit.text.format(value)} (limit {bound:.3g})")
    return MachineState(state="unusable" if unusable else "noisy" if noisy else "stable", reasons=tuple(reasons))


def _excess(seconds: Sequence[float]) -> float:
    """Return by what share the lower end of the slowest tenth exceeds the upper end of the fastest, so that a machine
    that was slow most of the time shows as well. A single disturbed look does not count."""
    tenths = statistics.quantiles(seconds, n=10, method="inclusive")
    return tenths[-1] / tenths[0] - 1


def _windows(looks: Sequence[Look]) -> list[tuple[Look, Look]]:
    """Return pairs of looks that are far enough apart; if there are none, the first and the last look."""
    windows: list[tuple[Look, Look]] = []
    start = 0
    for number, look in enumerate(looks):
        if look.at - looks[start].at >= SHORTEST:
            windows.append((looks[start], look))
            start = number
    return windows or ([(looks[0], looks[-1])] if len(looks) > 1 else [])


def _own_seconds() -> float:
    """Return the processor time of this process and of all that it has started, those that have ended included."""
    judge = psutil.Process()
    total = 0.0
    for process in [judge, *judge.children(recursive=True)]:
        with suppress(psutil.Error):
            times = process.cpu_times()
            total += times.user + times.system + times.children_user + times.children_system
    return total


def _frequency() -> float | None:
    """Return the current clock frequency in MHz, or None where the system does not tell it."""
    with suppress(OSError, NotImplementedError, RuntimeError):
        frequency = psutil.cpu_freq()
        return float(frequency.current) if frequency and frequency.current else None
    return None


def _throttled() -> int:
    """Count how often processors were slowed down, for heat or by a container's quota."""
    count = 0
    with suppress(OSError, ValueError):
        count += sum(int(file.read_text()) for file in PROCESSORS.glob(f"cpu*/{THROTTLES}"))
    with suppress(OSError, ValueError):
        words = dict(line.split() for line in CGROUP.read_text().splitlines())
        count += int(words.get("nr_throttled", 0))
    return count
