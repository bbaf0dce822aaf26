"""The loop of a kernel's process: operations of the judge on files, kernels and arrays."""

from __future__ import annotations

import faulthandler
import os
import pickle
import resource
import signal
import socket
import sys
import traceback
from collections.abc import Callable, Sequence
from contextlib import suppress
from importlib.metadata import entry_points
from operator import attrgetter
from pathlib import Path
from typing import Any

import msgspec
import numpy as np

from conformance import floating_point
from conformance.implementations import implementation as declared
from conformance.implementations import registry, vocabulary
from conformance.implementations.bridges import ArrayBridge
from conformance.implementations.devices import Unavailable
from conformance.implementations.errors import KernelFailure, blame, kernel_frames
from conformance.worker import compile_meter, memory, wire
from conformance.worker.audit import audited
from conformance.worker.guard import Guard
from conformance.worker.measuring import Measuring
from conformance.worker.wire import plain

OPTIONAL = ("metered", "differentiate", "footprint")
"""Methods that not every bridge has."""


class Stopped(BaseException):
    """The judge does not want to hear the rest of what consults it."""


class Server:
    """What the judge may ask for: every public method is an operation. Arrays and results are known by numbers that the
    judge gives them."""

    def __init__(self, guard: Guard, connection: socket.socket, to_kernels: int, from_kernels: int) -> None:
        self.guard, self._in, self._out, self._end = guard, to_kernels, from_kernels, 0
        self._connection, self._encoder, self._process = connection, msgspec.msgpack.Encoder(), os.getpid()
        self.known: dict[str, declared.Implementation] = {}
        self.arrays: dict[int, Any] = {}
        self.measuring = Measuring(self)
        self._meter: Any = None
        self._compiling = compile_meter.Meter()
        self._mode = floating_point.mode()

    # files

    def load(self, path: Path, name: str = "", label: str = "") -> wire.Loaded:
        """A file or folder; with a label, nothing of it but this variant of an implementation."""
        self.guard.own = (*self.guard.own, str(path.absolute()))
        return self._loaded(registry.load([path]), "", name, label)

    def load_installed(self, entry_name: str, name: str = "", label: str = "") -> wire.Loaded:
        """An entry point of another package."""
        found = registry.Registry()
        place, *_ = [entry for entry in entry_points(group=registry.GROUP) if entry.name == entry_name]
        registry.load_entry(place, found)
        file = str(getattr(sys.modules.get(place.module), "__file__", None) or "")
        return self._loaded(found, file, name, label)

    def _loaded(self, found: registry.Registry, file: str, name: str, label: str) -> wire.Loaded:
        if label and name in found.implementations:
            one = found.implementations[name]
            one.become(label)
            found.implementations = {one.name: one}
        self.known |= found.implementations
        broken, unavailable = (
            next((plain(why) for why in reasons.values()), None) for reasons in (found.broken, found.unavailable)
        )
        return wire.Loaded(tuple(map(_described, found.implementations.values())), unavailable, broken, plain(file))

    def holds(self, name: str, kind: str, index: int, geometry: Any) -> bool:
        """The `when=` of a kernel or a waiver."""
        declarations: Any = self.known[name].kernels if kind == "kernel" else self.known[name].waivers
        return declared.holds(declarations[index].when, geometry)

    def hold(self, name: str, kind: str, index: int, geometries: Sequence[Any]) -> list[bool]:
        """The same of several, as far as it raises nothing."""
        answers = list[bool]()
        with suppress(Exception):
            answers.extend(self.holds(name, kind, index, geometry) for geometry in geometries)
        return answers

    def require(self, name: str) -> dict[str, str]:
        """Raises Unavailable, or else what the bridge says of itself."""
        bridge = self.known[name].arrays
        bridge.require()
        return {plain(str(key)): plain(str(value)) for key, value in bridge.describe().items()}

    # arrays

    def put(self, name: str, number: int, tensor: wire.ArrayLocation) -> None:
        """From the host."""
        self.arrays[number] = self.known[name].arrays.from_host(wire.read(self._in, tensor))

    def fetch(self, name: str, number: int) -> wire.ArrayLocation:
        """To the host."""
        return self.store(self.known[name].arrays.to_host(self.arrays[number]))

    def fetch_all(self, name: str, numbers: Sequence[int]) -> list[wire.ArrayLocation]:
        """Several in one exchange."""
        return [self.fetch(name, number) for number in numbers]

    def store(self, array: np.ndarray) -> wire.ArrayLocation:
        """Put an array where the judge can read it, until the next request."""
        tensor, self._end = wire.write(self._out, array, self._end)
        return tensor

    def overwrite(self, name: str, number: int, tensor: wire.ArrayLocation) -> bool:
        return bool(self.known[name].arrays.overwrite(self.arrays[number], wire.read(self._in, tensor)))

    def view(
        self, name: str, number: int, whole: int, offset: int, shape: Sequence[int], strides: Sequence[int]
    ) -> None:
        self.arrays[number] = self.known[name].arrays.view(self.arrays[whole], offset, shape, strides)

    def placed(self, name: str, number: int, tensor: wire.ArrayLocation, side: str) -> None:
        self.arrays[number] = self.known[name].arrays.placed(wire.read(self._in, tensor), side)

    def overlap(self, name: str, first: int, second: int) -> bool:
        return bool(self.known[name].arrays.overlap(self.arrays[first], self.arrays[second]))

    def free(self, numbers: Sequence[int]) -> None:
        for number in numbers:
            self.arrays.pop(number, None)

    # calls

    def call(
        self,
        name: str,
        kind: str,
        index: int,
        number: int,
        arguments: Sequence[int | None],
        parameters: dict[str, Any],
        wait: bool,
    ) -> wire.Returned:
        """Results get the numbers from `number` on; with `wait` they are finished."""
        function, given = self.function(name, kind, index), self.given(arguments)
        by_keyword = {keyword: self.found(value) for keyword, value in parameters.items()}
        if not wait:
            return self.keep(function(*given, **by_keyword), number)
        result, changed = audited(self.bridge(name), function, self.names(name, kind, index), given, by_keyword)
        return msgspec.structs.replace(self.keep(result, number), changed=tuple(map(plain, changed)))

    def names(self, name: str, kind: str, index: int) -> tuple[str, ...]:
        """Of a function's arguments by position."""
        one = self.known[name]
        declared = (one.kernels if kind == "kernel" else one.autograd_variants)[index]
        return vocabulary.vocabulary().operators[declared.operator][0]

    def function(self, name: str, kind: str, index: int) -> Callable[..., Any]:
        one = self.known[name]
        return (one.kernels if kind == "kernel" else one.autograd_variants)[index].function

    def bridge(self, name: str) -> ArrayBridge:
        return self.known[name].arrays

    def keep(self, result: Any, number: int) -> wire.Returned:
        """Give a result, or several, numbers."""
        if not isinstance(result, (tuple, list)):
            self.arrays[number] = result
            return wire.Returned()
        computes = type(result).__iter__ not in (tuple.__iter__, list.__iter__)
        items = tuple(result)
        self.arrays.update(enumerate(items[: wire.MAX_RESULTS], number))
        return wire.Returned(len(items), plain(type(result).__qualname__) if computes else "")

    def synchronize(self, name: str, numbers: Sequence[int | None]) -> None:
        self.known[name].arrays.synchronize(self.given(numbers))

    def meter(self, name: str) -> None:
        """Count what kernels move from now on."""
        bridge: Any = self.known[name].arrays
        self._meter = bridge.metered()
        self._counted = self._meter.__enter__()

    def metered(self) -> dict[str, int]:
        """What they have moved."""
        self._meter.__exit__(None, None, None)
        return {plain(str(key)): int(value) for key, value in (self._counted or {}).items()}

    def mode(self) -> list[list[str]]:
        """The floating-point mode before anything was loaded, and now."""
        return [list(self._mode), list(floating_point.mode())]

    def given(self, numbers: Sequence[int | None]) -> list[Any]:
        return [None if number is None else self.arrays[number] for number in numbers]

    def found(self, value: Any) -> Any:
        """A parameter with the arrays that it names."""
        if isinstance(value, tuple):
            return tuple(map(self.found, value))
        return self.arrays[value.number] if isinstance(value, wire.Array) else value

    def give_back(self) -> None:
        """Make the process smaller, if that can be."""
        memory.give_back()

    def perform(self, name: str, routine: Callable[..., Any], *given: Any) -> Any:
        """A function of the suite, which is given this server and the name of an implementation. It may `consult`."""
        return routine(self, name, *given)

    def stop(self) -> None:
        """Of a routine that consults the judge: it has ended."""

    # the loop

    def serve(self) -> None:
        """Answer until the judge closes the channel."""
        while True:
            self._send(self.answer(self._next()))

    def consult(self, value: Any) -> None:
        """From within an operation: answer by a value, and go on when the judge says `proceed`. In between it may ask
        for other operations. Raises Stopped when it says `stop`."""
        self._send(wire.Reply(value))
        while True:
            *others, last = operations = self._next()
            if last not in (("proceed",), ("stop",)):
                self._send(self.answer(operations))
                continue
            self.answer(others)
            if last == ("stop",):
                raise Stopped
            return

    def _next(self) -> list[tuple[Any, ...]]:
        request = _received(self._connection)
        if request is None:
            os._exit(0)  # what was registered with atexit is the vendor's, and nobody waits for it
        operations: list[tuple[Any, ...]] = pickle.loads(request)
        self._end = 0
        return operations

    def _send(self, reply: wire.Reply) -> None:
        if os.getpid() != self._process:  # a kernel has forked, and both have returned: one of them is enough
            os._exit(0)
        for stream in (sys.stdout, sys.stderr):
            with suppress(BaseException):
                stream.flush()
        reply.findings, self.guard.findings[:] = tuple(map(plain, self.guard.findings)), []
        with suppress(Exception):  # of a module that calls itself jax
            reply.compiled = self._compiling.compiled()
        encoded = self._encoder.encode(reply)
        self._connection.setblocking(True)
        self._connection.sendall(len(encoded).to_bytes(wire.LENGTH, "little") + encoded)

    def answer(self, operations: Sequence[tuple[Any, ...]]) -> wire.Reply:
        """The reply to one request; whatever kernels raise is part of it."""
        reply = wire.Reply()
        for name, *given in operations:
            try:
                reply.value = attrgetter(name)(self)(*given)
            except BaseException as error:
                reply.value, reply.failure = None, _failure(error, self.guard.own)
                reply.spoiled = self._lost(error, given)
                break
        return reply

    def _lost(self, error: BaseException, given: Sequence[Any]) -> bool:
        """Whether an error has left a device unusable: a kernel's illegal access to memory ends every later call."""
        one = self.known.get(given[0]) if given and isinstance(given[0], str) else None
        if one is None or one.device in ("cpu", "simulator", "emulator") or isinstance(error, declared.Unsupported):
            return False
        try:
            bridge = one.arrays
            probe = bridge.from_host(np.zeros(1, np.float32))
            bridge.synchronize(probe)
            bridge.to_host(probe)
        except BaseException:
            return True
        return False


