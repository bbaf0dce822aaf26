"""The judge: compares one output with its exact reference under a contract. It knows nothing about implementations."""

from __future__ import annotations

import itertools
import math
from collections.abc import Container, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple, NoReturn

import numpy as np

from conformance.contract import Contract
from conformance.dtypes import FORMATS, STORAGE, WHOLE, neighbours
from conformance.failure import Edge, Failure, Kind, WrongElements
from conformance.judge import accuracy
from conformance.judge.limits import OutputLimits, Z
from conformance.judge.output import Output
from conformance.judge.residuals import Residuals, Statistics, rounding_z
from conformance.layouts import B
from conformance.operators.base import Interval

EQUALITY_DISTRIBUTIONS = frozenset(
    ("integer", "impulse", "special", "nonfinite", "range", "subnormal", "mixed", "large", "small", "close", "codes")
) | {"ties"}  # for requantized results
STATISTICS_DISTRIBUTIONS = frozenset({"fixed", "natural"})
MEANT = 1e12
"""Largest ratio of a value to its limit that is printed as a number."""


@dataclass(frozen=True, slots=True)
class Check:
    """A number and its limit."""

    name: str
    value: float
    limit: float

    @property
    def passed(self) -> bool:
        """True if the value is within its limit; NaN never is."""
        return abs(self.value) <= self.limit

    def __str__(self) -> str:
        if not math.isfinite(self.value):
            return f"{self.name} not finite"
        if self.value > MEANT > self.limit:  # the bound is close to zero
            return f"{self.name} more than {MEANT:.0e}, limit {self.limit:.4g}"
        limit = f"OK (limit {self.limit:.4g})" if self.passed else f"exceeds limit {self.limit:.4g}"
        return f"{self.name} {self.value:.4g} {limit}"


@dataclass(frozen=True, slots=True)
class Worst:
    """The element that is furthest from its reference, relative to its bound."""

    index: tuple[int, ...]
    value: float
    reference: float
    bound: float

    def __str__(self) -> str:
        if self.reference == 0 and 0 < self.bound < FORMATS["fp32"].smallest_normal:
            return f"{self.value!r}, must be zero"
        expected = f"{self.value!r}, expected {self.reference!r}"
        error = abs(self.value - self.reference)
        return f"{expected}, error {error:.3g}, limit {self.bound:.3g}" if math.isfinite(error) else expected


@dataclass(frozen=True, slots=True)
class AxisIndices:
    """Indices along an axis that have wrong elements, if not all indices have: `count` indices from `first` to `last`;
    `step` is their distance if it is constant, else None."""

    axis: str
    extent: int
    first: int
    last: int
    count: int
    step: int | None

    @classmethod
    def of(cls, axis: str, extent: int, tried: Sequence[int], wrong: Container[int]) -> AxisIndices | None:
        """Return the wrong indices among the ascending indices that were tried; None if all are wrong. Neighbours among
        the tried indices have the step 1."""
        places = [place for place, index in enumerate(tried) if index in wrong]
        if len(places) == len(tried):
            return None
        steps = {later - earlier for earlier, later in itertools.pairwise(places)}
        step = steps.pop() if len(steps) == 1 else None
        return cls(axis, extent, tried[places[0]], tried[places[-1]], len(places), step)

    @property
    def edge(self) -> Edge | None:
        """Edge of the axis at which all of the indices lie; None if they do not lie at edges only."""
        if self.count == 1:
            return "last" if self.first == self.extent - 1 else "first" if self.first == 0 else None
        return "both" if self.count == 2 and (self.first, self.last) == (0, self.extent - 1) else None

    def __str__(self) -> str:
        axis, first, last = self.axis, self.first, self.last
        if self.count == 1:
            return f"{axis} = {first}" + (f" ({self.edge})" if self.edge else "")
        if self.edge == "both":
            return f"{axis} at both edges"
        if self.step == 1:
            return f"{axis} {first}..{last} of 0..{self.extent - 1}"
        if self.count == 2:
            return f"{axis} = {first} and {last}"
        if self.step is None:
            between = "" if (first, last) == (0, self.extent - 1) else f", from {first} to {last}"
            return f"{self.count} of {self.extent} {axis}{between}"
        return f"every { ({2: '2nd', 3: '3rd'}.get(self.step, f'{self.step}th')) } {axis} from {first} to {last}"


