"""The recipes of goldens, taken from the tables, and their manifest entries, computed in parallel."""

from __future__ import annotations

import os
import signal
import sys
import time
from collections.abc import Collection, Iterable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from contextlib import contextmanager
from multiprocessing import get_context
from typing import TypeVar

from conformance.dtypes import DECLARABLE
from conformance.inputs.distributions import DISTRIBUTIONS
from conformance.inputs.drawing import Recipe
from conformance.inputs.expectation import Expectation
from conformance.inputs.manifest import SEED, Entry, GoldenError, entry
from conformance.operators import FAMILIES, OPERATORS, takes
from conformance.problems import PROBLEMS, Problem, Variant, at_level, of_family

Item = TypeVar("Item")
SECONDS = 10.0
"""Time between two lines of progress."""
SMALL = 2_000
"""Most elements of data and result in a golden that is kept as a file without being named."""
THREADS = "OMP_NUM_THREADS"
"""Environment variable for the number of threads, which every BLAS reads when it is loaded."""


def from_rows(
    rows: Iterable[tuple[Problem, tuple[Variant, ...]]], seed: int = SEED, operators: Sequence[str] = tuple(OPERATORS)
) -> list[Recipe]:
    """Return the recipes of operators on the rows of their families, each once: layouts, and problems of one geometry,
    share tensors."""
    by_key = {}
    for problem, variants in rows:
        for name in (name for name in operators if takes(name, problem.geometry)):
            for variant in (
                candidate for candidate in variants if OPERATORS[name].defined(problem.geometry, candidate.dtype)
            ):
                recipe = Recipe(OPERATORS[name].on(problem.geometry), variant.dtype, variant.distribution, seed)
                by_key[recipe.key] = recipe
    return list(by_key.values())


def pinned() -> list[Recipe]:
    """Return the recipes that the manifest must pin: the tables up to `standard`, and those stored as files."""
    listed = from_rows(at_level(PROBLEMS, "standard"))
    keys = {recipe.key for recipe in listed}
    return [*listed, *(recipe for recipe in stored() if recipe.key not in keys)]


def stored(families: Collection[str] = tuple(FAMILIES)) -> list[Recipe]:
    """Return the recipes of goldens that are kept as files: those that families name, and for each other operator the
    first of a small problem. Raises GoldenError for a row that is no longer in the tables."""
    by_key = {}
    for family in families:
        geometries = {problem.name: problem.geometry for problem in of_family(PROBLEMS, family)}
        for line in FAMILIES[family].goldens:
            operator, problem, dtype, distribution = line.split()
            exists = (
                operator in OPERATORS
                and problem in geometries
                and dtype in DECLARABLE
                and distribution in DISTRIBUTIONS
            )
            if not exists or not takes(operator, geometries[problem]):
                raise GoldenError(f"goldens of {family} ask for {line!r}, which no table has any more; edit that line")
            recipe = Recipe(OPERATORS[operator].on(geometries[problem]), dtype, distribution, SEED)
            by_key[recipe.key] = recipe
        named = {recipe.workload.operator.name for recipe in by_key.values()}
        for name in (operator.name for operator in FAMILIES[family].operators if operator.name not in named):
            by_key |= {recipe.key: recipe for recipe in from_rows(_small(family), SEED, [name])[:1]}
    return list(by_key.values())


def _small(family: str) -> Iterator[tuple[Problem, tuple[Variant, ...]]]:
    """Yield the rows of a family's small problems that have elements."""
    for problem in of_family(PROBLEMS, family):
        if 0 < problem.geometry.y.size <= SMALL and problem.geometry.x.size <= SMALL:
            yield problem, problem.variants


def entries(recipes: Sequence[Recipe], jobs: int) -> Iterator[tuple[Recipe, Entry]]:
    """Yield each recipe with its entry, computed by `jobs` processes. Raises GoldenError if one of them dies."""
    if jobs == 1:
        yield from progress(zip(recipes, map(_entry, recipes), strict=True), len(recipes), "recipes")
        return
    pool = ProcessPoolExecutor(jobs, get_context("spawn"))
    try:
        with _process_settings(jobs):
            computed = pool.map(_entry, recipes, chunksize=2)
        yield from progress(zip(recipes, computed, strict=True), len(recipes), "recipes")
    except BrokenProcessPool:
        raise GoldenError("a process that computed goldens was ended from outside; try --jobs 1") from None
    finally:
        pool.shutdown(cancel_futures=True)


def _entry(recipe: Recipe) -> Entry:
    return entry(Expectation(recipe))


@contextmanager
def _process_settings(jobs: int) -> Iterator[None]:
    """Make processes started in this context ignore interrupts, and share the cores unless the user set the threads.

    Children inherit the blocked signals; an interrupt in the meantime is delivered later. Windows has no signal masks.
    """
    stated, masks = THREADS in os.environ, hasattr(signal, "pthread_sigmask")
    os.environ.setdefault(THREADS, str(max(1, (os.cpu_count() or 1) // jobs)))
    if masks:
        signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        yield
    finally:
        if not stated:
            del os.environ[THREADS]
        if masks:
            signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGINT})


def progress(items: Iterable[Item], total: int, what: str) -> Iterator[Item]:
    """Yield the items as they come, and print progress to stderr every ten seconds: the same lines on a terminal, in a
    file and in CI."""
    start = said = time.perf_counter()
    for number, item in enumerate(items, 1):
        now = time.perf_counter()
        if now - said >= SECONDS:
            print(f"{number} of {total} {what}, {now - start:.0f} s", file=sys.stderr, flush=True)
            said = now
        yield item
