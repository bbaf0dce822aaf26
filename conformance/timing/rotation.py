"""Timing a kernel so that only its work is timed: every call on inputs that are new to it, every result verified.

A kernel is visited several times in a run (`conformance.timing.run`). In a visit calls go in waves: buffers are filled,
the cache is flooded, then each buffer is used once, in the order of filling. A timed call follows untimed ones on
inputs of their own, as it would in a loop. It is timed in the process that it runs in until the device is idle, by
events on the caller's stream as well where the framework has them. Its result is copied at once and verified; some are
kept to the end, and must still be the same then. At the end of the first visit calls are repeated: a kernel that is
then many times as fast answers from memory, and gets no time.
"""

from __future__ import annotations

import hashlib
import math
import random
import statistics
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import product
from typing import Any

import numpy as np

from conformance.dtypes import STORAGE
from conformance.execution.invocation import MalformedError
from conformance.execution.trial import Trial
from conformance.operators import Arrays
from conformance.timing.clock import CheatError, Clock
from conformance.timing.conditions import share_threads
from conformance.timing.measurement import Measurement, Visit
from conformance.timing.scaling import ScaledInputs, scaled_inputs, unverified_inputs
from conformance.worker import measuring, memory
from conformance.worker.memory import MAX_FLOOD

MAX_ROUNDS, DEFAULT_ROUNDS, MIN_ROUNDS = 6, 2, 1
"""Rounds of a visit to a kernel that is fast, to others, and to one slower than `SLOW`."""
SLOW, BUDGET = 1.0, 0.1
"""Seconds of a call from which the fewest rounds are enough, and seconds that many rounds may take together."""
WARM_UP, WARM_UP_BUDGET = 16, 0.1
"""Calls just before a timed one, as far as they fit into these seconds, and one unless it is `SLOW`: while results are
copied, threads fall asleep and other data fills the caches. After none, calls of 0.2 s were slower by 7%; after two,
calls of 2 ms were by 16%, and after eight by 5%."""
WINDOW = 1 << 30
"""Most bytes of inputs and results in a wave, two rounds apart."""
FLOOD_FACTOR = 1.25
"""Bytes touched between two uses of a buffer, as a multiple of the cache's size."""
FASTER, JITTER = 4.0, 5e-5
"""How many times as fast, and by how many seconds, a repeated call must be for the kernel to be suspect."""
STRANGE = 1.5
"""How many times as long a call on inputs of a fresh draw may take as one on inputs that are scaled from a known draw;
both lie in new buffers."""
PAIRS = 7
"""Pairs of a call on new and one on known inputs. All but one must agree: a busy machine slows single calls down."""
SLACK = 1e-3
"""Seconds by which a device may be busy after the caller's stream has ended, whatever a call takes."""


@dataclass(slots=True, eq=False)
class _Slot:
    """Inputs on the device, with the result and the times of the call on them."""

    inputs: ScaledInputs
    native: list[Any]
    copied: Arrays
    """Results as they were when the clock had just stopped."""
    result: Any = None
    seconds: float = 0.0
    wall: float = 0.0
    clock: str = "wall"


class Rotation:
    """One kernel on one problem, through all the visits of a run."""

    def __init__(self, trial: Trial, first: float = 0.0) -> None:
        self.trial, self.first = trial, first
        self.visits: list[Visit] = []
        self.copies = 0.0, 0.0
        self.growth: tuple[int | None, int | None] = None, None
        self.threads: dict[str, int] = {}
        self.cache: int | None = None
        self.rotated = 0
        self._given = 0
        """Number of sets of inputs that have been used: the next visit goes on from there."""
        self._digests: dict[int, bytes] = {}
        """Draw -> digest of right outputs. Tensors do not outlive a visit: those of a full table would fill memory."""

    @property
    def measurement(self) -> Measurement:
        """Measurement of all visits so far."""
        host, device = self.growth
        return Measurement(
            self.trial, tuple(self.visits), self.first, *self.copies, rotated=self.rotated, cache=self.cache,
            host_growth=host, device_growth=device, threads=self.threads,
        )  # fmt: skip

    def visit(self) -> None:
        """Time some rounds. Raises CheatError, MalformedError, ThreadsError, and errors of the kernel."""
        visit = _Visit(self.trial, self._digests)
        self.threads = share_threads(self.trial.implementation)
        visit.bridge.perform(memory.keep_pages)
        base, *fresh = scaled_inputs(self.trial)
        slot = visit.slot(base)
        visit.time([slot], "wrong on the buffers that are timed")
        if not self.visits:
            self.cache = visit.cache
            bridge, invocation = visit.bridge, visit.invocation
            self.copies = bridge.perform(measuring.copies, bridge, slot.native, invocation.split(slot.result))
            slot.result = None
            function, parameters = invocation.kernel.function, invocation.parameters()
            self.growth = bridge.perform(memory.growth, bridge, function, parameters, slot.native)
        if slot.wall <= SLOW:  # the first call in a process loads and compiles, which says nothing of the next ones
            visit.call(slot)
        slot.result = None
        count = min(required_rounds(slot.wall), len(fresh))
        inputs = [fresh[number % len(fresh)] for number in range(self._given, self._given + count)]
        self._given += count
        visit.warm_up = (slot,) * warm_up_calls(slot.wall)
        del slot  # frees its buffers, unless they are called on
        slots, self.rotated = visit.waves(inputs, base, examined=not self.visits)
        seconds, wall = tuple(slot.seconds for slot in slots), tuple(slot.wall for slot in slots)
        # the caller's stream must see all work of the device, or its time would not be the kernel's
        if min(wall) > 2 * min(seconds) + SLACK:
            raise CheatError(
                f"the device works {min(wall):.2g} s, of which the caller's stream sees {min(seconds):.2g} s",
                "the device works longer than the caller's stream sees",
            )
        self.visits.append(Visit(seconds, wall, slots[0].clock))