@dataclass(frozen=True, slots=True)
class Locations:
    """Locations of the wrong elements of an output.

    share    share of wrong elements
    axes     axes with indices that have no wrong element
    place    description in words, if the elements were not compared one by one
    nan      number of elements that are NaN where the reference is not
    all_nan  whether the output is NaN everywhere
    partial  whether many elements are wrong, but none at some indices of an axis whose results could be wrong, so
             that this is not a coincidence
    """

    share: float = 0.0
    axes: tuple[AxisIndices, ...] = ()
    place: str = ""
    nan: int = 0
    all_nan: bool = False
    partial: bool = False

    @property
    def every(self) -> bool:
        """True if all elements are wrong."""
        return self.share == 1

    def __str__(self) -> str:
        spread = f"spread over every axis ({self.share:.1%} of the elements)"
        where = self.place or ", ".join(map(str, self.axes)) or ("every element" if self.every else spread)
        if self.all_nan:
            return f"{where}; all of them are NaN"
        return f"{where}; {self.nan:,} are NaN where the reference is not" if self.nan else where


class Line(NamedTuple):
    """A line of an explanation; whether it is a detail; and whether the heading of a group contains it, too."""

    text: str
    detail: bool = False
    headed: bool = False


MANY = 8
"""Number of wrong elements per index of an axis above which rounding errors would be at every index."""


@dataclass(frozen=True, slots=True)
class Judgement:
    """Result of comparing one output with its reference."""

    output: str
    compared: int
    mismatched: int
    criterion: str
    checks: tuple[Check, ...]
    worst: Worst | None = None
    where: Locations | None = None
    profile: dict[str, float] = field(default_factory=dict)
    inferred: Contract | None = None
    """On the fixed distribution: the strictest known contract that the errors are consistent with, if any."""
    conservative: bool = False
    """Whether the inferred contract is stricter than the declared one."""
    zeros: str = "fail"
    """Verdict on an output of zeros: `fail`; `right`, if zeros are correct; `allowed`, if they would pass although they
    are wrong; `mostly`, if more than half of the nonzero results could be zero."""

    @property
    def passed(self) -> bool:
        return all(check.passed for check in self.checks)

    @property
    def says_nothing(self) -> bool:
        """True if limits exceed the results, or most of them, so that a pass proves nothing."""
        return self.zeros in ("allowed", "mostly")

    @property
    def wrong_elements(self) -> WrongElements:
        """The mismatched elements as data."""
        where = self.where or Locations()
        return WrongElements(
            output=self.output,
            mismatched=self.mismatched,
            compared=self.compared,
            every=where.every,
            nan="all" if where.all_nan else "some" if where.nan else "",
            edges=tuple((indices.axis, indices.edge) for indices in where.axes if indices.edge),
        )

    def explain(self) -> str:
        """Return the lines of a failure: what was compared, the mismatched elements, the worst one, and where."""
        return "\n".join(line.text for line in self.lines())

    def lines(self, fits: Sequence[Contract] | None = None) -> list[Line]:
        """Return the lines of `explain`; `fits` are known contracts under which all outputs of the case would pass."""
        lines = [
            Line(f"{self.output}: {self.mismatched:,} of {self.compared:,} elements mismatched ({self.criterion})")
        ]
        if self.worst is not None:
            lines.append(Line(f"worst {self.output}[{', '.join(map(str, self.worst.index))}] = {self.worst}"))
        infers, arithmetic = bool(self.profile) and not self.passed, self.inferred
        if fits is not None:  # a wrong hint would fail when copied, or hide a defect
            arithmetic = fits[0] if fits else None
        counts, unknown = self.checks[0].name == "mismatched elements", infers and not arithmetic
        detail = self.mismatched > 0 and (counts or unknown)
        lines.append(Line("; ".join(map(str, self.checks)), detail))
        if self.passed and self.says_nothing:
            text = f"{self.output} is not verified: limits exceed most of its results, so that zeros would pass"
            lines.append(Line(text))
        if infers:
            # "if": a gain of 1 + 1e-5 is a wrong factor, but looks like an arithmetic
            inferred = "unknown"
            if arithmetic:
                inferred = f"{arithmetic.arithmetic}, if the errors are rounding"
            lines.append(Line(f"inferred precision: {inferred}", detail and unknown, headed=True))
        if self.where:
            lines.append(Line(f"error locations: {self.where}"))
        return lines


