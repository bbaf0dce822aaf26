"""Known-bad kernels, each a small deviation from a good one. The judge must detect them all."""

from __future__ import annotations

from conformance.calibration.known_bad.base import Mutant
from conformance.calibration.known_bad.conv_bn import CONV_BN
from conformance.calibration.known_bad.conv_bn_outputs import CONV_BN_OUTPUTS
from conformance.calibration.known_bad.edges import EDGES, EMPTY_BATCHES
from conformance.calibration.known_bad.formats import FORMATS
from conformance.calibration.known_bad.max_pool import MAX_POOL
from conformance.calibration.known_bad.memory import MEMORY
from conformance.calibration.known_bad.pool import POOL
from conformance.calibration.known_bad.precision import PRECISION
from conformance.calibration.known_bad.requantized import REQUANTIZED
from conformance.calibration.known_bad.scale import SCALE
from conformance.calibration.known_bad.sizes import SIZES
from conformance.calibration.known_bad.structure import PATHS, STRUCTURE
from conformance.calibration.known_bad.subtle import SUBTLE
from conformance.calibration.known_bad.values import VALUES

MUTANTS: tuple[Mutant, ...] = (
    *(*STRUCTURE, *PATHS, *PRECISION, *SCALE, *MEMORY, *SUBTLE),
    *(*CONV_BN, *CONV_BN_OUTPUTS),
    *(*POOL, *MAX_POOL, *EMPTY_BATCHES),
    *(*VALUES, *SIZES, *EDGES, *FORMATS, *REQUANTIZED),
)
FAMILIES: tuple[str, ...] = tuple(dict.fromkeys(mutant.family for mutant in MUTANTS))

__all__ = ["FAMILIES", "MUTANTS", "Mutant"]
