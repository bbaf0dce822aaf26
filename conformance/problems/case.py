"""A case: an operator, a problem, inputs and their format. Everything that is verified, recorded, claimed or repeated
is identified by its case, which is written like the end of the command that repeats it.

    conformance check acme.py 'n1 c8 h9 w9 k16 r3 s3 p1' --operator conv_forward --dtype bf16

A file of cases (`--problems FILE`) has one per line. If a failure needs earlier calls in the same process, these cases
precede it on the line, separated by `;`. `#` begins a comment.
"""

from __future__ import annotations

import shlex
from collections.abc import Iterator
from dataclasses import dataclass, fields, replace
from functools import lru_cache
from pathlib import Path
from typing import Any

from conformance.dtypes import DECLARABLE
from conformance.files import LARGEST_SOURCE, content_of
from conformance.layouts import grouped_of, has_groups, is_known, layouts_of, rank_of
from conformance.operators import FAMILIES, OPERATORS, Geometry, GeometryError, parse, takes
from conformance.problems.table import SPARSE, Variant, applies, is_huge, usual_distribution
from conformance.storage import StorageError

BEHAVIOUR, TRAINING = "behaviour", "training"
"""Distributions of cases that are not judged by the results of a single call; `training` is an operator, too."""
FORM = "'DESCRIPTOR' --operator NAME [--dtype D] [--layout L] [--distribution D] [--storage S] [--seed N]"
SEPARATOR = ";"


class CaseError(ValueError):
    """Raised for a text that is not a case, or for a case without a unique correct result; the message says why."""


@dataclass(frozen=True, slots=True)
class Case:
    """A case, independent of the kernel that is verified.

    problem   descriptor of the problem; for a training, the network
    storage   how operands lie in memory, see `conformance.storage`; empty if all are contiguous
    seed      seed of the inputs
    check     name of the behaviour check that is made on the problem; empty if the case is not a behaviour check
    """

    operator: str
    problem: str
    dtype: str
    layout: str
    distribution: str
    storage: str = ""
    seed: int = 0
    check: str = ""

    @classmethod
    def of(cls, operator: str, geometry: Geometry, variant: Variant, seed: int = 0, check: str = "") -> Case:
        """Return the case of an operator on a geometry, in a variant."""
        v = variant
        return cls(operator, geometry.descriptor, v.dtype, v.layout, v.distribution, v.storage, seed, check)

    @classmethod
    def parse(cls, text: str) -> Case:
        """Parse a case, which must have a unique correct result (`require_one_result`). Raises CaseError."""
        try:
            problem, *words = shlex.split(text)
        except ValueError:
            raise CaseError(f"{text.strip()!r}: must be: {FORM}") from None
        options = dict(zip(words[::2], words[1::2], strict=False))
        names = {f"--{field.name}": field.name for field in fields(cls) if field.name != "problem"}
        if len(words) != 2 * len(options) or not options.keys() <= names.keys() or "--operator" not in options:
            raise CaseError(f"{text.strip()!r}: must be: {FORM}")
        values: dict[str, Any] = {names[option]: value for option, value in options.items()}
        seed = values.setdefault("seed", "0")
        if not (seed.isascii() and seed.isdigit() and len(seed) <= 18):
            raise CaseError(f"{seed!r}: the seed must be a whole number from 0 to 10^18 - 1")
        values["seed"] = int(seed)
        case = cls(
            **_usual(
                problem, values.get("dtype", "fp32"), values["operator"], "check" in values, values.get("storage", "")
            )
            | values,
            problem=problem,
        )
        case.require_one_result()
        return case if case.operator == TRAINING else replace(case, problem=case.geometry.descriptor)

    @property
    def geometry(self) -> Any:
        """`conformance.operators.Geometry` of the problem. Raises GeometryError."""
        return _geometry(self.problem)

    @property
    def variant(self) -> Variant:
        """Variant in which the problem is run."""
        return Variant(self.dtype, self.layout, self.distribution, self.storage)

    def words(self, *, operator: bool = True) -> list[str]:
        """Return the arguments, after the kernel, of the command that repeats the case. Options with their usual value
        are left out, and the operator unless `operator`."""
        usual = _usual(self.problem, self.dtype, self.operator, bool(self.check), self.storage)
        arguments = [self.problem]
        for field in fields(self)[2:] if not operator else (fields(self)[0], *fields(self)[2:]):
            value = getattr(self, field.name)
            if value != usual.get(field.name, field.default):
                arguments += [f"--{field.name}", str(value)]
        return arguments

    def __str__(self) -> str:
        return shlex.join(self.words())

    def require_one_result(self) -> None:
        """Raise CaseError if the operator does not take the problem, or has no unique correct result in it."""
        if self.operator == TRAINING:
            return
        if self.operator not in OPERATORS:
            raise CaseError(f"operator {self.operator}: unknown. Choices: {', '.join(OPERATORS)}")
        try:
            geometry = self.geometry
        except GeometryError as error:
            raise CaseError(f"problem {self.problem!r}: {error}") from None
        operator, family, variant = OPERATORS[self.operator], FAMILIES[geometry.family], self.variant
        if not takes(operator.name, geometry):
            possible = ", ".join(candidate.name for candidate in family.operators if takes(candidate.name, geometry))
            what = f"does not take the problem {self.problem!r}. Choices: {possible}"
            raise CaseError(f"operator {self.operator}: {what}")
        if self.dtype not in operator.dtypes:
            raise CaseError(f"dtype {self.dtype}: unknown. Choices: {', '.join(operator.dtypes)}")
        if not is_known(self.layout) or rank_of(self.layout) != geometry.rank:
            choices = ", ".join((*layouts_of(geometry.rank), *grouped_of(geometry.rank)))
            raise CaseError(f"layout {self.layout}: there is none for {self.problem!r}. Choices: {choices}")
        if has_groups(self.layout) and not hasattr(geometry, "groups"):
            raise CaseError(f"layout {self.layout}: has groups as an axis; {self.problem!r} has none")
        if not operator.defined(geometry, self.dtype):
            choices = ", ".join(name for name in DECLARABLE if operator.defined(geometry, name))
            raise CaseError(f"dtype {self.dtype}: {self.operator} has none of {self.problem!r}. Choices: {choices}")
        if self.check:
            return
        distributions = (*family.distributions, *([SPARSE] if is_huge(geometry) else ()))
        if self.distribution not in distributions or not applies(self.distribution, self.dtype):
            of = geometry.family + (f" in {self.dtype}" if self.distribution in distributions else "")
            choices = ", ".join(name for name in distributions if applies(name, self.dtype))
            raise CaseError(f"distribution {self.distribution}: there is none for {of}. Choices: {choices}")
        if not operator.determines(geometry, self.distribution):
            raise CaseError(
                f"distribution {self.distribution}: {self.operator} has no one right result on {self.problem!r}, where "
                "an element of the window meets padding alone; algorithms multiply its NaN by zero or leave it out"
            )
        try:
            suits = variant.suits(self.operator, geometry)
        except StorageError as error:
            raise CaseError(f"storage {error}") from None
        if not applies(self.distribution, self.dtype, self.storage):
            choices = ", ".join(name for name in distributions if applies(name, self.dtype, self.storage))
            what = f"values repeat, and {self.distribution} inputs do not. Distributions: {choices or 'none'}"
            raise CaseError(f"storage {self.storage}: {what}")
        if not suits:
            operands = ", ".join(operator.inputs(geometry))
            what = f"{self.operator} has the operands {operands}; vectors have no rows"
            raise CaseError(f"storage {self.storage}: {what}")


