"""Expected results that a case's outputs are compared with: all exact outputs, probes of large outputs, or the few
nonzero elements.

`expect` chooses the method once; code that verifies, times or records a case uses the object that it returns. Nothing
is drawn or computed before it is needed.
"""

from __future__ import annotations

import itertools
import math
from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import replace
from functools import cached_property, lru_cache
from typing import ClassVar

import numpy as np

from conformance.contract import Contract
from conformance.dtypes import FORMATS, STORAGE, WHOLE
from conformance.inputs.distributions import sparse_places
from conformance.inputs.drawing import Recipe
from conformance.inputs.expectation import Expectation
from conformance.judge.accuracy import KNOWN, ladder
from conformance.judge.judgement import EQUALITY_DISTRIBUTIONS, Check, Judgement, Locations, judge, judge_sparse, passes
from conformance.judge.limits import ALPHA, LAMBDA, limits
from conformance.judge.output import Output, outputs_of
from conformance.judge.propagation import Propagated
from conformance.judge.threads import enough
from conformance.operators import Arrays
from conformance.operators.conv.probes import Projection, projected, sums_of_gradient
from conformance.operators.sparse import Nonzero, nonzero
from conformance.problems.table import SPARSE

METHODS = ("auto", "exact", "probes")
"""Ways to reach a verdict: chosen by cost, by the full reference, or by samples and a projection."""
WORTHWHILE = 1 << 32
"""FLOPs from which an exact reference costs seconds."""
LANES = 8
"""Least channels to sum for probes: with fewer they save too little over the exact reference."""
RISK = 1e-9
SMALL = 1 << 16
"""Most elements of outputs that are judged again under other contracts."""
GATHERED = 1 << 19
"""Most products gathered for all samples together: 4 MiB."""


ENOUGH, SCALED, REACHED = 16, 0.2, 0.03
"""ENOUGH: least elements for a statement on errors. SCALED: share of the errors that one factor leaves unexplained;
REACHED: share of elements with an error of at least a hundredth of the largest; below either, errors are not rounding.
Elements whose windows lie in the padding are right in any arithmetic."""


def is_no_rounding(output: Output) -> bool:
    """Tell whether errors on data of one magnitude are not rounding: one factor explains them, or few elements err."""
    exact = output.reference.astype(np.float64)
    error = np.where(np.isfinite(output.actual), output.actual.astype(np.float64) - exact, 0.0)[exact != 0]
    exact = exact[exact != 0]
    if error.size < ENOUGH or not error.any():
        return False
    factor = error - exact * (error @ exact / (exact @ exact))
    is_scaled = float(np.linalg.norm(factor)) < SCALED * float(np.linalg.norm(error))
    return is_scaled or np.count_nonzero(abs(error) > 0.01 * abs(error).max()) < REACHED * error.size


class Expected(ABC):
    """Expected outputs of a recipe, as far as they are known, and the judgement on a kernel's outputs."""

    method: ClassVar[str] = "exact"
    """Name of the method in records."""
    bytes_each: ClassVar[int]
    """Bytes of memory that verification takes for each element of the tensors."""
    dense: ClassVar[bool] = True
    """False if inputs are gigabytes of zeros that are never touched, with few numbers in them."""

    def __init__(self, tensors: Expectation) -> None:
        self.tensors, self.recipe = tensors, tensors.recipe

    @property
    def inputs(self) -> Arrays:
        """Inputs by name, in canonical order."""
        return self.tensors.inputs

    def holding(self, inputs: Arrays) -> Expected:
        """Return the expected outputs of the same recipe for other input values."""
        return type(self)(self.tensors.holding(inputs))

    @property
    def bytes_needed(self) -> int:
        """Bytes that a verdict takes. A reference pads one image at a time; with a large stride the padded image can be
        far larger than the tensors themselves."""
        workload = self.recipe.workload
        geometry = workload.geometry
        extents = (size + sum(pad) for size, pad in zip(geometry.size, geometry.padding, strict=True))
        padded: int = 8 * geometry.c * math.prod(extents)
        return workload.bytes(self.bytes_each) + padded

    def has_one_result(self, contract: Contract) -> bool:
        """Return whether a kernel with this contract can be judged."""
        return True

    @abstractmethod
    def compute(self) -> None:
        """Draw inputs and compute references in advance, so that the kernel's and the judge's times exclude them."""

    @abstractmethod
    def judge(self, outputs: Arrays, contract: Contract) -> tuple[Judgement, ...]:
        """Return one judgement for each output (canonical order, on the host)."""

    def passes(self, outputs: Arrays, contract: Contract) -> bool:
        """Return whether all judgements pass, for callers that need no details of correct results."""
        return all(judgement.passed for judgement in self.judge(outputs, contract))

    def fitting(self, outputs: Arrays, wrong: Sequence[Judgement], declared: Contract) -> tuple[Contract, ...] | None:
        """Return the declared contract with each known arithmetic under which outputs that were judged `wrong` would
        pass, in the order of `KNOWN`; None if this was not tested."""
        return None


