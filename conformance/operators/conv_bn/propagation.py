"""Bounds of convolution fused with batch normalisation, propagated from the bounds of its parts under one contract.

Every quantity below has a bound of LAMBDA standard deviations (`Arithmetic.deviations`; `conformance.judge.limits` has
the value of LAMBDA). In a sum, bounds of independent errors add in squares; bounds of one error that many elements
share add linearly. u is the accumulator's unit roundoff, sums_M the bound of a sum of M terms in units of its spread, b
= |gamma|.

*Convolution.* z_ = inputs*s2 + sums*spread + tiny, as for a convolution alone (an underscore marks a bound), or tiny
alone where the accumulator holds all bits that any sum of these products needs; and half a spacing of the storage
format where the contract says that z is rounded `between` the parts.

*Sums.* Roundings of a sum are independent as long as the summands differ by more than the accumulator's spacing. R
elements of a channel that do not differ so (all of a constant channel, those of padding) lose alike while the partial
sum S stays in a binade: at most u*|S| each, and no more than themselves, as S is a number too (Higham 2002, sections
2.2 and 4.2). With A their sum, S grows from sum - A to sum if they come last, and from 0 to A if they come first, which
is never more; for sums of one sign every other order lies between. So u*R*(|sum| + |sum - A|)/2 is added, or R times
the largest of them if that is less: half of u*M*|sum| in a constant channel, twice that behind a few elements that are
nearly the sum. It is the worst case of a single error, no LAMBDA deviations of many (`judge.limits.propagated_limits`).

*Mean.* mean_ = average(z_) + max(sums_M(|z| + z_), sums_M(d))/M + u*|mean|. The bound does not assume that z's errors
average out: on constant channels they are one error. A second pass that corrects the mean adds up d. Of padding, where
z is zero and loses nothing, d is not: R distances whose sum is A lose u*R*|A|/2. Where the accumulator holds all bits
of z, z lies on a grid and the last bits of every d are those of the rounded mean, so that its roundings are not
independent: as long as the partial sum stays in one binade they are one number. Each is at most u times the partial
sum, and u times the average of these is added: that of the sums in the order of memory, or (pi/8)*|d|_2 of a random
order, whose partial sums are a bridge of variance t(1-t)*|d|_2^2, if that is larger.

*Variance.* With d = z - mean, d_ = z_ + mean_ + u*|d|: var_ = average(2*|d|*(z_ + u*|d|) + d_^2) + 2*f*|d|_2*mean_/M
+ 2*u*var + sums_M((|d| + d_)^2)/M, f as below. One error of the mean meets sum d, which is zero, and remains in d_^2;
Welford's updates and blocks have an error for each element, independent of it. Two passes, and Welford's updates, keep
to this bound (Chan, Golub and LeVeque, The American Statistician 37, 1983). Raw moments, where declared, about zero or
about any element, add the same with |d| + reach for d and z_ for d_, reach = max(|mean|, max|d|), and
2*reach*mean_ + mean_^2 + 2*u*reach^2 for the square of the mean.

*Inverse deviation.* inv falls: inv_ = max(inv(var - var_) - inv, inv - inv(var + var_)) + 4*u*inv, no variance below
zero. It is not linearised, since var_ may exceed var, where the first of the two ends at 1/sqrt(eps) and the second is
the larger one.

*Forward.* y = (z - mean)*inv*gamma + beta, or z*scale + shift with rounded scale and shift, which is equally accurate:
y_ = b*(inv*(z_ + mean_) + (|d| + d_)*inv_) + u*(4*b*inv*(|z| + |mean|) + |beta| + |y|).

*Backward.* total = sum dy and product = sum dy*d: total_ = sums_M(dy). What d_ does to product: the mean's error
meets total itself; that of z and of rounding d, own_ = z_ + u*|d|, is weighed with dy of random sign and adds in
squares, but windows with equal data share one: product_ = f*sqrt(sum (dy*own_)^2) + |total|*(mean_ + max own_) +
sums_M(dy*d) + 2*u*|product|, f = 2, or LAMBDA where z is rounded between; and the bound of sum dy*z - mean*total
where moments are raw. pull_ is the furthest that product_ and var_ take pull = product*inv^2/M, or
product*inv/(s*(M - 1)). The latter has a pole at s = 0; by Cauchy and Schwarz it stays below |dy|*inv/sqrt(M - 1), |dy|
the root of the sum of squares; that is used where var_ reaches var. In dz = b*inv*(dy - total/M - d*pull), or
a*dy + b*z + c with three rounded coefficients, which is equally accurate, with |pull| + pull_ for pull and inv + inv_
for inv below:

  shared by a channel   a = b*inv*(total_/M + pull*mean_), times 1; c = b*inv*pull_, times d; e = inv_/inv, times dz
  of each element       i = b*inv*(pull*z_ + 4*u*(|dy| + |total/M| + (|d| + |z|)*pull)); where rounded between, also
                        half a spacing times LAMBDA/sqrt(3): its error is uniform, and the bound is LAMBDA deviations

A gradient of the convolution is linear in dz: errors that a channel shares add exactly a*|dw(1)| + c*|dw(d)| + e*|dw|
to dw; dx sums them over channels, which are independent, and over at most R*S taps, which are not (Cauchy and Schwarz):
sqrt(R*S * dx2(shared^2)), dx2 being the operator on squares. Independent errors add sqrt(dx2(i^2)). The error of
rounding the exact dz between the parts is known, and is not random where 16-bit data leave dz few values: its gradient
is added. The gradient's own rounding is added, as for a convolution alone.

*Inference.* The scale may be folded into the filters, and a sum begin with the folded shift: z_ is then that of partial
sums of the size of |mean| + |beta|/(b*inv) as well.

*Backward of inference.* Mean and inverse deviation are constants, so that only the last of the shared errors is left,
e = 4*u, and i = 4*u*|dz|. The product is that of backward, mean_ = 0, or the difference of sum dy*z and mean*total; a
kernel whose scale is folded into the filters has the sum of w*dw for sum dy*z, whose roundings are of the size of s2
instead of z.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from conformance.operators.base import Arithmetic, Arrays, Operator
from conformance.operators.conv.operators import ConvBackwardData, ConvBackwardWeight
from conformance.operators.conv_bn.geometry import ConvBnGeometry
from conformance.operators.spatial import as_image, by_channel, column

_DX, _DW = ConvBackwardData(), ConvBackwardWeight()
CLUSTERS = 2.0
"""Factor f for errors that are not independent. Errors of z weighed by dy: windows with the same data share one error,
and their dy need not cancel. Errors of running means weighed by d: each mean begins with the error of the last."""
LARGEST = 1e15
"""Largest number that is added up in float32: sums of products of two such numbers are within its range."""
FOLDED = 4.0
"""Number of roundings of scale, shift and their parts, each at most u times the largest intermediate number."""


@dataclass(frozen=True, slots=True)
class _Bounds:
    """Bounds of intermediate results: [K, M] for z and d, [K] for the others."""

    z: np.ndarray
    d: np.ndarray
    mean: np.ndarray
    var: np.ndarray
    inverse: np.ndarray
    """The inverse deviation itself, not its bound."""
    inverse_bound: np.ndarray


def pull(geometry: ConvBnGeometry, var: np.ndarray, product: np.ndarray) -> np.ndarray:
    """Compute the factor of d in the term that the gradient through the variance subtracts from dy, [K].

    It is product * inv^2 / M, or product * inv / (sqrt(var) * (M - 1)) where eps is outside the root; `product` is the
    sum of dy*d. A constant channel has d = 0, so that nothing is subtracted.
    """
    inverse = geometry.inverse(var)
    other = inverse
    if geometry.eps_outside:
        other = np.divide(1, np.sqrt(var), out=np.zeros_like(var), where=var != 0)
    return product * inverse * other / geometry.freedom


def _statistics(geometry: ConvBnGeometry, scales: Arrays, arithmetic: Arithmetic) -> _Bounds:
    d, mean, var, u = scales["d"], scales["mean"], scales["var"], arithmetic.u
    z_bound = _of_z(geometry, scales, arithmetic, int(scales["bits"]))
    summed = _summed(scales, arithmetic)
    mean_bound = z_bound.mean(axis=1) + u * np.abs(mean)
    first, second = arithmetic.sum(summed + np.copysign(z_bound, summed)), arithmetic.sum(d)
    mean_bound += np.maximum(first, second) / geometry.count
    if arithmetic.holds(int(scales["bits"])):
        partial_sums = np.abs(np.cumsum(d, axis=1)).mean(axis=1)
        mean_bound += u * np.maximum(partial_sums, math.pi / 8 * np.linalg.norm(d, axis=1))
    d_bound = z_bound + mean_bound[:, None] + u * np.abs(d)
    var_bound = _of_variance(geometry, scales, arithmetic, z_bound, mean_bound, d_bound)
    inverse = geometry.inverse(var)
    inverse_bound = _furthest(geometry.inverse, var, var_bound) + FOLDED * u * inverse
    return _Bounds(z_bound, d_bound, mean_bound, var_bound, inverse, inverse_bound)


def _furthest(falling: Callable[[np.ndarray], np.ndarray], var: np.ndarray, bound: np.ndarray) -> np.ndarray:
    """Bound the change of a falling function of the variance if the variance changes by up to `bound`."""
    exact = falling(var)
    least, most = falling(var + bound), falling(np.maximum(var - bound, 0))
    return np.maximum(most - exact, exact - least)


def _of_z(geometry: ConvBnGeometry, scales: Arrays, arithmetic: Arithmetic, bits: int | None = None) -> np.ndarray:
    bound = arithmetic.product(scales["z"], scales["s2"], geometry.filter.size // geometry.k, bits)
    return bound + arithmetic.between(np.abs(scales["z"]) + bound)


def _of_variance(
    geometry: ConvBnGeometry,
    scales: Arrays,
    arithmetic: Arithmetic,
    z_bound: np.ndarray,
    mean_bound: np.ndarray,
    d_bound: np.ndarray,
) -> np.ndarray:
    d, u = scales["d"], arithmetic.u
    squares = (2 * np.abs(d) * (z_bound + u * np.abs(d)) + d_bound**2).sum(axis=1)
    moving = 2 * CLUSTERS * np.linalg.norm(d, axis=1) * mean_bound
    summed = arithmetic.sum((np.abs(d) + d_bound) ** 2)
    bound = (squares + moving + summed) / geometry.freedom + 2 * u * scales["var"]
    if arithmetic.raw_moments:
        values = _summed(scales, arithmetic)
        errors = (2 * values * z_bound + z_bound**2).sum(axis=1)
        bound += (errors + arithmetic.sum((values + z_bound) ** 2)) / geometry.freedom
        reach = _reach(scales)
        bound += 2 * reach * mean_bound + mean_bound**2 + 2 * arithmetic.u * reach**2
    return bound


def _reach(scales: Arrays) -> np.ndarray:
    """Return the distance from the mean to the point that raw moments may be taken about: zero, or any element."""
    return np.maximum(np.abs(scales["mean"]), np.max(np.abs(scales["d"]), axis=1))


def _summed(scales: Arrays, arithmetic: Arithmetic) -> np.ndarray:
    """Return the summands of the mean [K, M], or with raw moments an upper bound of their size."""
    if not arithmetic.raw_moments:
        return scales["z"]
    return np.abs(scales["d"]) + _reach(scales)[:, None]


def _of_y(
    geometry: ConvBnGeometry,
    inputs: Arrays,
    scales: Arrays,
    arithmetic: Arithmetic,
    of_statistics: _Bounds,
    mean: np.ndarray,
) -> np.ndarray:
    """Bound y: y_ as [N, K, P, Q]; `mean` is subtracted from z."""
    z, u, gamma = scales["z"], arithmetic.u, np.abs(column(inputs.get("gamma")))
    d, inverse = np.abs(z - mean[:, None]), of_statistics.inverse[:, None]
    errors = (
        inverse * (of_statistics.z + of_statistics.mean[:, None])
        + (d + of_statistics.d) * of_statistics.inverse_bound[:, None]
    )
    shift = np.abs(column(inputs["beta"])) if geometry.affine else 0.0
    rounded = FOLDED * gamma * inverse * (np.abs(z) + np.abs(mean)[:, None]) + 2 * shift + gamma * inverse * d
    return as_image(gamma * errors + u * rounded, geometry)


def forward(geometry: ConvBnGeometry, inputs: Arrays, scales: Arrays, arithmetic: Arithmetic) -> Arrays:
    """Bound y and the statistics."""
    of_statistics = _statistics(geometry, scales, arithmetic)
    bounds = {
        "y": _of_y(geometry, inputs, scales, arithmetic, of_statistics, scales["mean"]),
        "mean": of_statistics.mean,
        "var": of_statistics.var,
    }
    if geometry.running:
        unbiased = geometry.freedom / (geometry.count - 1)
        moved = (
            ("running_mean", scales["mean"], of_statistics.mean),
            ("running_var", scales["var"] * unbiased, of_statistics.var * unbiased),
        )
        for name, new, bound in moved:
            size = np.abs(inputs[name].astype(np.float64)) + geometry.momentum * np.abs(new)
            bounds[name] = geometry.momentum * bound + FOLDED * arithmetic.u * size
    return bounds


def inference(geometry: ConvBnGeometry, inputs: Arrays, scales: Arrays, arithmetic: Arithmetic) -> Arrays:
    """Bound y with given statistics: the scale may be folded into the filters, and a sum may begin with the shift, as
    libraries begin a sum with the bias."""
    inverse = geometry.inverse(inputs["running_var"].astype(np.float64))
    mean, none = inputs["running_mean"].astype(np.float64), np.zeros(geometry.k)
    z = _of_z(geometry, scales, arithmetic)
    if not arithmetic.rounds_between:
        gamma, beta = (inputs.get(name, none).astype(np.float64) for name in ("gamma", "beta"))
        scale = inverse * (np.abs(gamma) if geometry.affine else 1)
        begin = np.divide(np.abs(beta), scale, out=np.zeros_like(scale), where=scale > 0) + np.abs(mean)
        z = _of_z(geometry, scales | {"z": np.hypot(scales["z"], begin[:, None])}, arithmetic)
    of_statistics = _Bounds(z, z, none, none, inverse, FOLDED * arithmetic.u * inverse)
    return {"y": _of_y(geometry, inputs, scales, arithmetic, of_statistics, mean)}


def backward(geometry: ConvBnGeometry, inputs: Arrays, scales: Arrays, arithmetic: Arithmetic) -> Arrays:
    """Bound the four gradients."""
    of_statistics = _statistics(geometry, scales, arithmetic)
    dy = by_channel(inputs["dy"].astype(np.float64))
    total = arithmetic.sum(dy)
    product = _of_product(dy, scales, arithmetic, of_statistics)
    if arithmetic.raw_moments:
        product = product + arithmetic.sum(dy * scales["z"]) + np.abs(scales["mean"]) * total
    shared, unshared = _of_dz(geometry, inputs, scales, arithmetic, of_statistics, (dy, total, product))
    patterns = ((shared.one, scales["ones"]), (shared.d, scales["distances"]), (shared.dz, scales["dw"]))
    stored = as_image(arithmetic.stored(scales["dz"]) - scales["dz"], geometry)
    operands = {"dy": stored, "w": inputs["w"], "x": inputs["x"]}
    bounds = {
        "dx": np.abs(_linear(_DX, geometry, operands))
        + _of_dx(geometry, inputs["w"], scales, arithmetic, shared, unshared),
        "dw": np.abs(_linear(_DW, geometry, operands))
        + _of_dw(geometry, inputs["x"], scales, arithmetic, patterns, unshared),
    }
    if geometry.affine:
        size = np.abs(scales["product"])
        bounds["dgamma"] = product * of_statistics.inverse + (size + product) * of_statistics.inverse_bound
        bounds["dbeta"] = total
    return bounds


def frozen(geometry: ConvBnGeometry, inputs: Arrays, scales: Arrays, arithmetic: Arithmetic) -> Arrays:
    """Bound the four gradients of `inference`."""
    z_bound, u, none = _of_z(geometry, scales, arithmetic), arithmetic.u, np.zeros(geometry.k)
    mean = np.abs(inputs["running_mean"].astype(np.float64))
    inverse = geometry.inverse(inputs["running_var"].astype(np.float64))
    of_statistics = _Bounds(z_bound, z_bound + u * np.abs(scales["d"]), none, none, inverse, FOLDED * u * inverse)
    rounded = FOLDED * u * np.abs(scales["dz"])
    unshared = rounded + arithmetic.deviations / math.sqrt(3) * arithmetic.between(np.abs(scales["dz"]) + rounded)
    shared = _Shared(none, none, np.full(geometry.k, FOLDED * u))
    stored = as_image(arithmetic.stored(scales["dz"]) - scales["dz"], geometry)
    operands = {"dy": stored, "w": inputs["w"], "x": inputs["x"]}
    of_dw = _of_dw(geometry, inputs["x"], scales, arithmetic, ((shared.dz, scales["dw"]),), unshared)
    bounds = {
        "dx": np.abs(_linear(_DX, geometry, operands))
        + _of_dx(geometry, inputs["w"], scales, arithmetic, shared, unshared),
        "dw": np.abs(_linear(_DW, geometry, operands)) + of_dw,
    }
    if geometry.affine:
        dy = by_channel(inputs["dy"].astype(np.float64))
        total = arithmetic.sum(dy)
        sums = arithmetic.sum(dy * scales["s2"]) + arithmetic.sum(dy * scales["z"]) + mean * total
        product = _of_product(dy, scales, arithmetic, of_statistics) + sums
        size = np.abs(scales["product"])
        bounds["dgamma"] = product * inverse + (size + product) * of_statistics.inverse_bound
        bounds["dbeta"] = total
    return bounds


def _of_product(dy: np.ndarray, scales: Arrays, arithmetic: Arithmetic, of_statistics: _Bounds) -> np.ndarray:
    d, u = scales["d"], arithmetic.u
    distance_bound = of_statistics.z + u * np.abs(d)
    common = np.abs(scales["total"]) * (of_statistics.mean + distance_bound.max(axis=1))
    factor = arithmetic.deviations if arithmetic.rounds_between else CLUSTERS
    errors = factor * np.linalg.norm(dy * distance_bound, axis=1) + common
    summed = arithmetic.sum(dy * (d + np.copysign(of_statistics.d, d)))
    return errors + summed + 2 * u * np.abs(scales["product"])


@dataclass(frozen=True, slots=True)
class _Shared:
    """Errors of dz that a channel shares, [K]: in units of 1, of d and of dz."""

    one: np.ndarray
    d: np.ndarray
    dz: np.ndarray


def _of_dz(
    geometry: ConvBnGeometry,
    inputs: Arrays,
    scales: Arrays,
    arithmetic: Arithmetic,
    of_statistics: _Bounds,
    sums: tuple[np.ndarray, np.ndarray, np.ndarray],
) -> tuple[_Shared, np.ndarray]:
    """Bound errors of dz: those that a channel shares, and those of single elements [K, M]. `sums` are dy, total_ and
    product_."""
    dy, total, product = sums
    u, scale = (
        arithmetic.u,
        np.abs(column(inputs.get("gamma"))) * (of_statistics.inverse + of_statistics.inverse_bound)[:, None],
    )
    slope_bound = _of_pull(geometry, scales, arithmetic, of_statistics, dy, product)
    average = np.abs(scales["total"]) / geometry.count
    steep = np.abs(pull(geometry, scales["var"], scales["product"])) + slope_bound
    constant = scale[:, 0] * (total / geometry.count + steep * of_statistics.mean)
    rounded = np.abs(dy) + average[:, None] + (np.abs(scales["d"]) + np.abs(scales["z"])) * steep[:, None]
    unshared = scale * (steep[:, None] * of_statistics.z + FOLDED * u * rounded)
    shared = _Shared(constant, scale[:, 0] * slope_bound, of_statistics.inverse_bound / of_statistics.inverse)
    return shared, unshared + arithmetic.deviations / math.sqrt(3) * arithmetic.between(np.abs(scales["dz"]) + unshared)


def _of_pull(
    geometry: ConvBnGeometry,
    scales: Arrays,
    arithmetic: Arithmetic,
    of_statistics: _Bounds,
    dy: np.ndarray,
    product: np.ndarray,
) -> np.ndarray:
    """Bound the change of `pull` between the largest and the smallest possible product and variance."""
    var, size = scales["var"], np.abs(scales["product"])
    least, most = np.maximum(var - of_statistics.var, 0), var + of_statistics.var
    exact = pull(geometry, var, size)
    high = pull(geometry, least, size + product)
    low = pull(geometry, np.where(size < product, least, most), size - product)
    if geometry.eps_outside:
        cap = np.linalg.norm(dy, axis=1) * geometry.inverse(least) / np.sqrt(geometry.freedom)
        high, low = np.where(least > 0, high, cap), np.where(least > 0, low, -cap)
    return np.maximum(high - exact, exact - low) + FOLDED * arithmetic.u * exact


def _linear(operator: Operator, geometry: ConvBnGeometry, inputs: Arrays) -> np.ndarray:
    """Compute a convolution's gradient at other tensors in float32, which is enough to scale a bound."""
    # in float32, squares of a bound far beyond any value overflowed, and limits became NaN
    wide = any(float(np.abs(array).max(initial=0)) > LARGEST for array in inputs.values() if array is not None)
    dtype = np.float64 if wide else np.float32
    return next(iter(operator.reference(geometry.conv, inputs, dtype).values())).astype(np.float64)


