"""The limits of a verdict, each derived from the contract. There is no rtol and no atol.

For one output element with exact value `ref`, magnitude s2 = sqrt(sum (x_i w_i)^2) over KS products and
spread = hypot(s2, ref):

    |y - ref| <= half_ulp + inputs*s2 + sums*spread + tiny

*Output rounding.* half_ulp is half the spacing of the output format at |ref| plus the other terms: a result that is
rounded once, after everything else, cannot be further away (IEEE 754-2019, section 4.3.1). Nothing converts fp64 to 16
bits directly, neither processors nor NumPy's bf16: a wider result is rounded to fp32 on the way, u_fp32*|ref| more.

*Stochastic rounding.* A result that lies between two numbers of the format becomes either, with probabilities by
distance, and is right if it is one of them (Croci, Fasi, Higham, Mary, Mikaitis, "Stochastic rounding: implementation,
error analysis and applications", R. Soc. Open Sci. 9:211631, 2022, section 2): a whole spacing takes the place of half
of it, and the mean square f(1 - f) of the errors, 1/6 over all fractions f, that of 1/12. They are independent, have
mean zero and differ by a spacing, so that their sum stays below z times half the root of the sum of squared spacings,
but for one time in 2 exp(-z^2/2) (Hoeffding, JASA 58, 1963), beyond what the sums before the rounding are off; so does
each sum with weights up to 1 that the results before rounding determine. Errors are added as they are and away from
zero, where a kernel that always cuts fails, and away from the nearer neighbour, where one fails whose probabilities do
not follow the distance (`rounding_z`). Rounding to nearest is told from it only where a few results repeat.

*Accumulation to nearest.* A sum of KS terms in any order makes at most KS - 1 roundings, each an independent
mean-zero error of at most u times the partial sum at that point (Higham and Mary, "A new approach to probabilistic
rounding error analysis", SISC 41(5), 2019: the constant KS of worst-case analysis becomes a multiple of sqrt(KS)). For
terms of random sign the partial sums are a random walk that ends at `ref`; their mean square is (s2^2 + 2 ref^2)/6, so
spread is their scale, and sums = LAMBDA * u_acc * sqrt(KS). With s2 alone an honest sum that happens to end five
standard deviations out is a false alarm, one in about 10^7 elements. Sequential fp32, the least accurate legitimate
order, needs LAMBDA between 1.2 and 2.3 from KS 4 to 4608 over up to 4 million outputs, and does not grow.

*Accumulation toward zero.* Each rounding loses up to 2u of the partial sum, always toward zero, so that part adds up
linearly: 2 * u_acc * KS more. On average a rounding loses 0.72u, and the partial sums of a random walk add up to
KS*s2/sqrt(3): an rms of 0.42 of its unit u_acc*KS, the share that a single output rounding has of its own.

*Matrix units* (`conformance.accumulator`). A unit that aligns b products and the sum before to the largest of them
loses up to (b + 1) 2^-bits of it in a group, and 2u of the stored sum; KS/b groups lose that in the worst case, all on
one side, whatever the order. With a promotion every p products only p/b groups add up so, since the partial sums of
all parts together are those of the whole; KS/p promotions add u each. To nearest, these errors have random signs, and
the root of the sum of their squares takes the place of u_acc * sqrt(KS).

*Absorption.* On data with one large term, its negative, and small ones (`conformance.inputs.absorbed`) roundings are
not independent: each addition of a small term to the large one loses the same, up to u times the large one, and none of
the laws above holds. The bound is that of the worst case instead (Higham 2002, section 4.2): KS roundings of u, or 2u
where bits are cut off, of the largest partial sum, and one u_part for each partial sum that is stored. Of s2 =
sqrt(2) * large the largest partial sum is s2/sqrt(2) + |ref|, in whatever order. The data reach this bound: a unit with
one bit less exceeds it where terms are added one after the other. All formats hold the data, so that no input is
rounded; but a term of an average may be divided first, and terms of one size are then rounded alike: up to u_in of the
sum of their sizes, which is at most sqrt(KS)*s2 (Cauchy and Schwarz).

*Gain of cut sums.* A partial sum S that is cut toward zero loses half a unit of its last place on average, or less: a
mean between 0 and u*|S|. If the products are those of independent numbers of mean zero, S is independent of what is
added to it later, so that sum(e*ref) loses between 0 and u*S^2 at each rounding, and S^2 is not larger than ref^2 on
average: the gain lies between -u_acc*KS, or half of what a matrix unit may lose, and 0; two more roundings are that of
a product and that of the result. A sum without bias, in an order that does not depend on its numbers, grows from
nothing to ref^2 evenly, and loses half of that. Numbers of the suite are uniform, and the average place of N of their
squares has the variance 9/5/12/N, for either operand, so that half of the interval and z deviations remain.

*Gain of rounded inputs.* As results are linear in each operand, sum(e*ref) is the mean of the operand's relative errors
weighed by x_j times the derivative of sum(ref^2)/2, on average x_j^2. The N errors are independent and at most u_in:
the gain of both operands is at most 2*u_in, and beyond z*u_in*sqrt(2*9/5/N) with the probability ALPHA (Hoeffding).
Ties, half of the numbers where there is one bit to round, may go away from zero (cvt.rna of PTX): u_in more above. An
input that is cut loses between 0 and u_in, half of that on average: u_in for both, half as much deviation, and at most
half as much in the products that are not formed. Whoever declares sums that are cut may round inputs to nearest: the
interval holds both.

Both hold on `fixed` data and for sums of products. On other data, for sums of one operand, for transforms, and where
sums are rounded down, gain and offset mean nothing. Rounding to nearest and cutting are odd: the sums of errors by
channel have independent random signs ("Accumulators of 16 bits", below), and the offset is taken over channels.

*Split-K partials.* Each of `splits` partial sums is rounded once to u_part, and so may be their running sum:
LAMBDA * u_part * sqrt(splits) is added to sums.

*Input rounding.* Two factors rounded to u_in give each product a relative error of at most 2*u_in, independent and
mean-zero: e / s2 is sub-Gaussian with standard deviation below 2*u_in/sqrt(3) times a spread below 1; inputs = 4*u_in
lies beyond what 67M elements reach. Splitting an input in two parts and dropping the product of the low parts (bf16x3,
tf32x3) leaves u_in = u^2 of the parts' format, and three times the additions. Toward zero, an input loses up to 2u,
and (2u)^p of p parts: that is u_in, and 4*u_in holds the products of parts that are dropped, too. Winograd and FFT
round what they made of data and filters, numbers of no dtype: u_in stands for the format that these are stored in, and
the way back enlarges it as it does the roundings of sums, by `growth`. Nor have weights a dtype that are made of
numbers of 4 bits, scales and zero points (`conformance.contract.MADE`): they are rounded alone, and few of them err
alike, but meet data of independent signs.

*Parts that hold an input.* Three parts of 8 bits (bf16x6, bf16x9; Henry, Tang and Heinecke, "Leveraging the bfloat16
artificial intelligence datatype for higher-precision computations", 2019) hold the 24 bits of fp32. Their second and
third parts are at most u and u^2 of an input, so that the three products that x6 drops add up to 2u^3 of the whole,
which is 2^-23. As products of two roundings they have a deviation below 2u^3/(3 sqrt(3)) * sqrt(1/2) and mean zero:
inputs = 2u^3, u_in = u^3/2, and gain and offset are tested. x9 adds them, each to an fp32 sum that is larger by 2^24
and loses as much: six additions count for both. So x6 under x9 exceeds no limit: what it drops, 0.1 * 2^-24 * s2 in the
mean square, is less than the rounding of the result. Parts that are cut off, not rounded, have the sign of the input:
what x6 drops of them is a gain, which is seen. Toward zero (declared) these are 16u^3 of a product, less than the
6 * 2u_acc * KS that its sums are allowed. Every part of a small input may underflow: eta_in, below.

*Rms of rounded inputs.* Errors of the operand with fewer numbers, N, are shared by many products. In units of the
largest one, squares of uniform errors have a mean of 1/3, below 1/3 + sqrt(ln(1/ALPHA)/(2N)) except with probability
ALPHA (Hoeffding, JASA 58, 1963), and never above 1; of errors of one sign the mean, 1/2, counts too. A right kernel of
cut bf16 inputs had 0.558 for 0.550 with a filter of one number.

*Slices* (`conformance.slices`). Numbers of a row share the power of two above their largest, A, those of a column B.
What count slices of so many bits leave of an input is at most v = 2^-(count*bits) times that, however small the input
is: errors are normwise (Ootomo, Ozaki, Yokota 2024). v bounds both ways of rounding: to nearest, a digit rounded up
takes one more bit, and what is left is half of a unit. The product of what is left with the other factor adds up to
v hypot(A |b|, B |a|), norms of column b and row a, as do independent errors of mean zero, of deviation 1/sqrt(3).
Products of slices whose places add up to more than count + 1, if these are left out, are up to v A B, on count - 1
pairs, and 2^bits times less on the next: with their sum d, d sqrt(KS) v A B more in quadrature. N is the root of all
three, and the error at most 8 v N: its rms, v N/sqrt(3), is 0.29 of its unit 2 v N, and all of few numbers 0.5. Cut
slices have the sign of the input, and absorbed terms lose alike: sqrt(KS) times as much, by the inequality of Cauchy
and Schwarz between sums and norms. 8 v N enlarges s2 in the units of `sums`. Roundings are additions of products of
slices, which are exact sums: fp32's 24 bits hold 2^(24 - 2 bits) terms, int32 more. Results of
a row share what its inputs lose, so that gain and offset mean nothing.

*Winograd and FFT.* Winograd accumulates KS/9 products of transformed data, after a few additions in each transform;
`winograd_growth` says by how much the transforms enlarge rounding errors. FFT adds an error of u_acc per stage, log2 of
the transform's length (Higham, Accuracy and Stability of Numerical Algorithms, 2002, theorem 24.2). Neighbours outside
an element's own window take part in both, so that the scale is the largest magnitude of the tensor. An input that takes
part need not reach any output: if a stride skips an impulse, all results are zero, and FFT computes them as differences
of results that are not. The scale is then that of the results at stride 1 and beyond the edges, at most |data|_2 *
max|operand|, and at most max|data| times the norm of the largest filter (`reach`); the same holds on natural data,
where the largest numbers of both factors need not meet in any result, and where an image is smaller than a window: taps
that meet nothing but padding are transformed with the others. The constants of F(4x4,3x3) and of FFT are rounded, too,
in the same way for every output: a gain of up to u_acc for each constant that a result passes, two for F(4x4,3x3) (one
on each axis) and 2 + log2 for FFT (1/n on each axis, a twiddle a stage). The filter that F(2x2,3x3) transforms is
rounded once for all of its results: two as well. That of F(6x6,3x3) enters the first result of a tile 56 times
enlarged: the squared norm over t of |A_t| |G_t| |B_t|, the latter of the three elements that the result is made of.

The errors of F(2x2,3x3), F(4x4,3x3) and F(6x6,3x3) are 1.7, 31 and 46 times those of a direct sum of as many roundings.
A sum's order changes errors by more than 46/31, so that F(6x6,3x3) exceeds the limits of F(4x4,3x3) in two cases only:
transformed data are rounded, which has no order, on tensors of many elements; or one filter makes one result a tile.

*Prefix sums.* Average pooling may take a window's sum as a difference of prefix sums, along an axis or of a summed-area
table. Their roundings are relative to the prefix sums, not to the window, which may be far smaller: each is at most u
times the largest prefix sum of the row, or of the image (Higham 2002, section 4.2). Additions of equal numbers to a
growing sum all err alike, so that no square root is taken: sums = u_acc * additions, in units of that largest sum
(`conformance.operators.avg_pool.operators`). Windows share roundings, and have no gain and offset; their rms is that of
independent roundings.

*Underflow.* Every product and the result may lose half a spacing below the smallest normal number, or all of it when
subnormals are flushed; so may a rounded input, and a stored partial sum. By the same square-root law
tiny = LAMBDA * (sqrt(KS) * (eta_acc + eta_in) + sqrt(splits) * eta_part) + eta_out; truncation adds KS * eta_acc.
Where an operator multiplies its sums, all but eta_out is multiplied with them.
What is lost is uniform within half a spacing, of deviation eta/sqrt(12): nine products of parts lose less than eta too.

*Statistics.* With errors of independent random sign, a sum normalised by its own root sum of squares is sub-Gaussian
whatever the distribution of the errors (Efron, JASA 64, 1969): P(|z| > t) <= 2 exp(-t^2/2). The limit on gain and
offset is the t at which this bound is ALPHA. The mean square of T such errors stays below (1 + 2 sqrt(x/T) + 2x/T) of
its expectation except with probability exp(-x) (Laurent and Massart, Ann. Statist. 28, 2000), which gives the limit on
rms at x = ln 1/ALPHA.

*Shared errors.* Where elements have intermediate results in common, e_i = sum a_ij d_j of independent roundings d_j. If
each of these reaches c elements at most, the variance of sum e_i, sum_j (sum_i a_ij)^2 var d_j, is at most c times the
expectation of sum e_i^2 (Cauchy-Schwarz): z grows by sqrt(c), and T shrinks by c. Elements with the same exact result,
up to its sign, are rounded alike by a deterministic kernel whatever they come from, as the few numbers of a narrow
format over one divisor are: in z they count as one error, the sum of theirs; T = n^2 / (sum of m^2) for groups of m.

*Accumulators of 16 bits.* Two effects that are negligible in fp32 matter with 8 or 11 bits.

First, roundings have mean zero to first order only. A cell of the format is 2u|S| wide; over it, the density of the
partial sums S changes by a share of that order, and jumps where cells double, so that a rounding has a mean of up to u
times its own largest error: u^2 |S|, always toward the same side (small terms that are lost to a large sum are the
extreme of it: stagnation). Over KS roundings that adds up linearly: `drift` = KS * u^2, times sum(spread*|ref|), is
allowed to sum(e*ref).

Second, few states: the sum on a grid of 2^8 numbers to a binade, plus the same bias for every element of a channel, has
the same rounding error wherever it meets the same binade, and a product of two 8-bit numbers has one of 2^14. Errors of
elements that share an operand are therefore not independent. But negating a filter and its bias (dy of a channel, for a
filter's gradient; a channel's image, in pooling) negates all results of that channel and, as rounding to nearest is
odd, all their errors, and leaves other channels as they are. Sums of errors by channel thus have independent random
signs, whatever happens inside of a channel, and z is taken over channels where it exceeds its limit over elements. A
gain is even under this, but for `drift` its sums by channel have mean zero and are independent given the other operand.
Where one or two products go into a rounding, the error follows each of its operands (below), the one that all channels
share as well: the mean over many channels is the other operand's, whose numbers are independent in turn. The gain is
then also taken over places, the sums of all channels. A number reaches as many places as a window has taps, all of them
alike, so that z is divided by their root (shared errors). For longer sums the gain is not taken over places: a wrong
kernel with few places passed. A sum has no more products than either operand has numbers, however many its window has
beside the image.

Errors are not independent, either, in any format where a bias has as many bits as the sums, as on natural inputs. Sums
of a few products end in ties, which leave even numbers, so that the last bits of a sum are known more often than not,
and those of the bias are the same for a whole channel: one rounding is up, or down, for most of its elements.

*Few bits to round.* A product of two numbers of 16 bits is rounded to 16: with one product in a result, the error is a
function of its two operands, and where one of these is next to a power of two it follows the other. Nothing is said
about gain and offset there, nor do they count such results among others: those whose s2 is their own size. The sum of a
few inputs, such as the gradient of a bias, has only a few bits more than the format. Of j bits all 2^j remainders are
as probable, half a spacing among them, so that the mean square of the error is 1 + 2/4^j times that of a continuous
one; the largest sums, which count most, have j = log2 sqrt(terms).

*Rounded constants.* A constant that multiplies every result adds up to u_acc*ref to its error: c*sum(ref^2) to
sum(e*ref), c*sum(ref) to sum(e), and to the errors a multiple of ref that is subtracted before their rms. Where
elements have constants of their own, sum |ref| takes the place of |sum ref|, and rms(e) <= rms(other errors) +
c*rms(ref).
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cache, lru_cache

import numpy as np
from numpy.polynomial.polynomial import polyfromroots

from conformance.accumulator import STORED
from conformance.contract import PREFIX_SUMS, Contract
from conformance.dtypes import FORMATS, Format

LAMBDA = 4.0
INPUT_FACTOR = 4.0
SLICES_FACTOR = 8.0
ALPHA = 1e-8
"""False alarms of one statistic in one verdict: a hundred runs of 10,000 verdicts raise about one."""
Z = math.sqrt(2 * math.log(2 / ALPHA))
"""Deviations that the sum of independent errors exceeds once in 1/ALPHA verdicts."""
HALVES = {"nearest": 1, "stochastic": 2}
RMS = 0.5
"""Limit on the rms error in units of u_out*rms(ref) + unit*rms(s2): sequential fp32 has 0.30, one output rounding
0.42."""

UNEVEN = 9 / 5
"""Mean of the fourth power of uniform numbers, in units of the square of that of their squares."""
SUMMED_PRODUCTS = 6
"""Products of parts that sums of fp32 do not lose (see the module, "Parts that hold an input")."""
FEW_PRODUCTS = 4
"""Most products of a sum that has hardly more bits than a single product."""
WINOGRAD = {
    "winograd-f2": (0, 1, -1),
    "winograd-f4": (0, 1, -1, 2, -2),
    "winograd-f6": (0, 1, -1, 2, -2, 1 / 2, -1 / 2),
}
"""Algorithm -> points of F(m x m, 3 x 3), beside infinity: Lavin and Gray, "Fast algorithms for convolutional neural
networks", 2016; for m = 6 Barabasz, Anderson, Soodhalter and Gregg, "Error analysis and improving the accuracy of
Winograd convolution for deep neural networks", ACM TOMS 46(4), 2020."""
FILTER_GAIN = {"winograd-f2": 2.0, "winograd-f4": 2.0, "winograd-f6": 56.0}
"""Relative error in all results of a filter, of the constants and of its transform, in units of u."""
TRANSFORM_ADDITIONS = {"winograd-f2": 8, "winograd-f4": 8, "winograd-f6": 12}
"""Roundings in the two-dimensional Winograd transforms of an element: at most four additions on each axis, six for
F(6x6,3x3)."""


