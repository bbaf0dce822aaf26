"""Known-bad kernels, each a small deviation from a good one. The judge must convict them all."""

from __future__ import annotations

from conformance.selftest.mutants.base import Mutant
from conformance.selftest.mutants.conv_bn import CONV_BN
from conformance.selftest.mutants.conv_bn_outputs import CONV_BN_OUTPUTS
from conformance.selftest.mutants.memory import MEMORY
from conformance.selftest.mutants.paths import PATHS
from conformance.selftest.mutants.pool import POOL
from conformance.selftest.mutants.precision import PRECISION
from conformance.selftest.mutants.scale import SCALE
from conformance.selftest.mutants.structure import STRUCTURE
from conformance.selftest.mutants.subtle import SUBTLE

MUTANTS: tuple[Mutant, ...] = (
    *(*STRUCTURE, *PATHS, *PRECISION, *SCALE, *MEMORY, *SUBTLE),
    *(*CONV_BN, *CONV_BN_OUTPUTS),
    *POOL,
)
FAMILIES: tuple[str, ...] = tuple(dict.fromkeys(mutant.family for mutant in MUTANTS))

__all__ = ["FAMILIES", "MUTANTS", "Mutant"]
