"""The declaration of a family, at the end of its `operators.py`: its operators, and what is chosen for them by hand."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from importlib import import_module
from typing import TYPE_CHECKING, Any, NamedTuple

from conformance.operators.base import Operator
from conformance.operators.descriptor import Described

if TYPE_CHECKING:
    from conformance.operators.mistakes import Mistake

LINEAR = ("integer", "fixed", "natural", "impulse", "special", "nonfinite", "range", "subnormal", "wide", "mixed")
"""Distributions for operators that sum inputs or products of inputs, or that select one of their inputs."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Storages:
    """Names of the family's problems whose operands lie in all kinds of storage, see `conformance.storage`.

    everywhere   problems that take turns in every dtype and layout: unpadded, padded, 1x1, depthwise, grouped and dense
    large        more than 2^16 elements in an operand: kernels that use blocks or vectors only for large operands may
                 read past the end of large operands alone
    odd          an odd number of elements in every operand: kernels that read two elements at a time may read past the
                 end of odd operands alone
    apart        problems of several groups, or products of a batch, of which filters, and data in the second layout,
                 lie in each kind by themselves: a path for depthwise filters flattened them in the order of memory, and
                 another one began at the next aligned address; the rows above reached both in other dtypes only
    one_channel  a problem whose strides do not determine the memory format
    mixed        larger problems of gradients, each with a dtype and a distribution: one operand has the other memory
                 format than the rest. torch 2.6 summed dy in 16 bits if x was in channels last and dy was not
    one_image    dense and unpadded problems of one image, with every view for all operands: kernels have a special path
                 for them, which no view reached before
    once         rank -> problems on which every operand has every kind only once: a kernel that misreads a view in one
                 dtype does so for other operators and in two dimensions, too
    grouped      problem in layouts with groups as an axis -> layouts in which its operands are also views: a view's
                 strides then include that of the groups axis
    """

    everywhere: tuple[str, ...] = ()
    large: tuple[str, ...] = ()
    odd: tuple[str, ...] = ()
    apart: tuple[str, ...] = ()
    one_channel: str | None = None
    mixed: tuple[tuple[str, str, str], ...] = ()
    one_image: tuple[str, ...] = ()
    once: Mapping[int, tuple[str, ...]] = field(default_factory=dict)
    grouped: Mapping[str, tuple[str, ...]] = field(default_factory=dict)


class Brought(NamedTuple):
    """Cases that a kernel that takes them meets at smoke, though they are further down in the ranking: a predicate of
    their problems, and one of their variants."""

    problems: Callable[[Any], bool]
    variants: Callable[[Any], bool] = lambda _: True


@dataclass(frozen=True, eq=False, kw_only=True)
class Family:
    """Operators that take the same geometry. Problems are given by descriptors, in `storages` by names of the table.

    distributions  ways of drawing inputs that make sense for the family; checks of behaviour use the first
    place          place in lists of families; families without a place come last, by their names
    storages       problems whose operands lie in all kinds of storage
    equal_shapes   problems with a remainder, so that a parameter can change without a change of any shape, and of equal
                   extents, so that both layouts have the same shapes: for `conformance.checks.state`
    partial        problems for partial requests and sums into an array: one for each path that kernels commonly have,
                   small, and with odd numbers of elements, so that vectors have tails
    unreached      problems with elements that no window reaches: a kernel set them to zero although it had to leave
                   them unchanged
    at_smoke       cases that are brought forward
    goldens        recipes whose tensors are kept as files for other languages: operator, problem, dtype, distribution.
                   Of an operator that no line names, the first inputs of the first small problem are kept
    timed          sections of the table that benchmarks take, of networks' layers
    grouped_apart  whether dense and grouped problems are verified in suites of their own
    lacks          fields that are meant to be empty; a test reports any other empty field
    """

    geometry: type[Described]
    operators: tuple[Operator, ...]
    distributions: tuple[str, ...] = LINEAR
    place: int = 100
    storages: Storages = Storages()
    equal_shapes: tuple[str, ...] = ()
    partial: tuple[str, ...] = ()
    unreached: tuple[str, ...] = ()
    at_smoke: tuple[Brought, ...] = ()
    goldens: tuple[str, ...] = ()
    timed: tuple[str, ...] = ()
    grouped_apart: bool = False
    lacks: tuple[str, ...] = ()

    @property
    def name(self) -> str:
        """Name of the family's folder."""
        return self.geometry.family

    @property
    def rank(self) -> int:
        """Number of spatial axes for which tables name layouts: two, or none if the family has no such axes."""
        return 2 if 2 in self.geometry.FIELDS else 0

    @cached_property
    def mistakes(self) -> tuple[Mistake, ...]:
        """Mistakes that diagnosis knows, in the order in which it names equally good explanations. They are imported on
        first use; runs of correct kernels never use them."""
        listed: tuple[Mistake, ...] = import_module(f"conformance.operators.{self.name}.mistakes").MISTAKES
        return listed

    @cached_property
    def further(self) -> tuple[Mistake, ...]:
        """Further mistakes that diagnosis knows but calibration does not plant: most of them show in the output's
        shape, some only there."""
        from conformance.operators.mistakes import OF_RESULTS

        of_family: tuple[Mistake, ...] = getattr(
            import_module(f"conformance.operators.{self.name}.mistakes"), "FURTHER", ()
        )
        return of_family + (OF_RESULTS if "fixed" in self.distributions else ())
