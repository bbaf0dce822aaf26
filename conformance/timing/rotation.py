"""Timing a kernel so that only its work is timed: every call on inputs that are new to it, every result judged.

Calls go in waves: buffers are filled, the cache is flooded, then each buffer is used once, in the order of filling. A
call follows others that nobody times, on inputs of their own, as it would in a loop. It is timed until the device is
idle, by events on the caller's stream as well where the framework has them. Its result is copied at once and judged;
some are kept to the end, and must still be the same then. At last calls are repeated: a kernel that is then many times
as fast answers from memory, and has no time.
"""

from __future__ import annotations

import gc
import math
import random
import statistics
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from itertools import islice, product
from typing import Any

import numpy as np

from conformance.dtypes import STORAGE
from conformance.execution.case import Case
from conformance.execution.invocation import MalformedError
from conformance.execution.status import KernelFailure
from conformance.judge import Contract
from conformance.operators import Arrays
from conformance.timing.allocator import keep_pages
from conformance.timing.cache import FLOOD, last_level, touch
from conformance.timing.contents import Content, contents, unjudged
from conformance.timing.memory import Growth, growth

LEAST, USUAL, MOST = 3, 7, 40
"""Rounds of a kernel slower than `SLOW`, of others, and of those that are fast."""
SLOW, BUDGET = 1.0, 0.5
"""Seconds of a call from which the fewest rounds are enough, and that rounds may take together if they are many."""
BEFORE = 2
"""Calls just before a timed one, as far as they fit into `BUDGET`: while results are copied, threads fall asleep, and
to wake them made a call of half a millisecond slower by a tenth."""
WINDOW = 1 << 30
"""Most bytes of inputs and results in a wave, two rounds apart."""
BEYOND = 1.25
"""Bytes touched between two uses of a buffer, over those of the cache."""
REPEATS, FASTER, JITTER = 1, 4.0, 5e-5
"""Times that kept calls are repeated; how many times as fast, and by how many seconds, no cache makes them."""
PAIRS = 7
"""Of calls on new and on known inputs, in turn, that must all say so: a busy machine says so now and then."""
SLACK = 1e-3
"""Seconds by which a device may be busy after the caller's stream has ended, whatever a call takes."""


class CheatError(KernelFailure):
    """A kernel whose time would not be that of its work; the message says how it showed."""


@dataclass(frozen=True, slots=True)
class Rounds:
    """Seconds of warm calls, each on other inputs, and what was seen beside them.

    seconds   by the device's own events where `clock` is `events`, else until it is idle, as `wall` is
    rotated   bytes of inputs and floods touched between two uses of a buffer; `cache` is the last level's size
    """

    seconds: tuple[float, ...]
    wall: tuple[float, ...]
    clock: str
    copy_in: float
    copy_out: float
    rotated: int
    cache: int | None
    memory: Growth

    @property
    def median(self) -> float:
        """Of the calls."""
        return statistics.median(self.seconds)

    @property
    def cold(self) -> bool:
        """Whether inputs had to be read from memory."""
        return self.cache is not None and self.rotated >= self.cache


@dataclass(slots=True, eq=False)
class _Slot:
    """Inputs on the device and what became of them."""

    content: Content
    native: list[Any]
    early: Arrays
    """A copy of the results, made as soon as the clock had stopped."""
    result: Any = None
    seconds: float = 0.0
    wall: float = 0.0


class _Judge:
    """Judges one result of every draw; others must be the same bit for bit, or are judged as well."""

    def __init__(self, contract: Contract) -> None:
        self._contract = contract
        self._right: dict[int, Arrays] = {}

    def require(self, content: Content, outputs: Arrays, when: str) -> None:
        """Raises CheatError."""
        plain, known = content.plain(outputs), self._right.get(id(content.expected))
        if known is not None and all(np.array_equal(known[name], plain[name]) for name in plain):
            return
        wrong = content.refuted(plain, self._contract)
        if wrong:
            raise CheatError(f"{when}: {wrong}")
        self._right.setdefault(id(content.expected), plain)