def _failure(error: BaseException, own: Sequence[str]) -> wire.Failure:
    kinds = (
        (declared.Unsupported, "unsupported"), (Unavailable, "unavailable"), (KernelFailure, "failure"),
        (Exception, "exception"),
    )  # fmt: skip
    kind = next((word for known, word in kinds if isinstance(error, known)), "exit")
    kind = "declaration" if isinstance(error, declared.ImplementationError) else kind
    try:
        message = str(error)
    except BaseException:
        message = ""
    lines = traceback.format_list(kernel_frames(error))
    return wire.Failure(
        kind,
        plain(type(error).__name__, 80),
        plain(message),
        plain(blame(error)),
        plain("".join(lines)),
    )


def _described(one: declared.Implementation) -> wire.ImplementationSpec:
    bridge: Any = one.arrays
    places = {n: str(getattr(bridge, n)) for n in ("device", "platform") if hasattr(bridge, n)}
    seen = wire.BridgeSpec(
        name=str(bridge.name),
        place=places,
        stands_for=tuple(map(str, getattr(bridge, "stands_for", ()))),
        untimed=str(getattr(bridge, "untimed", "")),
        install=str(getattr(bridge, "install", "")),
        able=tuple(name for name in OPTIONAL if hasattr(bridge, name)),
        unsafe=tuple(map(str, getattr(bridge, "unsafe", ()))),
        views=bool(getattr(bridge, "views", False)),
        pages=bool(getattr(bridge, "pages", False)),
        negative_strides=bool(getattr(bridge, "negative_strides", False)),
    )
    return wire.ImplementationSpec(
        name=one.name,
        device=one.device,
        version=plain(str(one.version)),
        contract=one.contract.as_record(),
        bridge=seen,
        kernels=tuple(
            wire.KernelSpec(
                wire.importable(k.function, k.keywords), k.operator, k.dtypes, k.layouts, k.when is not None,
                k.contract.as_record(),
            )
            for k in one.kernels
        ),
        variants=tuple(
            wire.VariantSpec(wire.importable(v.function, v.keywords), v.operator, plain(v.label), v.saves)
            for v in one.autograd_variants
        ),
        waivers=tuple(
            wire.WaiverSpec(
                w.operator, plain(w.reason), plain(w.url), w.when is not None, w.dtypes, w.distributions, w.storages
            )
            for w in one.waivers
        ),
        deterministic=bool(one.deterministic),
        unsafe=tuple(one.unsafe),
        compiles_per_shape=bool(one.compiles_per_shape),
        settings=tuple(wire.SettingSpec(plain(s.label), dict(s.environment)) for s in one.settings),
        layouts=dict(one.layouts),
    )  # fmt: skip


