"""The processes of a run: how many there may be, and what they do when something outside goes away: the process that
started them, who reads their output, the disk."""

from __future__ import annotations

import ctypes
import math
import os
import signal
import sys
import threading
import time
from collections.abc import Callable
from typing import Any, TextIO

import pytest

from conformance.implementations.devices import NEURON, neuron_cores
from conformance.plugin import options

PARENT = "conformance-parent"
"""What a worker of pytest-xdist is told: the process that started it."""
PR_SET_PDEATHSIG = 1
"""From <linux/prctl.h>."""
SIGNALS = [getattr(signal, name) for name in ("SIGTERM", "SIGHUP") if hasattr(signal, name)]
"""That end a run as Ctrl-C does; one on Windows."""
TOGETHER = 1.0
"""Seconds between two of them that are one."""
HASTE = 0.5
"""Seconds that workers have to end where the run was interrupted."""
MAX_WORKERS = 4
"""For each core. Every worker takes the memory of a framework: a thousand end the machine before the first verdict."""


def share_cores(config: pytest.Config) -> None:
    """Under xdist, share the cores among workers, of which each case has one. Raises pytest.UsageError."""
    if config.getoption("dist", "no") == "each":
        raise pytest.UsageError("--dist each: every case would be verified, and counted, by every worker")
    if workers := config.getoption("numprocesses", None):
        cores = os.cpu_count() or 1
        if workers > MAX_WORKERS * cores:
            most = MAX_WORKERS * cores
            raise pytest.UsageError(f"-n {workers}: with {cores} cores, {most} processes at most; -n auto: one a core")
        most = neuron_cores()
        if most and workers > most and NEURON.keys() & set(options.devices_asked(config)):
            owned = f"{most} NeuronCores, each of which belongs to one process"
            raise pytest.UsageError(f"-n {workers}: this machine has {owned}; -n {most} at most")
        share = str(max(1, cores // workers))
        for variable in ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS", "NUMBA_NUM_THREADS"):
            os.environ.setdefault(variable, share)


def prepare(config: pytest.Config) -> None:
    """This process, for what may go away in the middle of a run. After pytest's reporter, whose stream is replaced."""
    told: dict[str, Any] | None = getattr(config, "workerinput", None)
    _handle_signals(config, _Interrupt() if told is None else _pass_over)
    if told is None:
        if sys.__stdout__ is not None:  # what is still buffered when pytest ends would be its failure
            config.add_cleanup(TolerantStream(sys.__stdout__).flush)
    elif PARENT in told:
        _end_with(told[PARENT])
    reporter: Any = config.pluginmanager.get_plugin("terminalreporter")
    if reporter is not None:
        reporter._tw._file = TolerantStream(reporter._tw._file)


def told(node: Any) -> dict[str, int]:
    """What a worker that is a child of this process must know, which must not outlive it."""
    return {PARENT: os.getpid()} if node.gateway.spec.popen and not node.gateway.spec.via else {}


def _handle_signals(config: pytest.Config, handler: Callable[[int, Any], None]) -> None:
    """SIGTERM and SIGHUP end the run as Ctrl-C does: with a footer, a summary, and 2. A handler that is there stays,
    and so does what `nohup` wants. A worker that is sent one as well, as one of the group, is ended by the run: its end
    would be the kernel's."""
    if threading.current_thread() is not threading.main_thread():  # no other may set handlers
        return
    taken = [number for number in SIGNALS if signal.getsignal(number) is signal.SIG_DFL]

    def restore() -> None:
        for number in taken:
            signal.signal(number, signal.SIG_DFL)

    for number in taken:
        signal.signal(number, handler)
    config.add_cleanup(restore)


class _Interrupt:
    """Raises KeyboardInterrupt, once for signals that come together: `timeout` sends one to a process and then to its
    group. A later one counts, since what is raised while an object is freed is lost."""

    def __init__(self) -> None:
        self._last = -math.inf

    def __call__(self, *_: Any) -> None:
        before, self._last = self._last, time.monotonic()
        if self._last - before > TOGETHER:
            raise KeyboardInterrupt


def _pass_over(*_: Any) -> None:
    """In the place of SIG_IGN, which processes of kernels would inherit."""


def write_summary_in_peace() -> None:
    """From now on, pass over signals that end a run as Ctrl-C does: what is left takes a moment, and whoever sends them
    kills soon after."""
    for number in SIGNALS:
        if isinstance(signal.getsignal(number), _Interrupt):
            signal.signal(number, _pass_over)


def hurry(config: pytest.Config) -> None:
    """Of a run that was interrupted: do not wait for workers of pytest-xdist that are in the middle of a case, for ten
    seconds, before the summary is written."""
    distributed: Any = config.pluginmanager.get_plugin("dsession")
    if nodes := getattr(distributed, "nodemanager", None):
        nodes.EXIT_TIMEOUT = HASTE


def _end_with(parent: int) -> None:
    """End this process when its parent is killed, in the middle of a kernel too.

    Elsewhere than on Linux it ends when the kernel returns: execnet notices then that nobody listens.
    """
    if sys.platform != "linux":
        return
    ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != parent:  # killed before this was called
        os._exit(1)


class TolerantStream:
    """A stream whose output is dropped from when it cannot be written on: the run goes on, and its exit status is that
    of the verdicts. Whoever reads it sees each line when it is written, also in a pipe; the first one is not empty, as
    pytest's is that ends a line of letters."""

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream
        self._begun = False

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)

    def write(self, text: str) -> int:
        self._begun |= text != "\n"
        if not self._begun:
            return len(text)
        try:
            written = self._stream.write(text)
            if text.endswith("\n"):
                self._stream.flush()
            return written
        except OSError:
            self._drop()
            return len(text)

    def flush(self) -> None:
        try:
            self._stream.flush()
        except OSError:
            self._drop()

    def _drop(self) -> None:
        """What is buffered too: Python flushes once more when it ends, and would end with 120."""
        nowhere = os.open(os.devnull, os.O_WRONLY)
        os.dup2(nowhere, self._stream.fileno())
        os.close(nowhere)
        self._stream.flush()
