"""The checks that are required of an implementation, as data that the suites collect."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from functools import cached_property, partial
from itertools import chain, islice, product
from typing import Any

from conformance.checks.adjoint import COFACTORS, directions_are_adjoint
from conformance.checks.arithmetic import arithmetic_is_as_declared
from conformance.checks.batch import images_do_not_depend_on_the_batch
from conformance.checks.behaviour import (
    BEHAVIOUR_CHECKS,
    invalid_arguments,
    switches_are_unchanged,
    worked_example_is_exact,
)
from conformance.checks.memory import backward_keeps_what_is_declared, training_holds_what_autograd_shows
from conformance.checks.partial import (
    gradients_asked_for_alone,
    outputs_asked_for_alone,
    require_autograd,
    require_into,
    require_output_mask,
    results_are_added_to_arrays,
)
from conformance.checks.sample import Check
from conformance.checks.state import STATE, calls_in_a_row_are_right
from conformance.execution.declared import Declared, Path
from conformance.execution.required import Demand, Keys, Lacking, keys, with_kernel
from conformance.execution.share import Ranked, behaviour_dtypes
from conformance.execution.trial import Trial
from conformance.implementations.implementation import BEHAVIOUR as DISTRIBUTION
from conformance.implementations.implementation import Implementation, Unsupported
from conformance.layouts import rank_of
from conformance.operators import FAMILIES, OPERATORS, takes
from conformance.operators.spatial import EVERY_RANK
from conformance.problems import Problem, Variant, at_level, typed
from conformance.problems.case import Case
from conformance.problems.ranking import Row


def dense(geometry: Any) -> bool:
    return bool(geometry.groups == 1)


def has_window(geometry: Any) -> bool:
    """Return whether a window has more than one element, so that it can be larger than an image."""
    return bool(math.prod(geometry.window) > 1)


def grouped(geometry: Any) -> bool:
    """Return whether the problem has several groups, as depthwise convolutions have too."""
    return bool(geometry.groups > 1)


PARTIAL = tuple(typed(text) for family in FAMILIES.values() for text in family.partial)
UNREACHED = tuple(typed(text) for family in FAMILIES.values() for text in family.unreached)
"""Problems that families give for partial requests, and for sums into an array."""
PARTIAL_AT_SMOKE = 2
"""Number of a check's own problems required at smoke, of those a kernel takes, most parameters first, in the first
dtype."""
BEHAVIOUR_PATHS = 3
"""Number of a kernel's paths that a check runs on whose result seldom depends on the path; at smoke one. Checks take
paths in turn, so that together they see all of them."""
OF_A_DTYPE = {"smoke": 1, "standard": 2, "full": 4}
"""Level -> number of paths in each dtype for a check whose result depends on the dtype."""
WORK_OF_AN_IMAGE = 1 << 17
"""FLOPs of an image above which a check that calls on a batch of them, and judges it, prefers other paths."""
MEMORY_PAIRS = (
    typed("bn n8 c32 h26 w26 k64 r3 s3", "standard"),
    typed("bn n4 c24 h14 w14 k40 r3 s3 u2 p1 affine0 run0", "standard"),
)
MEMORY_STEPS = (
    typed("bn n64 c32 h26 w26 k64 r3 s3 affine0 run0 eps3", "standard"),
    typed("bn n2048 c32 h26 w26 k64 r3 s3 affine0 run0 eps3", "full"),
)
"""Problems for the checks of memory: large enough that kept buffers show; the second step is the tutorial's own."""


@dataclass(frozen=True, slots=True)
class RequiredCheck:
    """A check and the problems that it is made on: a few small ones of each operator, or its own problems and dtypes.

    of_right_kernels  whether it says nothing about a kernel that is wrong on plain inputs, and is not made there
    judges            whether it is about results and can fail: a run in which only others pass has verified nothing
    of_modules        whether it is made on torch modules alone, once each
    of_units          whether it is made where a contract is that of a matrix unit alone, once in each of these dtypes
    of_its_problem    whether its result depends on the problem that it is made on
    place             number of the check among all: at which of the kernel's paths it begins
    paths             on how many of a kernel's paths at most, see `conformance.execution.declared`; 0 as many as
                      the level asks for. None: on the first few problems that it takes
    each_dtype        whether it is made on paths in each dtype, the plainest ones
    prefers           problems that it says more about than about others
    require           raises Unsupported where it does not apply to an implementation and operator; reported once
    """

    check: Check
    operators: tuple[str, ...] = tuple(OPERATORS)
    problems: tuple[Problem, ...] = ()
    dtypes: tuple[str, ...] = ()
    of_right_kernels: bool = False
    judges: bool = True
    of_modules: bool = False
    of_units: bool = False
    of_its_problem: bool = True
    paths: int | None = None
    each_dtype: bool = False
    place: int = 0
    prefers: Callable[[Any], bool] | None = None
    require: Callable[[Implementation, str], None] = lambda implementation, operator: None

    def demands(self, ranked: Ranked) -> Iterator[BehaviourDemand]:
        """Yield the demand of each operator."""
        yield from (BehaviourDemand(ranked, self, operator) for operator in self.operators)


