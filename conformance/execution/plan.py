"""From a selection to cases, in the order that shares references: problem, dtype, distribution, implementations."""

from __future__ import annotations

import os
from collections import defaultdict
from collections.abc import Callable, Generator, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import cached_property, partial
from itertools import compress
from pathlib import Path
from typing import Any

from conformance.dtypes import ordinary
from conformance.execution.case import Absence, Case, absence_reason, concerns, has_layout, takes_case
from conformance.execution.claims import Claim, Key, compared
from conformance.execution.implementation_names import base_of, load_named, vary, word
from conformance.execution.invocation import missing_storage
from conformance.execution.kernel_paths import MAX_PATHS, paths
from conformance.execution.remote import Condition
from conformance.execution.selection import BEHAVIOUR, Selection, SelectionError, like_channels_last, require_known
from conformance.execution.share import Ranked
from conformance.execution.workers import Loader
from conformance.implementations import registry
from conformance.implementations.implementation import (
    NOT_IMPLEMENTED,
    Implementation,
    variant_name,
)
from conformance.layouts import GROUPED, NAMES, is_optional, layouts_of, rank_of
from conformance.operators import FAMILIES, OPERATORS, takes
from conformance.operators.spatial import RANKS
from conformance.problems import PROBLEMS, Problem, Variant, at_level
from conformance.problems.drawn import CANDIDATES, candidates
from conformance.problems.ranking import Row
from conformance.problems.table import DRAWN
from conformance.resources import IMPLS

Predicate = Callable[[Any], bool]
Rows = Sequence[tuple[Problem, Sequence[Variant]]]
Lacks = Callable[[Implementation, str], str]
"""Why a check of an operator does not apply to an implementation; empty where it does."""
Keys = Callable[[], Sequence[Key]]
"""What claims call some cases; asked for where there are claims."""

BEHAVIOUR_PATHS = 3
"""Paths of a kernel on which a check of its behaviour is made that seldom depends on them; at smoke one."""
DRAWN_PROBLEMS = 3
"""Drawn problems of each operator that an implementation is verified on; of convolutions, dense and grouped each."""


