"""The loop of a kernel's process: operations of the judge on files, kernels and arrays."""

from __future__ import annotations

import faulthandler
import io
import os
import pickle
import resource
import signal
import socket
import sys
import traceback
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import msgspec
import numpy as np

from conformance import floating_point
from conformance.failure import Failure
from conformance.implementations import implementation as declared
from conformance.implementations import registry, vocabulary
from conformance.implementations.bridges.base import ArrayBridge
from conformance.implementations.devices import Unavailable
from conformance.implementations.errors import KernelFailure, blame, failure_of, kernel_frames
from conformance.import_path import read_sources_alone
from conformance.worker import call, ceilings, measuring, memory, repeating, wire
from conformance.worker.call import Result, is_several
from conformance.worker.guard import Guard
from conformance.worker.isolation import isolated
from conformance.worker.reads import Reads, open_by_paths
from conformance.worker.wire import plain

BEFORE_KERNELS = (call, ceilings, measuring, memory, repeating)
"""Modules with functions that the judge may ask for, imported before a kernel's file can put another clock in its
place."""
EVENTS = {"/jax/core/compile/backend_compile_duration": "programs", "/jax/compilation_cache/cache_hits": "kept"}
"""Event of JAX -> what it counts. The first event also comes for a program that was kept, with the time of reading
it."""


FOUND = wire.lookup.__module__, wire.lookup.__name__


class _CompileMeter:
    """Counts of what JAX compiles in this process, as JAX reports it. They begin when JAX is there."""

    def __init__(self) -> None:
        self._listens, self._counts, self._seconds = False, dict.fromkeys(EVENTS.values(), 0), 0.0

    def compiled(self) -> wire.Compiled:
        """Return the counts since the process began. The first call in a process that has imported JAX begins to
        listen."""
        monitoring: Any = getattr(sys.modules.get("jax"), "monitoring", None)
        if monitoring is not None and not self._listens:
            monitoring.register_event_listener(self._event)
            monitoring.register_event_duration_secs_listener(self._event)
            self._listens = True
        return wire.Compiled(**self._counts, seconds=self._seconds)

    def _event(self, name: str, seconds: float = 0.0, **_: Any) -> None:
        if name in EVENTS:
            self._counts[EVENTS[name]] += 1
            self._seconds += seconds


class Stopped(BaseException):
    """Raised where the judge does not want to hear the rest of a function that consults it."""


