"""Devices of this host, shared out: each process of a run sees one, by the variable that its driver reads, and two runs
take different ones, by a lock for each device.

No driver is started here: a process that has opened a device keeps memory of it, and cannot be given another one.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from functools import cache
from getpass import getuser
from pathlib import Path

import msgspec
from msgspec import Struct, structs

from conformance.execution.selection import SelectionError
from conformance.implementations.devices import NEURON, neuron_cores
from conformance.implementations.errors import printable

FOLDER = "CONFORMANCE_DEVICE_LOCKS"
"""Variable with the folder of locks, for containers that share devices and no /tmp."""
SHARED = Path("/tmp/kernel-conformance-devices")
"""Folder of locks that all users of the host share: TMPDIR is often a folder of one job."""
LONGEST, COMMAND = 1 << 14, 1000
"""Bytes of a lock that are read, as other users write it, too; characters of a command that it names."""
SECONDS = 20.0
"""Seconds that nvidia-smi may take: it wakes devices that sleep."""
NVIDIA = re.compile(r"^GPU (\d+): .*\(UUID: (GPU-[\w-]+)\)|^ +MIG .*\(UUID: (MIG-[\w/-]+)\)", re.MULTILINE)


class Device(Struct, frozen=True, omit_defaults=True):
    """A device of this host: the name of its kind, its number among all of that kind, the serial number that its driver
    reports, and the word by which a process asks for it. `was_killed` is the run that held it and never let it go."""

    kind: str
    index: int | None = None
    serial: str = ""
    word: str = ""
    was_killed: str = ""

    @property
    def name(self) -> str:
        """Name that people read: `cuda:1`."""
        return f"{self.kind}:{self.serial if self.index is None else self.index}"

    @property
    def file(self) -> str:
        """Name of the lock; by the serial number, as containers count their devices anew."""
        return re.sub(r"[^\w.-]", "_", f"{self.kind}-{self.serial or self.index}")


class Share(Struct, frozen=True, omit_defaults=True):
    """Part of a process: the variables that it is given, and marker -> the device that it sees."""

    variables: dict[str, str] = {}
    devices: dict[str, Device] = {}


class Holder(Struct, frozen=True):
    """Run that holds a device, as its lock says."""

    process: int
    user: str
    command: str

    def __str__(self) -> str:
        return printable(f"process {self.process} of {self.user} ({self.command})")


@dataclass(frozen=True, eq=False)
class Kind:
    """Devices that one driver counts.

    markers     markers of implementations that run on them
    noun        name of such a device in a sentence
    count       function that returns all that are here
    variables   variables that choose some of them, each counting within what those before it leave; of two that mean
                the same the driver reads the first
    is_owned    whether a device belongs to one process until that ends
    counting    variables with which the driver counts as `count` does; a user who names devices keeps their numbers
    settings    variables that a process of one device needs
    by_hand     variables by which a user chooses devices in another way: what they name is shared out by nobody
    """

    markers: tuple[str, ...]
    noun: str
    count: Callable[[], list[Device]]
    variables: tuple[tuple[str, ...], ...]
    is_owned: bool = False
    counting: Mapping[str, str] = field(default_factory=dict)
    settings: Mapping[str, str] = field(default_factory=dict)
    by_hand: tuple[str, ...] = ()

    @property
    def chosen(self) -> list[str]:
        """Variables that the user has set."""
        chosen = ([name for name in names if name in os.environ] for names in self.variables)
        return [names[0] for names in chosen if names]

    @property
    def variable(self) -> str:
        """Variable to write."""
        return [self.variables[0][0], *self.chosen][-1]

    def visible(self) -> list[Device]:
        """Return the devices that the user leaves to choose from."""
        devices = [] if any(name in os.environ for name in self.by_hand) else self.count()
        for variable in self.chosen:
            devices = [*_named(os.environ[variable], devices)] if devices else []
        return [*{device.file: device for device in devices}.values()]


def _named(text: str, devices: Sequence[Device]) -> Iterator[Device]:
    """Yield the devices that a variable names by number, by range or by serial number, up to the first that is not
    there, as CUDA does. A part of a device that the list does not have is a device of its own."""
    for word in text.replace(" ", "").split(","):
        if numbers := re.fullmatch(r"(\d+)(?:-(\d+))?", word):
            first, last = int(numbers[1]), int(numbers[2] or numbers[1])
            yield from (
                structs.replace(device, word=str(first + n)) for n, device in enumerate(devices[first : last + 1])
            )
            if last >= len(devices):
                return
        elif word and (same := [device for device in devices if device.serial.startswith(word)]):
            yield structs.replace(same[0], word=word)
        elif re.match(r"MIG-|\d+\.\d", word):
            yield Device(devices[0].kind, serial=word, word=word)
        else:
            return


@cache
def _listed(program: str | None) -> str:
    """Return what nvidia-smi prints of the GPUs; empty if it does not run."""
    with suppress(OSError, subprocess.TimeoutExpired):
        if program:
            return subprocess.run([program, "-L"], capture_output=True, text=True, timeout=SECONDS, check=False).stdout
    return ""


def _nvidia() -> list[Device]:
    """Return the GPUs that nvidia-smi lists, or without it the driver's files; of one that is divided, its parts."""
    devices: list[Device] = []
    if listed := _listed(shutil.which("nvidia-smi")):
        index, parts = 0, set[int]()
        for number, serial, part in NVIDIA.findall(listed):
            index = int(number or index)
            parts |= {index} if part else set()
            devices.append(Device("cuda", index, serial or part, part or number))
        return [device for device in devices if device.index not in parts or device.serial.startswith("MIG")]
    for index, folder in enumerate(sorted(Path("/proc/driver/nvidia/gpus").glob("*"))):
        with suppress(OSError):
            serial = re.search(r"GPU UUID:\s+(GPU-[\w-]+)", (folder / "information").read_text())
            devices.append(Device("cuda", index, serial[1] if serial else "", str(index)))
    return devices


