"""The processes that the implementations of a run live in: started when needed, kept, replaced when they end."""

from __future__ import annotations

import hashlib
import os
import tempfile
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager, nullcontext, suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Protocol

import msgspec

from conformance.contract import ContractError
from conformance.execution import environment, remote
from conformance.execution.compiler_cache import OF_NUMBA, SHIPPED, CompilerCache
from conformance.execution.process import Crash, Limits, Process
from conformance.execution.reaper import Reaper
from conformance.execution.status import Verdict
from conformance.failure import Failure
from conformance.implementations import implementation as declared
from conformance.implementations import registry
from conformance.implementations.bridges.base import ArrayBridge
from conformance.implementations.devices import Unavailable
from conformance.implementations.errors import KernelFailure, described
from conformance.implementations.registry import Registry, installed, place_of
from conformance.implementations.source_files import SourceFiles
from conformance.resources import ENGINES, IMPLS
from conformance.worker import memory, wire

MAX_CRASHES, OF_A_HANG = 8, 3
"""Number of cases in a row that end in a crash, after which an implementation's others are not run; how many a hang
counts for. With fewer, a kernel that crashes on a path of the first problems would pass nothing, and nobody would know
why."""
GROWTH = 1 << 29
"""Bytes that a process may grow by after its first case."""
CASES_TO_LOOK = 50
"""Cases between two looks at the growth. A new process forgets a kernel's state, which a later call might show."""
SHARE = 0.8
"""Share of the machine's memory that kernels' processes may take together."""


class Loader(Protocol):
    """Maker of implementations from files: `conformance.implementations.registry` in this process, or `Workers`."""

    def load(self, paths: Iterable[Path], registry: Registry | None = None) -> Registry: ...

    def load_installed(self, registry: Registry) -> None: ...


class ChangedSource(Crash):
    """The source to be loaded is not the one that was loaded first."""

    counted = False


@dataclass(eq=False)
class Source:
    """A file, a folder or an entry point, and the processes that it can be loaded in."""

    workers: Workers
    place: str
    group: str
    path: Path | None = None
    entry: str = ""
    variant: tuple[str, str] = ("", "")
    """An implementation and the label of its variant, if only that is wanted of the file."""
    environment: Mapping[str, str] = field(default_factory=dict)
    record: str = ""
    """List of the files of an entry point's package, with their digests."""
    files: SourceFiles | None = None
    """Its files, as they were when it was loaded first."""
    specs: tuple[wire.ImplementationSpec, ...] | None = field(default=None, init=False)

    @property
    def file(self) -> str:
        """Path that tracebacks show; of an installed source, its place in words."""
        return self.place if self.path is None else str(self.path.absolute())

    @property
    def digest(self) -> str:
        """Digest of the content; the suite's own kernels are one source."""
        if self.group == SHIPPED:
            return SHIPPED
        content = self.files.named if self.files is not None else self.record
        return hashlib.sha256(f"{self.place} {content}".encode("utf-8", "surrogateescape")).hexdigest()[:16]

    @property
    def title(self) -> str:
        """Name under which errors in loading it are kept."""
        name, label = self.variant
        return f"{self.place}, {declared.variant_name(name, label)}" if label else self.place

    def process(self) -> Process:
        """Return a process in which the file is loaded. Raises Crash."""
        process = self.workers.process_for(self)
        if self.file not in process.loaded:
            self.require_same()
            loaded = self.loaded(process)
            self.note_opened()
            if self.specs is not None and loaded.implementations != self.specs:
                what = f"{self.place} declares something else when it is loaded again"
                raise Crash(what, Failure(kind="source", message=what))
        return process

    def note_opened(self, *, loading: bool = False) -> None:
        """Count files that its process has opened as part of the source. Not for the suite's own kernels, which share a
        process: they can open no source that they can change."""
        if self.files is None or self.group == SHIPPED:
            return
        for process in self.workers.of_group(self.group):
            opened, process.opened = process.opened, wire.Opened()
            self.files.cover(opened.read, opened.packages, loading=loading)
            self.files.release(opened.written)

    def require_same(self) -> None:
        """Check the files before they are loaded again. Raises ChangedSource."""
        try:
            if self.files is not None:
                self.files.require_unchanged()
        except declared.ImplementationError as error:
            raise ChangedSource(str(error), error.failure) from None

    @property
    def request(self) -> tuple[Any, ...]:
        """Operation that loads the source."""
        return "load", self.path or self.entry, *self.variant

    def loaded(self, process: Process) -> wire.Loaded:
        """Load the source in a process, or wait until it is loaded. Raises Crash and what importing raises."""
        if process.loading:
            loading, process.loading = process.loading, ""
            answer = process.finish()
            if loading == self.file:
                process.loaded.add(self.file)
                return remote.value(process, answer, wire.Loaded)
        process.begin(*self.request)
        process.loaded.add(self.file)
        return remote.value(process, process.finish(), wire.Loaded)


