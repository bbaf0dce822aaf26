"""Whether the command of a record is the one that reproduces its verdict, and nothing else.

Whoever reads a report copies it into a terminal; a record from elsewhere may say anything there.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator
from functools import lru_cache
from itertools import product

from conformance.execution.case import Case
from conformance.implementations.implementation import Implementation, ImplementationError
from conformance.operators import OPERATORS, GeometryError
from conformance.problems import Variant, typed
from conformance.results.schema import Attempt, CheckRecord, Record, TrainingRecord
from conformance.training.tables import configuration
from conformance.training.training_demand import Training

PROGRAMS = (["pytest"], ["conformance", "run"], ["conformance", "check"])
_TIMEOUT = re.compile(r"--timeout=[0-9.e+]{1,12}")
_problem = lru_cache(1 << 14)(typed)


def command(record: Record) -> str:
    """What a report offers to copy: the command, or nothing where it says something else."""
    return record.command if is_reproducing(record) else ""


def is_reproducing(record: Record) -> bool:
    """Whether the command is empty, or runs this case and names at most a file of the implementation beside it."""
    if not isinstance(record, Attempt):
        return not record.command
    text = record.command
    try:
        known = (words for words in _arguments(record) if text.endswith(words))
        return not text or any(_starts(text.removesuffix(words), record.implementation) for words in known)
    except (GeometryError, ImplementationError, KeyError):
        return False


def _arguments(record: Attempt) -> Iterator[str]:
    """What the command of a record ends with, for all that the record does not tell: how many implementations a file
    and operators an implementation has; `--method` stands only where the run was given it, which may be `probes` where
    there are none and the results were compared in full."""
    here = Implementation(record.implementation)
    if isinstance(record, TrainingRecord):
        trained = configuration(record.problem, record.level, record.device)
        yield f" {Training(here, trained, record.layout, record.level, record.seed, ()).command}"
        return
    variant = Variant(record.dtype, record.layout, record.distribution, record.storage)
    problem, operator = _problem(record.descriptor), OPERATORS[record.operator]
    for method in ("auto", record.method, "probes"):
        case = Case(here, operator, problem, variant, record.seed, method)
        if isinstance(record, CheckRecord):
            yield f" {case.selection} -k {record.check}"
            continue
        for named, several in product((False, True), repeat=2):
            yield f" {shlex.join(case.arguments(method, named=named, operator=several))}"


@lru_cache
def _starts(text: str, implementation: str) -> bool:
    """Whether the first words of a command are a program, a file and a name, each quoted where a shell would act."""
    try:
        words = shlex.split(text)
    except ValueError:
        return False
    if shlex.join(words) != text:
        return False
    words = [word for word in words if not _TIMEOUT.fullmatch(word)]
    rest = next((words[len(program) :] for program in PROGRAMS if words[: len(program)] == program), None)
    if rest is None:
        return False
    if rest[-2:] == ["--impl", implementation]:
        rest = rest[:-2]
    return len(rest) <= 1 and not any(word.removeprefix("--impl=").startswith("-") for word in rest)