def _amd() -> list[Device]:
    """Return the nodes of the driver's topology that have SIMD units; those of other containers cannot be read."""
    serials = list[str]()
    nodes = Path("/sys/class/kfd/kfd/topology/nodes").glob("[0-9]*")
    for node in sorted(nodes, key=lambda node: int(node.name)):
        with suppress(OSError):
            properties = dict(re.findall(r"^(\w+) (\d+)$", (node / "properties").read_text(), re.MULTILINE))
            if int(properties.get("simd_count", 0)):
                number = int(properties.get("unique_id", 0))
                serials.append(f"GPU-{number:016x}" if number else "")
    return [Device("rocm", index, serial, str(index)) for index, serial in enumerate(serials)]


def _intel() -> list[Device]:
    vendors = sorted(Path("/sys/class/drm").glob("renderD*/device/vendor"))
    return _numbered("xpu", sum(vendor.read_text().strip() == "0x8086" for vendor in vendors))


def _neuron() -> list[Device]:
    # whoever asks for several cores a process shares them out by hand
    return _numbered("neuron", neuron_cores() if os.environ.get("NEURON_RT_NUM_CORES", "1") == "1" else 0)


def _tpu() -> list[Device]:
    accelerators = [*Path("/dev").glob("accel[0-9]*")] or [*Path("/dev/vfio").glob("[0-9]*")]
    return _numbered("tpu", len(accelerators))


def _numbered(kind: str, count: int) -> list[Device]:
    return [Device(kind, index, word=str(index)) for index in range(count)]


KINDS = (
    Kind(
        ("cuda",), "GPU", lambda: _nvidia(), (("CUDA_VISIBLE_DEVICES",),),
        counting={"CUDA_DEVICE_ORDER": "PCI_BUS_ID"},
    ),
    Kind(
        ("rocm",), "GPU", lambda: _amd(), (("ROCR_VISIBLE_DEVICES",), ("HIP_VISIBLE_DEVICES", "CUDA_VISIBLE_DEVICES")),
        by_hand=("GPU_DEVICE_ORDINAL",),
    ),
    Kind(("xpu",), "GPU", lambda: _intel(), (("ZE_AFFINITY_MASK",),), by_hand=("ONEAPI_DEVICE_SELECTOR",)),
    Kind(tuple(NEURON), "NeuronCore", lambda: _neuron(), (("NEURON_RT_VISIBLE_CORES",),), is_owned=True),
    Kind(
        ("tpu",), "TPU chip", lambda: _tpu(), (("TPU_VISIBLE_CHIPS",),), is_owned=True,
        settings={"TPU_CHIPS_PER_PROCESS_BOUNDS": "1,1,1", "TPU_PROCESS_BOUNDS": "1,1,1"},
        by_hand=("TPU_VISIBLE_DEVICES",),
    ),
)  # fmt: skip


