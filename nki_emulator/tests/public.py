"""Kernels that others published, unmodified, in the emulator: what came of each, and counts.

    python -m nki_emulator.tests.public FOLDER [--all]

FOLDER holds checkouts of the repositories of `SOURCES`, each in a folder of its own that `Source.folder` names. They
are not part of this project: their licences are theirs. Each call ends in one of

    right            within the bound that its row states, or that follows from the formats (`own_tests.agrees`)
    wrong            not
    refused          by the rule that its row states, which a page forbids; the row names the page
    not implemented  the emulator lacks something that the kernel uses, and says so
    unexplained      refused, or an error, that no row explains
"""

from __future__ import annotations

import argparse
import contextlib
import io
import logging
import sys
import tempfile
import warnings
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import Any
from unittest.mock import patch

from nki_emulator import EmulationError, NotImplementedInEmulator, load
from nki_emulator.tests import own_tests
from nki_emulator.tests.calls import Call
from nki_emulator.tests.public_own import OWN, Own
from nki_emulator.tests.samples import SAMPLES
from nki_emulator.tests.samples_beta import SAMPLES_BETA

SECONDS = 300.0
OTHER_GENERATION = "tensor_copy() got an unexpected keyword argument 'dtype'"
"""What nki 0.1 and 0.2 had, whose instructions still returned tiles."""
CONSTANTS = {"nki.language.constants": Path(__file__).parent / "given" / "language_constants.py"}
"""A module that files of the first generation import under the name of a later one."""
OUTCOMES = ("right", "refused", "not implemented", "wrong", "unexplained")


@dataclass(frozen=True)
class Source:
    """A commit of a public repository; `own` is the folder of files that carry tests of their own."""

    repository: str
    commit: str
    own: str = ""

    @property
    def folder(self) -> str:
        owner, _, name = self.repository.partition("/")
        return f"{name if owner == 'aws-neuron' else f'{owner}-{name}'}-{self.commit}"

    @property
    def clone(self) -> str:
        address = f"https://github.com/{self.repository}"
        return f"git clone {address} {self.folder} && git -C {self.folder} checkout {self.commit}"


SOURCES = (
    Source("aws-neuron/aws-neuron-sdk", "8a38e73", own="general/nki/test"),  # documentation of SDK 2.26
    Source("aws-neuron/aws-neuron-sdk", "a3247f5", own="nki/test"),  # of SDK 2.32
    Source("aws-neuron/nki-samples", "0898a77"),  # the last one with the kernels of the first generation
    Source("aws-neuron/nki-samples", "6905a68"),
    Source("aws-neuron/nki-library", "d2ad3a5"),
    Source("xaviergonzalez/asst4-trainium2", "d155261"),
    Source("chenhzhu/asst4-trainium2", "fecd8c8"),
    Source("nriedman/asst4-trainium2", "0d08c00"),
    Source("robertpare17/asst4-trainium", "8a1d41c"),
    Source("EtashGuha/asst4-trainium2", "0451941"),
    Source("chengli2003/asst4-trainium2", "a57e57b"),
    Source("akjadhav/asst4-trainium", "cf87b8a"),
)


@dataclass(frozen=True)
class Outcome:
    """What came of one call, and a line about it."""

    source: str
    name: str
    outcome: str
    detail: str = ""

    def __str__(self) -> str:
        return f"{self.outcome:15} {self.source} {self.name}{': ' if self.detail else ''}{self.detail}"


class _Framework(ModuleType):
    """A module that a file imports and its kernels do not use: whatever is taken from it is an empty class."""

    __path__: Any = ()

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        found = sys.modules.get(f"{self.__name__}.{name}")
        return found if found is not None else type(name, (), {"__init__": lambda self, *_, **__: None})


@contextlib.contextmanager
def _surroundings(call: Call, path: Path) -> Iterator[None]:
    """Frameworks that the file imports, and the folder that it imports its neighbours from; gone afterwards."""
    before, search = set(sys.modules), list(sys.path)
    search_root = str(path.parents[call.package.count(".")])
    frameworks = {name: _Framework(name) for name in call.frameworks if name not in sys.modules}
    sys.modules.update(frameworks)
    sys.path.insert(0, search_root)
    sys.path.insert(1, str(path.parent))
    # importing neuronx-cc adds a level to logging, which an assignment uses
    level = patch.object(logging, "OFF", logging.CRITICAL + 10, create=True)
    disabled = logging.root.manager.disable
    with (
        level,
        contextlib.redirect_stdout(io.StringIO()),
        warnings.catch_warnings(),
    ):
        warnings.simplefilter("ignore")
        try:
            yield
        finally:
            sys.path[:] = search
            logging.disable(disabled)
            for name in [name for name in sys.modules if name not in before]:
                # never an extension module, which can be initialised only once
                beside = str(getattr(sys.modules[name], "__file__", None) or "(none)")
                if name in frameworks or beside.startswith((str(path.parent), search_root)):
                    del sys.modules[name]


