"""Pool of a Ray cluster's devices, each of which has a judge of its own; and devices that are sick.

A judge is an actor that holds its device for the whole run. It carries out a unit, and its verdicts count when the unit
has ended and the device still gives a known answer. What is lost with its machine is carried out once more, elsewhere.
A failure that another device of the kind does not repeat is asked for once more on its own: if it comes again, the
device is suspect, and there is no verdict; if not, nobody can tell whether the kernel or the device is at fault.
"""

from __future__ import annotations

import json
import os
import platform
import signal
import socket
import time
from collections import Counter, defaultdict, deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import msgspec
from msgspec import structs

from conformance.engine.arithmetic import WrongArithmeticError
from conformance.engine.health import Health, SickDeviceError
from conformance.engine.pool import (
    Begun,
    Counted,
    Died,
    Done,
    Event,
    Judge,
    JudgeError,
    Suspected,
    TakenOut,
    Wanted,
)
from conformance.engine.run import Run
from conformance.engine.task_wire import UnknownKernelError, decode, encode
from conformance.engine.tasks import Task
from conformance.engine.units import implementation_of
from conformance.execution import device_shares
from conformance.execution.selection import SelectionError
from conformance.execution.status import Verdict
from conformance.execution.trial import Absence, absence_reason
from conformance.failure import Failure
from conformance.implementations.devices import DEVICES
from conformance.resources import PACKAGE
from conformance.results import build
from conformance.results.schema import AnyRecord
from conformance.results.writing import encode as encoded_record
from conformance.worker import wire

OFFERED = {
    "cuda": "GPU",
    "rocm": "GPU",
    "xpu": "GPU",
    "tpu": "TPU",
    "simulator": "CPU",
    "emulator": "CPU",
    "cpu": "CPU",
}
"""Device -> Ray's resource; all others are Neuron's."""
LOOK = 1.0
"""Seconds between two looks at judges that have said nothing."""
CALLS, STARTING = 30, 120.0
"""Longest calls of a kernel that one task may take, and seconds for all else, before its judge is ended."""
CONFIRMED = 5
"""Failures of an operator of an implementation that a second device has repeated; later ones are not repeated."""
MOST_SUSPECTS = 2
"""Suspect verdicts after which a device is taken out of the run."""
MOST_UNREPEATABLE = 2
"""Kernels with failures on a device that are not repeatable, after which it is taken out: a race is one kernel's."""
MOST_STARTS = 3
"""Judges that may end before they have carried out a task, for each device, before the run ends."""
CONNECTING = 10.0
"""Seconds to reach the cluster."""
COMPARED = ("python", "numpy", "ml_dtypes", "kernel-conformance")
"""Versions that must be the same on all machines, for verdicts depend on them."""


class Answer(msgspec.Struct, tag_field="kind", frozen=True):
    """What a judge says while it carries out a unit: the record of a task, or, at its end, why its device is sick, or
    what of the unit cannot be used there: implementation -> the reason."""

    start: float = 0.0
    record: bytes = b""
    beside: bytes = b""
    is_end: bool = False
    sick: str = ""
    unavailable: dict[str, str] = {}
    compiled: wire.Compiled = wire.Compiled()