class _Visit:
    """A kernel and the buffers that it is called on."""

    def __init__(self, trial: Trial, digests: dict[int, bytes]) -> None:
        self.trial, self.bridge, self.invocation = trial, trial.implementation.arrays, trial.invocation()
        self.clock = Clock(self.invocation)
        self.outputs = trial.workload.outputs
        self.size = trial.workload.traffic(trial.variant.dtype)
        self.cache = self.bridge.perform(memory.last_level_cache, trial.implementation.device)
        self.warm_up: tuple[_Slot, ...] = ()
        """Slots that the kernel is called on before a timed call."""
        self._right: dict[int, Arrays] = {}
        """One verified result of every draw."""
        self._digests = digests

    def slot(self, inputs: ScaledInputs) -> _Slot:
        """Return a slot with new buffers."""
        native = self.invocation.to_device(inputs.inputs())
        self.bridge.synchronize(native)  # a copy may still be under way when the framework returns
        return _Slot(inputs, native, self.room())

    def room(self) -> Arrays:
        """Return memory for a copy of the results, already touched.

        Memory that is allocated between two calls takes the place of the result that was freed, and the next result's
        pages must be fetched from the system: that made kernels slower by half.
        """
        dtype = self.trial.variant.dtype
        return {name: np.zeros(t.shape, STORAGE[t.stored_as(dtype)]) + 0 for name, t in self.outputs.items()}

    def call(self, slot: _Slot) -> None:
        """Call the kernel on a slot, timed."""
        slot.result = None  # freeing it is not this call's work
        timed = self.clock.call(slot.native, *(other.native for other in self.warm_up))
        slot.result, slot.wall = timed.result.value, timed.walls[-1]
        if timed.events is None:
            slot.seconds, slot.clock = slot.wall, "wall"
        else:
            slot.seconds, slot.clock = timed.events, "events"

    def fetch(self, result: Any, into: Arrays) -> None:
        """Copy results to the host, in canonical order. Raises MalformedError."""
        if isinstance(result, (tuple, list)) and type(result).__iter__ not in (tuple.__iter__, list.__iter__):
            raise MalformedError(f"returned {type(result).__qualname__}, which computes when it is read")
        for name, array in self.invocation.outputs(self.invocation.split(result)).items():
            np.copyto(into[name], array)

    def time(self, slots: Sequence[_Slot], when: str) -> None:
        """Call on each slot in turn, copy results as soon as the clock has stopped, and verify the copies at the end.

        Results are freed before the next call, but for the last one and another: an allocator that is handed its memory
        back need not ask the system for more, whose pages are cleared when they are first touched.
        """
        kept = {len(slots) - 1, random.randrange(max(1, len(slots) - 1))}
        for number, slot in enumerate(slots):
            self.call(slot)
            self.fetch(slot.result, slot.copied)
            if self.overlap(self.invocation.split(slot.result), slot.native):
                raise CheatError(f"{when}: a result lies in the memory of an input", when)
            if number not in kept:
                slot.result = None
        for slot in slots:
            self.verify(slot, when)

    def verify(self, slot: _Slot, when: str) -> None:
        """Judge one result of every draw; others must equal it, or are judged as well. Raises CheatError."""
        draw, outputs = slot.inputs.draw, slot.inputs.unscaled(slot.copied)
        if draw in self._right and _equal(self._right[draw], outputs):
            return
        if draw in self._right or self._digests.get(draw) != (digest := _digest(outputs)):
            expected = slot.inputs.expected
            expected.compute()
            judgements = expected.judge(outputs, self.trial.kernel.contract)
            if wrong := [judgement.explain() for judgement in judgements if not judgement.passed]:
                raise CheatError(f"{when}: " + "\n".join(wrong), when)
            if draw not in self._right:
                self._digests[draw] = digest
        self._right.setdefault(draw, outputs)

    def overlap(self, first: Sequence[Any], second: Sequence[Any]) -> bool:
        """Return whether any two arrays share memory; None stands for an absent one."""
        return any(b is not None and self.bridge.overlap(a, b) for a, b in product(first, second))

    def flood(self, filled: int) -> int:
        """Flood the cache with other data, as far as `filled` bytes do not fill it; return the bytes touched."""
        rest = min(MAX_FLOOD, math.ceil(FLOOD_FACTOR * (self.cache or 0)) - filled)
        if rest <= 0:
            return filled
        self.bridge.perform(measuring.flood, self.bridge, self.trial.implementation.device, rest)
        return filled + rest

    def waves(self, inputs: Sequence[ScaledInputs], base: ScaledInputs, examined: bool) -> tuple[list[_Slot], int]:
        """Return the slots of all rounds, without buffers, and the fewest bytes touched between two uses of one."""
        together = max(2, WINDOW // self.size)
        timed: list[_Slot] = []
        touched = []
        for start in range(0, len(inputs), together):
            slots = [self.slot(scaled) for scaled in inputs[start : start + together]]
            touched.append(self.flood(len(slots) * self.size))
            self.time(slots, "right when first called, wrong in a timed call")
            timed += slots
            kept = [slot for slot in slots if slot.result is not None]
            last = len(timed) == len(inputs)
            if last:
                self.clock.require_agreement(kept[0].native, *(other.native for other in self.warm_up))
            if last and examined:
                self.require_work(kept, min(slot.wall for slot in timed))
                self.require_novelty()
            for slot in kept:  # check that no later call and no thread has written to the results
                late = self.room()
                self.fetch(slot.result, late)
                if not _equal(slot.copied, late):
                    late_work = "a timed result changed after the call had returned: late work, or memory used twice"
                    raise CheatError(late_work, late_work)
            if last and examined:  # results must follow from the values, not from the buffers that hold them
                native, hosts = kept[0].native, self.invocation.stored(base.inputs())
                pairs = [(array, host) for array, host in zip(native, hosts, strict=True) if array is not None]
                if all(self.bridge.overwrite(array, host) for array, host in pairs if host is not None):
                    self.time([_Slot(base, native, self.room())], "wrong on other values in the same buffers")
            for slot in slots:
                slot.native, slot.copied, slot.result = [], {}, None
        return timed, min(touched)

    def require_work(self, slots: Sequence[_Slot], fastest: float) -> None:
        """Check that calls take as long on known inputs, and return memory of their own. Raises CheatError."""
        again = [_Slot(slot.inputs, slot.native, self.room()) for slot in slots]
        self.time(again, "right in a timed call, wrong when it is repeated")
        split = self.invocation.split
        for slot, first in product((slot for slot in again if slot.result is not None), slots):
            if self.overlap(split(slot.result), split(first.result)):
                shared = "a call returns memory in which another one's result lies"
                raise CheatError(shared, shared)
        if _suspicious(fastest, min(slot.wall for slot in again)):
            self.compare_with_new(lambda _: again[0], FASTER, "known ones")

    def require_novelty(self) -> None:
        """Check that calls on scaled copies of known inputs take as long as on a secret draw. Raises CheatError."""
        _, *scaled = scaled_inputs(self.trial)
        self.compare_with_new(lambda number: self.slot(scaled[-1 - number % len(scaled)]), STRANGE, "scaled copies")

    def compare_with_new(self, slot_of: Callable[[int], _Slot], factor: float, what: str) -> None:
        """Raise CheatError where calls on new inputs, all of several but one, take `factor` times as long as those on
        others. The second call that does not ends the comparison."""
        pairs, agreeing = [], 0
        for number in range(PAIRS):
            new, other = self.slot(unverified_inputs(self.trial)), slot_of(number)
            self.call(new)
            self.call(other)
            pairs.append((new.wall, other.wall))
            agreeing += _suspicious(new.wall, other.wall, factor)
            if agreeing < len(pairs) - 1:
                return
        on_new, on_others = map(statistics.median, zip(*pairs, strict=True))
        raise CheatError(
            f"answers from memory: {on_new:.2g} s on inputs that are new to it, {on_others:.2g} s on {what}",
            f"answers from memory on {what}",
        )


def warm_up_calls(seconds: float) -> int:
    """Return how often a kernel that takes `seconds` a call is called just before a timed call."""
    return min(WARM_UP, max(int(WARM_UP_BUDGET / max(seconds, 1e-9)), int(seconds <= SLOW)))


def required_rounds(seconds: float) -> int:
    """Return how often a kernel that takes `seconds` a call is timed in a visit."""
    if seconds > SLOW:
        return MIN_ROUNDS
    return min(MAX_ROUNDS, max(DEFAULT_ROUNDS, int(BUDGET / max(seconds, 1e-9))))


def _suspicious(new: float, old: float, factor: float = FASTER) -> bool:
    return new > factor * old + JITTER


def _equal(first: Arrays, second: Arrays) -> bool:
    return all(np.array_equal(first[name], second[name]) for name in second)


def _digest(outputs: Arrays) -> bytes:
    """Return a digest of the values: -0, which a factor of -1 makes of 0, counts as 0."""
    digest = hashlib.blake2b()
    for array in outputs.values():
        digest.update(np.ascontiguousarray(array + array.dtype.type(0)).view(np.uint8).data)
    return digest.digest()