def main(channel: int, to_kernels: int, from_kernels: int, parent: int) -> None:
    """Serve until the judge closes the channel."""
    _die_with(parent)
    with suppress(ValueError, OSError):
        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    with suppress(OSError):
        Path("/proc/self/oom_score_adj").write_text("1000")  # if memory runs out, this process and not the judge ends
    signal.signal(signal.SIGINT, signal.default_int_handler)  # as in a terminal, also where a shell has ignored it
    faulthandler.enable(file=2)
    guard = Guard()
    guard.install()
    connection = socket.socket(fileno=channel)
    vocabulary.use(pickle.loads(_received(connection) or b""))
    connection.sendall(wire.READY)
    Server(guard, connection, to_kernels, from_kernels).serve()


def _received(connection: socket.socket) -> bytes | None:
    """A message; None where there will be no more."""
    length = _exactly(connection, wire.LENGTH)
    return None if length is None else _exactly(connection, int.from_bytes(length, "little"))


def _exactly(connection: socket.socket, count: int) -> bytes | None:
    parts = []
    connection.setblocking(True)  # whatever kernels have made of their descriptors
    while count:
        part = connection.recv(min(count, 1 << 20))
        if not part:
            return None
        parts.append(part)
        count -= len(part)
    return b"".join(parts)


def _die_with(parent: int) -> None:
    """Linux kills this process when the judge ends, however that comes about."""
    if sys.platform == "linux":
        import ctypes

        pr_set_pdeathsig = 1
        with suppress(OSError, AttributeError):
            ctypes.CDLL(None).prctl(pr_set_pdeathsig, signal.SIGKILL)
    if os.getppid() != parent:
        os._exit(1)