class JudgeOfDevice:
    """Actor that judges on one device. `make` returns the run of `words` typed in `folder`, a path below the folder in
    which the actor starts; `sentinel` is a kernel that is known to be right on the device. `origins` are the folders of
    the head that were copied to `folder`, and to the one above it."""

    def __init__(
        self,
        make: Callable[[Sequence[str]], Run],
        words: Sequence[str],
        folder: str,
        sentinel: str,
        origins: tuple[str, str],
    ) -> None:
        travelled = Path.cwd()
        copies = str(travelled / folder), str(travelled)
        self._origins = {_in_json(copy): _in_json(origin) for copy, origin in zip(copies, origins, strict=True)}
        os.chdir(travelled / folder)
        self._devices_here = device_shares.note_given()
        self._run = make(words)
        self._judge = Judge(self._run)
        self._sentinel, self._health = sentinel, dict[str, Health]()

    def described(self) -> tuple[str, dict[str, str]]:
        """Return the name of its device, and the versions that verdicts depend on."""
        import ray

        context = ray.get_runtime_context()
        device = ", ".join([f"{platform.node()} (node {context.get_node_id()[:8]})", *self._devices_here])
        return device, {name: build.versions()[name] for name in COMPARED}

    def carry_out(self, content: bytes) -> Iterator[bytes]:
        """Yield an answer for each task, and one at the end."""
        catalogue = self._run.plan.registry
        try:
            tasks = decode(content, catalogue.implementations)
        except UnknownKernelError as error:
            reasons = [f"{path}: {broken.reason}" for path, broken in catalogue.broken.items()]
            reasons += [f"{stem}: {reason}" for stem, reason in catalogue.unavailable.items()]
            raise JudgeError("; ".join(reasons) or f"{error} is not in its file there") from None
        unavailable = self._unavailable(tasks)
        sick = ""
        try:
            for device in self._devices(tasks):
                self._health_of(device).require()
            for task in tasks if not unavailable else ():
                start, performed = self._judge.answer(task)
                beside = self._at_the_head(encoded_record(performed.beside)) if performed.beside else b""
                record = self._at_the_head(encoded_record(performed.record))
                yield msgspec.msgpack.encode(Answer(start, record, beside))
            self._judge.end()
            for device in self._devices(tasks):
                self._health_of(device).require()
        except (SickDeviceError, WrongArithmeticError) as error:
            sick = str(error)
        workers = self._run.workers
        compiled = workers.compiled if workers is not None else wire.Compiled()
        end = Answer(is_end=True, sick=sick, unavailable=unavailable, compiled=compiled)
        yield msgspec.msgpack.encode(end)

    def _at_the_head(self, content: bytes) -> bytes:
        """Return what stands in a record with the head's paths in the place of those here, which differ by machine:
        what is alike in all else would not be one failure."""
        for copy, origin in self._origins.items():
            content = content.replace(copy, origin)
        return content

    def _devices(self, tasks: Sequence[Task]) -> list[str]:
        return [*dict.fromkeys(map(device_of, tasks))]

    def _unavailable(self, tasks: Sequence[Task]) -> dict[str, str]:
        """Return the implementations that cannot be used here, with the reasons."""
        here = self._run.plan.registry.implementations
        named = {name: here[name] for name in map(implementation_of, tasks) if name in here}
        reasons = {name: absence_reason(implementation) for name, implementation in named.items()}
        return {name: self._at_the_head(reason.encode()).decode() for name, reason in reasons.items() if reason}

    def _health_of(self, device: str) -> Health:
        if device not in self._health:
            self._health[device] = Health(device, self._sentinel, self._run.options.limits)
        return self._health[device]


@dataclass(eq=False)
class _Unit:
    """Tasks that are carried out together. `first` is a failure that is repeated on another device than its own;
    `second` what that one said, if it is to be repeated on its own device."""

    tasks: list[Task]
    resource: str
    first: tuple[Done, str] | None = None
    second: tuple[Done, str] | None = None


@dataclass(eq=False)
class _JudgingActor:
    """A judge, as the run sees it. `device` is empty until it has started."""

    actor: Any
    resource: str
    starting: Any
    device: str = ""
    unit: _Unit | None = None
    answers: Any = None
    """Generator of references to its answers."""
    done: list[Done] = field(default_factory=list)
    unavailable: dict[str, str] = field(default_factory=dict)
    """Implementation that cannot be used there -> why."""
    heard: float = field(default_factory=time.monotonic)