class Server:
    """Operations that the judge may ask for: functions of the suite, given objects that the judge can only name here,
    and by their names the public methods."""

    def __init__(self, guard: Guard, connection: socket.socket, to_kernels: int, from_kernels: int) -> None:
        self.guard, self._in, self._out, self._end = guard, to_kernels, from_kernels, 0
        self._connection, self._process = connection, os.getpid()
        self._encoder = msgspec.msgpack.Encoder(enc_hook=self._told)
        self.implementations: dict[str, declared.Implementation] = {}
        self._at: declared.Implementation | None = None
        """Implementation whose bridge or function the operation was given last."""
        self._arrays: dict[int, Any] = {}
        self._number = -1
        self._question = 0
        self._word = ""
        """The judge's word to the function that consults it: `proceed`, `stop`, or empty."""
        self._compiling = _CompileMeter()
        self._mode = floating_point.mode()

    # files

    def load(self, source: Path | str, name: str = "", label: str = "") -> wire.Loaded:
        """Load a file or folder, or an entry point of another package; with a label, only this variant of an
        implementation."""
        file, catalogue = "", registry.Registry()
        if isinstance(source, Path):
            self.guard.sources = (*self.guard.sources, str(source.absolute()))
            registry.load([source], catalogue, hashes=False)
        else:
            entry, *_ = [entry for entry in registry.installed() if entry.name == source]
            registry.load_entry(entry, catalogue, hashes=False)
            file = str(getattr(sys.modules.get(entry.module), "__file__", None) or "")
        if label and name in catalogue.implementations:
            implementation = catalogue.implementations[name]
            implementation.become(label)
            catalogue.implementations = {implementation.name: implementation}
        self.implementations |= catalogue.implementations
        unavailable = next(map(plain, catalogue.unavailable.values()), None)
        broken = next(iter(catalogue.broken.values()), None)
        if broken is not None:
            broken = registry.BrokenFile(plain(broken.reason), _sendable(broken.failure))
        return wire.Loaded(tuple(map(_described, catalogue.implementations.values())), unavailable, broken, plain(file))

    def hold(self, name: str, kind: str, index: int, geometries: Sequence[bytes]) -> list[bool | str]:
        """Return what the `when=` of a declaration says of several packed geometries, or why it does not hold where it
        raises Unsupported, up to the first for which it raises something else. Raises that if it is the first of
        all."""
        answers = list[bool | str]()
        try:
            for geometry in map(wire.unpacked, geometries):
                try:
                    answers.append(declared.holds(getattr(self.implementations[name], kind)[index].when, geometry))
                except declared.Unsupported as refusal:
                    answers.append(plain(str(refusal)))
        except Exception:
            if not answers:
                raise
        return answers

    def mode(self) -> tuple[tuple[str, ...], tuple[str, ...]]:
        """Return the floating-point mode before anything was loaded, and the mode now."""
        return self._mode, floating_point.mode()

    # arrays

    def make(self, number: int, bridge: ArrayBridge, method: str, *arguments: Any) -> None:
        """Make an array by a method of a bridge, and keep it under a number."""
        self._arrays[number] = getattr(bridge, method)(*arguments)

    def free(self, numbers: Sequence[int]) -> None:
        for number in numbers:
            self._arrays.pop(number, None)

    def lookup(self, kind: str, *place: Any) -> Any:
        """Resolve a name that the judge sent: see `conformance.execution.process.Elsewhere`."""
        if kind == "tensor":
            return wire.read(self._in, *place)
        if kind == "array":
            return self._arrays[place[0]]
        name, *rest = place
        self._at = self.implementations[name]
        if kind == "bridge":
            return self._at.arrays
        declarations, index = rest
        return getattr(self._at, declarations)[index].function

    def _told(self, value: Any) -> Any:
        """Encode a part of an answer that MessagePack has no form for."""
        if isinstance(value, Result):
            return self._kept(value.value)
        if isinstance(value, np.ndarray):
            place, self._end = wire.write(self._out, value, self._end)
            return place
        if isinstance(value, np.generic):
            return value.item()
        if callable(value):
            return wire.importable(value)
        raise TypeError(f"{type(value).__qualname__} is no answer")

    def _kept(self, result: Any) -> wire.Returned:
        """Keep a result, or several, under numbers: negative ones, as the judge's are positive."""
        several = is_several(result)
        items = tuple(result) if several else (result,)
        numbers = tuple(range(self._number, self._number - min(len(items), wire.MAX_RESULTS), -1))
        self._number -= len(numbers)
        self._arrays.update(zip(numbers, items, strict=False))
        if not several:
            return wire.Returned(numbers)
        computes = type(result).__iter__ not in (tuple.__iter__, list.__iter__)
        return wire.Returned(numbers, len(items), plain(type(result).__qualname__) if computes else "")

    # functions that consult the judge

    def perform(self, routine: Callable[..., Any], *arguments: Any) -> Any:
        """Run a function of the suite that consults the judge: it is given this server besides."""
        return routine(self, *arguments)

    def proceed(self) -> None:
        """Let the function that consults the judge go on."""
        self._word = "proceed"

    def stop(self) -> None:
        """End the function that consults the judge, if it has not ended."""
        self._word = "stop"

    # the loop

    def serve(self) -> None:
        """Answer until the judge closes the channel."""
        while True:
            self._send(self.answer(self._next()))

    def consult(self, value: Any) -> None:
        """Send a value from within an operation, and wait until the judge says `proceed`. In between the judge may ask
        for other operations. Raises Stopped when it says `stop`."""
        self._send(wire.Reply(value=self._encoded(value)))
        self._word = ""
        while True:
            reply = self.answer(self._next())
            if self._word:
                break
            self._send(reply)
        if self._word == "stop":
            raise Stopped

    def _next(self) -> list[bytes]:
        request = _received(self._connection)
        if request is None:
            os._exit(0)  # functions registered with atexit are the vendor's, and nobody waits for them
        operations: list[bytes]
        self._question, operations = pickle.loads(request)
        self._end = 0
        return operations

    def _send(self, reply: wire.Reply) -> None:
        if os.getpid() != self._process:  # a kernel has forked, and both have returned: one of them is enough
            os._exit(0)
        for stream in (sys.stdout, sys.stderr):
            with suppress(BaseException):
                stream.flush()
        reply.question = self._question
        with suppress(Exception):  # another module may call itself jax
            reply.compiled = self._compiling.compiled()
        reply.opened = self.guard.reads.untold()
        encoded = self._encoder.encode(reply)
        self._connection.setblocking(True)
        self._connection.sendall(len(encoded).to_bytes(wire.LENGTH, "little") + encoded)

    def answer(self, operations: Sequence[bytes]) -> wire.Reply:
        """Return the reply to one request; exceptions of kernels are part of it."""
        reply = wire.Reply()
        for operation in operations:
            self._at = None
            try:
                routine, arguments, named = _Unpickler(io.BytesIO(operation), self.lookup).load()
                routine = getattr(self, routine) if isinstance(routine, str) else routine
                reply.value = self._encoded(routine(*arguments, **named))
            except BaseException as error:
                reply.value, reply.thrown = None, _thrown(error)
                reply.spoiled = self._lost(error)
                break
        return reply

    def _encoded(self, value: Any) -> msgspec.Raw:
        try:
            return msgspec.Raw(self._encoder.encode(value))
        except UnicodeEncodeError:
            answer = msgspec.to_builtins(value, enc_hook=self._told, builtin_types=(bytes,))
            return msgspec.Raw(self._encoder.encode(_writable(answer)))

    def _lost(self, error: BaseException) -> bool:
        """Return whether an error has left a device unusable: an illegal access of a kernel to memory ends every later
        call."""
        implementation = self._at
        if (
            implementation is None
            or implementation.device in ("cpu", "simulator", "emulator")
            or isinstance(error, declared.Unsupported)
        ):
            return False
        try:
            bridge = implementation.arrays
            probe = bridge.from_host(np.zeros(1, np.float32))
            bridge.synchronize(probe)
            bridge.to_host(probe)
        except BaseException:
            return True
        return False


