"""One kernel's process, as the judge sees it: started, asked, watched, ended.

Whatever happens in it is a reply or a `Crash`.
"""

from __future__ import annotations

import codecs
import io
import os
import pickle
import re
import secrets
import select
import signal
import socket
import subprocess
import sys
import time
from collections import deque
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any

import msgspec
import numpy as np

from conformance import import_path
from conformance.execution import environment, usage
from conformance.execution.reaper import Reaper, kill
from conformance.failure import Failure
from conformance.implementations.errors import of_the_suite, printable
from conformance.implementations.vocabulary import vocabulary
from conformance.streams import RunnerStream, is_obeyed
from conformance.worker import guard, wire

# what lies in the folder of a kernel is imported when it can no longer do harm: a msgspec.py ran before that
START = (
    "import gc, sys; gc.disable(); sys.path[:] = {trusted!r}; sys.argv[:] = ['']; "
    "from conformance.worker.isolation import isolate; isolate({parent}, {hidden!r}, {own!r}); "
    "from conformance.worker.serve import main; gc.freeze(); gc.enable(); "
    "sys.path[:] = {path!r}; "
    "main({channel}, {to_kernels}, {from_kernels}, {findings}, {own!r})"
)
SECONDS = 60.0
"""Seconds that a call may take by default."""
LOOK = 0.05
"""Seconds between two looks at the memory of a process that has not answered."""
STOPPED = 1.0
"""Seconds that a look comes too late, from which on they do not count: this process did not run either."""
LOOKS, PROCESSES = 5, 1000
"""One look in LOOKS is at all processes of a kernel, of which there may be at most PROCESSES."""
STARTING = 60.0
"""Seconds that the interpreter may take to start, beside those of a call."""
PATIENCE = 10.0
"""Seconds that a process has to end once it is killed."""
DYING = 0.5
"""Seconds that a process has to say where it is, before it is killed."""
OUTPUT, PARTS = 1 << 14, 64
"""Bytes that are kept of the end of a process's output, and parts of it that are read before its time is looked at."""
LINES, LINE = 5, 300
"""Lines of what a kernel has printed that are shown beside its failure, and characters of each."""
MAX_OPENED = 10_000
"""Most names of opened files that are taken from one process."""
_FRAME = re.compile(r'^  File "(.+)", line (\d+) in ', re.MULTILINE)
_REPLIES = msgspec.msgpack.Decoder(wire.Reply)


class Crash(BaseException):
    """The end of a kernel's process; the message says what happened and after how long.

    It is not an Exception, so that no check takes it for a kernel's refusal. `failure` says the same as data, by
    default the first line of the message.
    """

    counted = True
    """Whether the next case may end the same way: after a few counted crashes in a row no more cases are run."""

    def __init__(self, message: str, failure: Failure | None = None) -> None:
        super().__init__(message)
        self.failure = failure or Failure(kind="crashed", message=message.partition("\n")[0])


@dataclass(frozen=True, slots=True)
class Limits:
    """Limits and setting of a process: seconds of a call, bytes of memory. `environment` is added to what it has of the
    judge's variables, which includes those that are `passed`. Its output is `shown` at once, or kept for whoever asks.
    Folders that are `hidden` from it hold files of other kernels' processes; its `own` folders in them do not."""

    seconds: float = SECONDS
    memory: int = 1 << 62
    environment: Mapping[str, str] = field(default_factory=dict)
    passed: tuple[str, ...] = ()
    shown: bool = False
    hidden: tuple[str, ...] = ()
    own: tuple[str, ...] = ()


class Elsewhere:
    """Stand-in, in the judge, for an object in a kernel's process, which finds the object by its key: see
    `conformance.worker.serve.Server.lookup`."""

    __slots__ = ()
    key: tuple[Any, ...]


class Handle(Elsewhere):
    """An array in a kernel's process; freed there when nobody holds the handle."""

    __slots__ = ("__weakref__", "key", "number", "process")

    def __init__(self, process: Process, number: int) -> None:
        self.process, self.number, self.key = process, number, ("array", number)

    def __del__(self) -> None:
        self.process.dropped.append(self.number)