class _Rotation:
    """A kernel, the inputs that are new to it, and the judge of its results."""

    def __init__(self, case: Case) -> None:
        self.case, self.bridge, self.invocation = case, case.implementation.arrays, case.invocation()
        self.contents = contents(case)
        self.judge = _Judge(case.kernel.contract)
        self.size = case.operator.bytes(case.problem.geometry, STORAGE[case.variant.dtype].itemsize)
        self.cache = last_level(case.implementation.device)
        self.before: tuple[_Slot, ...] = ()
        """What is called on before a timed call."""

    def slot(self, content: Content) -> _Slot:
        """New buffers."""
        native = self.invocation.to_device(content.inputs())
        self.bridge.synchronize(native)  # a copy may still be under way when the framework returns
        return _Slot(content, native, self.room())

    def room(self) -> Arrays:
        """Memory for a copy of the results, already touched.

        What is allocated between two calls takes the place of the result that was freed, and the next one's pages must
        be fetched from the system: that made kernels slower by half.
        """
        dtype = self.case.variant.dtype
        return {name: np.zeros(t.shape, STORAGE[t.stored_as(dtype)]) + 0 for name, t in self.outputs.items()}

    def call(self, slot: _Slot) -> None:
        """The kernel, timed."""
        for other in self.before:
            self.bridge.synchronize(self.invocation.start(other.native))
        slot.result = None  # freeing it is not this call's work

        def call() -> Any:
            slot.result = self.invocation.start(slot.native)
            return slot.result

        watched = self.bridge.stopwatch(call)
        if watched is None:
            start = time.perf_counter()
            self.bridge.synchronize(call())
            slot.wall = slot.seconds = time.perf_counter() - start
        else:
            slot.seconds, slot.wall = watched

    def timed(self, slots: Sequence[_Slot], when: str) -> None:
        """Call on each in turn, copy its results as soon as the clock has stopped, and judge the copies at the end.

        Results are freed before the next call, but for the last one and another: an allocator that is handed its memory
        back need not ask the system for more, whose pages are cleared when they are first touched.
        """
        kept = {len(slots) - 1, random.randrange(max(1, len(slots) - 1))}
        for number, slot in enumerate(slots):
            self.call(slot)
            self.home(slot.result, slot.early)
            if any(self.bridge.overlap(*pair) for pair in product(self.parts(slot), filter(_there, slot.native))):
                raise CheatError(f"{when}: a result lies in the memory of an input")
            if number not in kept:
                slot.result = None
        for slot in slots:
            self.judge.require(slot.content, slot.early, when)

    def parts(self, slot: _Slot) -> tuple[Any, ...]:
        """What was returned, one for each output."""
        return self.invocation.split(slot.result)

    @property
    def outputs(self) -> dict[str, Any]:
        """What must be returned."""
        return self.case.operator.outputs(self.case.problem.geometry)

    def home(self, result: Any, into: Arrays) -> None:
        """Copy results to the host, in canonical order. Raises MalformedError."""
        if isinstance(result, (tuple, list)) and type(result).__iter__ not in (tuple.__iter__, list.__iter__):
            raise MalformedError(f"returned {type(result).__qualname__}, which computes when it is read")
        for name, array in self.invocation.outputs(self.invocation.split(result)).items():
            np.copyto(into[name], array)

    def flood(self, filled: int) -> int:
        """Fill what the cache holds beyond `filled` bytes with others; return the bytes touched."""
        rest = min(FLOOD, math.ceil(BEYOND * (self.cache or 0)) - filled)
        if rest <= 0:
            return filled
        if self.case.implementation.device == "cpu":
            touch(rest)
        else:
            self.bridge.synchronize(self.bridge.from_host(np.zeros(rest, np.uint8)))
        return filled + rest


def rotate(case: Case) -> Rounds:
    """Time a kernel. Raises CheatError, MalformedError, and what the kernel raises."""
    rotation = _Rotation(case)
    keep_pages()
    with _undisturbed():
        base = next(rotation.contents)
        copy_in, slot = _clocked(rotation.slot, base)
        rotation.timed([slot], "wrong on the buffers that are timed")
        copy_out, _ = _clocked(rotation.home, slot.result, slot.early)
        memory = growth(partial(rotation.call, slot), rotation.bridge)
        due = list(islice(rotation.contents, rounds_due(slot.wall)))
        slot.result, rotation.before = None, (slot,) * calls_before(slot.wall)
        del slot  # frees its buffers, unless they are called on
        slots, rotated = _waves(rotation, due, base)
    events = slots[0].seconds != slots[0].wall
    if events:
        _require_whole(slots)
    times = tuple(s.seconds for s in slots), tuple(s.wall for s in slots)
    return Rounds(*times, "events" if events else "wall", copy_in, copy_out, rotated, rotation.cache, memory)