@dataclass(frozen=True, slots=True)
class Constants:
    """Rounded constants that an operator allows for, such as reciprocals; `shared`: the same for every element. Sums
    are multiplied by `factor` at most, and with them what they have lost."""

    count: int
    shared: bool
    factor: float = 1.0


NONE = Constants(0, shared=True)


@dataclass(frozen=True, slots=True)
class OutputLimits:
    """The numbers of one output's bound (see the module) and of its statistics."""

    format: Format
    """Format that the output is rounded to."""
    inputs: float
    sums: float
    relative: float
    """inputs + sums: the bound before the output's rounding, in units of spread."""
    tiny: float
    unit: float
    """Rms of a declared error in multiples of s2."""
    gain: float
    """Largest relative error that the algorithm's own rounded constants may add to a result."""
    one_sided: bool
    """Whether errors have one sign, or follow the inputs, so that gain and offset mean nothing."""
    local: bool
    shared_constants: bool = True
    """Whether constants add their gain to every result."""
    fan_out: int = 1
    """The most elements that one rounding may reach."""
    drift: float = 0.0
    """Largest error that the nonzero mean of the roundings may add to a result, in units of spread."""
    few_states: bool = False
    """Whether roundings have so few different operands that only channels are independent."""
    lone_products: bool = False
    """Whether there are few states and hardly any sums: each rounding is of one or a few products."""
    coarse: float = 1.0
    """Rms of the output's rounding error, in multiples of that of a continuous error."""
    few_factors: float = 1.0
    """Rms of rounded inputs, of which one operand has few numbers, in multiples of that of many."""
    z: float = Z
    """Limit on |gain| and |offset|."""
    halves: int = 1
    """Half spacings that the output's own rounding may add to an error: one to nearest, two stochastically."""
    loss: float = 0.0
    """Largest share of a result that cutting takes away on average, or that rounded inputs do by chance."""
    excess: float = 0.0
    """Largest share of a result that rounded inputs add on average."""
    odd: bool = False
    """Whether errors follow the sign of an operand, so that only the offsets of channels are independent."""
    normwise: float = 0.0
    """How much the scale s2 is enlarged by slices, in units of their own scale: see the module, "Slices"."""
    absorbs: bool = False
    """Whether sums are bounded by the worst case, in units of the largest partial sum: see the module, "Absorption"."""

    def bound(
        self,
        reference: np.ndarray,
        s2: np.ndarray,
        size: np.ndarray | None = None,
        spreads: np.ndarray | None = None,
    ) -> np.ndarray:
        """Return the largest |y - ref| of a kernel that keeps its contract, for each element. `size` and `spreads` are
        |ref| and the spread, if the caller has them already."""
        size = np.abs(reference) if size is None else size
        before = self.before(reference, s2, size, spreads)
        allowed: np.ndarray = before + self.halves * half_ulp(size + before, self.format)
        return allowed

    def before(
        self, reference: np.ndarray, s2: np.ndarray, size: np.ndarray, spreads: np.ndarray | None = None
    ) -> np.ndarray:
        """Return the largest error before the output's rounding; arguments as those of `bound`."""
        partial = self.partial(reference, s2) if spreads is None else spreads
        error: np.ndarray = self.inputs * s2 + self.sums * partial + self.tiny
        if self.format.precision < FORMATS["fp32"].precision:
            error = error + FORMATS["fp32"].unit_roundoff * size
        return error

    def partial(self, reference: np.ndarray, s2: np.ndarray) -> np.ndarray:
        """Return the scale of partial sums, of which `sums` is a multiple."""
        if not self.absorbs:
            return spread(reference, s2)
        scale: np.ndarray = s2 / math.sqrt(2) + np.abs(reference)
        return scale

    def rms(self, count: float) -> float:
        """Return the limit on the rms of `count` errors."""
        x = math.log(1 / ALPHA) * self.fan_out / count
        return RMS * self.coarse * self.few_factors * math.sqrt(1 + 2 * math.sqrt(x) + 2 * x)