def _loaded(call: Call, path: Path, folder: Path) -> ModuleType:
    """The file, or a file that imports it."""
    beta = "neuronxcc" in path.read_text()
    options: Any = {"target": call.target, "seconds": SECONDS, "modules": CONSTANTS if beta else None}
    if not call.package and not call.wrapper:
        return load(path, **options)
    stub = folder / "stub.py"
    text = f"import {'neuronxcc.nki' if beta else 'nki'}\nfrom {call.package} import {call.kernel}\n"
    stub.write_text(call.wrapper or text)
    return load(stub, **options)


def called(call: Call, path: Path, source: str) -> Outcome:
    """What comes of a row for a file."""
    name = f"{path.name}::{call.kernel}"
    try:
        with tempfile.TemporaryDirectory() as folder, _surroundings(call, path):
            problems = call.run(_loaded(call, path, Path(folder)))
    except EmulationError as problem:
        return _refused(source, name, problem, call.refused, call.page)
    except Exception as problem:  # whatever a row or a file raises concerns that row alone
        return Outcome(source, name, "unexplained", f"{type(problem).__name__}: {problem}")
    if call.refused:
        return Outcome(source, name, "unexplained", f"ran; its row expects {call.refused}")
    return Outcome(source, name, "wrong" if problems else "right", "; ".join(problems))


def _refused(source: str, name: str, problem: EmulationError, expected: tuple[str, ...], page: str) -> Outcome:
    if isinstance(problem, NotImplementedInEmulator):
        return Outcome(source, name, "not implemented", str(problem))
    if OTHER_GENERATION in problem.message:
        return Outcome(source, name, "not implemented", f"written for nki 0.1 or 0.2: {problem}")
    if problem.rule in expected and page and problem.line > 0:
        return Outcome(source, name, "refused", f"{page}; {problem}")
    return Outcome(source, name, "unexplained", str(problem))


def tested(path: Path, source: str) -> Iterator[Outcome]:
    """What comes of each test that a file carries."""
    whole = OWN.get(path.name, Own())
    options = {"seconds": SECONDS, "partial_outputs": whole.partial_outputs}
    try:
        with contextlib.redirect_stdout(io.StringIO()), warnings.catch_warnings():
            warnings.simplefilter("ignore")
            tests = list(own_tests.named(load(path, **options)))  # type: ignore[arg-type]
    except EmulationError as problem:
        yield _refused(source, path.name, problem, (), "")
        return
    for name, case, method in tests:
        row = OWN.get(f"{path.name}::{method}", whole)
        label = f"{path.name}::{name.partition('.')[2]}"
        try:
            with contextlib.redirect_stdout(io.StringIO()), warnings.catch_warnings():
                warnings.simplefilter("ignore")
                own_tests.run(case, method, row.through)
        except EmulationError as problem:
            yield _refused(source, label, problem, row.refused, row.page)
        except AssertionError as problem:
            yield Outcome(source, label, "wrong", str(problem))
        else:
            explained = not row.refused
            yield Outcome(source, label, "right" if explained else "unexplained")


def outcomes(folder: Path, source: Source) -> Iterator[Outcome]:
    """Of every row for a file of a checkout, and of every test that its files carry."""
    root = folder / source.folder
    for path in sorted((root / source.own).glob("test_*.py")) if source.own else ():
        yield from tested(path, source.folder)
    for call in (*SAMPLES, *SAMPLES_BETA):
        if call.sources and not _looked_for(call, source):
            continue
        for path in sorted(found for found in root.rglob(call.file) if call.wrapper or _defines(found, call.kernel)):
            yield called(call, path, source.folder)


def _looked_for(call: Call, source: Source) -> bool:
    return any(part in source.folder for part in call.sources)


def _defines(path: Path, kernel: str) -> bool:
    return f"def {kernel}(" in path.read_text()


def summary(found: list[Outcome]) -> str:
    """Counts of each source."""
    lines = [f"{'source':45}" + "".join(f"{name:>17}" for name in OUTCOMES) + f"{'calls':>8}"]
    names = [*dict.fromkeys(outcome.source for outcome in found)]
    for name in [*names, "all"]:
        counts = Counter(outcome.outcome for outcome in found if name in ("all", outcome.source))
        lines.append(f"{name:45}" + "".join(f"{counts[kind]:17}" for kind in OUTCOMES) + f"{counts.total():8}")
    return "\n".join(lines)


def main() -> int:
    """0 if nothing is wrong or unexplained."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("folder", type=Path)
    parser.add_argument("--all", action="store_true", help="also show what is right")
    options = parser.parse_args()
    found = []
    for source in SOURCES:
        if not (options.folder / source.folder).is_dir():
            print(f"{source.folder} is not in {options.folder}: {source.clone}")
            continue
        for outcome in outcomes(options.folder, source):
            found.append(outcome)
            if options.all or outcome.outcome != "right":
                print(outcome, flush=True)
    print(summary(found))
    return int(any(outcome.outcome in ("wrong", "unexplained") for outcome in found))


if __name__ == "__main__":
    sys.exit(main())
