"""The processes of a run: how many there may be, and what they do when something outside goes away: the process that
started them, who reads their output, the disk."""

from __future__ import annotations

import ctypes
import os
import signal
import sys
from typing import Any, TextIO

import pytest

from conformance.implementations.devices import NEURON, neuron_cores
from conformance.interrupts import Interrupt, handle_signals, pass_over
from conformance.plugin import options

PARENT = "conformance-parent"
"""What a worker of pytest-xdist is told: the process that started it."""
PR_SET_PDEATHSIG = 1
"""From <linux/prctl.h>."""
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
    # a worker that is sent one as well, as one of the group, is ended by the run: its end would be the kernel's
    config.add_cleanup(handle_signals(Interrupt() if told is None else pass_over))
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