class BehaviourDemand(Demand):
    """A check on problems of its own in the canonical layout, or on small problems of the tables, where a kernel may
    take different paths."""

    def __init__(self, ranked: Ranked, required: RequiredCheck, operator: str) -> None:
        super().__init__(ranked.selection, operator)
        self.ranked, self.required, self.name = ranked, required, required.check.__name__

    @property
    def is_asked(self) -> bool:
        return super().is_asked and DISTRIBUTION in self.selection.distributions

    def is_foreign(self, implementation: Implementation) -> bool:
        """Return whether the check is not asked of an implementation. A check for modules is asked only of torch
        modules, and only for the module's forward operator."""
        forward = implementation.adapted is not None and implementation.adapted.operator == self.operator
        units = any(kernel.operator == self.operator and kernel.contract.unit for kernel in implementation.kernels)
        is_not_asked = (self.required.of_modules and not forward) or (self.required.of_units and not units)
        return super().is_foreign(implementation) or is_not_asked

    def require(self, implementation: Implementation) -> None:
        """Raise Unsupported where the implementation has no kernel of the operator that the check applies to."""
        super().require(implementation)
        if self.required.of_modules and implementation.adapted is None:
            raise Unsupported("it is no torch module")
        self.required.require(implementation, self.operator)

    @cached_property
    def _rows(self) -> list[Row]:
        """Problems with their variants: the check's own problems at the level asked for, or the tables' small
        problems."""
        selection, of_check = self.selection, self.required.problems
        if of_check and not selection.is_of_tables:  # the user has given problems of one family
            families = {problem.geometry.family for problem in selection.problems}
            of_check = tuple(problem for problem in of_check if problem.geometry.family in families)
        if self.required.problems:
            dtypes = self.required.dtypes[:1] if selection.level == "smoke" else self.required.dtypes
            pairs = [(dtype, "nchw") for dtype in dtypes if selection.wants(dtype, "nchw")]
            problems = [
                p for p, _ in at_level((p for p in of_check if takes(self.operator, p.geometry)), selection.level)
            ]
        else:
            pairs = [*product(behaviour_dtypes(selection, self.operator), selection.layouts)]
            problems = self.ranked.small(OPERATORS[self.operator].family)
        variants = [Variant(dtype, layout, DISTRIBUTION) for dtype, layout in pairs]
        of_rank = {rank: tuple(v for v in variants if rank_of(v.layout) == rank) for rank in EVERY_RANK}
        return [(problem, of_rank[problem.geometry.rank]) for problem in problems] if variants else []

    @cached_property
    def _few(self) -> int:
        """Number of cases of a check whose result seldom depends on the path."""
        return min(len(self._rows), BEHAVIOUR_PATHS if self.selection.level in ("standard", "full") else 1)

    @property
    def _of_a_dtype(self) -> int:
        """Number of cases in each dtype of a check whose result depends on the dtype."""
        return OF_A_DTYPE.get(self.selection.level, OF_A_DTYPE["smoke"])

    def _plainest(self, declared: Declared) -> list[Path]:
        """Return some paths in each dtype, of different windows, those first for which libraries have most algorithms:
        little work an image, two dimensions, dense, windows of 3 or 1, long sums. If a call on a new shape takes the
        time of a compiler or a simulator, they are among the paths of other checks, one in each dtype."""

        def order(path: Path) -> tuple[bool, bool, bool, int, int]:
            geometry = path[0].geometry
            workload = OPERATORS[self.operator].on(geometry)
            return (
                workload.flops > WORK_OF_AN_IMAGE * geometry.n,
                geometry.rank != 2,
                getattr(geometry, "groups", 1) > 1,
                {(3,): 0, (1,): 1}.get(tuple({*geometry.window}), 2),
                -max(workload.errors.terms.values()),
            )

        is_slow = self.ranked.is_slow(declared.implementation)
        paths = self.ranked.paths(declared) if is_slow else chain(*self.ranked.programs(declared).values())
        first: defaultdict[str, dict[tuple[int, ...], Path]] = defaultdict(dict)
        for path in sorted(paths, key=order):
            first[path[1].dtype].setdefault(path[0].geometry.window, path)
        most = 1 if is_slow else self._of_a_dtype
        return [path for of_dtype in first.values() for path in islice(of_dtype.values(), most)]

    def everything(self, device: str) -> tuple[int, Keys]:
        """Return the number of cases at most, and their keys: all of the check's own problems; or as many paths as a
        kernel has at most, or one, of any that are asked for."""
        count = self._few if self.required.paths is None else min(1, len(self._rows))
        if self.required.each_dtype:
            dtypes = {variant.dtype for _, variants in self._rows for variant in variants}
            count = min(len(self._rows), self._of_a_dtype) * len(dtypes)
        if self.required.problems:  # at smoke a kernel is not reported as lacking an optional capability
            count = sum(len(variants) for _, variants in self._rows) if self.selection.level != "smoke" else 0
        return count, partial(keys, self.operator, self._rows, self.name)

    def cases(self, implementation: Implementation, claimed: frozenset[Case]) -> Iterator[Trial | Lacking]:
        """Yield all cases of the check's own problems, or cases on some of the kernel's paths."""
        if not self._rows:
            return
        declared = self.ranked.declared(implementation, self.operator)
        if self.required.problems:
            chosen = [(problem, variant) for problem, variants in self._rows for variant in variants]
            if self.selection.level == "smoke":
                taken = (path for path in reversed(chosen) if declared.takes(*path))
                chosen = [] if implementation.compiles_per_shape else [*islice(taken, PARTIAL_AT_SMOKE)]
                yield from (self.trial(implementation, *path) for path in chosen)
                return
        elif self.required.of_units:
            chosen = [*self._of_units(declared)]
        elif self.required.prefers is not None:
            paths = self.ranked.paths(declared)
            chosen = ([path for path in paths if self.required.prefers(path[0].geometry)] or paths)[: self._few]
        elif self.required.each_dtype:
            chosen = self._plainest(declared)
        elif self.required.paths is None:
            paths = self.ranked.spread(declared)
            step = max(1, len(paths) // self._few)
            turns = ((self.required.place + turn * step) % len(paths) for turn in range(min(self._few, len(paths))))
            chosen = [paths[turn] for turn in dict.fromkeys(turns)]
        else:
            chosen = self.ranked.paths(declared)[: self.required.paths or None]
        yield from with_kernel(declared, (self.trial(implementation, *path) for path in chosen), claimed, self.name)
        if not chosen:
            reason = "no small problem of those asked for is supported: behaviour not checked"
            yield Lacking(reason, 1, self.everything(implementation.device)[1])

    def _of_units(self, declared: Declared) -> Iterator[Path]:
        """Yield the first small problem in each dtype in which the contract is that of a matrix unit."""
        problems = self.ranked.small(OPERATORS[self.operator].family)
        for name in dict.fromkeys(dtype for dtype, _ in declared.pairs):
            cases = (
                (problem, Variant(dtype, layout, DISTRIBUTION))
                for problem in problems
                for dtype, layout in declared.pairs
                if dtype == name and rank_of(layout) == problem.geometry.rank and self.selection.wants(dtype, layout)
            )
            units = (
                (problem, variant)
                for problem, variant in cases
                if declared.takes(problem, variant)
                and declared.kernel(problem.geometry, variant.dtype, variant.layout).contract.unit
            )
            yield from islice(units, 1)


def _capable(capability: str) -> tuple[str, ...]:
    return tuple(name for name, operator in OPERATORS.items() if capability in operator.capabilities)


_CHECKS = (
    *(RequiredCheck(check, of_right_kernels=True) for check in BEHAVIOUR_CHECKS),
    RequiredCheck(calls_in_a_row_are_right, of_right_kernels=True, paths=0),
    *(RequiredCheck(check, of_right_kernels=True, paths=1, of_its_problem=False) for check in STATE),
    RequiredCheck(
        directions_are_adjoint,
        tuple(next(iter(directions)) for directions in COFACTORS.values() if directions),
        of_right_kernels=True,
    ),
    RequiredCheck(
        worked_example_is_exact,
        tuple(name for name, operator in OPERATORS.items() if operator.worked_example),
        of_its_problem=False,
    ),
    RequiredCheck(switches_are_unchanged, judges=False, of_modules=True, paths=1),
    RequiredCheck(invalid_arguments, of_right_kernels=True, judges=False, prefers=has_window),
    RequiredCheck(backward_keeps_what_is_declared, ("conv_bn_forward",), MEMORY_PAIRS, ("fp32", "bf16")),
    RequiredCheck(training_holds_what_autograd_shows, ("conv_bn_forward",), MEMORY_STEPS, ("fp32",)),
    RequiredCheck(
        outputs_asked_for_alone, _capable("output_mask"), PARTIAL, ("fp32", "bf16"), require=require_output_mask
    ),
    RequiredCheck(
        gradients_asked_for_alone,
        tuple(name for name, operator in OPERATORS.items() if operator.gradients),
        PARTIAL,
        ("fp32", "bf16"),
        require=require_autograd,
    ),
    RequiredCheck(arithmetic_is_as_declared, of_right_kernels=True, judges=False, of_units=True),
    RequiredCheck(
        results_are_added_to_arrays, _capable("into"), UNREACHED + PARTIAL, ("fp32", "bf16"), require=require_into
    ),
    RequiredCheck(
        images_do_not_depend_on_the_batch,
        tuple(name for name, operator in OPERATORS.items() if operator.has_independent_images),
        of_right_kernels=True,
        each_dtype=True,
    ),
)
CHECKS: dict[str, RequiredCheck] = {
    required.check.__name__: replace(required, place=place) for place, required in enumerate(_CHECKS)
}
"""Name of a check -> the check and what it is required on."""