def spread(reference: np.ndarray, s2: np.ndarray) -> np.ndarray:
    """Return hypot(s2, ref), the scale of partial sums. Three times faster than np.hypot; float64 has the range."""
    scale: np.ndarray = np.sqrt(np.square(reference) + np.square(s2))
    return scale


def half_ulp(size: np.ndarray, format: Format) -> np.ndarray:
    """Return half the spacing of `format` at the non-negative numbers `size`; `tiny` covers its subnormal range.

    The exponent is read from the float64 bits: np.frexp would cost as much as the rest of the judgement.
    """
    power = (size.view(np.uint64) & np.uint64(0x7FF << 52)).view(np.float64)
    half: np.ndarray = power * format.unit_roundoff
    return half


@lru_cache(maxsize=1 << 12)
def limits(
    contract: Contract,
    dtype: str,
    terms: int,
    count: int = 1,
    constants: Constants = NONE,
    fan_out: int = 1,
    adds_inputs: bool = False,
    numbers: int = 0,
    absorbs: bool = False,
    unrounded: bool = False,
    independent: bool = False,
    biased: bool = False,
    made: bool = False,
) -> OutputLimits:
    """Return the limits for an output of `count` elements of `dtype`, each the sum of `terms` products, or of inputs;
    or, of prefix sums, of so many additions.

    `fan_out` is the most elements that one rounding may reach; `numbers` is the size of the smaller operand, if known;
    `absorbs` says that small terms stand beside a large one; `unrounded` that the formats to which inputs are rounded
    hold them; `independent` that products are those of independent numbers of mean zero; `biased` that sums may begin
    with another number; `made` that factors are made of several inputs, and no numbers of `dtype`.
    """
    accumulator = contract.accumulator(dtype)
    u = accumulator.unit_roundoff
    growth, own_constants, u_constant = 1.0, 0.0, u
    if contract.algorithm in WINOGRAD:
        roundings, growth = terms / 9 + TRANSFORM_ADDITIONS[contract.algorithm], winograd_growth(contract.algorithm)
        own_constants = FILTER_GAIN[contract.algorithm]
    elif contract.algorithm == "fft":
        stages = math.log2(max(2, count))
        roundings, own_constants = (math.sqrt(terms) + stages) ** 2, 2 + stages
    else:
        products = min(contract.products, SUMMED_PRODUCTS) * terms
        roundings = float(products if contract.slices is None else contract.slices.additions(terms))
    nearest = u * math.sqrt(roundings) * growth
    toward_zero = u * roundings * growth if contract.is_cut else 0.0
    if contract.unit is not None:
        largest, together = contract.unit.losses(math.ceil(roundings))
        nearest, toward_zero = together * growth, largest / 2 * growth if contract.is_cut else 0.0
        u_constant = STORED[contract.unit.into if contract.unit.promote else contract.unit.stored].unit_roundoff

    smallest = {
        name: format.smallest_subnormal if contract.subnormals == "kept" else format.smallest_normal
        for name, format in FORMATS.items()
    }
    splits = min(contract.splits, terms)
    smallest_sum = accumulator.smallest_subnormal if contract.subnormals == "kept" else accumulator.smallest_normal
    lost = math.sqrt(terms) * smallest_sum
    u_in, u_part, is_whole = 0.0, 0.0, True
    if contract.narrow:
        narrow = FORMATS[contract.narrow]
        # transforms compute in fp32 whatever the tensors, as do kernels that make factors; bf16 numbers may leave the
        # range of fp16, but lose no bits
        as_given = contract.algorithm == "direct" and not made
        bits = max(FORMATS[dtype].precision, 0 if as_given else FORMATS["fp32"].precision)
        is_whole = contract.parts * narrow.precision >= bits
        u_in, steps = narrow.unit_roundoff**contract.parts, 2 if contract.rounding == "zero" else 1
        if not is_whole:
            u_in *= steps**contract.parts
        else:
            u_in *= steps / 2 if contract.products > 1 else 0
        lost += math.sqrt(terms) * smallest[contract.narrow]
    if contract.splits > 1:
        u_part = FORMATS[contract.partials].unit_roundoff
        lost += math.sqrt(splits) * smallest[contract.partials]
    partials = u_part * math.sqrt(splits)
    truncated = terms * smallest_sum if contract.is_cut else 0.0

    few_states = max(u, u_part) > FORMATS["fp32"].unit_roundoff
    single = terms == 1 and not adds_inputs and FORMATS[dtype].precision < FORMATS["fp32"].precision
    bits = max(1, int(math.log2(math.sqrt(terms))))
    inputs, sums = INPUT_FACTOR * u_in * growth, LAMBDA * (nearest + partials) + 2 * toward_zero
    if absorbs or contract.algorithm in PREFIX_SUMS:
        one_by_one = u * roundings * (2 if contract.is_cut else 1)
        alike = u_in * math.sqrt(terms) if absorbs else 0.0
        lost_terms = one_by_one if contract.unit is None else contract.unit.absorbs(math.ceil(roundings))
        inputs, sums = 0.0 if unrounded else max(inputs, alike), lost_terms + 2 * splits * u_part
    normwise, is_sliced = 0.0, contract.slices is not None
    if contract.slices is not None:
        together = math.sqrt(terms) if absorbs or contract.rounding == "zero" else 1.0
        normwise = SLICES_FACTOR * contract.slices.unit_roundoff * together / sums
    z = math.sqrt(2 * math.log(2 / ALPHA))
    is_down = contract.unit is not None and contract.unit.rounding == "down"
    odd = independent and contract.algorithm == "direct" and not is_down and (contract.is_cut or not is_whole)
    loss = excess = 0.0
    if odd:
        uneven = z * math.sqrt(2 * UNEVEN / (numbers or terms))
        if contract.is_cut:
            loss += toward_zero * (1.0 if biased else min(1.0, 0.5 + uneven / math.sqrt(12))) + 2 * u
        if u_in > 0 and (contract.is_cut or not is_whole):
            to_nearest = FORMATS[contract.narrow].unit_roundoff ** contract.parts
            excess = to_nearest * min(2.0, 1 + uneven)
            cut = 0.0
            if contract.rounding == "zero":
                dropped = 0.5 if contract.products in (3, 6) else 0.0
                cut = 2**contract.parts * to_nearest * (1 + min(2.0, uneven) / 2 + dropped)
            loss += max(to_nearest * min(2.0, uneven), cut)
    return OutputLimits(
        format=FORMATS[dtype],
        inputs=inputs,
        sums=sums,
        relative=inputs + sums * (1 + normwise),
        tiny=(LAMBDA * lost + truncated) * constants.factor + smallest[dtype],
        unit=nearest + toward_zero + partials + 2 * u_in * growth,
        gain=u_constant * (constants.count + own_constants),
        one_sided=is_sliced
        or single
        or contract.algorithm in PREFIX_SUMS
        or (not odd and (contract.is_cut or not is_whole)),
        local=contract.algorithm == "direct",
        shared_constants=constants.shared,
        fan_out=fan_out,
        drift=roundings * growth * u**2 + splits * u_part**2,
        coarse=math.sqrt(1 + 2 / 4**bits) if adds_inputs else 1.0,
        few_states=few_states,
        lone_products=few_states and min(terms, numbers or terms) <= max(FEW_PRODUCTS, 2 * splits),
        halves=HALVES[contract.stored],
        few_factors=_few_factors(contract, numbers) if u_in > 0 and not is_whole and numbers else 1.0,
        z=math.sqrt(fan_out) * z,
        loss=loss,
        excess=excess,
        odd=odd,
        absorbs=absorbs,
        normwise=normwise,
    )