class Workers:
    """Processes of a run, at most `most` at once.

    If the process of a file has crashed, a spare one loads the file before it is needed. With `ahead` an empty process
    is always ready. Code that they compile is kept in `compiled`, if that is given.
    """

    def __init__(
        self, limits: Limits, most: int = 1, *, ahead: bool = False, compiled: CompilerCache | None = None
    ) -> None:
        self._limits, self.most, self._compiled = limits, most, compiled
        self._reaper: Reaper | None = None
        self._ahead, self._empty = ahead, list[Process]()
        self._spares: dict[str, Process] = {}
        """Group whose process crashed -> a spare process that loads its file."""
        self._others: dict[str, Process] = {}
        """Group -> a second process, of one group at most: see `other_process`."""
        self._processes: dict[str, Process] = {}
        """Group -> its process; the one that was used last is at the end."""
        self._begun: list[Process] = []
        """Processes that were started for kernels and had not ended when the next one was started."""
        self._compiled_before = wire.Compiled()
        """Programs that processes which have ended had compiled."""
        self._crashes = Counter[tuple[str, str]]()
        """Group and place of an implementation's file -> cases in a row that have ended in a crash."""
        self._groups: dict[str, int] = {}
        self._scratch: tempfile.TemporaryDirectory[str] | None = None
        """Folder for code that compilers keep in any case, if nothing is to be kept."""

    @property
    def crowded(self) -> bool:
        """Return whether there are more groups of files than processes."""
        return len(self._groups) > self.most

    def place(self, implementation: declared.Implementation) -> int:
        """Return the number of the group that an implementation belongs to."""
        home = home_of(implementation.arrays)
        return self._groups.get(home.group, 0) if home else 0

    def load(self, paths: Iterable[Path], registry: Registry | None = None) -> Registry:
        """Load files, as `conformance.implementations.registry.load` does."""
        catalogue = registry if registry is not None else Registry()
        for path in catalogue.nameable(paths):
            self._load(Source(self, str(path), group_of(path), path), path.stem, catalogue)
        return catalogue

    def load_installed(self, registry: Registry) -> None:
        """Load entry points, as `conformance.implementations.registry.load_installed` does."""
        for entry in installed():
            place, record = place_of(entry), (entry.dist.read_text("RECORD") if entry.dist else None) or ""
            self._load(Source(self, place, place, entry=entry.name, record=record), entry.name, registry)

    def begin(self, path: Path) -> None:
        """Start the process that a file will be loaded in; an error is raised for whoever loads it."""
        with suppress(Crash, OSError):
            self.process_for(Source(self, str(path), group_of(path), path, files=SourceFiles(path)))

    def vary(self, implementation: declared.Implementation, label: str, registry: Registry) -> None:
        """Load a variant of an implementation, which has a process of its own."""
        (setting,) = [setting for setting in implementation.settings if setting.label == label]
        base = home_of(implementation.arrays)
        assert base is not None
        name = declared.variant_name(implementation.name, label)
        source = replace(
            base, group=f"{base.group} {name}", variant=(implementation.name, label), environment=setting.environment
        )
        self._load(source, name, registry)

    def process_for(self, source: Source) -> Process:
        """Return the process of a file, which may not have loaded it yet. Raises Crash."""
        if self._crashes[source.group, source.place] >= MAX_CRASHES:
            raise Crash("not run, crashed too often", Failure(kind="not run"))
        process = self._processes.pop(source.group, None)
        if process is not None and process.spoiled:
            process.end("was replaced: an error had left its device unusable")
        crashed = process is not None and process.ended
        if process is None or process.ended:
            while len(self._processes) >= self.most:
                self.end(next(iter(self._processes)))
            process = self._spares.pop(source.group, None) or self._started(source)
        self._processes[source.group] = process
        if crashed:
            self._spares[source.group] = spare = self._started(source)
            with suppress(Crash):
                spare.begin(*source.request)
                spare.loading = source.file
        return process

    @contextmanager
    def apart(self) -> Iterator[Process]:
        """Yield a process that loads no file, for measurements of the suite itself. Its threads do not run on for the
        30 ms that OpenBLAS waits for more work, beside the kernel that is timed next."""
        process = Process(Limits(environment={"OPENBLAS_THREAD_TIMEOUT": "4"}), self._watched())
        try:
            yield process
        finally:
            process.end()

    @contextmanager
    def other_process(self, source: Source) -> Iterator[None]:
        """Send a file's calls meanwhile to a second process, in which no case runs; to its own if there can be none, as
        on a device that one process has for itself. The second process is kept for the next time."""
        group = source.group
        for other in [*self._others]:
            if other != group:
                self._others.pop(other).end()
        process = self._processes.pop(group, None)
        if group in self._others:
            self._processes[group] = self._others.pop(group)
        try:
            source.process()
        except (Crash, remote.Exited, Exception):
            self.end(group)
            if process is not None:
                self._processes[group] = process
            yield
            return
        try:
            yield
        finally:
            if other_process := self._processes.pop(group, None):
                self._others[group] = other_process
            if process is not None:
                self._processes[group] = process

    def of_group(self, group: str) -> list[Process]:
        """Return the processes of a group of files that have not been replaced."""
        kept = self._processes, self._spares, self._others
        return [processes[group] for processes in kept if group in processes]

    def keep_all(self) -> None:
        """Let every file keep its process, for implementations that take turns."""
        self.most = max(self.most, len(self._groups))

    def forget(self, path: Path) -> None:
        """End the process of a file, which is loaded anew when it is needed."""
        self.end(group_of(path))

    def restart(self) -> None:
        """End all processes: files are loaded anew when they are needed."""
        for group in (*self._processes, *self._spares, *self._others):
            self.end(group)

    def end(self, group: str) -> None:
        """End the processes of a group of files, which are loaded anew when they are needed."""
        for processes in (self._processes, self._spares, self._others):
            if process := processes.pop(group, None):
                process.end()

    def conclude(self, implementation: declared.Implementation, verdict: Verdict) -> None:
        """Count how a case of an implementation has ended, if it was attempted."""
        home, crashed = home_of(implementation.arrays), verdict.crashed
        if home and verdict.status != "unsupported":
            key = home.group, home.place
            hung = verdict.failure is not None and verdict.failure.kind == "hung"
            weight = OF_A_HANG if hung else 1
            self._crashes[key] = self._crashes[key] + weight if crashed else 0
            if self._crashes[key] >= MAX_CRASHES and (spare := self._spares.pop(home.group, None)):
                spare.end()

    def printed(self, group: str) -> list[str]:
        """Return the last lines that the process of a group of files has printed since the previous call."""
        process = self._processes.get(group)
        return [] if process is None else process.printed_since()

    def limit_growth(self, implementation: declared.Implementation) -> None:
        """Make the process of an implementation small again, or replace it, where it has grown too much: between two
        cases, when nobody has an array in it. A process in which JAX compiles took 5 GB at the end of a run.

        To replace it takes ten seconds where frameworks are to be loaded, so it is asked to give memory back before.
        """
        home = home_of(implementation.arrays)
        group = home.group if home else ""
        process = self._processes.get(group)
        if process is None or process.ended:
            return
        process.cases += 1
        if process.cases % CASES_TO_LOOK != 1 or process.growth <= GROWTH:
            return
        with suppress(Crash):
            process.ask(memory.give_back)
            if process.growth > GROWTH:
                del self._processes[group]
                process.end("was replaced: it had grown")

    @property
    def compiled(self) -> wire.Compiled:
        """Programs that all processes together have compiled."""
        return sum((process.compiled for process in self._begun), self._compiled_before)

    def close(self) -> None:
        """End all processes."""
        for process in [*self._processes.values(), *self._spares.values(), *self._others.values(), *self._empty]:
            process.end()
        self._processes, self._spares, self._others, self._empty = {}, {}, {}, []
        if self._reaper is not None:
            self._reaper.close()
            self._reaper = None
        if self._scratch is not None:
            self._scratch.cleanup()
            self._scratch = None

    def __enter__(self) -> Workers:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _started(self, source: Source) -> Process:
        limits = replace(self._limits, environment={**self._limits.environment, **source.environment})
        if self._compiled is not None:
            limits = self._compiled.kept_for(source.digest, limits)
        if limits != self._limits:
            return self._process_of(limits)
        now = environment.of_kernels(self._limits.passed)
        for old in [process for process in self._empty if process.environment != now]:  # a caller has set a variable
            old.end()
            self._empty.remove(old)
        process = self._empty.pop() if self._empty else self._process_of(self._limits)
        if self._ahead:
            self._empty.append(self._process_of(self._limits))
        return process

    def _process_of(self, limits: Limits) -> Process:
        """Start a process, and return it. Raises Crash."""
        if self._compiled is None and OF_NUMBA not in os.environ:
            # else Numba keeps code beside the source, where any later call finds it
            self._scratch = self._scratch or tempfile.TemporaryDirectory(ignore_cleanup_errors=True)
            caches = {OF_NUMBA: tempfile.mkdtemp(dir=self._scratch.name)}
            limits = replace(limits, environment=caches | {**limits.environment})
        try:
            process = Process(limits, self._watched())
        except OSError as error:
            limit = "ulimit -n and ulimit -u say how many files and processes there may be"
            what = f"not run: no process can be started for it ({error.strerror}); {limit}"
            raise Crash(what, Failure(kind="no process", message=what)) from None
        self._compiled_before = sum((begun.compiled for begun in self._begun if begun.ended), self._compiled_before)
        self._begun = [*(begun for begun in self._begun if not begun.ended), process]
        return process

    def _watched(self) -> Reaper:
        if self._reaper is None:
            self._reaper = Reaper()
        return self._reaper

    def _load(self, source: Source, stem: str, catalogue: Registry) -> None:
        """Register what a file defines, or why it cannot be used."""
        self._groups.setdefault(source.group, len(self._groups))
        try:
            if source.files is None and source.path is not None:
                source.files = SourceFiles(source.path)
            source.require_same()
            loaded = source.loaded(self.process_for(source))  # once: loading may change the process
        except (Crash, KernelFailure, OSError, remote.Raised, remote.Exited) as error:
            if isinstance(error, (Crash, KernelFailure)):
                catalogue.broken[source.title] = registry.BrokenFile(str(error), error.failure)
            else:
                catalogue.broken[source.title] = registry.unusable(described(error))
            return
        if loaded.broken is not None:
            catalogue.broken[source.title] = loaded.broken
            catalogue.duplicates += [source.place] if loaded.implementations else []  # a name twice in one file
        if loaded.unavailable is not None:
            catalogue.unavailable[stem] = loaded.unavailable
        elif loaded.implementations:
            source.specs = loaded.implementations
            try:
                ones = [remote.implementation(source, spec) for spec in loaded.implementations]
                source.files = source.files or _installed_files(loaded.file)
                source.note_opened(loading=True)
                source.files.watchers.append(source.note_opened)
                registry.register(catalogue, source.place, source.files, ones)
                for implementation in ones:  # asked while the process is there: the next file may need its place
                    with suppress(Unavailable):
                        implementation.arrays.require()
            except (ValueError, ContractError, msgspec.ValidationError, OSError) as error:
                catalogue.broken[source.title] = registry.unusable(described(error))