class _Unpickler(pickle.Unpickler):
    """Unpickles an operation, with the objects that the judge can only name."""

    def __init__(self, file: io.BytesIO, lookup: Callable[..., Any]) -> None:
        super().__init__(file)
        self._lookup = lookup

    def find_class(self, module: str, name: str) -> Any:
        """Return what is imported, and for `wire.found` the function that finds objects here."""
        return self._lookup if (module, name) == FOUND else super().find_class(module, name)


def _writable(answer: Any) -> Any:
    """Return an answer with all texts as UTF-8 can hold them."""
    if isinstance(answer, str):
        return plain(answer)
    if isinstance(answer, (list, tuple)):
        return [*map(_writable, answer)]
    return {_writable(name): _writable(part) for name, part in answer.items()} if isinstance(answer, dict) else answer


def _thrown(error: BaseException) -> wire.Thrown:
    kinds: dict[type[BaseException], Any] = {
        declared.Unsupported: "unsupported",
        declared.ImplementationError: "declaration",
        Unavailable: "unavailable",
        KernelFailure: "failure",
        Exception: "exception",
        BaseException: "exit",
    }
    kind = next(word for exception, word in kinds.items() if isinstance(error, exception))
    try:
        message = str(error)
    except BaseException:
        message = ""
    lines = traceback.format_list(kernel_frames(error))
    ours = error.failure if isinstance(error, (KernelFailure, declared.ImplementationError)) else None
    return wire.Thrown(
        kind=kind,
        name=plain(type(error).__name__, 80),
        message=plain(message),
        blame=plain(blame(error)),
        traceback=plain("".join(lines)),
        failure=_sendable(ours if isinstance(ours, Failure) else failure_of(error)),
    )