class Exact(Expected):
    """The exact reference of every element of every output."""

    bytes_each = 32  # measured 27 in fp32

    @cached_property
    def bounds(self) -> dict[Contract, dict[str, Propagated]]:
        """Propagated bounds of each element by contract, kept because every judgement of this recipe uses the same."""
        return {}

    def compute(self) -> None:
        with enough(self.recipe.workload.flops):
            _ = self.tensors.reference

    def outputs(self, actual: Arrays) -> list[Output]:
        """Pair a kernel's outputs with the exact ones."""
        recipe, tensors = self.recipe, self.tensors
        described = recipe.workload, recipe.dtype, tensors.inputs, actual, tensors.reference
        return outputs_of(*described, lambda: tensors.magnitude, tensors.rest, self.bounds)

    def judge(self, outputs: Arrays, contract: Contract) -> tuple[Judgement, ...]:
        recipe = self.recipe
        contract = contract.on(recipe.workload.geometry, recipe.dtype)
        return tuple(judge(output, recipe.distribution, contract) for output in self.outputs(outputs))

    def fitting(self, outputs: Arrays, wrong: Sequence[Judgement], declared: Contract) -> tuple[Contract, ...] | None:
        """Judge again if that takes milliseconds. If the loosest contract fails, no other contract is tried."""
        summed = [output for output in self.outputs(outputs) if output.terms and output.dtype in FORMATS]
        if sum(output.actual.size for output in summed) > SMALL:
            return None
        if not summed or any(judgement.where and judgement.where.partial for judgement in wrong):
            return ()
        names = {judgement.output for judgement in wrong}
        if self.recipe.distribution == "fixed" and any(map(is_no_rounding, (o for o in summed if o.name in names))):
            return ()
        rungs = [*ladder(summed[0].dtype, summed[0].terms)]

        def meant(arithmetic: Contract) -> Contract:
            return replace(
                declared, inputs=arithmetic.inputs, accumulate=arithmetic.accumulate, rounding=arithmetic.rounding
            )

        def fits(contract: Contract) -> bool:
            return bool(contract.exempts(self.recipe.distribution, self.recipe.dtype)) or self.passes(outputs, contract)

        # the order of strictness depends on the number of terms; comparing cases needs the same order for all
        candidates = [meant(contract) for contract in KNOWN if contract in rungs] if fits(meant(rungs[-1])) else []
        # on shifted data a variance from raw moments may lose every digit; elsewhere other causes have the same errors
        shifted = self.recipe.distribution == "shifted" and any(output.propagated is not None for output in summed)
        raw = [replace(declared, variance="raw")] if shifted else []
        return tuple(filter(fits, [*raw, *candidates]))

    def passes(self, outputs: Arrays, contract: Contract) -> bool:
        recipe = self.recipe
        contract = contract.on(recipe.workload.geometry, recipe.dtype)
        return all(passes(output, recipe.distribution, contract) for output in self.outputs(outputs))