class Cluster:
    """Pool of the devices that a Ray cluster has of the kinds that a run needs.

    `make` is a function that a judge makes its run with, `shipped` the folder with the suite and the kernels that
    travels to all machines, and `folder` the place in it that stands for the current folder. `resource` replaces Ray's
    names of devices. Raises SelectionError where the cluster cannot be reached or lacks what is needed.
    """

    def __init__(
        self,
        address: str,
        make: Callable[[Sequence[str]], Run],
        words: Sequence[str],
        shipped: Path,
        folder: str,
        *,
        resource: str = "",
        sentinel: str = "",
        seconds: float,
    ) -> None:
        self._compiled = dict[int, wire.Compiled]()
        """What each judge has compiled, as its last answer said."""
        self._ray, self._resource, self._seconds = connected(address, shipped), resource, seconds
        self._arguments = make, tuple(words), folder, sentinel, (str(Path.cwd()), str(PACKAGE.parent))
        self._judges: list[_JudgingActor] = []
        self._lost, self._suspects, self._confirmed = Counter[int](), Counter[str](), Counter[tuple[str, str]]()
        self._unrepeatable = defaultdict[str, set[tuple[str, str]]](set)
        """Device -> implementations and operators with failures there that are not repeatable."""
        self._out: dict[str, str] = {}
        """Device that was taken out -> why."""
        self._failed_starts = 0

    @property
    def offers(self) -> set[str]:
        """Devices that count as if they were here: all that the cluster has a resource for."""
        resources = self._ray.cluster_resources()
        return {
            device for device in DEVICES if resources.get(self._resource or OFFERED.get(device, "neuron_cores"), 0) >= 1
        }

    @property
    def devices(self) -> int:
        """Number of devices of the kinds that the run may use."""
        names = {self._resource} if self._resource else {*OFFERED.values(), "neuron_cores"}
        return int(sum(count for name, count in self._ray.cluster_resources().items() if name in names))

    @property
    def compiled(self) -> wire.Compiled:
        """Programs that its judges have compiled."""
        return sum(self._compiled.values(), wire.Compiled())

    def run(self, units: Sequence[Sequence[Task]], wants: Wanted) -> Iterator[Event]:
        """Hand each idle judge the next unit, and yield events as units end."""
        waiting = deque(_Unit([*tasks], self._needs(tasks)) for tasks in units)
        whole, ended = len(waiting), 0
        for resource in {unit.resource for unit in waiting}:
            require_offered(self._ray, resource, "--resource" if self._resource else "--ray")
        while waiting or any(judge.unit for judge in self._judges):
            self._start(waiting)
            yield from self._left_over(waiting)
            for judge in self._judges:
                yield from self._hand(judge, waiting, wants)
            for judge in self._heard():
                had = judge.unit
                yield from self._said(judge, waiting)
                ended += had is not None and had.first is None and judge.unit is None and judge in self._judges
                yield Counted(min(ended, whole), whole, sum(bool(judge.unit) for judge in self._judges))
            yield from self._late(waiting)

    def close(self) -> None:
        """End all judges at once, in the middle of a task as well, and leave the cluster."""
        for judge in self._judges:
            with suppress(Exception):
                self._ray.kill(judge.actor)
        self._judges = []
        self._ray.shutdown()

    def _needs(self, tasks: Sequence[Task]) -> str:
        return self._resource or OFFERED.get(device_of(tasks[0]), "neuron_cores")

    def _start(self, waiting: deque[_Unit]) -> None:
        """Start a judge for each device, but no more than there are units."""
        for resource in dict.fromkeys(unit.resource for unit in waiting):
            units = [unit for unit in waiting if unit.resource == resource]
            devices = int(self._ray.cluster_resources().get(resource, 0))
            here = [judge for judge in self._judges if judge.resource == resource]
            for judge in [judge for judge in here if judge.starting][: max(0, len(here) - devices)]:
                here.remove(judge)  # it waits for a machine that is lost
                self._judges.remove(judge)
                self._ray.kill(judge.actor)
            idle = sum(judge.unit is None and any(self._may(judge, unit) for unit in units) for judge in here)
            for _ in range(min(devices - len(here), len(units) - idle)):
                self._judges.append(self._started(resource))
            if not any(judge.device not in self._out for judge in here) and devices <= len(here):
                reasons = "; ".join(f"{device}: {why}" for device, why in self._out.items())
                raise JudgeError(f"no device is left that offers {resource} ({reasons or 'all machines are lost'})")

    def _left_over(self, waiting: deque[_Unit]) -> Iterator[Event]:
        """Yield what no judge may carry out: verdicts that were to be repeated on another device stand, a device on
        which they were to be repeated is suspect, and what can be used on no machine is unavailable."""
        for unit in [*waiting]:
            if any(self._may(judge, unit) for judge in self._judges):
                continue
            waiting.remove(unit)
            if unit.second is not None:
                yield from self._suspected(unit)
                continue
            if unit.first is not None:
                yield unit.first[0]
                continue
            reasons = {name: why for judge in self._judges for name, why in judge.unavailable.items()}
            for task in unit.tasks:
                reason = reasons.get(implementation_of(task), "another implementation of its unit cannot be used")
                yield Done(task, time.time(), task.record(Verdict("unavailable", reason)))

    def _started(self, resource: str) -> _JudgingActor:
        actor = (
            self._ray.remote(JudgeOfDevice)
            .options(max_restarts=0, max_task_retries=0, **holding(resource))
            .remote(*self._arguments)
        )
        return _JudgingActor(actor, resource, actor.described.remote())

    def _hand(self, judge: _JudgingActor, waiting: deque[_Unit], wants: Wanted) -> Iterator[Begun]:
        """Hand a judge that is idle the next unit that it may carry out."""
        while judge.device and judge.unit is None and judge.device not in self._out:
            unit = next((unit for unit in waiting if self._may(judge, unit)), None)
            if unit is None:
                return
            waiting.remove(unit)
            unit.tasks = [task for task in unit.tasks if unit.first or wants(task)]
            if not unit.tasks:
                continue
            judge.unit, judge.done, judge.heard = unit, [], time.monotonic()
            judge.answers = judge.actor.carry_out.options(num_returns="streaming").remote(encode(unit.tasks))
            yield Begun(unit.tasks[0])

    def _may(self, judge: _JudgingActor, unit: _Unit) -> bool:
        """Return whether a judge may carry out a unit, as far as is known."""
        is_able = unit.resource == judge.resource and judge.device not in self._out
        if judge.unavailable:
            is_able &= judge.unavailable.keys().isdisjoint(map(implementation_of, unit.tasks))
        if unit.first is None:
            return is_able
        is_own = unit.first[1] == judge.device
        return is_able and (not is_own if unit.second is None else is_own or not judge.device)

    def _heard(self) -> list[_JudgingActor]:
        """Wait a moment until judges have said something or have ended, and return these."""
        judges = {judge.answers or judge.starting: judge for judge in self._judges if judge.answers or judge.starting}
        if not judges:
            time.sleep(LOOK)
            return []
        ready, _ = self._ray.wait([*judges], num_returns=1, timeout=LOOK, fetch_local=False)
        return [judges[reference] for reference in ready]

    def _said(self, judge: _JudgingActor, waiting: deque[_Unit]) -> Iterator[Event]:
        judge.heard = time.monotonic()
        try:
            if judge.answers is None:
                judge.device, versions = self._ray.get(judge.starting)
                judge.starting = None
                self._failed_starts = 0
                require_same(judge.device, versions)
                return
            answer = msgspec.msgpack.decode(self._ray.get(next(judge.answers)), type=Answer)
        except self._ray.exceptions.RayTaskError as error:
            self._judges.remove(judge)
            raise JudgeError(f"a judge on {judge.device or 'a device'} cannot go on: {_last_line(error)}") from None
        except self._ray.exceptions.RayError as error:
            yield from self._ended(judge, waiting, f"its machine or its process has ended ({_last_line(error)})")
            return
        unit = judge.unit
        assert unit is not None
        if not answer.is_end:
            task = unit.tasks[len(judge.done)]
            beside = _decode(answer.beside) if answer.beside else None
            judge.done.append(Done(task, answer.start, _decode(answer.record), beside))
            if len(judge.done) < len(unit.tasks):
                yield Begun(unit.tasks[len(judge.done)])
            return
        judge.unit = judge.answers = None
        judge.unavailable |= answer.unavailable
        self._compiled[id(judge.actor)] = answer.compiled
        if answer.sick:
            waiting.appendleft(unit)
            yield from self._take_out(judge.device, answer.sick)
        elif answer.unavailable:
            waiting.appendleft(unit)
        else:
            yield from self._judged(judge, unit, waiting)

    def _judged(self, judge: _JudgingActor, unit: _Unit, waiting: deque[_Unit]) -> Iterator[Event]:
        """Yield the verdicts of a unit; those that are failures when another device has repeated them."""
        if unit.first is not None:
            (done,) = judge.done
            first, _ = unit.first
            if unit.second is not None:
                passed = done.record.status == "pass"
                yield from self._not_repeatable(unit, done) if passed else self._suspected(unit)
            elif done.record.status == first.record.status:
                self._confirmed[first.record.implementation, first.record.operator] += 1
                yield first
            else:
                unit.second = done, judge.device
                if done.record.status == "pass":
                    waiting.append(unit)
                else:
                    yield from self._suspected(unit)
            return
        sound = {judge.device for judge in self._judges if judge.resource == unit.resource and judge.device}
        other_devices = sound - {judge.device, *self._out}
        for done in judge.done:
            record = done.record
            is_wrong = record.status in ("fail", "error") and not isinstance(done.task.subject, Absence)
            if is_wrong and other_devices and self._confirmed[record.implementation, record.operator] < CONFIRMED:
                waiting.append(_Unit([done.task], unit.resource, (done, judge.device)))
            else:
                yield done

    def _suspected(self, unit: _Unit) -> Iterator[Event]:
        """Yield that a device is suspect, which another one has not confirmed."""
        assert unit.first is not None
        assert unit.second is not None
        (first, device), (second, other) = unit.first, unit.second
        yield Suspected(first.task, device, other, (first.record.status, second.record.status))
        self._suspects[device] += 1
        if self._suspects[device] >= MOST_SUSPECTS and device not in self._out:
            yield from self._take_out(device, f"{MOST_SUSPECTS} of its verdicts were not repeated by others")

    def _not_repeatable(self, unit: _Unit, again: Done) -> Iterator[Event]:
        """Yield a failure as an error that says so: it came once on a device, and not `again`, nor on another one."""
        assert unit.first is not None
        assert unit.second is not None
        (first, device), (_, other) = unit.first, unit.second
        why = f"failed once on {device}, passed on {device} and on {other}: the kernel or the device, cannot be told"
        record = structs.replace(
            first.record,
            status="error",
            reason=f"not repeatable: {why}\n{first.record.reason}",
            failure=Failure(kind="not repeatable", message="not repeatable"),
            causes=(),
            checks={},
            reading="",
        )
        yield first._replace(record=record, beside=again.beside)
        kernels = self._unrepeatable[device]
        kernels.add((record.implementation, record.operator))
        if len(kernels) >= MOST_UNREPEATABLE and device not in self._out:
            yield from self._take_out(device, f"failures of {len(kernels)} kernels were not repeatable on it")

    def _ended(self, judge: _JudgingActor, waiting: deque[_Unit], why: str) -> Iterator[Event]:
        """Give the unit of a judge that is lost back; the task that is lost the second time has no verdict."""
        self._judges.remove(judge)
        with suppress(Exception):
            self._ray.kill(judge.actor)
        unit = judge.unit
        if unit is None:
            self._failed_starts += 1
            if self._failed_starts > MOST_STARTS:
                raise JudgeError(f"no judge starts: {why}")
            return
        task = unit.tasks[min(len(judge.done), len(unit.tasks) - 1)]
        self._lost[id(task)] += 1
        if self._lost[id(task)] > 1:
            unit.tasks.remove(task)
            yield Died(task, f"lost twice with its machine: {why}")
        if unit.tasks:
            waiting.appendleft(unit)

    def _late(self, waiting: deque[_Unit]) -> Iterator[Event]:
        """End judges that take too long for a task: the judge hangs, since it ends a kernel that does."""
        limit = CALLS * self._seconds + STARTING
        for judge in [*self._judges]:
            if judge.unit is not None and time.monotonic() - judge.heard > limit:
                yield from self._ended(judge, waiting, f"no verdict within {limit:g} s")

    def _take_out(self, device: str, reason: str) -> Iterator[TakenOut]:
        self._out[device] = reason
        yield TakenOut(device, reason)


