"""The processes that the implementations of a run live in: started when needed, kept, replaced when they end."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Protocol

import msgspec

from conformance.contract import ContractError
from conformance.execution import remote
from conformance.execution.process import Crash, Limits, Process
from conformance.execution.reaper import Reaper
from conformance.execution.status import KernelFailure, Verdict
from conformance.implementations import implementation as declared
from conformance.implementations import registry
from conformance.implementations.errors import described
from conformance.implementations.registry import Registry, installed, place_of
from conformance.resources import IMPLS
from conformance.worker import wire

MAX_CRASHES = 3
"""Cases in a row that end in a crash, after which an implementation's others are not run."""
SHARE = 0.8
"""Of the machine's memory, what kernels' processes may take together."""
SHIPPED = "shipped"
"""What implementations of this tree share a process as."""


class Loader(Protocol):
    """Whoever makes implementations of files: `conformance.implementations.registry` in this process, or `Workers`."""

    def load(self, paths: Iterable[Path], registry: Registry | None = None) -> Registry: ...

    def load_installed(self, registry: Registry) -> None: ...


@dataclass(eq=False)
class Source:
    """A file, a folder or an entry point, and the processes that it can be loaded in."""

    workers: Workers
    place: str
    group: str
    path: Path | None = None
    entry: str = ""
    seen: tuple[wire.Implementation, ...] | None = field(default=None, init=False)

    @property
    def file(self) -> str:
        """What tracebacks call it; of what is installed, its place in words."""
        return self.place if self.path is None else str(self.path.absolute())

    def process(self) -> Process:
        """A process in which the file is loaded. Raises Crash."""
        return self.workers.process(self)

    def loaded(self, process: Process) -> wire.Loaded:
        """Load it there. Raises Crash and what importing raises."""
        process.loaded.add(self.file)
        asked = ("load_installed", self.entry) if self.path is None else ("load", self.path)
        found: wire.Loaded = remote.asked(process, wire.Loaded, *asked)
        return found


class Workers:
    """Processes of a run, at most `most` at once besides an empty one that is started ahead."""

    def __init__(self, limits: Limits, most: int = 1) -> None:
        self._limits, self._most = limits, most
        self._reaper: Reaper | None = None
        self._spare: Process | None = None
        self._processes: dict[str, Process] = {}
        """Group -> its process, the one that was used last at the end."""
        self._crashes = Counter[str]()
        """Implementation's file -> cases in a row that have ended in a crash."""
        self._groups = set[str]()

    @property
    def crowded(self) -> bool:
        """Whether there are more groups of files than processes."""
        return len(self._groups) > self._most

    def load(self, paths: Iterable[Path], registry: Registry | None = None) -> Registry:
        """As `conformance.implementations.registry.load`."""
        found = registry if registry is not None else Registry()
        for path in paths:
            self._load(Source(self, str(path), _group(path), path), path.stem, found)
        return found

    def load_installed(self, registry: Registry) -> None:
        """As `conformance.implementations.registry.load_installed`."""
        for entry in installed():
            place = place_of(entry)
            self._load(Source(self, place, place, entry=entry.name), entry.name, registry)

    def process(self, source: Source) -> Process:
        """The process of a file. Raises Crash."""
        if self._crashes[source.place] >= MAX_CRASHES:
            raise Crash(f"not run, crashed {MAX_CRASHES} times")
        process = self._processes.pop(source.group, None)
        if process is not None and process.spoiled:
            process.end("was replaced: an error had left its device unusable")
        if process is None or process.ended:
            while len(self._processes) >= self._most:
                self._processes.pop(next(iter(self._processes))).end()
            process = self._started()
        self._processes[source.group] = process
        if source.file not in process.loaded:
            found = source.loaded(process)
            if source.seen is not None and found.implementations != source.seen:
                raise Crash(f"{source.place} declares something else when it is loaded again")
        return process

    def forget(self, path: Path) -> None:
        """End the process of a file, which is loaded anew when it is needed."""
        if process := self._processes.pop(_group(path), None):
            process.end()

    def conclude(self, one: declared.Implementation, verdict: Verdict) -> None:
        """Count how a case of an implementation has ended, if it was attempted."""
        home, crashed = getattr(one.arrays, "home", None), verdict.crashed
        if isinstance(home, Source) and verdict.status != "unsupported":
            self._crashes[home.place] = self._crashes[home.place] + 1 if crashed else 0

    def close(self) -> None:
        """End all processes."""
        for process in [*self._processes.values(), *([self._spare] if self._spare else [])]:
            process.end()
        self._processes.clear()
        self._spare = None
        if self._reaper is not None:
            self._reaper.close()
            self._reaper = None

    def __enter__(self) -> Workers:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _started(self) -> Process:
        """A process, and another one that waits for the end of this one."""
        if self._reaper is None:
            self._reaper = Reaper()
        process = self._spare or Process(self._limits, self._reaper)
        self._spare = Process(self._limits, self._reaper)
        return process

    def _load(self, source: Source, stem: str, found: Registry) -> None:
        """Take in what a file defines, or why it cannot be used."""
        self._groups.add(source.group)
        try:
            digest = registry.source_hash(source.path) if source.path is not None else ""
            loaded = source.loaded(self.process(source))
        except (Crash, KernelFailure, OSError, remote.Raised, remote.Exited) as error:
            found.broken[source.place] = str(error) if isinstance(error, (Crash, KernelFailure)) else described(error)
            return
        if loaded.broken is not None:
            found.broken[source.place] = loaded.broken
        elif loaded.unavailable is not None:
            found.unavailable[stem] = loaded.unavailable
        else:
            source.seen = loaded.implementations
            try:
                ones = [remote.implementation(source, seen) for seen in loaded.implementations]
                registry.register(found, source.place, digest or _hash(loaded.file), ones)
            except (ValueError, ContractError, msgspec.ValidationError, OSError) as error:
                found.broken[source.place] = described(error)


def share(processes: int) -> int:
    """Bytes of memory that each of so many processes may take: the machine's, or less where a container has less."""
    limits = [os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")]
    for file in (Path("/sys/fs/cgroup/memory.max"), Path("/sys/fs/cgroup/memory/memory.limit_in_bytes")):
        try:
            limits.append(int(file.read_text()))
        except (OSError, ValueError):
            continue
    return int(SHARE * min(limits) / processes)


def _group(path: Path) -> str:
    """What a file shares a process with: those of this tree with one another, others with nothing."""
    real = path.resolve()
    return SHIPPED if real.is_relative_to(IMPLS.resolve()) else str(real)


def _hash(file: str) -> str:
    """Of what is installed: its file, or the folder of its package."""
    source = Path(file)
    if source.suffix != ".py" or not source.is_file():
        raise OSError(f"{file} is no Python file")
    return registry.source_hash(source.parent if source.name == "__init__.py" else source)