def _few_factors(contract: Contract, numbers: int) -> float:
    """Return how much larger the rms of rounded inputs may be where one operand has so few `numbers` that their errors,
    which whole channels share, are above the average: see the module, "Rms of rounded inputs"."""
    above = math.sqrt(math.log(1 / ALPHA) / (2 * numbers))
    squares, mean = min(1.0, 1 / 3 + above), min(1.0, 1 / 2 + above) if contract.rounding == "zero" else 0.0
    expected = 2 / 3 + (1 / 2 if contract.rounding == "zero" else 0.0)
    return math.sqrt((1 / 3 + squares + mean) / expected)


def propagated_limits(contract: Contract, dtype: str, alike: float = 0.0) -> OutputLimits:
    """Return the limits for an output in `dtype` whose bound before rounding is known by element and replaces s2.

    That bound is LAMBDA times the unit of rms for accumulation to nearest, and twice the unit for rounded inputs and
    drift. For a rounding between parts it is half a spacing, of which a uniform error has the deviation 1/sqrt(3); a
    raw variance may cancel to anything within the bound. All elements of a channel share the errors of its statistics,
    so that gain and offset mean nothing.

    `alike` is the share of the bound that terms rounded alike add to it (root of the sum of squares). It is one uniform
    error a channel, no deviations of many. Squares of T of these, in units of the largest, have a mean below 1/3 +
    sqrt(ln(1/ALPHA)/(2T)) (Hoeffding), which is no less than 1 up to 20 channels, so that the rms may be all of it. As
    no bound is negative, the rest of the bound has a share of sqrt(1 - alike^2) at most.
    """
    format = FORMATS[dtype]
    tiny = format.smallest_subnormal if contract.subnormals == "kept" else format.smallest_normal
    unit = 1 / LAMBDA
    if contract.inputs != "exact" or contract.is_cut:
        unit = 1 / 2
    if contract.between == "storage" or contract.variance == "raw":
        unit = 1 / (RMS * math.sqrt(3))
    unit = unit * math.sqrt(1 - alike**2) + alike / RMS
    halves = HALVES[contract.stored]
    return OutputLimits(format, 1.0, 0.0, 1.0, tiny, unit, 0.0, one_sided=True, local=True, halves=halves)


