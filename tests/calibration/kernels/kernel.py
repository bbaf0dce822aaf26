"""Types of known kernels: a right one with its contract, or a wrong one beside the right one that it deviates from."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from conformance.contract import Contract
from conformance.dtypes import STORAGE, WHOLE
from conformance.operators import (
    CONVOLUTIONS,
    FAMILIES,
    NORMALISED,
    OPERATORS,
    ORDINARY,
    Arrays,
    Operator,
    parse,
    takes,
)
from conformance.operators.spatial import EVERY_RANK

DEFAULT, BETTER = Contract(), Contract(accumulate="fp64")
STORED = ("fp32", "bf16", "fp16")
SHORT = ("bf16", "fp16")
FP32_ONLY = ("fp32",)
FP8, INT8, UINT8 = ("fp8_e4m3", "fp8_e5m2"), ("int8",), ("uint8",)
BYTES = (*INT8, *UINT8)
PLAIN = tuple(name for name in ORDINARY if name not in NORMALISED)
"""Operators whose outputs are sums of inputs or of their products, or inputs themselves."""

Run = Callable[[Operator, Any, Arrays, str], Arrays]
"""(operator, geometry, inputs in storage dtype, dtype) -> outputs in storage dtype, canonical order."""


@dataclass(frozen=True, slots=True)
class KnownKernel:
    """A kernel, and what it computes. `family` is that of its operators, or of a known-bad one the kind of mistake."""

    name: str
    family: str
    run: Run
    contract: Contract = DEFAULT
    operators: tuple[str, ...] = CONVOLUTIONS
    when: Callable[[Any], bool] = lambda geometry: True
    dtypes: tuple[str, ...] = STORED
    ranks: tuple[int, ...] = EVERY_RANK
    """Numbers of dimensions that the kernel computes."""

    def applies(self, operator: str, geometry: Any, dtype: str) -> bool:
        """Return whether the kernel computes a problem. On an empty batch or without channels only kernels about these
        apply: others would show nothing there."""
        about = min(geometry.n, geometry.c) > 0 or self.family == "partial-requests"
        known = operator in self.operators and dtype in self.dtypes and geometry.rank in self.ranks
        return about and known and self.when(geometry)


@dataclass(frozen=True, slots=True)
class KnownGood(KnownKernel):
    """A kernel that is right: the judge passes it under its contract, and detects it under one a class stricter.

    stricter   a contract that it does not meet; None where no contract is stricter than its own
    exempted   distribution -> why it is not run
    """

    stricter: Contract | None = BETTER
    exempted: Mapping[str, str] = field(default_factory=dict)

    @property
    def distributions(self) -> tuple[str, ...]:
        return tuple(each for each in FAMILIES[self.family].distributions if each not in self.exempted)


@dataclass(frozen=True, slots=True)
class CampaignRow:
    """A problem, the operators of its family that are run (or all of them), how many seeds lie between two runs, a part
    of the names of the kernels that are run, and the dtypes."""

    text: str
    only: tuple[str, ...] = ()
    every: int = 1
    kernels: str = ""
    dtypes: tuple[str, ...] = STORED

    @property
    def operators(self) -> tuple[str, ...]:
        return self.only or tuple(name for name in OPERATORS if takes(name, parse(self.text)))


def stored(outputs: Arrays, dtype: str) -> Arrays:
    """Round the outputs once to the storage format, by way of float32, as a kernel's accumulator is."""
    wide = np.float64 if dtype in ("fp64", *WHOLE) else np.float32
    return {name: array.astype(wide).astype(STORAGE[dtype]) for name, array in outputs.items()}


def of_operator(operator: Operator, geometry: Any, outputs: Arrays, dtype: str) -> Arrays:
    """Round the outputs once, each to its own format: statistics are wider than the other tensors."""
    formats = {name: tensor.stored_as(dtype) for name, tensor in operator.outputs(geometry).items()}
    return {name: stored({name: array}, formats[name])[name] for name, array in outputs.items()}


def plain(operator: Operator, geometry: Any, inputs: Arrays, dtype: str) -> Arrays:
    """Compute the good kernel of most mutants: the reference in float32, rounded once."""
    return of_operator(operator, geometry, operator.reference(geometry, inputs, np.float32), dtype)


def exact(operator: Operator, geometry: Any, inputs: Arrays, dtype: str) -> Arrays:
    """Compute a better kernel: the reference in float64, rounded once."""
    return of_operator(operator, geometry, operator.reference(geometry, inputs), dtype)


def on_inputs(change: Callable[[np.ndarray], np.ndarray], *names: str, base: Run = exact) -> Run:
    """Return a right kernel on changed inputs: those named, or else every one."""

    def run(operator: Operator, geometry: Any, inputs: Arrays, dtype: str) -> Arrays:
        changed = {name: change(array) for name, array in inputs.items() if not names or name in names}
        return base(operator, geometry, inputs | changed, dtype)

    return run


def on_outputs(change: Callable[[np.ndarray, Any], np.ndarray], *names: str) -> Run:
    """Return a kernel whose exact float64 outputs, those named or else all, are changed, given the geometry, and then
    rounded."""

    def run(operator: Operator, geometry: Any, inputs: Arrays, dtype: str) -> Arrays:
        outputs = operator.reference(geometry, inputs)
        changed = {name: change(outputs[name], geometry) for name in names or outputs}
        return of_operator(operator, geometry, outputs | changed, dtype)

    return run


@dataclass(frozen=True, slots=True)
class Mutant(KnownKernel):
    """A kernel that deviates from `base`. Where its outputs are those of `base` bit by bit, it is no mutant."""

    base: Run = plain

    def equivalent(self, operator: Operator, geometry: Any, inputs: Arrays, dtype: str) -> bool:
        """Return whether the mutant cannot be told from its good kernel on these inputs."""
        with np.errstate(all="ignore"):
            mutated, good = (run(operator, geometry, inputs, dtype) for run in (self.run, self.base))
        return same(mutated, good)


def same(mutated: Arrays, good: Arrays) -> bool:
    """Return whether outputs are those of the good kernel, bit by bit."""
    return all(mutated[name].tobytes() == good[name].tobytes() for name in good)