def told(kind: Kind, wrong: Sequence[Judgement], fits: Sequence[Contract] | None = None) -> tuple[list[str], Failure]:
    """Return lines on wrong outputs, and a Failure with the same content as data; `fits` as in `Judgement.lines`."""
    lines = [line for judgement in wrong for line in judgement.lines(fits)]
    failure = Failure(
        kind=kind,
        elements=tuple(judgement.wrong_elements for judgement in wrong),
        details=tuple(number for number, line in enumerate(lines) if line.detail),
        headed=tuple(number for number, line in enumerate(lines) if line.headed),
        fits=None if fits is None else tuple((contract.arithmetic, contract.declaration) for contract in fits),
    )
    return [line.text for line in lines], failure


@dataclass(frozen=True, slots=True)
class Comparison:
    """An output and its expected values; arrays have the output's shape, in canonical order (images: NCHW).

    - `expected`: float64; where equality is demanded, rounded to the output's dtype.
    - `limit`: float64, largest |actual - expected|; zero where equality is demanded.
    - `actual`: the output, in its dtype; None where the kernel returned nothing.
    - `error`: float64, |actual - expected|, zero where both are NaN or the same infinity.
    - `mismatched`: bool, the elements that `judge` counts.

    `error` and `mismatched` are None where the output could not be compared; it then has the shape, order and dtype
    that the kernel gave it. `expected` and `limit` are None as well where the output is judged by probes.
    """

    # typed Any: the caller knows from the status that a field is not None, but a type checker does not
    expected: Any
    limit: Any
    actual: Any
    error: Any
    mismatched: Any

    def __bool__(self) -> NoReturn:
        raise TypeError("one output is no verdict, which statistics and other outputs decide too: ask its CheckResult")


def compare(output: Output, distribution: str, contract: Contract) -> Comparison:
    """Compare an output with its expected values element by element, by the limits of `judge`."""
    if output.enclosed is not None:
        expected, limit, wrong = _outside(output, distribution, contract)
    elif demands_equality(output, distribution, contract):
        expected, wrong = _unequal(output, contract)
        expected, limit = expected.astype(np.float64), np.zeros(wrong.shape)
    else:
        allowed, s2, residuals = output.measured(contract, distribution)
        expected = output.reference.astype(np.float64)
        with np.errstate(invalid="ignore", over="ignore"):
            limit = allowed.bound(expected, s2.astype(np.float64))
        wrong = np.zeros(expected.size, bool) if residuals.mismatched is None else residuals.mismatched
    actual = output.actual.astype(np.float64)
    with np.errstate(invalid="ignore", over="ignore"):
        error = np.abs(actual - expected)
    error[(actual == expected) | (np.isnan(actual) & np.isnan(expected))] = 0
    return Comparison(expected, limit, output.actual.copy(), error, wrong.reshape(expected.shape))


def demands_equality(output: Output, distribution: str, contract: Contract) -> bool:
    """Tell whether results must be equal to the reference: the contract makes the distribution exact, or results are
    not computed. An empty sum is zero in every arithmetic."""
    if output.enclosed is not None:
        return False
    if not output.terms or not output.actual.size or output.dtype in WHOLE:
        return True
    if output.selects and contract.inputs == "exact" and contract.subnormals == "kept":
        return True
    return distribution in EQUALITY_DISTRIBUTIONS and output.exact and contract.exact_on_integers(output.dtype)


def checked(output: Output, distribution: str, contract: Contract) -> dict[str, float]:
    """Return name -> limit of every check that `judge` makes. Only names, sizes and the contract matter, not the
    arrays' values: the limit on rms assumes as many independent errors as there are elements."""
    if output.enclosed is not None or demands_equality(output, distribution, contract):
        enclosed = output.enclosed is not None and _is_stochastic(output, contract)
        return {"mismatched elements": 0.0} | ({"rounding z": Z} if enclosed else {})
    limit_of = {"worst error / bound": 1.0}
    if distribution in STATISTICS_DISTRIBUTIONS:
        allowed = output.allowed(contract, distribution)
        limit_of |= {"rounding z": Z} if _is_stochastic(output, contract) else {}
        limit_of["rms"] = allowed.rms(output.actual.size)
        if not allowed.one_sided:
            limit_of |= {"gain z": allowed.z, "offset z": allowed.z}
    return limit_of


