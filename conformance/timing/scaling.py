"""Inputs that no call has seen before, and whose exact results are known: drawn ones, scaled by powers of two.

A kernel may store results by their inputs. A clock that uses one set of inputs over and over times that store.
Operators are homogeneous: scale some of the inputs, and some of the outputs scale with them, exactly where the factor
is a power of two or -1. So one drawn set, of which a reference is computed, makes many that are new to a kernel.
"""

from __future__ import annotations

import random
from dataclasses import dataclass, replace
from functools import lru_cache

from conformance.execution.trial import Trial
from conformance.judge.expected import Expected, expect, expect_once
from conformance.operators import Arrays
from conformance.operators.base import Homogeneous

POWERS = (0, 1, -1, 2, -2, 3, -3, 4, -4, 5, -5, 6, -6, 7, -7, 8)
"""Exponents of factors: far from where the fixed-point data of the fixed distribution would become subnormal or
overflow."""
DRAWS, SIGNED_DRAWS, UNSCALED_DRAWS = 1, 4, 8
"""Number of sets that are drawn: more where only signs can be changed, or nothing."""
UNVERIFIED = 1 << 32
"""Seeds from here on are used for nothing else."""


def factors(homogeneous: Homogeneous) -> tuple[float, ...]:
    """Return the factors that inputs are multiplied with, 1 first."""
    if not homogeneous.inputs:
        return (1.0,)
    signs = (1, -1) if homogeneous.signs else (1,)
    return tuple(sign * 2.0**power for power in (POWERS if homogeneous.powers else (0,)) for sign in signs)


def draws(homogeneous: Homogeneous) -> int:
    """Return how many sets of inputs are drawn, which are then scaled."""
    if homogeneous.inputs and homogeneous.powers:
        return DRAWS
    return SIGNED_DRAWS if len(factors(homogeneous)) > 1 else UNSCALED_DRAWS


@dataclass(frozen=True, slots=True)
class ScaledInputs:
    """One set of inputs: a drawn one, by its number, and the factor that some of its tensors are multiplied with. It
    holds no tensors, so that all sets of a run can be listed at once."""

    trial: Trial
    draw: int = 0
    factor: float = 1.0

    @property
    def expected(self) -> Expected:
        """Drawn inputs with their results; the first draw is shared with the rest of the suite."""
        recipe, method = self.trial.recipe, self.trial.method
        if not self.draw:
            return expect_once(recipe, method)
        return _drawn(replace(recipe, seed=recipe.seed + self.draw), method)

    def inputs(self) -> Arrays:
        """Return the inputs in canonical order, scaled."""
        return _scaled(self.expected.inputs, self.trial.operator.homogeneous.inputs, self.factor)

    def unscaled(self, outputs: Arrays) -> Arrays:
        """Return outputs as they would be for the drawn inputs."""
        return _scaled(outputs, self.trial.operator.homogeneous.outputs, 1 / self.factor)


def _scaled(arrays: Arrays, names: tuple[str, ...], factor: float) -> Arrays:
    if factor == 1:
        return arrays
    return {n: a * a.dtype.type(factor) if n in names else a for n, a in arrays.items()}


def scaled_inputs(trial: Trial) -> tuple[ScaledInputs, ...]:
    """Return all sets of inputs, those of the case itself first."""
    homogeneity = trial.operator.homogeneous
    scales = factors(homogeneity)
    return tuple(ScaledInputs(trial, draw, factor) for factor in scales for draw in range(draws(homogeneity)))


_drawn = lru_cache(maxsize=UNSCALED_DRAWS - 1)(expect)
"""Expected results of draws other than the first, cached until those of another problem are asked for."""


def free() -> None:
    """Forget all draws: a table's tensors of full size would fill memory."""
    expect_once.cache_clear()
    _drawn.cache_clear()


def unverified_inputs(trial: Trial) -> ScaledInputs:
    """Return inputs of a secret draw, for a call whose results are not judged: no reference is computed.

    The other draws are the same in every run, so that a kernel could bring their results along.
    """
    return ScaledInputs(trial, UNVERIFIED + random.SystemRandom().randrange(UNVERIFIED))
