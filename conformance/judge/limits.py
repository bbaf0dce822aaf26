"""The limits of a verdict, each derived from the contract. There is no rtol and no atol.

For one output element with exact value `ref`, magnitude s2 = sqrt(sum (x_i w_i)^2) over KS products:

    |y - ref| <= u_out*|ref| + (1 + u_out) * (c_in*u_in*s2 + acc*hypot(s2, ref)) + tiny

*Accumulation to nearest.* A sum of KS terms in any order makes at most KS - 1 roundings, each an independent
mean-zero error of at most u times the partial sum at that point (Higham and Mary, "A new approach to probabilistic
rounding error analysis", SISC 41(5), 2019: the constant KS of worst-case analysis becomes a multiple of sqrt(KS)). For
terms of random sign the partial sums are a random walk that ends at `ref`; their mean square is (s2^2 + 2 ref^2)/6, so
hypot(s2, ref) is their scale, and acc = LAMBDA * u_acc * sqrt(KS). With s2 alone an honest sum that happens to end five
standard deviations out is a false alarm, one in about 10^7 elements. Sequential fp32, the least accurate legitimate
order, needs LAMBDA between 1.2 and 2.3 from KS 4 to 4608 over up to 4 million outputs, and does not grow.

*Accumulation toward zero.* Each rounding loses up to 2u of the partial sum, always toward zero, so errors add:
acc = 2 * u_acc * KS.

*Input rounding.* Two factors rounded to u_in give each product a relative error of at most 2*u_in, independent and
mean-zero: e / s2 is sub-Gaussian with standard deviation below 2*u_in/sqrt(3) times a spread below 1; c_in = 4 lies
beyond what 67M elements reach.

*Underflow.* Every product and the result may lose half a spacing below the smallest normal number, or all of it when
subnormals are flushed; by the same square-root law tiny = LAMBDA * sqrt(KS) * eta_acc + eta_out.

*Statistics.* With errors of independent random sign, a sum normalised by its own root sum of squares is sub-Gaussian
whatever the distribution of the errors (Efron, JASA 64, 1969): P(|z| > t) <= 2 exp(-t^2/2). The limit on gain and
offset is the t at which that is ALPHA. The mean square of T such errors stays below (1 + 2 sqrt(x/T) + 2x/T) of its
expectation except with probability exp(-x) (Laurent and Massart, Ann. Statist. 28, 2000), which gives the limit on
rms at x = ln 1/ALPHA.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from conformance.dtypes import FORMATS, Format
from conformance.judge.contract import Contract

LAMBDA = 4.0
INPUT_FACTOR = 4.0
ALPHA = 1e-8
"""False alarms of one statistic of one verdict: a hundred thousand verdicts raise less than one in a hundred runs."""
RMS = 0.5
"""Root mean square error in units of u_out*rms(ref) + acc/LAMBDA*rms(s2): sequential fp32 0.30, one rounding 0.42."""


@dataclass(frozen=True, slots=True)
class Limits:
    """The numbers of the bound for one output (`relative`*|ref| + `inputs`*s2 + `sums`*hypot(s2, ref) + `tiny`) and of
    its statistics."""

    relative: float
    inputs: float
    sums: float
    tiny: float
    rms_scaled: float
    biased: bool

    def bound(self, reference: np.ndarray, s2: np.ndarray) -> np.ndarray:
        """Largest |y - ref| of a kernel that keeps its contract, element by element."""
        rounded = self.relative * np.abs(reference)
        allowed: np.ndarray = rounded + self.inputs * s2 + self.sums * spread(reference, s2) + self.tiny
        return allowed

    @property
    def z(self) -> float:
        """Limit on |gain| and |offset|."""
        return math.sqrt(2 * math.log(2 / ALPHA))

    def rms(self, count: int) -> float:
        """Limit on the rms of `count` errors."""
        x = math.log(1 / ALPHA) / count
        return RMS * math.sqrt(1 + 2 * math.sqrt(x) + 2 * x)


def spread(reference: np.ndarray, s2: np.ndarray) -> np.ndarray:
    """hypot(s2, ref), the scale of a sum's partial sums. Three times faster than np.hypot; float64 has the range."""
    scale: np.ndarray = np.sqrt(np.square(reference) + np.square(s2))
    return scale


def limits(contract: Contract, dtype: str, terms: int) -> Limits:
    """Limits for an output of `dtype` whose elements sum `terms` products (see the module's derivation)."""
    out, acc = FORMATS[dtype], contract.accumulator(dtype)
    u_in = 0.0 if contract.inputs == "exact" else FORMATS[contract.inputs].unit_roundoff
    root = math.sqrt(terms)
    nearest = acc.unit_roundoff * root
    accumulated = LAMBDA * nearest if contract.rounding == "nearest" else 2 * acc.unit_roundoff * terms
    tiny = LAMBDA * root * _least(contract, acc) + _least(contract, out)
    return Limits(
        relative=out.unit_roundoff,
        inputs=(1 + out.unit_roundoff) * INPUT_FACTOR * u_in,
        sums=(1 + out.unit_roundoff) * accumulated,
        tiny=tiny,
        rms_scaled=nearest + 2 * u_in,
        biased=contract.rounding == "zero" or u_in > 0,
    )


def _least(contract: Contract, format: Format) -> float:
    return format.smallest_subnormal if contract.subnormals == "kept" else format.smallest_normal
