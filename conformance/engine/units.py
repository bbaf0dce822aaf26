"""Units of a run: parts that are carried out apart, in a job of an array or on a device of a cluster.

The same tasks, number of units and costs give the same units, in whichever process they are made.
"""

from __future__ import annotations

import hashlib
import heapq
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass

import msgspec

from conformance.engine.tasks import Key, Task, key_of
from conformance.execution.trial import Absence, Trial
from conformance.problems.parameters import cost as cost_of
from conformance.results.schema import Attempt, Record

Program = tuple[str, ...]
"""Implementation, operator, problem and dtype: what shares references, and compiled programs, is in one unit."""
Cost = Callable[[Task], float]
"""Function that returns the seconds that a task is expected to take."""

CASE, ELEMENT, COMPILED = 0.003, 1.5e-7, 1.0
"""Seconds of a case, of each element of its operands, and of a program that is compiled for its shape. The first two
were measured on 7,945 cases of the NumPy kernels at level standard, on one core."""
CHECKS = {
    "other_parameters_are_told_apart": 1.1,
    "calls_are_right_later": 0.5,
    "calls_in_a_row_are_right": 0.15,
    "memory_is_given_back": 0.15,
    "work_is_finished": 0.06,
}
"""Behaviour check -> seconds that it takes beside a case, of those that take longer; measured as above."""
TRAINING = 20.0
"""Seconds of a training."""


@dataclass(frozen=True, slots=True)
class Unit:
    """Tasks of a unit in the order of the run, and the seconds that they are expected to take."""

    tasks: tuple[Task, ...]
    seconds: float

    @property
    def implementations(self) -> list[str]:
        """Names of the implementations that it has tasks of."""
        return [*dict.fromkeys(implementation_of(task) for task in self.tasks)]


def implementation_of(task: Task) -> str:
    """Return the name of the implementation that a task is about."""
    subject = task.subject
    return subject.implementation if isinstance(subject, Absence) else subject.implementation.name


def program(task: Task) -> Program:
    """Return what a task shares its references and its compiled program with; a task of no problem shares nothing."""
    subject = task.subject
    if not isinstance(subject, Trial):
        return implementation_of(task), task.id
    return subject.implementation.name, subject.operator.name, subject.problem.name, subject.variant.dtype


def modelled(task: Task) -> float:
    """Return the seconds that a task takes by a model of its size."""
    subject = task.subject
    if isinstance(subject, Absence):
        return 0.0
    if not isinstance(subject, Trial):
        return TRAINING
    _, elements = cost_of(subject.problem.geometry)
    compiling = COMPILED if subject.implementation.compiles_per_shape else 0.0
    return CASE + ELEMENT * elements + CHECKS.get(task.check, 0.0) + compiling


def recorded(records: Iterable[Record]) -> Cost:
    """Return a function of the seconds that tasks took in an earlier run, by its records; where they have none, those
    of the model."""
    seconds: Mapping[Key, float] = {
        key_of(record): sum(record.seconds.values()) for record in records if isinstance(record, Attempt)
    }
    return lambda task: seconds.get(task.key) or modelled(task)


def divided(tasks: Sequence[Task], count: int, cost: Cost = modelled) -> list[Unit]:
    """Return `count` units of tasks, about as long as each other. An implementation has units of its own, unless there
    are fewer units than implementations. A program is in one unit, however long it is."""
    programs = defaultdict[Program, list[int]](list)
    seconds = defaultdict[Program, float](float)
    for place, task in enumerate(tasks):
        programs[program(task)].append(place)
        seconds[program(task)] += cost(task)
    of_implementations = defaultdict[str, list[Program]](list)
    for key in programs:
        of_implementations[key[0]].append(key)
    if not tasks or count < len(of_implementations):
        of_implementations = defaultdict(list, {"": [*programs]})
    totals = {name: sum(seconds[key] for key in keys) for name, keys in of_implementations.items()}
    return [
        Unit(
            tuple(tasks[place] for place in sorted(place for key in keys for place in programs[key])),
            sum(seconds[key] for key in keys),
        )
        for name, number in _shares(totals, count).items()
        for keys in _balanced(of_implementations[name], seconds, number)
    ]


def digest(units: Iterable[Unit]) -> str:
    """Return the SHA-256 of units: of the names of the tasks of each, in any order."""
    names = [sorted(task.id for task in unit.tasks) for unit in units]
    return hashlib.sha256(msgspec.json.encode(names)).hexdigest()


def _shares(totals: Mapping[str, float], count: int) -> dict[str, int]:
    """Return how many of `count` units each implementation gets: at least one, and then one after another goes to the
    implementation whose units are longest."""
    shares = dict.fromkeys(totals, 1)
    for _ in range(count - len(shares)):
        shares[max(shares, key=lambda name: totals[name] / shares[name])] += 1
    return shares


def _balanced(programs: Sequence[Program], seconds: Mapping[Program, float], count: int) -> list[list[Program]]:
    """Return programs in `count` bins of about one length: the longest first, each into the bin that is shortest so far
    (LPT; Graham 1969, Bounds on multiprocessing timing anomalies: at most 4/3 of the shortest possible)."""
    bins: list[list[Program]] = [[] for _ in range(count)]
    lengths = [(0.0, number) for number in range(count)]
    for key in sorted(programs, key=lambda key: -seconds[key]):
        length, number = lengths[0]
        bins[number].append(key)
        heapq.heapreplace(lengths, (length + seconds[key], number))
    return bins