@cache
def winograd_matrices(algorithm: str) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Return B^T, G and A^T, which transform data, filters and results, by the algorithm of Toom and Cook (Barabasz et
    al. 2020, section 2): of other scales than published ones at most, which change no error."""
    points = np.array(WINOGRAD[algorithm], np.float64)
    roots_of = [np.delete(points, place) for place in range(len(points))]
    divisors = np.array([np.prod(point - roots) for point, roots in zip(points, roots_of, strict=True)])
    b = np.array([*([*polyfromroots(roots), 0.0] for roots in roots_of), polyfromroots(points)])
    g = np.vstack([np.vander(points, 3, increasing=True) / divisors[:, None], np.eye(3)[-1:]])
    size = len(points) - 1
    a = np.hstack([np.vander(points, size, increasing=True).T, np.eye(size)[:, -1:]])
    return b, g, a


@cache
def winograd_growth(algorithm: str) -> float:
    """Return the rounding error of F(m x m, 3 x 3) in units of u * sqrt(roundings) * s2.

    With unit-variance data, element t of the transformed product has standard deviation |B_t| |G_t| (row norms), and so
    its rounding errors scale; output o sums them with weights A[o,t], where a direct sum of three terms has sqrt(3) for
    s2. Two dimensions square the ratio.
    """
    b, g, a = winograd_matrices(algorithm)
    transformed = np.linalg.norm(b, axis=1) * np.linalg.norm(g, axis=1)
    return float(np.max(np.linalg.norm(a * transformed, axis=1)) / math.sqrt(3)) ** 2