class _Pickler(pickle.Pickler):
    """Pickles an operation for a process: an object that is in it as its key, a tensor as its place in memory."""

    def __init__(self, file: io.BytesIO, process: Process) -> None:
        super().__init__(file, pickle.HIGHEST_PROTOCOL)
        self._process = process

    def reducer_override(self, value: Any) -> Any:
        """Return how the process finds a value; pickle does not ask about numbers, texts and containers of them."""
        if isinstance(value, Elsewhere):
            if isinstance(value, Handle) and value.process is not self._process:
                raise value.process.crash
            return wire.lookup, value.key
        return (
            (wire.lookup, ("tensor", self._process.store(value))) if isinstance(value, np.ndarray) else NotImplemented
        )


class Process:
    """A process that may load files. Starting it does not wait until it is ready."""

    def __init__(self, limits: Limits, reaper: Reaper) -> None:
        self.limits = limits
        self.loaded: set[str] = set()
        """Places of the files that it has loaded."""
        self.loading = ""
        """A file that it was told to load, and whose reply nobody has waited for."""
        self.ended = ""
        """Why the process is not there any more; empty while it is."""
        self._failure = Failure(kind="no process")
        self.opened = wire.Opened()
        """Files that it has opened, see `conformance.execution.workers.Source.note_opened`."""
        self.isolated = False
        """Whether its kernels cannot find this judge; the process says so before it loads one."""
        self.spoiled = False
        """Whether an error has left its device unusable."""
        self.compiled = wire.Compiled()
        """Programs that it has compiled, as its last reply said."""
        self.cases = 0
        """Number of cases that have been concluded in it."""
        self.dropped: deque[int] = deque()
        """Numbers of arrays that nobody needs any more; filled when handles are garbage-collected."""
        self._posted: list[bytes] = []
        """Operations of the next request."""
        self._question = 0
        """Number of the request that is to be answered; random, so that a kernel cannot foresee it."""
        self.environment = environment.of_kernels(limits.passed)
        """Variables of the judge that the process was given."""
        self._begun, self._ready, self._stopped = 0.0, False, 0.0
        self._looks, self._stored = 0, 0
        self._processes = "/proc"
        """Folder where the system shows it and what it has started, once it is ready: see
        `conformance.worker.isolation`."""
        self._made = 0
        self._own: int | None = None
        self._in, self._out = wire.memory_file(), wire.memory_file()
        self._channel, other = socket.socketpair()
        read, write = os.pipe()
        self._output, self._printed, self._asked = read, b"", 0
        os.set_blocking(read, False)
        self._screen: Any = RunnerStream(sys.stderr) if is_obeyed() else sys.stderr
        self._decoded = codecs.getincrementaldecoder("utf-8")("replace").decode
        self._guard, findings = guard.pipe()
        passed = (other.fileno(), self._in, self._out, findings)
        names = dict(zip(("channel", "to_kernels", "from_kernels", "findings"), passed, strict=True))
        program = START.format(
            trusted=import_path.before_isolation(),
            path=import_path.for_kernels(),
            parent=os.getpid(),
            hidden=limits.hidden,
            own=limits.own,
            **names,
        ).encode()
        self._filled = os.pwrite(self._in, program, 0)
        self._popen = subprocess.Popen(
            # its own command line does not name the suite
            [sys.executable, "-P", "-c", f"import os; exec(os.pread({self._in}, {len(program)}, 0))"],
            stdin=subprocess.DEVNULL, stdout=write, stderr=write, pass_fds=passed, start_new_session=True,
            env=self.environment | dict(limits.environment),
        )  # fmt: skip
        self._mark = reaper.mark(self.number)
        os.close(write)
        os.close(findings)
        other.close()
        words = pickle.dumps(vocabulary())
        self._channel.sendall(len(words).to_bytes(wire.LENGTH, "little") + words)

    @property
    def number(self) -> int:
        """Number of the process in the system."""
        return self._popen.pid

    @property
    def printed(self) -> str:
        """End of the process's output."""
        return self._printed.decode("utf-8", "replace")

    def printed_since(self) -> list[str]:
        """Return the last lines printed since the previous call, without what Python says of a crash."""
        if not self.ended:
            self._drain()
        new, self._asked = self._printed[self._asked :], len(self._printed)
        text = new.decode("utf-8", "replace").partition("Fatal Python error")[0]
        lines = [line for line in text.splitlines() if line.strip()][-LINES:]
        return [printable(line[:LINE]) for line in lines]

    @property
    def _apart(self) -> bool:
        """Return whether the process is in a namespace of processes."""
        return self._processes != "/proc"

    @property
    def growth(self) -> int:
        """Bytes of its own memory, without loaded libraries, that the process has gained since this was first asked; 0
        if the system does not say."""
        resident, shared = usage.resident(f"{self._processes}/{self.number}")
        if self._own is None:
            self._own = resident - shared
        return resident - shared - self._own

    def make(self, bridge: Elsewhere, method: str, *arguments: Any) -> Handle:
        """Make an array by a method of a bridge, and return its handle at once: the array is there, or has failed,
        before the next question."""
        self._made += 1
        handle = Handle(self, self._made)
        self._post("make", handle.number, bridge, method, *arguments)
        return handle

    def _post(self, routine: str | Callable[..., Any], *arguments: Any, **named: Any) -> None:
        """Add an operation to the next request, behind one that frees the arrays which nobody holds any more."""
        if dropped := [self.dropped.popleft() for _ in range(len(self.dropped))]:
            self._post("free", dropped)
        operation = io.BytesIO()
        _Pickler(operation, self).dump((routine, arguments, named))
        self._posted.append(operation.getvalue())

    def store(self, array: np.ndarray) -> wire.ArrayLocation:
        """Put an array where the process can read it, until the next reply."""
        try:
            tensor, self._filled = wire.write(self._in, array, self._filled)
            self._stored = max(self._stored, self._filled)
        except OSError as error:
            raise MemoryError(f"no memory for a tensor of {array.nbytes:,} bytes ({error.strerror})") from None
        return tensor

    def ask(self, routine: str | Callable[..., Any], *arguments: Any, **named: Any) -> wire.Reply:
        """Ask for an operation, and return the reply. `routine` is a function of the suite, or the name of an operation
        of `conformance.worker.serve.Server`. Raises Crash."""
        self.begin(routine, *arguments, **named)
        return self.finish()

    def begin(self, routine: str | Callable[..., Any], *arguments: Any, **named: Any) -> None:
        """Ask for an operation; `finish` waits for the reply. Raises Crash."""
        if self.ended:
            raise self.crash
        self._post(routine, *arguments, **named)
        self._question = secrets.randbits(63)
        request = pickle.dumps((self._question, self._posted))
        self._posted.clear()
        self._begun, self._stopped = time.monotonic(), 0.0
        if not self._ready:
            self.isolated = self._receive(len(wire.READY), self._begun + STARTING) == wire.READY
            self._ready, self._begun = True, time.monotonic()
            with suppress(OSError):
                if os.readlink(f"/proc/{self.number}/ns/pid_for_children") != os.readlink("/proc/self/ns/pid"):  # noqa: PTH115
                    self._processes = f"/proc/{self.number}/root/proc"
        self._send(len(request).to_bytes(wire.LENGTH, "little") + request, self._begun)

    def finish(self) -> wire.Reply:
        """Return the reply to the operation that has begun. Raises Crash."""
        start = self._begun
        try:
            length = int.from_bytes(self._receive(wire.LENGTH, start), "little")
            if length > wire.MAX_REPLY:
                long = f"sent an answer of {length:,} bytes"
                raise self._crashed(start, long, "sent an answer that is too long")
            reply = _REPLIES.decode(self._receive(length, start))
        except Crash:
            raise
        except (msgspec.DecodeError, UnicodeDecodeError):
            raise self._crashed(start, "sent what is no answer") from None
        except BaseException:  # Ctrl-C, say: the answer to come would be taken for that of another question
            self.end("was ended: nobody waited for its answer")
            raise
        if reply.question != self._question:  # each later reply would be taken for the next question's
            raise self._crashed(start, "sent an answer that nobody had asked for")
        self._filled = 0
        self.spoiled |= reply.spoiled
        self.compiled = reply.compiled
        if reply.opened is not None:
            self._note(reply.opened)
        reply.findings = guard.findings(self._guard)
        return reply

    def _note(self, opened: wire.Opened) -> None:
        """Keep the names of files that it has opened for whoever knows what it has loaded, up to MAX_OPENED."""
        names = self.opened
        names.read += opened.read[: max(0, MAX_OPENED - len(names.read))]
        names.written += opened.written[: max(0, MAX_OPENED - len(names.written))]
        names.packages += opened.packages[: max(0, MAX_OPENED - len(names.packages))]

    def tensor(self, described: wire.ArrayLocation) -> np.ndarray:
        """Return a tensor that the process has stored. Raises Crash if there is none."""
        try:
            return wire.read(self._out, described)
        except (ValueError, TypeError, MemoryError, OverflowError) as error:
            raise self._crashed(time.monotonic(), f"stored no tensor: {error}", "stored no tensor") from None

    @property
    def crash(self) -> Crash:
        """Crash that says how the process has ended."""
        return Crash(self.ended, self._failure)

    def end(self, why: str = "was ended", failure: Failure | None = None) -> None:
        """End the process, and whatever it has started. Idempotent."""
        if self.ended:
            return
        self.ended, self._failure = why, failure or Failure(kind="no process", message=why)
        if self._apart:  # so that the system counts the time of what it has started as the judge's
            self._popen.terminate()
            with suppress(subprocess.TimeoutExpired):
                self._popen.wait(DYING)
        with suppress(OSError):
            os.killpg(self.number, signal.SIGKILL)
        with suppress(OSError):
            self._popen.kill()
        with suppress(subprocess.TimeoutExpired):  # a process in the middle of a system call ends after it
            self._popen.wait(PATIENCE)
        self._drain()
        if isinstance(self._screen, RunnerStream):
            self._screen.end()
        self._channel.close()
        for descriptor in (self._in, self._out, self._output, self._guard):
            os.close(descriptor)
        kill(self._mark)

    def _send(self, message: bytes, start: float) -> None:
        rest = memoryview(message)
        while rest:
            with suppress(BlockingIOError):
                try:
                    rest = rest[self._channel.send(rest, socket.MSG_DONTWAIT) :]
                except OSError as error:
                    if isinstance(error, BlockingIOError):
                        raise
                    raise self._died(start) from None
            if rest:
                self._wait(start, select.POLLIN | select.POLLOUT)

    def _receive(self, count: int, start: float) -> bytes:
        parts, remaining = [], count
        while remaining:
            try:
                part = self._channel.recv(min(remaining, 1 << 20), socket.MSG_DONTWAIT)
            except BlockingIOError:
                self._wait(start, select.POLLIN)
                continue
            except OSError:
                part = b""
            if not part:
                raise self._died(start)
            parts.append(part)
            remaining -= len(part)
        return b"".join(parts)

    def _wait(self, start: float, events: int) -> None:
        """Wait until the channel can be used. Raises Crash if the process takes too long or too much."""
        poll = select.poll()
        poll.register(self._channel, events)
        poll.register(self._output, select.POLLIN)
        while True:
            ended = self._popen.poll() is not None  # the channel stays open where a child has it too
            now = time.monotonic()
            passed = now - start - self._stopped
            if passed > self.limits.seconds:
                raise self._hangs(start)
            if passed > LOOK:
                self._look(start)
            ready = dict(poll.poll(0 if ended else 1000 * LOOK))
            # a machine that slept, or a container that was stopped, is no kernel that hangs
            self._stopped += slept if (slept := time.monotonic() - now - LOOK) > STOPPED else 0.0
            if self._output in ready and not self._drain():
                poll.unregister(self._output)
            if self._channel.fileno() in ready:
                return
            if ended:
                raise self._died(start)

    def _drain(self) -> bool:
        """Read the process's output, so that it need not wait; return False if it has closed its side."""
        with suppress(BlockingIOError):
            for _ in range(PARTS):
                if not (part := os.read(self._output, 1 << 16)):
                    return False
                if self.limits.shown:
                    with suppress(OSError):  # nobody reads it any more
                        self._screen.write(self._decoded(part))
                        self._screen.flush()
                whole = self._printed + part
                self._printed = whole[-OUTPUT:]
                self._asked = max(0, self._asked - len(whole) + len(self._printed))
        return True

    def _look(self, start: float) -> None:
        """Raise Crash if the process takes too much. Every LOOKS-th look, as it is slow, includes all it has
        started."""
        process = f"{self._processes}/{self.number}"
        used, self._looks = usage.resident(process)[0], self._looks + 1
        if self._looks % LOOKS == 0 and used <= self.limits.memory:
            processes = usage.numbered(self._processes) if self._apart else [process]
            if len(processes) > PROCESSES:
                many = f"has {len(processes):,} processes; there may be at most {PROCESSES:,}"
                raise self._crashed(start, many, "has too many processes")
            used = usage.taken(processes, self.limits.memory, (os.fstat(self._in).st_ino, self._stored))
        if used > self.limits.memory:
            taken, limit = (f"{count / 2**30:.3g} GiB" for count in (used, self.limits.memory))
            took = f"took {taken} of memory; the limit is {limit} (--memory)"
            raise self._crashed(start, took, "took more memory than its limit")

    def _hangs(self, start: float) -> Crash:
        """Return the Crash of a process that hangs. Its fault handler tells where, whatever holds Python's lock."""
        with suppress(OSError):
            self._popen.send_signal(signal.SIGCONT)
            self._popen.send_signal(signal.SIGABRT)
        with suppress(subprocess.TimeoutExpired):
            self._popen.wait(DYING)
        self._drain()
        file, line = self._place()
        at = f" at {file}:{line}" * bool(file)
        what = f"no answer within {self.limits.seconds:g} s{at}: hangs, or needs longer (--timeout)"
        return self._ended(what, start, Failure(kind="hung", message="no answer in time", file=file, line=line))

    def _died(self, start: float) -> Crash:
        with suppress(subprocess.TimeoutExpired):
            self._popen.wait(DYING)
        status = self._popen.poll()
        self._drain()
        if status is None:
            return self._crashed(start, "closed the connection to the judge")
        if status >= 0:
            return self._crashed(start, f"exited with status {status}", "exited")
        (file, line), what = self._place(), f"was ended by {_signal(-status)}"
        return self._crashed(start, what + f" at {file}:{line}" * bool(file), what, file, line)

    def _place(self) -> tuple[str, int]:
        """Return where the fault handler has seen the kernel: its innermost frame in a file that was loaded."""
        text = self.printed
        text = text[max(0, text.rfind("most recent call first")) :]
        for file, line in _FRAME.findall(text):
            if not of_the_suite(file) and any(file.startswith(place) for place in self.loaded):
                return printable(file), int(line)
        return "", 0

    def _crashed(self, start: float, what: str, alike: str = "", file: str = "", line: int = 0) -> Crash:
        """Return the Crash of a process that ended by itself; `alike` is what it did without sizes and places."""
        failure = Failure(kind="crashed", message=f"its process {alike or what}", file=file, line=line)
        return self._ended(f"crashed: its process {what}", start, failure)

    def _ended(self, what: str, start: float, failure: Failure) -> Crash:
        """End the process, and return the Crash, in words and as data; equal ends have the same first line."""
        after = f"after {max(0.0, time.monotonic() - start):.2g} s"
        words = [line for line in self.printed.splitlines() if line.strip()]
        said = [] if "Fatal Python error" in self.printed else [f"its output ended: {line}" for line in words[-1:]]
        self.end(printable("\n".join([what, after, *said])), failure)
        return self.crash


def _signal(number: int) -> str:
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}"