def _sendable(failure: Failure) -> Failure:
    return msgspec.structs.replace(failure, message=plain(failure.message), file=plain(failure.file))


def _described(implementation: declared.Implementation) -> wire.ImplementationSpec:
    bridge = implementation.arrays
    places = {n: str(getattr(bridge, n)) for n in ("device", "platform") if hasattr(bridge, n)}
    spec = wire.BridgeSpec(
        name=str(bridge.name),
        place=places,
        stands_for=tuple(map(str, bridge.stands_for)),
        untimed=str(bridge.untimed),
        install=str(bridge.install),
        unsafe=tuple(map(str, bridge.unsafe)),
        views=bool(bridge.views),
        pages=bool(bridge.pages),
        negative_strides=bool(bridge.negative_strides),
        can_differentiate=bool(bridge.can_differentiate),
        measures_training=bool(bridge.measures_training),
    )
    return wire.ImplementationSpec(
        name=implementation.name,
        device=implementation.device,
        version=plain(str(implementation.version)),
        contract=implementation.contract,
        bridge=spec,
        kernels=tuple(implementation.kernels),
        autograd_variants=tuple(implementation.autograd_variants),
        waivers=tuple(implementation.waivers),
        deterministic=bool(implementation.deterministic),
        batch_invariant=bool(implementation.batch_invariant),
        unsafe=tuple(implementation.unsafe),
        compiles_per_shape=bool(implementation.compiles_per_shape),
        settings=tuple(
            replace(setting, prepare=None, wrap=None)  # both are done here
            for setting in implementation.settings
        ),
        layouts=dict(implementation.layouts),
        adapted=implementation.adapted
        and replace(
            implementation.adapted,
            unmapped=plain(implementation.adapted.unmapped),
            unknown=plain(implementation.adapted.unknown),
        ),
    )


def main(channel: int, to_kernels: int, from_kernels: int, findings: int, caches: Sequence[str]) -> None:
    """Serve until the judge closes the channel. Its `caches` are the folders in which compilers keep their
    output."""
    with suppress(ValueError, OSError):
        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    with suppress(OSError):
        Path("/proc/self/oom_score_adj").write_text("1000")  # if memory runs out, this process and not the judge ends
    signal.signal(signal.SIGINT, signal.default_int_handler)  # as in a terminal, also where a shell has ignored it
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)  # a supervisor may have ignored it: then no child can be waited for
    faulthandler.enable(file=2)
    read_sources_alone()
    open_by_paths()
    guard = Guard(findings, Reads(caches))
    guard.install()
    connection = socket.socket(fileno=channel)
    vocabulary.use(pickle.loads(_received(connection) or b""))
    connection.sendall(wire.READY if isolated() else wire.EXPOSED)
    Server(guard, connection, to_kernels, from_kernels).serve()


def _received(connection: socket.socket) -> bytes | None:
    """Receive a message; return None where there will be no more."""
    length = _exactly(connection, wire.LENGTH)
    return None if length is None else _exactly(connection, int.from_bytes(length, "little"))


def _exactly(connection: socket.socket, count: int) -> bytes | None:
    parts = []
    connection.setblocking(True)  # kernels may have changed the descriptor
    while count:
        part = connection.recv(min(count, 1 << 20))
        if not part:
            return None
        parts.append(part)
        count -= len(part)
    return b"".join(parts)
