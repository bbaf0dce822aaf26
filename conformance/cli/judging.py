"""Processes that judge for another one, which has planned the run from the same words."""

from __future__ import annotations

import signal
from collections.abc import Sequence
from contextlib import ExitStack
from multiprocessing.connection import Connection
from pathlib import Path

from conformance import import_path, interrupts
from conformance.cli.words import read
from conformance.engine.pool import serve
from conformance.engine.run import Run
from conformance.execution.compiler_cache import CompilerCache
from conformance.execution.device_shares import Share, occupy
from conformance.execution.workers import Workers
from conformance.judge import threads


def judge(
    connection: Connection,
    parent: int,
    words: tuple[str, ...],
    processes: int,
    cache: str,
    name: str,
    of_kernels: list[str],
    share: Share,
) -> None:
    """Serve as one of several processes of a run, which reads the same words, on the devices of a share."""
    occupy(share)
    if of_kernels:
        import_path.trust(of_kernels)
    interrupts.handle_signals(interrupts.pass_over)  # the run ends it
    signal.signal(signal.SIGINT, interrupts.pass_over)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGINT})
    with ExitStack() as stack:
        compiled = CompilerCache(Path(cache), name) if cache else None
        serve(connection, parent, _judging(words, compiled, stack, processes))


def judging(words: Sequence[str]) -> Run:
    """Return the run of a judge on a machine of a cluster, which lives as long as its process."""
    run = _judging(words, None, ExitStack())
    if run.workers is not None:
        import_path.trust()
    return run


def _judging(words: Sequence[str], compiled: CompilerCache | None, stack: ExitStack, processes: int = 0) -> Run:
    """Return the run of a process that judges for another one, which has read the same words."""
    _, _, chosen = read(words, processes=processes)
    workers = None if chosen.limits is None else Workers(chosen.limits, chosen.workers, compiled=compiled)
    if workers is not None:
        stack.enter_context(threads.spared())
        stack.callback(workers.close)
    return Run(chosen, workers)
