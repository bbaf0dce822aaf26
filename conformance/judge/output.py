"""An output of an operator with everything that is needed to judge it."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from functools import cache, partial
from types import MappingProxyType

import numpy as np

from conformance.contract import MADE, PREFIX_SUMS, Contract
from conformance.judge.limits import NONE, Constants, OutputLimits, limits, propagated_limits
from conformance.judge.propagation import ContractArithmetic, Propagated, propagated
from conformance.judge.residuals import Residuals, measure
from conformance.layouts import groups_of
from conformance.operators import Arrays, Tensor, Workload
from conformance.operators.base import Interval
from conformance.operators.spatial import spans

NOTHING: Mapping[str, np.ndarray] = MappingProxyType({})


@dataclass(frozen=True, slots=True)
class Output:
    """An output to be judged: the array on the host, its reference, and facts about its errors.

    magnitude   s2 of the outputs by name, computed only when needed
    exact       whether integers have results that every format holds
    selects     whether every result is an element of the inputs
    signed      whether the sign of a zero is determined: results are inputs, whose zeros all have one sign
    constants   rounded constants that the operator allows for
    fan_out     most elements that one rounding may reach
    rest        low part of the exact output beyond `reference`, where float64 does not hold all of it
    propagated  contract -> bounds before the outputs' own rounding, by name, where the output is not a plain sum
    reach       bound on s2 of the intermediate results of transforms, even those that no output needs
    fills       whether the image has room for a whole window
    enclosed    contract, and whether sums are exact in every order -> interval of correct values, by name, where
                rounding is coarse
    taps        elements of a window: the most places of a channel that one number of the other operand reaches
    batch       matrix products of a batch, or groups, whose places are named by product, row and column
    letter      letter of the number of a product in such a place
    numbers     how many numbers the smaller operand has; 0 if unknown
    adds_inputs whether elements are sums of inputs, divided by a power of two at most, and not of products
    multiplies  whether elements are sums of products of two operands
    biased      whether a bias is added to all elements of a channel
    made        whether a factor of the products is made of several inputs
    additions   algorithm that takes differences of prefix sums -> number of additions that an element depends on
    prefixes    such an algorithm -> the largest prefix sum of each image, by name
    normwise    share of products that slices drop -> scale of the errors of slices
    channels    the channel of every element (each channel has its own filter or image); broadcasts to the output
    """

    name: str
    axes: str
    dtype: str
    terms: int
    actual: np.ndarray
    reference: np.ndarray
    magnitude: Callable[[], Arrays]
    exact: bool = True
    selects: bool = False
    signed: bool = False
    constants: Constants = NONE
    fan_out: int = 1
    propagated: Callable[[Contract], Mapping[str, Propagated]] | None = None
    rest: np.ndarray | None = None
    reach: Callable[[], float] = lambda: 0.0
    fills: bool = True
    channels: np.ndarray | None = None
    taps: int = 1
    batch: int = 1
    letter: str = "B"
    numbers: int = 0
    adds_inputs: bool = False
    multiplies: bool = False
    biased: bool = False
    made: bool = False
    enclosed: Callable[[Contract, bool], Mapping[str, Interval]] | None = None
    additions: Mapping[str, int] = field(default_factory=dict)
    prefixes: Callable[[str], Arrays] = lambda algorithm: {}
    normwise: Callable[[float], np.ndarray] = lambda dropped: np.zeros(())

    def allowed(self, contract: Contract, distribution: str = "") -> OutputLimits:
        """Return the limits under a contract that do not depend on the values: all but the unit of rms of a propagated
        bound."""
        if self.propagated is not None:
            return propagated_limits(contract, self.dtype)
        if not self.multiplies and contract.slices is not None:
            contract = replace(contract, inputs="exact")
        count, numbers = self.actual.size, self.numbers
        absorbs = distribution == "absorbed"
        # of absorbed terms, which have few bits, an average rounds reciprocals of its windows
        unrounded = absorbs and (self.multiplies or self.adds_inputs)
        independent = distribution == "fixed" and self.multiplies
        facts = self.constants, self.fan_out, self.adds_inputs, numbers, absorbs, unrounded, independent, self.biased
        terms = self.additions.get(contract.algorithm, self.terms)
        return limits(contract, self.dtype, terms, count, *facts, self.made)

    def limits(self, contract: Contract, distribution: str = "") -> tuple[OutputLimits, np.ndarray]:
        """Return the limits under a contract and the scale s2 of every element. On natural data, whose numbers differ
        widely, and where part of every window is padding, intermediate results of transforms can be larger than any
        result (`limits`, "Winograd")."""
        allowed = self.allowed(contract, distribution)
        if self.propagated is not None:
            propagated = self.propagated(contract)[self.name]
            return propagated_limits(contract, self.dtype, propagated.alike), propagated.bound
        s2 = self.magnitude()[self.name]
        if contract.slices is not None and self.multiplies:
            return allowed, s2 + allowed.normwise * self.normwise(contract.slices.dropped)
        if allowed.local:
            return allowed, s2
        if contract.algorithm in PREFIX_SUMS:
            return allowed, np.broadcast_to(self.prefixes(contract.algorithm)[self.name], s2.shape)
        is_part = distribution == "natural" or not self.fills
        largest = max(s2.max(), self.reach()) if is_part else s2.max() or self.reach()
        return allowed, np.broadcast_to(largest, s2.shape)

    def measured(self, contract: Contract, distribution: str) -> tuple[OutputLimits, np.ndarray, Residuals]:
        """Return the limits under a contract, their scale s2, and the errors of this output."""
        allowed, s2 = self.limits(contract, distribution)
        storage = self.actual.dtype if distribution == "natural" else None
        return allowed, s2, measure(self.actual, self.reference, s2, allowed, self.rest, storage)


def outputs_of(
    workload: Workload,
    dtype: str,
    inputs: Arrays,
    actual: Arrays,
    reference: Arrays,
    magnitude: Callable[[], Arrays],
    rest: Mapping[str, np.ndarray] = NOTHING,
    known: dict[Contract, dict[str, Propagated]] | None = None,
) -> list[Output]:
    """Return every output that a kernel returned as an `Output`; arrays are in canonical order, by name. `known` is
    a cache of the bounds propagated for these inputs; new bounds are added to it."""
    operator, geometry, errors = workload.operator, workload.geometry, workload.errors
    data, operand = (inputs[name] for name in (operator.data, operator.operand))
    bounds = enclosed = None
    by_contract = {} if known is None else known
    if (propagate := errors.propagate) is not None:

        def bounds(contract: Contract) -> dict[str, Propagated]:
            if contract not in by_contract:
                with np.errstate(invalid="ignore"):  # infinities are compared with the reference instead
                    arithmetic = ContractArithmetic(contract, dtype)
                    by_contract[contract] = propagated(propagate, geometry, inputs, magnitude(), arithmetic)
            return by_contract[contract]

    if (encloses := errors.encloses) is not None:

        def enclosed(contract: Contract, exact: bool) -> Mapping[str, Interval]:
            with np.errstate(invalid="ignore", over="ignore"):
                return encloses(geometry, inputs, magnitude(), ContractArithmetic(contract, dtype, exact=exact))

    return [
        Output(
            name=name,
            axes=tensor.axes,
            dtype=tensor.stored_as(dtype),
            terms=errors.terms[name],
            actual=actual[name],
            reference=reference[name],
            magnitude=magnitude,
            exact=errors.exact_on_integers,
            selects=errors.selects,
            signed=errors.selects and np.unique(np.signbit(data[data == 0])).size < 2,
            constants=Constants(errors.constants, errors.shared_constant, errors.factor),
            fan_out=errors.error_fan_out,
            propagated=bounds,
            enclosed=enclosed,
            rest=rest.get(name),
            channels=_channels(tensor),
            taps=math.prod(geometry.window),
            batch=1 if geometry.rank else groups_of(tensor, geometry),
            letter="" if geometry.rank else geometry.fields[0].letter.upper(),
            numbers=min(data.size, operand.size),
            adds_inputs=(name == "dbias" or operator.factors == 1) and not errors.divisor & (errors.divisor - 1),
            multiplies=operator.factors > 1 and name != "dbias",
            biased="bias" in inputs,
            made=geometry.family in MADE,
            additions={algorithm: sums.additions for algorithm, sums in errors.prefix_sums.items()},
            prefixes=lambda algorithm: errors.prefix_sums[algorithm].largest(inputs),
            normwise=cache(partial(operator.normwise, geometry, inputs)),
            reach=lambda: _reach(data, operand, operator.free_axis),
            fills=not workload.inputs[operator.operand].is_filter or _fills(data.shape[2:], spans(geometry)),
        )
        for name, tensor in workload.outputs.items()
        if name in actual
    ]


def _reach(data: np.ndarray, operand: np.ndarray, free_axis: int) -> float:
    """Return a bound on the root of a sum of squares of products of `data` and an index of `operand`'s free axis, each
    number taken once: all of either, times the largest of the other."""
    data, operand = np.abs(data.astype(np.float64)), np.abs(operand.astype(np.float64))
    largest = np.linalg.norm(np.moveaxis(operand, free_axis, 0).reshape(operand.shape[free_axis], -1), axis=1).max()
    return float(min(np.linalg.norm(data) * operand.max(), data.max() * largest))


def _fills(image: tuple[int, ...], window: tuple[int, ...]) -> bool:
    return all(size >= span for size, span in zip(image, window, strict=True))


def _channels(tensor: Tensor) -> np.ndarray:
    """Return the numbers of channels, along the axis that they lie on."""
    axis = tensor.channel_axis
    return np.arange(tensor.shape[axis]).reshape([-1 if place == axis else 1 for place in range(len(tensor.axes))])