def _usual(problem: str, dtype: str, operator: str, is_check: bool, storage: str) -> dict[str, str]:
    """Return the usual values of options, which are left out when a case is written."""
    if operator == TRAINING:
        return {"dtype": "fp32", "layout": "nchw", "distribution": TRAINING}
    try:
        geometry = _geometry(problem)
        distribution = BEHAVIOUR if is_check else usual_distribution(geometry.family, dtype, storage)
    except (GeometryError, StorageError):  # reported by `require_one_result`
        return {"dtype": "fp32", "layout": "nchw", "distribution": "fixed"}
    return {"dtype": "fp32", "layout": layouts_of(geometry.rank)[0], "distribution": distribution}


@lru_cache(maxsize=1 << 14)
def _geometry(descriptor: str) -> Any:
    return parse(descriptor)


def sequence(text: str) -> tuple[Case, ...]:
    """Parse the cases of a line, in the order of their calls. Raises CaseError."""
    return tuple(map(Case.parse, text.split(SEPARATOR)))


def read(path: Path) -> Iterator[tuple[Case, ...]]:
    """Yield the cases of each line of a file. Raises CaseError, and OSError if the file cannot be read."""
    try:
        lines = content_of(path, LARGEST_SOURCE).decode().splitlines()
    except UnicodeDecodeError:
        raise CaseError(f"{path}: is not a text file in UTF-8") from None
    for number, line in enumerate(lines, 1):
        if text := line.partition("#")[0].strip():
            try:
                cases = sequence(text)
                if any(case.check or case.distribution == BEHAVIOUR for case in cases):
                    raise CaseError("must be cases that are verified, and no behaviour check: leave out --check")
                yield cases
            except CaseError as error:
                raise CaseError(f"{path}, line {number}: {error}") from None