def is_any_here(markers: Collection[str]) -> bool:
    """Return whether this host has a device of one of these markers."""
    return any(kind.visible() for kind in KINDS if set(markers) & set(kind.markers))


def device_count(markers: Collection[str]) -> int:
    """Return how many devices of these markers the user leaves; 0 if one of them is of no kind that can be shared."""
    if not set(markers) <= {marker for kind in KINDS for marker in kind.markers}:
        return 0
    return sum(len(kind.visible()) for kind in KINDS if set(markers) & set(kind.markers))


HERE: dict[str, Device] = {}
"""Marker -> the device that kernels of this process see, as far as it was given them."""


def occupy(share: Share) -> None:
    """Let kernels that this process starts from now on see the devices of a share."""
    os.environ.update(share.variables)
    HERE.update(share.devices)


def note_given() -> list[str]:
    """Note the devices that a scheduler has given this process by their variables, and return their names. A process
    that has none judges on the host itself, which its records then name."""
    HERE.update({marker: Device(marker) for marker in ("cpu", "simulator", "emulator")})
    visible = {kind: kind.visible() for kind in KINDS if kind.chosen}
    for kind, devices in visible.items():
        if len(devices) == 1:
            HERE.update(dict.fromkeys(kind.markers, devices[0]))
    return [" ".join(filter(None, (device.name, device.serial))) for devices in visible.values() for device in devices]


class Held(Exception):
    """Raised where another run holds a device; the message says which run."""


