"""What a mutant is: a kernel, and the good kernel that it deviates from."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

from conformance.calibration.known_kernel import KnownKernel, Run
from conformance.dtypes import STORAGE, WHOLE
from conformance.operators import NORMALISED, ORDINARY, Arrays, Operator

PLAIN = tuple(name for name in ORDINARY if name not in NORMALISED)
"""Operators whose outputs are sums of inputs or of their products, or inputs themselves."""


def stored(outputs: Arrays, dtype: str) -> Arrays:
    """The outputs rounded once to the storage format, by way of float32, as a kernel's accumulator is."""
    wide = np.float64 if dtype in ("fp64", *WHOLE) else np.float32
    return {name: array.astype(wide).astype(STORAGE[dtype]) for name, array in outputs.items()}


def of_operator(operator: Operator, geometry: Any, outputs: Arrays, dtype: str) -> Arrays:
    """The outputs rounded once, each to its own format: statistics are wider than the other tensors."""
    formats = {name: tensor.stored_as(dtype) for name, tensor in operator.outputs(geometry).items()}
    return {name: stored({name: array}, formats[name])[name] for name, array in outputs.items()}


def plain(operator: Operator, geometry: Any, inputs: Arrays, dtype: str) -> Arrays:
    """The good kernel of most mutants: the reference in float32, rounded once."""
    return of_operator(operator, geometry, operator.reference(geometry, inputs, np.float32), dtype)


def exact(operator: Operator, geometry: Any, inputs: Arrays, dtype: str) -> Arrays:
    """A better one: the reference in float64, rounded once."""
    return of_operator(operator, geometry, operator.reference(geometry, inputs), dtype)


def on_outputs(change: Callable[[np.ndarray, Any], np.ndarray]) -> Run:
    """Every exact output in float64, given with the geometry, changed and then rounded."""

    def run(operator: Operator, geometry: Any, inputs: Arrays, dtype: str) -> Arrays:
        outputs = operator.reference(geometry, inputs)
        return stored({name: change(array, geometry) for name, array in outputs.items()}, dtype)

    return run


@dataclass(frozen=True, slots=True)
class Mutant(KnownKernel):
    """A kernel that deviates from `base`. Where its outputs are those of `base` bit by bit, it is no mutant."""

    base: Run = plain

    def equivalent(self, operator: Operator, geometry: Any, inputs: Arrays, dtype: str) -> bool:
        """Whether nobody could tell it from its good kernel on these inputs."""
        with np.errstate(all="ignore"):
            mutated, good = (run(operator, geometry, inputs, dtype) for run in (self.run, self.base))
        return same(mutated, good)


def same(mutated: Arrays, good: Arrays) -> bool:
    """Whether outputs are those of the good kernel, bit by bit."""
    return all(mutated[name].tobytes() == good[name].tobytes() for name in good)