def connected(address: str, shipped: Path) -> Any:
    """Join a cluster, with a folder that travels to all its machines, and return Ray. Raises SelectionError where it
    cannot be reached."""
    if find_spec("ray") is None:
        raise SelectionError("--ray needs Ray: pip install 'kernel-conformance[ray]'")
    import ray

    os.environ["RAY_USAGE_STATS_ENABLED"] = "0"
    _require_listening(address)
    handlers = {number: signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGINT)}
    try:
        ray.init(
            address=address,
            logging_level="CRITICAL",
            log_to_driver=False,
            include_dashboard=False if address == "local" else None,
            runtime_env={"working_dir": str(shipped)},
        )
    except (ConnectionError, ValueError, RuntimeError) as error:
        raise SelectionError(f"--ray {address}: {str(error).splitlines()[0]}") from None
    finally:
        for number, handler in handlers.items():  # Ray's own would end the run without its summary
            signal.signal(number, handler)
    return ray


def require_offered(ray: Any, resource: str, option: str) -> None:
    """Raise SelectionError if no machine of the cluster offers a resource: Ray would wait for it for ever."""
    offered = {name: count for name, count in ray.cluster_resources().items() if not name.startswith("node:")}
    if offered.get(resource, 0) < 1:
        here = ", ".join(f"{name} {count:g}" for name, count in sorted(offered.items()) if "memory" not in name)
        raise SelectionError(
            f"{option}: the cluster offers no {resource} (it has {here or 'nothing'}); start a machine with it, or "
            "name what it has with --resource NAME"
        )