class Shares:
    """Devices that a run has taken for its `processes`, and their locks, until it ends.

    This process holds the locks: those that judge do not outlive it. It empties their files at the end, so that a file
    that can be locked and names a run was left by one that was killed.
    """

    def __init__(self, processes: int, command: Sequence[str] = ()) -> None:
        self.processes = processes
        """Number of processes that judge: less than was asked for, where there are not enough devices."""
        self.notes: list[str] = []
        """Lines for the user."""
        self._command = " ".join(command)[:COMMAND]
        self._parts: dict[tuple[str, ...], list[Share]] = {}
        """Markers of a kind -> the share that each of its devices makes."""
        self._locks: list[int] = []
        self._before: dict[str, str | None] = {}
        """Variables of this process as they were."""

    def __enter__(self) -> Shares:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Let others take the devices."""
        for lock in self._locks:
            os.ftruncate(lock, 0)
            os.close(lock)
        self._locks = []
        for name, text in self._before.items():
            os.environ.pop(name, None)
            os.environ.update({} if text is None else {name: text})
        HERE.clear()

    def __bool__(self) -> bool:
        """Return whether the run has devices of its own."""
        return bool(self._parts)

    def of(self, place: int) -> Share:
        """Return the share of one of the processes, which are numbered from 0."""
        parts = [devices[place % len(devices)] for devices in self._parts.values()]
        variables = {name: text for part in parts for name, text in part.variables.items()}
        return Share(variables, {marker: device for part in parts for marker, device in part.devices.items()})

    def occupy(self) -> None:
        """Let kernels of this process see the devices of the first share, until the run ends."""
        share = self.of(0)
        self._before = {name: os.environ.get(name) for name in share.variables} | self._before
        occupy(share)

    def take(self, markers: Collection[str], *, is_asked: bool = False) -> bool:
        """Take devices for implementations with these markers; return whether kernels of this process see others now.
        Raises SelectionError if more processes are asked for than there are devices of their own, or if other runs hold
        all of these."""
        before = dict(os.environ)
        for kind in KINDS if sys.platform != "win32" else ():
            if set(markers) & set(kind.markers) and kind.markers not in self._parts and (devices := kind.visible()):
                self._parts[kind.markers] = self._shared(kind, devices, is_asked=is_asked)
        if self.processes == 1:
            self.occupy()
        return os.environ != before

    def _shared(self, kind: Kind, devices: Sequence[Device], *, is_asked: bool) -> list[Share]:
        """Lock as many of the devices as there are processes, and return the share of each."""
        count, nouns = self.processes, f"{kind.noun}{'s' * (len(devices) > 1)}"
        if kind.is_owned and is_asked and count > len(devices):
            here = f"{kind.variable} names" if kind.variable in os.environ else "this machine has"
            owned = f"{here} {len(devices)} {nouns}, each of which belongs to one process"
            raise SelectionError(f"-n {count}: {owned}; -n {len(devices)} at most")
        free, holders = list[Device](), dict[str, None]()
        for device in devices:
            try:
                free += [self._locked(device)] if len(free) < count else []
            except Held as refusal:
                holders[str(refusal)] = None
        runs = " and ".join(holders)
        if not free and kind.is_owned:
            raise SelectionError(f"no {kind.noun} is free: held by {runs}; run again when that has ended")
        if not free:
            self.notes.append(f"no {kind.noun} is free: shared with {runs}")
        elif count > len(free) and kind.is_owned:
            why = f"; others are held by {runs}" if runs else ""
            self.notes.append(f"{len(free)} of {count} processes judge: each needs a {kind.noun} of its own{why}")
            self.processes = len(free)
        elif count > len(free):
            self.notes.append(f"{count} processes share {', '.join(device.name for device in free)}")
        killed = [device for device in free if device.was_killed]
        self.notes += [
            f"device {device.name} was left by a run that was killed: {device.was_killed}" for device in killed
        ]
        settings = {**kind.settings, **({} if kind.variable in os.environ else kind.counting)}
        is_alone = len(devices) == 1
        return [
            Share({} if is_alone else {kind.variable: device.word} | settings, dict.fromkeys(kind.markers, device))
            for device in free or devices
        ]

    def _locked(self, device: Device) -> Device:
        """Lock a device and return it, with the run that was killed while it held it. Raises Held."""
        import fcntl  # not on Windows, where no device is shared out

        file = Path(os.environ.get(FOLDER) or SHARED) / device.file
        try:
            lock = _opened(file)
        except OSError as error:
            note = f"devices are not locked, so another run may take them, too: {error.filename}: {error.strerror}"
            self.notes += [note] if note not in self.notes else []
            return device
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            holder = _holder(lock) or "another run"
            os.close(lock)
            raise Held(holder) from None
        killed = _holder(lock)
        os.ftruncate(lock, 0)
        os.pwrite(lock, msgspec.json.encode(Holder(os.getpid(), _user(), self._command)), 0)
        self._locks.append(lock)
        return structs.replace(device, was_killed=killed)


def _opened(file: Path) -> int:
    """Open a lock, which any user may have made. Raises OSError."""
    if not file.parent.exists():
        file.parent.mkdir(parents=True, exist_ok=True)
        file.parent.chmod(0o1777)
    flags = os.O_RDWR | os.O_NOFOLLOW
    with suppress(FileNotFoundError):
        return os.open(file, flags)
    with suppress(FileExistsError):  # another run has just made it
        # not O_CREAT alone: the system refuses that for a file of another user in a folder that all may write to
        lock = os.open(file, flags | os.O_CREAT | os.O_EXCL, 0o666)
        os.fchmod(lock, 0o666)
        return lock
    return os.open(file, flags)


def _holder(lock: int) -> str:
    """Return the run that a lock names, in words; empty if it names none."""
    content = os.pread(lock, LONGEST, 0)
    try:
        return str(msgspec.json.decode(content, type=Holder)) if content else ""
    except (msgspec.DecodeError, UnicodeDecodeError):
        return "an unknown run"


def _user() -> str:
    try:
        return getuser()
    except (KeyError, OSError):  # a container whose user has no name
        return str(os.getuid())