def home_of(bridge: ArrayBridge) -> Source | None:
    """Return the source of a bridge's kernels, if they have a process of their own."""
    home = getattr(bridge, "home", None)
    return home if isinstance(home, Source) else None


def begin_anew(bridge: ArrayBridge) -> bool:
    """End the process of a bridge's kernels, so that the next call is the first in another one; return False if they
    have none of their own."""
    home = home_of(bridge)
    if home is None:
        return False
    home.workers.end(home.group)
    return True


@contextmanager
def another_process(bridge: ArrayBridge) -> Iterator[None]:
    """Send the calls of a bridge's kernels meanwhile to a process in which no case has run, kept for the next time; if
    they have no process of their own, to this one."""
    home = home_of(bridge)
    with home.workers.other_process(home) if home else nullcontext():
        yield


def printed(implementation: declared.Implementation) -> tuple[str, ...]:
    """Return the last lines that an implementation's process has printed since the previous call, if it has one."""
    home = home_of(implementation.arrays)
    return tuple(home.workers.printed(home.group)) if home else ()


def share(processes: int) -> int:
    """Return the bytes of memory that each of so many processes may take, of the machine's or a container's memory."""
    limits = [os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")]
    for file in (Path("/sys/fs/cgroup/memory.max"), Path("/sys/fs/cgroup/memory/memory.limit_in_bytes")):
        try:
            limits.append(int(file.read_text()))
        except (OSError, ValueError):
            continue
    return int(SHARE * min(limits) / processes)


def group_of(path: Path) -> str:
    """Return the group of files that a file shares a process with: those of this tree, or for other files itself."""
    real = path.resolve()
    shares = real.is_relative_to(IMPLS.resolve()) and not real.is_relative_to(ENGINES.resolve())
    return SHIPPED if shares else str(real)


def _installed_files(file: str) -> SourceFiles:
    """Return the source of an installed implementation: its file, or the folder of its package."""
    source = Path(file)
    if source.suffix != ".py" or not source.is_file():
        raise OSError(f"{file} is no Python file")
    return SourceFiles(source.parent if source.name == "__init__.py" else source)