def holding(resource: str) -> dict[str, Any]:
    """Return the options of Ray with which an actor or a task holds a resource, and nothing else."""
    amounts = {"CPU": {"num_cpus": 1}, "GPU": {"num_cpus": 0, "num_gpus": 1}}
    return amounts.get(resource, {"num_cpus": 0, "resources": {resource: 1}})


def require_same(device: str, there: Mapping[str, str]) -> None:
    """Raise JudgeError where a machine has other versions than this one."""
    here = build.versions()
    for name, version in there.items():
        if version != here[name]:
            raise JudgeError(
                f"{device} has {name} {version}, this machine {here[name]}: verdicts depend on it; install the same"
            )


def _require_listening(address: str) -> None:
    """Raise SelectionError if nobody listens at `host:port`: Ray would ask for minutes."""
    host, _, port = address.removeprefix("ray://").rpartition(":")
    if host and port.isdigit():
        try:
            socket.create_connection((host, int(port)), CONNECTING).close()
        except OSError as error:
            raise SelectionError(f"--ray {address}: no cluster is there ({error.strerror or error})") from None


def device_of(task: Task) -> str:
    """Return the device that a task is for."""
    subject = task.subject
    return (subject.device if isinstance(subject, Absence) else subject.implementation.device) or "cpu"


_decode = msgspec.json.Decoder(AnyRecord).decode


def _in_json(path: str) -> bytes:
    """Return a path as it stands in a string of a record."""
    return json.dumps(path, ensure_ascii=False).encode("utf-8", "replace")[1:-1]


def _last_line(error: Exception) -> str:
    """Return the first sentence of an error's last line, where Ray says what happened: advice follows it."""
    return (str(error).strip().splitlines() or [type(error).__name__])[-1].strip().partition(". ")[0]
