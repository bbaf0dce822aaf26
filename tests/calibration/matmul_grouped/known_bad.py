"""Known-bad grouped products: less precision than declared."""

from __future__ import annotations

from conformance.operators.table import names_of
from tests.calibration.conv.known_bad import EMULATED
from tests.calibration.kernels.arithmetic import EXACT
from tests.calibration.kernels.kernel import Mutant

PRODUCTS = names_of("matmul_grouped")

KNOWN_BAD: tuple[Mutant, ...] = tuple(
    Mutant(f"grouped, {name}", "precision", run, operators=PRODUCTS, dtypes=dtypes, base=EXACT)
    for name, run, dtypes in EMULATED
)