def judge(output: Output, distribution: str, contract: Contract, infer: bool = True) -> Judgement:
    """Judge an output: by equality if that is demanded, else by the bound and, on some distributions, statistics.

    Without `infer` no precision is inferred: this takes longer than the judgement, as it needs limits under every
    contract.
    """
    if output.enclosed is not None:
        return _by_enclosure(output, distribution, contract)
    if demands_equality(output, distribution, contract):
        expected, wrong = _unequal(output, contract)
        return _counted(output, expected, np.zeros(wrong.shape), wrong, "must equal the exact result")
    allowed, s2, residuals = output.measured(contract, distribution)
    checks, statistics = _checks(output, distribution, contract, allowed, residuals)
    profile, inferred, conservative = {}, None, False
    if statistics is not None:
        profile = accuracy.profile(output, residuals, statistics, contract, allowed)
        if infer:
            inferred, conservative = accuracy.inferred(output, residuals, contract, distribution)
    zeros = "right" if residuals.reference_sizes == 0 else "fail"
    if zeros == "fail" and (hidden := residuals.hidden / np.count_nonzero(output.reference)) > 0.5:
        with np.errstate(over="ignore", invalid="ignore"):
            least = allowed.bound(output.reference.astype(np.float64), s2.astype(np.float64))
            results = np.where(np.abs(output.reference) <= least, 0, output.reference).astype(output.actual.dtype)
        if passes(replace(output, actual=results), distribution, contract):
            zeros = "mostly" if hidden < 1 else "allowed"

    worst = where = None
    if not all(check.passed for check in checks):
        index = np.unravel_index(residuals.worst, output.actual.shape)
        with np.errstate(invalid="ignore"):
            bound = allowed.bound(output.reference[index], s2[index].astype(np.float64))
        worst = _worst(output, index, float(bound))
        if residuals.mismatched is not None:
            where = _where(output, residuals.mismatched.reshape(output.actual.shape), s2 > 0)
    return Judgement(
        output=output.name,
        compared=output.actual.size,
        mismatched=0 if residuals.mismatched is None else int(np.count_nonzero(residuals.mismatched)),
        criterion=f"contract: {contract.describe(output.dtype)}",
        checks=tuple(checks),
        worst=worst,
        where=where,
        profile=profile,
        inferred=inferred,
        conservative=conservative,
        zeros=zeros,
    )


def passes(output: Output, distribution: str, contract: Contract) -> bool:
    """Tell whether `judge` would pass the output."""
    if output.enclosed is not None:
        is_unbiased = all(check.passed for check in _of_roundings(output, distribution, contract))
        return is_unbiased and not _outside(output, distribution, contract)[2].any()
    if demands_equality(output, distribution, contract):
        return not _unequal(output, contract)[1].any()
    allowed, _, residuals = output.measured(contract, distribution)
    return all(check.passed for check in _checks(output, distribution, contract, allowed, residuals)[0])


def _checks(
    output: Output, distribution: str, contract: Contract, allowed: OutputLimits, residuals: Residuals
) -> tuple[list[Check], Statistics | None]:
    values, named, statistics = (
        {"worst error / bound": residuals.worst_share},
        checked(output, distribution, contract),
        None,
    )
    if distribution in STATISTICS_DISTRIBUTIONS:
        if distribution == "natural":
            allowed = _on_natural_data(output, contract, allowed)
        statistics = residuals.statistics(allowed, output.channels, output.taps)
        values |= {"rms": statistics.rms, "gain z": statistics.gain_z, "offset z": statistics.offset_z}
        if _is_stochastic(output, contract):
            exact = output.reference.astype(np.float64)
            before = allowed.before(exact, residuals.s2.astype(np.float64), np.abs(exact))
            actual = output.actual.astype(np.float64)
            values["rounding z"] = rounding_z(actual, exact - before, exact + before, output.dtype)
        named["rms"] = statistics.rms_limit
    return [Check(name, values[name], limit) for name, limit in named.items()], statistics