def calls_before(seconds: float) -> int:
    """How often a kernel of these seconds a call is called just before a timed call."""
    return min(BEFORE, int(BUDGET / max(seconds, 1e-9)))


def rounds_due(seconds: float) -> int:
    """How often a kernel of these seconds a call is timed."""
    if seconds > SLOW:
        return LEAST
    return min(MOST, max(USUAL, int(BUDGET / max(seconds, 1e-9))))


def _waves(rotation: _Rotation, due: Sequence[Content], base: Content) -> tuple[list[_Slot], int]:
    """The slots of all rounds, without their buffers, and the bytes between two uses of one."""
    together = max(2, WINDOW // rotation.size)
    waves = [due[start : start + together] for start in range(0, len(due), together)]
    found: list[_Slot] = []
    touched = []
    for last, wave in ((wave is waves[-1], wave) for wave in waves):
        slots = [rotation.slot(content) for content in wave]
        touched.append(rotation.flood(len(slots) * rotation.size))
        rotation.timed(slots, "right when first called, wrong in a timed call")
        kept = [slot for slot in slots if slot.result is not None]
        if last:
            _require_work(rotation, kept, min(slot.wall for slot in (*found, *slots)))
        _require_kept(rotation, kept)
        if last:
            _require_other_contents(rotation, kept[0], base)
        for slot in slots:
            slot.native, slot.early, slot.result = [], {}, None
        found += slots
    return found, min(touched)


def _require_kept(rotation: _Rotation, slots: Sequence[_Slot]) -> None:
    """Results are still what they were when the clock stopped: no later call and no thread has written to them."""
    for slot in slots:
        late = rotation.room()
        rotation.home(slot.result, late)
        if not all(np.array_equal(slot.early[name], late[name]) for name in late):
            raise CheatError("a timed result changed after the call had returned: late work, or memory used twice")


def _require_work(rotation: _Rotation, slots: Sequence[_Slot], fastest: float) -> None:
    """Calls on inputs that are known take as long, and return memory of their own."""
    again = [_Slot(slot.content, slot.native, rotation.room()) for slot, _ in product(slots, range(REPEATS))]
    rotation.timed(again, "right in a timed call, wrong when it is repeated")
    for slot, first in product((slot for slot in again if slot.result is not None), slots):
        if any(rotation.bridge.overlap(*pair) for pair in product(rotation.parts(slot), rotation.parts(first))):
            raise CheatError("a call returns memory in which another one's result lies")
    if _suspicious(fastest, max(slot.wall for slot in again)):
        pairs = [_pair(rotation, again[0], number) for number in range(PAIRS)]
        if all(_suspicious(new, known) for new, known in pairs):
            new, known = map(statistics.median, zip(*pairs, strict=True))
            raise CheatError(
                f"answers from memory: {new:.2g} s on inputs that are new to it, {known:.2g} s on known ones"
            )


def _there(given: Any) -> bool:
    return given is not None


def _suspicious(new: float, known: float) -> bool:
    return new > FASTER * known + JITTER


def _pair(rotation: _Rotation, known: _Slot, number: int) -> tuple[float, float]:
    """Seconds of a call on inputs that nobody has seen, nor will judge, and on known ones."""
    unseen = rotation.slot(unjudged(rotation.case, number))
    rotation.call(unseen)
    rotation.call(known)
    return unseen.wall, known.wall


def _require_other_contents(rotation: _Rotation, slot: _Slot, content: Content) -> None:
    """Values decide, not the buffers that they lie in."""
    hosts = rotation.invocation.stored(content.inputs())
    pairs = [(native, host) for native, host in zip(slot.native, hosts, strict=True) if native is not None]
    if all(rotation.bridge.overwrite(native, host) for native, host in pairs if host is not None):
        rotation.timed([_Slot(content, slot.native, rotation.room())], "wrong on other values in the same buffers")


def _require_whole(slots: Sequence[_Slot]) -> None:
    """What the caller's stream sees is all that the device does, so that its time is the kernel's."""
    events, wall = min(slot.seconds for slot in slots), min(slot.wall for slot in slots)
    if wall > 2 * events + SLACK:
        raise CheatError(f"the device works {wall:.2g} s, of which the caller's stream sees {events:.2g} s")


def _clocked(call: Callable[..., Any], *given: Any) -> tuple[float, Any]:
    start = time.perf_counter()
    result = call(*given)
    return time.perf_counter() - start, result


@contextmanager
def _undisturbed() -> Iterator[None]:
    """Python's collector waits."""
    enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if enabled:
            gc.enable()