class Probed(Expected):
    """Sampled elements and a random projection of a large main output; the other outputs are small and exact.

    The samples are judged like any output. The projection sum_k r_k e_k of L lanes' errors is a sum of L independent
    mean-zero errors, so in units of its root sum of squares it is as sub-Gaussian as one error; with the same LAMBDA

        |projected - expected| <= LAMBDA * sqrt(u_out^2 * sum ref^2 + unit^2 * (sum s2^2 + sum ref^2))

    where `unit` is the contract's rms error per spread, to which the projection's own rounding is added. sum s2^2 is
    bounded from the inputs' distribution (Hoeffding), and given the inputs sum ref^2 is a quadratic form of independent
    lanes, below sum s2^2 * (1 + 2 sqrt(x/L) + 2x/L) except with probability exp(-x) (Laurent and Massart 2000). One
    wrong element among millions is one wrong term of one such sum.
    """

    method = "probes"
    bytes_each = 12

    @cached_property
    def projection(self) -> Projection:
        """Exact projected output: computed in float64 where equality is demanded or the dtype is fp64, else in float32,
        since the verdict is then a bound on errors of fp32 sums or larger ones."""
        recipe, geometry = self.recipe, self.recipe.workload.geometry
        methods = recipe.workload.operator.probes
        assert methods is not None
        signs = 2.0 * np.array(recipe.stream("signs").below(2, methods.channels(geometry))) - 1.0
        equal = recipe.distribution == "integer" or recipe.dtype == "fp64"
        arithmetic = np.dtype(np.float64 if equal else np.float32)
        projection: Projection = methods.project(geometry, self.inputs, signs, RISK, arithmetic)
        return projection

    @cached_property
    def index(self) -> np.ndarray:
        """Places of samples [T, 4]: all corners and uniformly drawn places, each once, for the statistics."""
        main, *_ = self.recipe.workload.outputs.values()
        corners = np.array(list(itertools.product(*({0, extent - 1} for extent in main.shape))))
        count = max(8, min(2048, GATHERED // self.recipe.terms))
        drawn = self.recipe.stream("samples").below(math.prod(main.shape), count)
        flat = np.union1d(np.ravel_multi_index(tuple(corners.T), main.shape), drawn)
        return np.stack(np.unravel_index(flat, main.shape), axis=1)

    @cached_property
    def samples(self) -> tuple[np.ndarray, np.ndarray]:
        """Exact values and magnitudes of the samples."""
        workload = self.recipe.workload
        assert workload.operator.probes is not None
        return workload.operator.probes.sample(workload.geometry, self.inputs, self.index)

    @cached_property
    def small(self) -> dict[str, tuple[np.ndarray, np.ndarray]]:
        """Outputs that are cheap to compute exactly: {name: (values, magnitudes)}."""
        _, *names = self.recipe.workload.outputs
        return {name: sums_of_gradient(self.inputs) for name in names}

    def compute(self) -> None:
        with enough(self.recipe.workload.flops):
            _ = self.projection, self.samples, self.small

    def judge(self, outputs: Arrays, contract: Contract) -> tuple[Judgement, ...]:
        recipe = self.recipe
        contract = contract.on(recipe.workload.geometry, recipe.dtype)
        pairs = dict.fromkeys(outputs, self.samples) | self.small
        reference, magnitude = ({name: pair[half] for name, pair in pairs.items()} for half in (0, 1))
        return tuple(
            judge(output, recipe.distribution, contract) if output.name in self.small else self._main(output, contract)
            for output in outputs_of(recipe.workload, recipe.dtype, self.inputs, outputs, reference, lambda: magnitude)
        )

    def _normwise(self, dropped: float) -> np.ndarray:
        """Return a bound on the scale of errors of slices (`Operator.normwise`) in all elements."""
        operator = self.recipe.workload.operator
        largest = (float(np.abs(self.inputs[name]).max(initial=0.0)) for name in (operator.data, operator.operand))
        powers = math.prod(2.0 ** np.frexp(size)[1] for size in largest)
        return np.array(powers * math.sqrt(self.recipe.terms * (2 + dropped**2)))

    def _main(self, output: Output, contract: Contract) -> Judgement:
        """Judge the large output. On the integer distribution both probes must be exact."""
        distribution, of_filters = self.recipe.distribution, output.name == "dw"
        axis = 0 if of_filters else output.axes.index("K" if "K" in output.axes else "C")
        values, channels = output.actual[tuple(self.index.T)], self.index[:, axis]
        elements = replace(output, axes="T", actual=values, channels=channels, normwise=self._normwise)
        sampled = judge(elements, distribution, contract)
        worst, where = sampled.worst, None
        if worst is not None:
            worst = replace(worst, index=tuple(map(int, self.index[worst.index[0]])))
            where = Locations(place="a sampled element")

        exact, limit = self.projection.expected, 0.0
        if not (distribution in EQUALITY_DISTRIBUTIONS and contract.exact_on_integers(output.dtype)):
            allowed = limits(contract, output.dtype, output.terms, output.actual.size)
            x = math.log(exact.size / ALPHA) / self.projection.lanes
            references = self.projection.square * (1 + 2 * math.sqrt(x) + 2 * x)
            rounded = allowed.halves * FORMATS[output.dtype].unit_roundoff ** 2 * references
            unit = max(allowed.sums / LAMBDA, allowed.unit)
            if contract.slices is not None:
                scales = float(self._normwise(contract.slices.dropped)) / math.sqrt(self.projection.square / exact.size)
                unit *= 1 + allowed.normwise * scales
            squared = unit**2 + self.projection.noise**2
            limit = LAMBDA * math.sqrt(rounded + squared * (self.projection.square + references))
        error = np.abs(projected(self.projection, output.actual) - exact)
        error[np.isnan(error)] = np.inf
        check = Check("projection error", float(error.max()), limit)
        if not check.passed:
            # the projected axis is K or C of an image, and sets of the first axis of a filter; the others are known
            sets = ("group", "set of channels", *output.axes[1:])
            names = sets if of_filters else (output.axes[0], *output.axes[2:])
            position = np.unravel_index(int(np.argmax(error)), error.shape)
            places = ", ".join(f"{name.lower()} = {i}" for name, i in zip(names, position, strict=True))
            where = Locations(place=f"somewhere in the channels at {places}")
        return replace(
            sampled,
            criterion=f"{len(values):,} samples, a projection of all {output.actual.size:,}; {sampled.criterion}",
            checks=(*sampled.checks, check),
            mismatched=sampled.mismatched + int(np.count_nonzero(~(error <= limit))),
            worst=worst,
            where=where,
            zeros=sampled.zeros if np.max(np.abs(exact)) <= limit else "fail",
        )


class Sparse(Expected):
    """The few nonzero elements of outputs whose inputs are too large for a full reference."""

    dense = False

    @cached_property
    def nonzero(self) -> dict[str, Nonzero]:
        """Places and values of the nonzero elements of the exact outputs, by name."""
        return nonzero(self.recipe.workload, self.inputs, sparse_places(self.recipe))

    @property
    def bytes_needed(self) -> int:
        """Bytes of the outputs; inputs take no memory, because most of their pages are never touched."""
        outputs = self.recipe.workload.outputs.values()
        return sum(STORAGE[tensor.stored_as(self.recipe.dtype)].itemsize * tensor.size for tensor in outputs)

    def has_one_result(self, contract: Contract) -> bool:
        """Return whether sums are exact: results are compared for equality, which rounded sums would fail."""
        exact = self.recipe.workload.errors.exact_on_integers
        return exact and contract.exact_on_integers(self.recipe.dtype)

    def compute(self) -> None:
        _ = self.nonzero

    def judge(self, outputs: Arrays, contract: Contract) -> tuple[Judgement, ...]:
        tensors = self.recipe.workload.outputs
        return tuple(
            judge_sparse(name, tensors[name].axes, outputs[name], places, values)
            for name, (places, values) in self.nonzero.items()
        )


def expect(recipe: Recipe, method: str = "auto") -> Expected:
    """Choose how outputs are judged: by cost, or by `method` if that is possible.

    Probes need integers or fixed-point numbers, for which their bounds are derived.
    """
    tensors, workload = Expectation(recipe), recipe.workload
    geometry, methods = workload.geometry, workload.operator.probes
    if recipe.distribution == SPARSE:
        return Sparse(tensors)
    bounded = recipe.distribution in ("integer", "fixed") and recipe.dtype not in WHOLE
    empty = any(tensor.size == 0 for tensor in workload.inputs.values())
    if method == "exact" or methods is None or not bounded or empty:
        return Exact(tensors)
    large = workload.flops >= WORTHWHILE and methods.channels(geometry) // geometry.groups >= LANES
    return Probed(tensors) if method == "probes" or large else Exact(tensors)


expect_once = lru_cache(maxsize=1)(expect)
"""`expect` with a cache of one recipe, which is enough because cases are ordered by recipe."""
expect_few = lru_cache(maxsize=4)(expect)
"""`expect` with a cache of four recipes, for checks of behaviour: on small problems, each on the same inputs."""