def _on_natural_data(output: Output, contract: Contract, allowed: OutputLimits) -> OutputLimits:
    """Return the limits of statistics on natural numbers, in whose sums a few terms may dominate.

    If one term is nearly the sum, every partial sum is as large as the result: errors of partial sums that are cut
    toward zero add up to KS*s2 and not to KS*s2/sqrt(3) (`limits`, "Accumulation toward zero"). If a channel's own
    constants are rounded, as in batch normalisation, all of its dark elements share that error: there are as many
    errors as channels. A bias that uses all bits is shared by all elements of a channel.
    """
    if output.biased:
        allowed = replace(allowed, few_states=True)
    if contract.is_cut:
        allowed = replace(allowed, coarse=math.sqrt(3) * allowed.coarse)
    if output.propagated is not None and output.channels is not None:
        allowed = replace(allowed, fan_out=max(allowed.fan_out, output.actual.size // output.channels.size))
    return allowed


def _unequal(output: Output, contract: Contract) -> tuple[np.ndarray, np.ndarray]:
    """Return the expected values in the output's dtype, and the mask of the elements that differ from them.

    NaN equals NaN. The sign of a zero is free (it depends on the order of the sum), except that the maximum of zeros of
    one sign has that sign (IEEE 754-2019, 9.6). An infinite input that the contract splits in two parts becomes
    Inf - Inf, which may be NaN.
    """
    with np.errstate(over="ignore"):
        wide = np.float64 if output.dtype in ("fp64", *WHOLE) else np.float32  # fp32 does not hold int32
        expected = output.reference.astype(wide).astype(STORAGE[output.dtype])
    may_be_nan = ~np.isfinite(expected) if contract.parts > 1 else np.isnan(expected)
    wrong = (output.actual != expected) & ~(np.isnan(output.actual) & may_be_nan)
    if _is_stochastic(output, contract):
        below, above = neighbours(output.reference.astype(np.float64), output.dtype)
        wrong &= (output.actual != below) & (output.actual != above)
    if output.signed:
        wrong |= (expected == 0) & (np.signbit(output.actual) != np.signbit(expected))
    return expected, wrong


def _is_stochastic(output: Output, contract: Contract) -> bool:
    return contract.stored == "stochastic" and output.dtype not in WHOLE


def _enclosed(output: Output, distribution: str, contract: Contract) -> Interval:
    """Return the ends of the correct values of each element; before they are stored, if that is stochastic."""
    assert output.enclosed is not None
    exact = distribution in EQUALITY_DISTRIBUTIONS and contract.exact_on_integers(output.dtype)
    return output.enclosed(contract, exact)[output.name]


def _of_roundings(output: Output, distribution: str, contract: Contract) -> tuple[Check, ...]:
    """Return the check of stochastic roundings of enclosed results."""
    if not _is_stochastic(output, contract):
        return ()
    low, high = _enclosed(output, distribution, contract)
    return (Check("rounding z", rounding_z(output.actual.astype(np.float64), low, high, output.dtype), Z),)


def _outside(output: Output, distribution: str, contract: Contract) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Return for each element a correct value and the distance to the furthest correct value, and the mask of the wrong
    elements."""
    low, high = _enclosed(output, distribution, contract)
    if _is_stochastic(output, contract):
        low, high = neighbours(low, output.dtype)[0], neighbours(high, output.dtype)[1]
    actual = output.actual.astype(np.float64)
    may_be_nan, must_be_nan = np.isnan(low) | np.isnan(high), np.isnan(low) & np.isnan(high)
    within = (actual >= np.nan_to_num(low, nan=-np.inf, posinf=np.inf, neginf=-np.inf)) & (
        actual <= np.nan_to_num(high, nan=np.inf, posinf=np.inf, neginf=-np.inf)
    )
    wrong = np.where(np.isnan(actual), ~may_be_nan, must_be_nan | ~within)
    expected = np.where(may_be_nan, low, np.clip(output.reference, low, high))
    with np.errstate(invalid="ignore"):
        limit = np.where(low == high, 0, np.maximum(high - expected, expected - low))
    return expected, np.where(may_be_nan, 0, limit), wrong


def _by_enclosure(output: Output, distribution: str, contract: Contract) -> Judgement:
    expected, limit, wrong = _outside(output, distribution, contract)
    shown = replace(output, reference=expected)
    criterion = f"each must be the exact result, {contract.storing(output.dtype)}"
    judgement = _counted(shown, expected, limit, wrong, criterion)
    judgement = replace(judgement, checks=(*judgement.checks, *_of_roundings(output, distribution, contract)))
    if judgement.zeros == "fail" and passes(
        replace(output, actual=np.zeros_like(output.actual)), distribution, contract
    ):
        return replace(judgement, zeros="allowed")
    return judgement


def _counted(output: Output, expected: np.ndarray, limit: np.ndarray, wrong: np.ndarray, criterion: str) -> Judgement:
    """Return the judgement of an output in which no element may be wrong."""
    mismatched = int(np.count_nonzero(wrong))
    worst = where = None
    if mismatched:
        with np.errstate(invalid="ignore"):
            error = np.abs(output.actual.astype(np.float64) - expected.astype(np.float64))
        error = np.where(wrong, np.nan_to_num(error, nan=np.inf, posinf=np.inf), -1.0)
        index = np.unravel_index(int(np.argmax(error)), error.shape)
        worst = _worst(output, index, float(limit[index]))
        where = _where(output, wrong, expected != 0)
    checks = (Check("mismatched elements", mismatched, 0),)
    zeros = "fail" if expected.any() else "right"
    return Judgement(output.name, wrong.size, mismatched, criterion, checks, worst, where, zeros=zeros)


def _worst(output: Output, index: tuple[np.intp, ...], bound: float) -> Worst:
    place = list(map(int, index))
    if output.batch > 1:
        axis = _batch_axis(output)
        product, place[axis] = divmod(place[axis], output.actual.shape[axis] // output.batch)
        place.insert(0, product)
    reference = float(output.reference[index])
    number = int if np.issubdtype(output.actual.dtype, np.integer) and reference.is_integer() else float
    return Worst(tuple(place), number(output.actual[index]), number(reference), bound)


def _batch_axis(output: Output) -> int:
    """Return the axis of which the products of a batch are the outer part: the columns, which are b's first axis."""
    return int(output.axes != B)


def _where(output: Output, mismatched: np.ndarray, computed: np.ndarray) -> Locations:
    """Locate the wrong elements; only indices with elements that are `computed` from more than zeros count for
    `partial`. With a bias, elements of padding alone are not zero, so that spatial axes are left out."""
    is_nan = np.isnan(output.actual)
    unexpected = int(np.count_nonzero(is_nan & ~np.isnan(output.reference)))
    partial, count = False, np.count_nonzero(mismatched)
    for axis, letter in enumerate(output.axes):
        if output.biased and letter not in "NKCGM":
            continue
        other_axes = tuple(other for other in range(mismatched.ndim) if other != axis)
        wrong, able = mismatched.any(axis=other_axes), computed.reshape(mismatched.shape).any(axis=other_axes)
        partial |= bool(count >= MANY * able.sum() and (able & ~wrong).any())
    located = locate(mismatched, output.axes)
    if output.batch > 1:
        axis = _batch_axis(output)
        split = (
            *mismatched.shape[:axis],
            output.batch,
            mismatched.shape[axis] // output.batch,
            *mismatched.shape[axis + 1 :],
        )
        located = locate(np.moveaxis(mismatched.reshape(split), axis, 0), f"{output.letter}{output.axes}")
    return replace(located, nan=unexpected, all_nan=bool(is_nan.all()), partial=partial)


def locate(mask: np.ndarray, axes: str) -> Locations:
    """Locate the true elements of `mask`, whose axes are named by the letters of `axes`."""
    indices = []
    for axis, letter in enumerate(axes.lower()):
        wrong = np.flatnonzero(mask.any(axis=tuple(other for other in range(mask.ndim) if other != axis)))
        if along := AxisIndices.of(letter, mask.shape[axis], range(mask.shape[axis]), {*wrong.tolist()}):
            indices.append(along)
    return Locations(int(np.count_nonzero(mask)) / mask.size, tuple(indices))


BLOCK = 1 << 24
"""Elements compared at once."""


def judge_sparse(name: str, axes: str, actual: np.ndarray, places: np.ndarray, values: np.ndarray) -> Judgement:
    """Judge an output by equality: `values`, rounded once, at the ascending flat `places`, and zero elsewhere."""
    flat = actual.reshape(-1)
    wrong: list[int] = []
    mismatched = 0
    for start in range(0, flat.size, BLOCK):
        block = flat[start : start + BLOCK]
        nonzero = start + np.flatnonzero(block.view(f"u{block.itemsize}") << 1)  # -0.0 is zero, NaN is not
        first, last = np.searchsorted(places, (start, start + len(block)))
        together = np.union1d(nonzero, places[first:last])
        expected = np.zeros(len(together))
        expected[np.searchsorted(together, places[first:last])] = values[first:last]
        differs = together[flat[together] != expected.astype(actual.dtype)]
        mismatched += len(differs)
        wrong += differs[:1].tolist()
    worst = where = None
    if wrong:
        index = tuple(int(axis) for axis in np.unravel_index(wrong[0], actual.shape))
        at = np.searchsorted(places, wrong[0])
        exact = float(values[at]) if at < len(places) and places[at] == wrong[0] else 0.0
        worst = Worst(index, float(flat[wrong[0]]), exact, 0.0)
        where = Locations(place=f"first at element {wrong[0]:,} of {flat.size:,}, axes {axes}")
    checks = (Check("mismatched elements", mismatched, 0),)
    return Judgement(name, flat.size, mismatched, "must equal the exact result", checks, worst, where)