def _of_dx(
    geometry: ConvBnGeometry,
    w: np.ndarray,
    scales: Arrays,
    arithmetic: Arithmetic,
    shared: _Shared,
    unshared: np.ndarray,
) -> np.ndarray:
    taps = math.prod(geometry.window)
    common = shared.one[:, None] + shared.d[:, None] * np.abs(scales["d"]) + shared.dz[:, None] * np.abs(scales["dz"])
    squares = as_image(taps * common**2 + unshared**2, geometry)
    operands = {"dy": squares, "w": np.square(w.astype(np.float64))}
    propagated = np.sqrt(_linear(_DX, geometry, operands))
    terms = _DX.errors(geometry.conv).terms["dx"]
    return propagated + arithmetic.product(scales["dx"], scales["s2_dx"], terms)


def _of_dw(
    geometry: ConvBnGeometry,
    x: np.ndarray,
    scales: Arrays,
    arithmetic: Arithmetic,
    patterns: Sequence[tuple[np.ndarray, np.ndarray]],
    unshared: np.ndarray,
) -> np.ndarray:
    """Bound dw; `patterns` are errors that a channel shares [K], each with dw of the unit that the error is in."""
    common = sum(
        (factor.reshape(-1, *(1,) * (pattern.ndim - 1)) * np.abs(pattern) for factor, pattern in patterns),
        start=np.zeros(()),
    )
    operands = {"x": np.square(x.astype(np.float64)), "dy": as_image(unshared**2, geometry)}
    independent = np.sqrt(_linear(_DW, geometry, operands))
    terms = _DW.errors(geometry.conv).terms["dw"]
    return common + independent + arithmetic.product(scales["dw"], scales["s2_dw"], terms)
