"""Implementations of a run, and the cases that are required of all of them, in an order that shares references."""

from __future__ import annotations

import os
from collections import defaultdict
from collections.abc import Collection, Mapping
from dataclasses import replace
from functools import cached_property
from pathlib import Path
from typing import Any

from conformance.execution.implementation_names import base_of, load_named, vary, word
from conformance.execution.process import SECONDS
from conformance.execution.required import Demand, absent, required
from conformance.execution.selection import Selection, SelectionError, require_known
from conformance.execution.share import Ranked
from conformance.execution.trial import Absence, Claim, Named, Trial, absence_reason
from conformance.execution.workers import Loader
from conformance.implementations import registry
from conformance.implementations.devices import Unavailable
from conformance.implementations.implementation import Implementation, variant_name
from conformance.implementations.registry import unusable
from conformance.problems.case import BEHAVIOUR
from conformance.resources import IMPLS


class Plan:
    """Implementations of a run, and the cases that are required of them.

    `loader` makes implementations of files, in this process or in others. `claims`, by name of the implementation, must
    still hold: absent cases that are claimed are failures, and a claimed implementation that its file no longer defines
    makes the file a broken one.
    """

    def __init__(
        self,
        selection: Selection,
        folder: Path,
        claims: Mapping[str, Claim] | None = None,
        loader: Loader = registry,
    ) -> None:
        self.selection = selection
        self.claims: dict[str, Claim] = {}
        self.registry = catalogue = loader.load(selection.paths)
        if catalogue.duplicates:
            raise SelectionError("\n".join(f"--impl {path}: {catalogue.broken[path]}" for path in catalogue.duplicates))
        named = set(selection.implementations)
        bases = {base_of(name) for name in named}
        self._origins = dict(catalogue.paths)
        if not selection.paths or bases - self._origins.keys():
            resolved = {path.resolve() for path in selection.paths}
            rest = [path for path in registry.discover(folder) if path.resolve() not in resolved]
            if named:
                load_named(loader, bases - self._origins.keys(), rest, catalogue)
            else:
                loader.load(rest, catalogue)
            if not named or bases - catalogue.implementations.keys():
                loader.load_installed(catalogue)
        for stem in named - catalogue.implementations.keys():
            if of_file := {name for name, path in catalogue.paths.items() if Path(path).stem == word(stem)}:
                named = named - {stem} | of_file
        self._named = named
        for name, path in vary(catalogue, loader, named).items():
            if base_of(name) in self._origins:
                self._origins[name] = path
        elsewhere = {n: os.path.relpath(p) for n, p in catalogue.paths.items() if Path(p).is_relative_to(folder)}
        self._files = self._origins if folder == IMPLS else elsewhere | self._origins
        """Files of the implementations that are not found by their names alone."""
        gone = defaultdict[Path, list[Claim]](list)
        variants = {variant_name(o.name, s.label) for o in catalogue.implementations.values() for s in o.settings}
        for name, claim in (claims or {}).items():
            if name in variants - catalogue.implementations.keys():
                continue  # nobody has asked for it
            if catalogue.paths.get(name) == str(claim.source) or claim.source.stem in catalogue.unavailable:
                self.claims[name] = claim
            else:
                gone[claim.source].append(claim)
        for source, lost in gone.items():
            names, file = ", ".join(claim.implementation for claim in lost), lost[0].file
            remove = f"remove what is claimed of it from {file}" if source.exists() else f"remove {file}"
            missed = f"{lost[0].place} claims {names}, which {source.name} does not define; define it, or {remove}"
            catalogue.broken.setdefault(str(source), unusable(missed))
        if selection.implementations:
            self._keep(selection)
        try:
            self.selection = selection.with_declared(
                la for implementation in catalogue.implementations.values() for la in implementation.layouts
            )
        except SelectionError as error:  # a file that could not be read may be the one that declares it
            reasons = [f"{path} is broken: {why}" for path, why in catalogue.broken.items()]
            raise SelectionError("\n".join([str(error), *reasons])) from None
        if selection.variants:
            for name, path in vary(
                catalogue, loader, (n for n in variants if base_of(n) in catalogue.implementations)
            ).items():
                self._files |= {name: path} if base_of(name) in self._files else {}

    def _keep(self, selection: Selection) -> None:
        """Drop implementations that are not named; all that a given file defines stay, unless a name picks one."""
        catalogue = self.registry
        names = set(self._named)
        for name in names - catalogue.implementations.keys() - catalogue.unavailable.keys():
            try:
                require_known("--impl", [name], catalogue.implementations.keys() | catalogue.unavailable.keys())
            except SelectionError as error:
                reasons = [f"{path} is broken: {why}" for path, why in catalogue.broken.items()]
                reasons += [f"{stem} is unavailable: {why}" for stem, why in catalogue.unavailable.items()]
                raise SelectionError("\n".join([str(error), *reasons])) from None
        singled_out = {self._origins.get(name) for name in names}
        names |= {name for name, path in self._origins.items() if path not in singled_out}
        catalogue.implementations = {n: i for n, i in catalogue.implementations.items() if n in names}
        names |= {path.stem for path in selection.paths}
        catalogue.unavailable = {stem: why for stem, why in catalogue.unavailable.items() if stem in names}
        catalogue.broken = {path: why for path, why in catalogue.broken.items() if Path(path) in selection.paths}

    def names_of(self, names: Collection[str], paths: Collection[Path]) -> set[str]:
        """Return what `names`, or else `paths`, stand for: names of implementations, and stems of files, by which a
        file that lacks something here is known."""
        if names:
            files = {n: Path(path).stem for n, path in self.registry.paths.items()}
            return {*names, *(n for n, stem in files.items() if stem in map(word, names))}
        return {n for n, path in self.registry.paths.items() if Path(path) in paths} | {path.stem for path in paths}

    def named(self, implementation: Implementation) -> Named:
        """Return how a command names an implementation: by its file, unless the name is enough."""
        file, seconds = self._files.get(implementation.name, ""), self.selection.seconds
        name = implementation.name if file and [*self._files.values()].count(file) > 1 else ""
        # else it would be read as an option, and a folder as the name of an implementation
        is_bare = file.startswith("-") or (bool(file) and os.sep not in file and Path(file).is_dir())
        file = f"./{file}" if is_bare else file
        return Named(file or implementation.name, name, seconds if seconds != SECONDS else None)

    @cached_property
    def ranked(self) -> Ranked:
        """The problems of the run."""
        return Ranked(self.selection)

    @property
    def implementations(self) -> list[Implementation]:
        """Implementations for the devices that are asked for."""
        return [
            implementation
            for implementation in self.registry.implementations.values()
            if implementation.device in self.selection.devices
        ]

    def required(self, demand: Demand) -> list[Any]:
        """Return what a demand requires of every implementation: absences, then cases, grouped by their tensors."""
        if not demand.is_asked:
            return []
        requirements: list[Any] = []
        for implementation in self.implementations:
            named = self.named(implementation)
            for requirement in required(
                implementation, demand, [c for c in self.claims.values() if c.implementation == implementation.name]
            ):
                requirements.append(
                    requirement if isinstance(requirement, Absence) else replace(requirement, named=named)
                )
        for stem, reason in self.registry.unavailable.items():
            claims = [claim for claim in self.claims.values() if claim.source.stem == stem]
            requirements += absent(stem, "", demand, Unavailable(reason), claims)
        return sorted(requirements, key=_of_tensors)

    def simulators(self, device: str) -> dict[str, list[str]]:
        """Return marker -> implementations that could run here and execute kernels of `device` on another one.

        A bridge's `stands_for` says of which devices.
        """
        able: dict[str, list[str]] = {}
        for name, implementation in self.registry.implementations.items():
            if device in implementation.arrays.stands_for and not absence_reason(implementation):
                able.setdefault(implementation.device, []).append(name)
        return able


def _of_tensors(trial: Any) -> tuple[Any, ...]:
    """Return a key that sorts cases with one reference together, as ranked; behaviour checks stay sorted by kernel."""
    if not isinstance(trial, Trial) or trial.variant.distribution == BEHAVIOUR:
        return ()
    v = trial.variant
    return trial.place, trial.problem.name, v.dtype, v.distribution, v.layout, v.storage