class Plan:
    """The implementations of a run and the cases that are required of them.

    `loader` makes implementations of files, in this process or in others. What `claims` say of them, by name, is not to
    be lost: absent cases that are claimed are failures, and a claimed implementation that its file no longer defines
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
        self._paths: dict[tuple[str, str], list[tuple[Problem, Variant]]] = {}
        self._asked = set[str]()
        """Operators whose kernels have been asked what they take."""
        self.claims: dict[str, Claim] = {}
        self.registry = known = loader.load(selection.paths)
        if known.duplicates:
            raise SelectionError("\n".join(f"--impl {path}: {known.broken[path]}" for path in known.duplicates))
        named = set(selection.implementations)
        bases = {base_of(name) for name in named}
        self._origins = dict(known.paths)
        if not selection.paths or bases - self._origins.keys():
            given = {path.resolve() for path in selection.paths}
            others = [path for path in registry.discover(folder) if path.resolve() not in given]
            if named:
                load_named(loader, bases - self._origins.keys(), others, known)
            else:
                loader.load(others, known)
            if not named or bases - known.implementations.keys():
                loader.load_installed(known)
        for stem in named - known.implementations.keys():
            if mine := {name for name, path in known.paths.items() if Path(path).stem == word(stem)}:
                named = named - {stem} | mine
        self._named = named
        for name, path in vary(known, loader, named).items():
            if base_of(name) in self._origins:
                self._origins[name] = path
        elsewhere = {n: os.path.relpath(p) for n, p in known.paths.items() if Path(p).is_relative_to(folder)}
        self._files = self._origins if folder == IMPLS else elsewhere | self._origins
        """Files of the implementations that are not found by their names alone."""
        gone = defaultdict[Path, list[Claim]](list)
        variants = {variant_name(o.name, s.label) for o in known.implementations.values() for s in o.settings}
        for name, claim in (claims or {}).items():
            if name in variants - known.implementations.keys():
                continue  # nobody has asked for it
            if known.paths.get(name) == str(claim.source) or claim.source.stem in known.unavailable:
                self.claims[name] = claim
            else:
                gone[claim.source].append(claim)
        for source, lost in gone.items():
            names, file = ", ".join(claim.implementation for claim in lost), lost[0].file
            remove = f"remove what is claimed of it from {file}" if source.exists() else f"remove {file}"
            missed = f"{lost[0].place} claims {names}, which {source.name} does not define; define it, or {remove}"
            known.broken.setdefault(str(source), missed)
        if selection.implementations:
            self._keep(selection)
        try:
            self.selection = selection.with_declared(la for one in known.implementations.values() for la in one.layouts)
        except SelectionError as error:  # a file that could not be read may be the one that declares it
            reasons = [f"{path} is broken: {why}" for path, why in known.broken.items()]
            raise SelectionError("\n".join([str(error), *reasons])) from None
        if selection.variants:
            for name, path in vary(known, loader, (n for n in variants if base_of(n) in known.implementations)).items():
                self._files |= {name: path} if base_of(name) in self._files else {}

    def _keep(self, selection: Selection) -> None:
        """Drop what is not named; of given files all that they define stays, unless a name singles one out."""
        known = self.registry
        wanted = set(self._named)
        for name in wanted - known.implementations.keys() - known.unavailable.keys():
            try:
                require_known("--impl", [name], known.implementations.keys() | known.unavailable.keys())
            except SelectionError as error:
                reasons = [f"{path} is broken: {why}" for path, why in known.broken.items()]
                reasons += [f"{stem} is unavailable: {why}" for stem, why in known.unavailable.items()]
                raise SelectionError("\n".join([str(error), *reasons])) from None
        singled_out = {self._origins.get(name) for name in wanted}
        wanted |= {name for name, path in self._origins.items() if path not in singled_out}
        known.implementations = {n: i for n, i in known.implementations.items() if n in wanted}
        wanted |= {path.stem for path in selection.paths}
        known.unavailable = {stem: why for stem, why in known.unavailable.items() if stem in wanted}
        known.broken = {path: why for path, why in known.broken.items() if Path(path) in selection.paths}

    def program(self, one: Implementation) -> tuple[str, ...]:
        """The first words of a command that runs it again: with its file, unless the name is enough."""
        file, by_pytest = self._files.get(one.name), self.selection.program == "pytest"
        # the name too, where a file defines several; with `=`, because to pytest a path of its own would be a test file
        named = [] if file and not by_pytest and [*self._files.values()].count(file) == 1 else ["--impl", one.name]
        place = [f"--impl={file}" if by_pytest else file] if file else []
        return (*self.selection.program.split(), *place, *named)

    @cached_property
    def _ranking(self) -> Ranked:
        return Ranked(self.selection)

    def cases(self, operator: str, when: Predicate | None) -> Iterator[Case | Absence]:
        """Everything required of an operator on the problems for which `when(geometry)` holds."""
        if operator not in self.selection.operators:
            return
        self._ask(operator)
        rows, listed = self._ranking.rows(operator)
        concerned = [when is None or when(problem.geometry) for problem, _ in rows]
        present = yield from self._missing(operator, self._ranking.asked_for(compress(rows[:listed], concerned)))
        shares = [self._ranking.share(one, operator) for one in present]
        for place, (problem, _) in enumerate(rows):
            if concerned[place]:
                mine = [(one, share[place]) for one, share in zip(present, shares, strict=True) if share[place]]
                yield from self._of_row(operator, place, problem, mine)
        yield from self._regressions(operator, when)
        if self.selection.level != "smoke" and self.selection.problems is PROBLEMS:
            yield from self.drawn(operator, when)

    def _of_row(
        self, operator: str, place: int, problem: Problem, shares: Sequence[tuple[Implementation, Sequence[Variant]]]
    ) -> Iterator[Case]:
        """The cases of one row, those of the same tensors together."""
        every = dict.fromkeys(variant for _, variants in shares for variant in variants)
        asked, program = self.selection, {one.name: self.program(one) for one, _ in shares}
        for variant in sorted(every, key=lambda v: (v.dtype, v.distribution)):
            for one, variants in shares:
                here = concerns(one, operator, variant.layout) and not missing_storage(one.arrays, variant.storage)
                if variant in variants and here:
                    case = Case(one, OPERATORS[operator], problem, variant, asked.seed, asked.method, program[one.name])
                    yield replace(case, place=place)

    def timed(self, operator: str, problems: Iterable[Problem]) -> Iterator[Case | Absence]:
        """The cases of a benchmark table: dense fp32 data in the canonical layout.

        A bridge says why a call through it is not its kernel's time: `untimed`.
        """
        rows = [(p, (Variant("fp32", layouts_of(p.geometry.rank)[0], "fixed"),)) for p in problems]
        if operator not in self.selection.operators or not rows:
            return
        present = yield from self._absences(operator, len(rows))
        untimed = {one.name: reason for one in present if (reason := getattr(one.arrays, "untimed", ""))}
        for one in (one for one in present if one.name in untimed):
            yield Absence(one.name, operator, one.device, "unsupported", f"no time: {untimed[one.name]}", len(rows))
        yield from self._cases(operator, rows, [one for one in present if one.name not in untimed])

    def measured(
        self,
        check: str,
        operator: str,
        problems: Iterable[Problem],
        dtypes: Sequence[str],
        lacks: Lacks = lambda one, operator: "",
    ) -> Iterator[Case | Absence]:
        """The cases of a check with problems of its own, at the level asked for, in the canonical layout.

        `lacks` says of an implementation why the check does not apply to it.
        """
        asked = self.selection
        variants = tuple(Variant(dtype, "nchw", BEHAVIOUR) for dtype in dtypes if dtype in asked.dtypes)
        if operator in asked.operators and BEHAVIOUR in asked.distributions and "nchw" in asked.layouts and variants:
            taken = (problem for problem in problems if takes(operator, problem.geometry))
            rows = [(problem, variants) for problem, _ in at_level(taken, asked.level)]
            yield from self._rows(operator, rows, check, lacks)

    def behaviour(self, check: str, operator: str, most: int | None = None) -> Iterator[Case | Absence]:
        """What a behaviour check needs: a few small problems of every implementation, or its paths: `most` of them, 0
        for as many as the level asks for."""
        asked = self.selection
        if operator not in asked.operators or BEHAVIOUR not in asked.distributions:
            return
        dtypes = ordinary(dtype for dtype in asked.dtypes if dtype in OPERATORS[operator].dtypes)
        problems = self._problems_of[OPERATORS[operator].family]
        if not (problems and dtypes):
            return

        def selected() -> list[Key]:
            every = [Variant(dtype, layout, BEHAVIOUR) for dtype in dtypes for layout in asked.layouts]
            of_rank = {rank: [v for v in every if rank_of(v.layout) == rank] for rank in RANKS}
            return _keys(operator, [(problem, of_rank[problem.geometry.rank]) for problem in problems], check)

        few = min(len(problems), BEHAVIOUR_PATHS if asked.level in ("standard", "full") else 1)
        self._ask(operator)
        present = yield from self._absences(operator, few if most is None else 1, selected)
        for one in present:
            chosen = self._paths_of(one, operator, dtypes)
            for problem, variant in chosen[: few if most is None else most or None]:
                yield from self._cases(operator, [(problem, [variant])], [one])
            if not chosen:
                reason = "no small problem of those asked for is supported: behaviour not checked"
                yield from self.compared(Absence(one.name, operator, one.device, "unsupported", reason, 1), selected)

    def _ask(self, operator: str) -> None:
        """Ask every kernel of an operator at once which problems it takes."""
        if operator in self._asked:
            return
        self._asked.add(operator)
        geometries = [problem.geometry for problem, _ in self._ranking.rows(operator)[0]]
        for kernel in (kernel for one in self._able(operator) for kernel in one.kernels if kernel.operator == operator):
            if isinstance(kernel.when, Condition):
                ranks = {rank_of(layout) for layout in kernel.layouts}
                kernel.when.learn(geometry for geometry in geometries if geometry.rank in ranks)

    def _paths_of(self, one: Implementation, operator: str, dtypes: Sequence[str]) -> list[tuple[Problem, Variant]]:
        """What the behaviour of a kernel is checked on; two dozen checks ask for the same."""
        key, layouts = (one.name, operator), self._layouts(one, operator)
        most = MAX_PATHS.get(self.selection.level, MAX_PATHS["smoke"])
        if key not in self._paths:
            asked_for = {(dtype, layout) for dtype in dtypes for layout in layouts}
            self._paths[key] = paths(
                one, operator, self._unfiltered, most, lambda dtype, layout: (dtype, layout) in asked_for
            )
        return self._paths[key]

    @cached_property
    def _problems_of(self) -> dict[str, list[Problem]]:
        """Family -> the problems of `_unfiltered`, each once."""
        found: dict[str, dict[str, Problem]] = {family: {} for family in FAMILIES}
        for problem, _ in self._unfiltered:
            found[problem.geometry.family][problem.name] = problem
        return {family: [*known.values()] for family, known in found.items()}

    @cached_property
    def _unfiltered(self) -> list[Row]:
        """All rows up to level standard at least, in whatever they are run: behaviour has its own dtypes and inputs."""
        level = self.selection.level
        return [*at_level(self.selection.problems, "standard" if level in ("smoke", "huge") else level)]

    @property
    def implementations(self) -> list[Implementation]:
        """Those of the devices that are asked for."""
        return [one for one in self.registry.implementations.values() if one.device in self.selection.devices]

    def simulators(self, device: str) -> dict[str, list[str]]:
        """Marker -> implementations that could run here and execute kernels of `device` on another one.

        A bridge says of which devices: `stands_for`.
        """
        able: dict[str, list[str]] = {}
        for name, implementation in self.registry.implementations.items():
            if device in getattr(implementation.arrays, "stands_for", ()) and not absence_reason(implementation):
                able.setdefault(implementation.device, []).append(name)
        return able

    def compared(self, absence: Absence, selected: Keys) -> Iterator[Absence]:
        """An absence as it is reported, where `selected` are the cases that it may stand for."""
        name, claims = absence.implementation, self.claims.values()
        if name in self.registry.unavailable:  # by the name of the file, which could not be asked what it defines
            mine = [claim for claim in claims if claim.source.stem == name]
        else:
            mine = [claim for claim in claims if claim.implementation == name]
        yield from compared(absence, mine, selected() if mine else ())

    def _rows(
        self, operator: str, rows: Rows, check: str = "", lacks: Lacks = lambda one, operator: ""
    ) -> Iterator[Case | Absence]:
        """Cases of all implementations on rows of a table."""
        present = yield from self._missing(operator, rows, check, lacks)
        yield from self._cases(operator, rows, present)

    def _missing(
        self, operator: str, rows: Rows, check: str = "", lacks: Lacks = lambda one, operator: ""
    ) -> Generator[Absence, None, list[Implementation]]:
        """What of the rows implementations do not have; returns those that have some."""
        alike = defaultdict[tuple[str, str], list[tuple[Problem, Variant]]](list)
        for problem, variants in rows:
            for variant in variants:
                alike[variant.layout, variant.storage].append((problem, variant))
        if not alike:
            return []
        usual = sum(len(pairs) for (layout, _), pairs in alike.items() if self._counts(layout))
        present = yield from self._absences(operator, usual, lambda: _keys(operator, rows, check), lacks)
        for one in present:  # what a framework does not have is said once, not for each case
            missing = defaultdict[str, list[tuple[Problem, Variant]]](list)
            for (layout, storage), pairs in alike.items():
                if not concerns(one, operator, layout):
                    missing[f"layout {layout} is not declared"] += self._required(one, operator, check, layout, pairs)
                elif reason := missing_storage(one.arrays, storage):
                    missing[reason] += pairs
            for reason, pairs in missing.items():
                if pairs:
                    absence = Absence(one.name, operator, one.device, "unsupported", reason, len(pairs))
                    yield from self.compared(absence, partial(_keys, operator, [(p, [v]) for p, v in pairs], check))
        return present

    def _required(
        self, one: Implementation, operator: str, check: str, layout: str, pairs: list[tuple[Problem, Variant]]
    ) -> list[tuple[Problem, Variant]]:
        """Of cases in a layout that an implementation does not declare, those that it is said to be without: all, or in
        a layout that is for those who declare it what was claimed."""
        claimed = [claim.cases for claim in self.claims.values() if claim.implementation == one.name]
        if self._counts(layout):
            return pairs
        return [(p, v) for p, v in pairs if any(cases & {*_keys(operator, [(p, [v])], check)} for cases in claimed)]

    def _absences(
        self,
        operator: str,
        count: int,
        selected: Keys = list,
        lacks: Lacks = lambda one, operator: "",
    ) -> Generator[Absence, None, list[Implementation]]:
        """Who cannot run `count` cases of an operator, as claims have it of the `selected` ones; returns the others."""
        present: list[Implementation] = []
        absent: list[Absence] = []
        for one in self.implementations:
            if reason := absence_reason(one):
                absent.append(Absence(one.name, operator, one.device, "unavailable", reason, count))
            elif not any(kernel.operator == operator for kernel in one.kernels):
                reason = NOT_IMPLEMENTED.format(operator)
                absent.append(Absence(one.name, operator, one.device, "unsupported", reason, count))
            elif reason := lacks(one, operator):
                absent.append(Absence(one.name, operator, one.device, "unsupported", reason, count))
            else:
                present.append(one)
        for stem, reason in self.registry.unavailable.items():
            absent.append(Absence(stem, operator, "", "unavailable", reason, count))
        for absence in absent:
            yield from self.compared(absence, selected)
        return present

    def _counts(self, layout: str) -> bool:
        """Whether whoever does not declare a layout is said to be without it: one that is for those who declare it, of
        many, would fill everybody's totals. Where it is asked for by name it is what the run is about."""
        return not (is_optional(layout) and self.selection.every_layout)

    def _layouts(self, one: Implementation, operator: str) -> tuple[str, ...]:
        """What the behaviour of a kernel is checked in: of the layouts asked for, plain ones if it has any."""
        if not self.selection.every_layout:
            return self.selection.layouts
        declared = tuple(dict.fromkeys(la for k in one.kernels if k.operator == operator for la in k.layouts))
        return declared if all(map(is_optional, declared)) else self.selection.layouts

    def _able(self, operator: str) -> list[Implementation]:
        """Who is here and has a kernel for an operator."""
        known = self.implementations
        return [one for one in known if any(k.operator == operator for k in one.kernels) and not absence_reason(one)]

    def _regressions(self, operator: str, when: Predicate | None) -> Iterator[Case]:
        """The lines of regression tables that end in the operator, each after the calls that stand before it."""
        for rows in self.selection.regressions:
            if rows[-1].operator != operator or not (when is None or when(rows[-1].geometry)):
                continue
            for one in self._able(operator):
                *before, case = (
                    Case(
                        one, OPERATORS[row.operator], Problem(f"{DRAWN}{row.name}", row.geometry, "smoke", ()),
                        row.variant, row.seed, self.selection.method, self.program(one),
                    )
                    for row in rows
                )  # fmt: skip
                yield replace(case, after=tuple(before))

    def drawn(self, operator: str, when: Predicate | None) -> Iterator[Case | Absence]:
        """What no table has: of every implementation the first problems drawn from the seed that it takes, in each
        number of dimensions.

        A kernel that knows the tables, and is right on nothing else, is detected here.
        """
        asked, able, offered = self.selection, self._able(operator), 0
        given = set[str]()
        for rank in CANDIDATES:
            layouts = [layout for layout in (*NAMES, *asked.declared) if rank_of(layout) == rank]
            here = [one for one in able if any(has_layout(one, operator, layout) for layout in layouts)]
            left = {one.name: DRAWN_PROBLEMS for one in here}
            for problem, variants in candidates(operator, asked.seed, rank) if left else ():
                if when is not None and not when(problem.geometry):
                    continue
                others = like_channels_last(problem, variants, (*GROUPED, *asked.declared))
                wanted = [variant for variant in (*variants, *others) if asked.includes(variant)]
                offered += bool(wanted)
                for one in [one for one in able if left.get(one.name)]:
                    variant = next((v for v in wanted if takes_case(one, operator, problem, v)), None)
                    if variant is not None:
                        left[one.name] -= 1
                        given.add(one.name)
                        case = Case(one, OPERATORS[operator], problem, variant, asked.seed, asked.method)
                        yield replace(case, program=self.program(one), place=len(self._ranking.rows(operator)[0]))
                if not any(left.values()):
                    break
        for one in able if offered else ():
            if one.name not in given:
                reason = f"takes none of the {offered} problems drawn from seed {asked.seed}"
                yield Absence(one.name, operator, one.device, "unsupported", reason, 1)

    def _cases(self, operator: str, rows: Rows, present: Sequence[Implementation]) -> Iterator[Case]:
        for place, (problem, variants) in enumerate(rows):
            yield from self._of_row(operator, place, problem, [(one, variants) for one in present])


def _keys(operator: str, rows: Rows, check: str) -> list[Key]:
    """What claims call the variants of rows; two names of one problem are two cases."""
    return [
        Key(operator, problem.geometry.descriptor, v.dtype, v.layout, v.distribution, check, v.storage)
        for problem, variants in rows
        for v in variants
    ]
