"""Right kernels of ten operators, which the tests' known-bad kernels spoil.

Each takes the inputs of its operator and a mapping of its parameters. It computes in fp32, in fp64 for fp64
tensors, and rounds once; inside, images and filters are [N,C,H,W] and [K,C,R,S] whatever their layout.
"""

from __future__ import annotations

import ml_dtypes
import numpy as np

BF16 = ml_dtypes.bfloat16
ALL, BOTH = ("fp32", "fp64", "fp16", "bf16"), ("nchw", "nhwc")
INPUTS = {
    "conv_forward": ("x", "w", "bias"),
    "conv_backward_data": ("dy", "w"),
    "conv_backward_weight": ("x", "dy"),
    "conv_bn_forward": ("x", "w", "gamma", "beta", "running_mean", "running_var"),
    "conv_bn_backward": ("dy", "x", "w", "gamma"),
    "conv_bn_inference": ("x", "w", "gamma", "beta", "running_mean", "running_var"),
    "avg_pool_forward": ("x",),
    "avg_pool_backward": ("dy",),
    "max_pool_forward": ("x",),
    "max_pool_backward": ("dy", "x"),
}
OPERATORS = tuple(INPUTS)
F, D, W, BF, BB, BI, AF, AB, MF, MB = OPERATORS
CONVS, NORMS, POOLS = OPERATORS[:3], OPERATORS[3:6], OPERATORS[6:]


def acc_of(a):
    return np.float64 if a.dtype == np.float64 else np.float32


def nchw(a, layout):
    """A view with channels first."""
    return a if layout == "nchw" or a is None else a.transpose(0, 3, 1, 2)


def lay(a, layout):
    """A view in a layout, of channels first."""
    return a if layout == "nchw" else a.transpose(0, 2, 3, 1)


def back(a, layout, dtype):
    return np.ascontiguousarray(lay(a, layout).astype(dtype))


def ch(v):
    return v[:, None, None]


def over_channels(v, o):
    """A vector that goes with a tensor of o's layout."""
    return ch(v) if o.L == "nchw" else v


def total(z):
    """[N,K,P,Q] -> [K], pairwise."""
    return np.ascontiguousarray(z.transpose(1, 0, 2, 3)).reshape(z.shape[1], -1).sum(1)


def extent(n, k, u, pad, d=1, ceil=False):
    """Positions of a window of k along an axis of n; those that would start behind the image do not count."""
    span = n + sum(pad) - d * (k - 1) - 1
    found = (-(-span // u) if ceil else span // u) + 1
    return found - 1 if ceil and (found - 1) * u >= n + pad[0] else found


def extents(image, window, p):
    axes = zip(image, window, p["stride"], p["padding"], p.get("dilation", (1, 1)), strict=True)
    return [extent(*axis, p.get("ceil_mode", False)) for axis in axes]


def padded(x, padding, value=0):
    return np.pad(x, ((0, 0), (0, 0), *padding), constant_values=value) if np.any(padding) else x


def taps(window, counts, p):
    """Positions of the window, and the index of what they meet in the padded image."""
    for tap in np.ndindex(*window):
        axes = zip(tap, counts, p["stride"], p.get("dilation", (1, 1)), strict=True)
        yield tap, (..., *(slice(t * d, t * d + (count - 1) * u + 1, u) for t, count, u, d in axes))


def conv(x, w, p, acc):
    x, w, g = padded(x.astype(acc), p["padding"]), w.astype(acc), p["groups"]
    (n, _, *image), (k, cg, *window) = x.shape, w.shape
    P, Q = extents(image, window, {**p, "padding": ((0, 0), (0, 0))})
    w = w.reshape(g, k // g, cg, *window)
    y = np.zeros((n, g, k // g, P * Q), acc)
    for (r, s), at in taps(window, (P, Q), p):
        t, f = x[at].reshape(n, g, cg, P * Q), np.ascontiguousarray(w[..., r, s])
        y += f * t if cg == 1 else np.matmul(f, t)
    return y.reshape(n, k, P, Q)


def conv_dx(dy, w, p, acc, size):
    (n, k, P, Q), (_, cg, *window), g = dy.shape, w.shape, p["groups"]
    ((top, bottom), (left, end)), (h, wide) = p["padding"], size
    dy, w = dy.astype(acc).reshape(n, g, k // g, P * Q), w.astype(acc).reshape(g, k // g, cg, *window)
    dx = np.zeros((n, g * cg, h + top + bottom, wide + left + end), acc)
    for tap, at in taps(window, (P, Q), p):
        f = np.ascontiguousarray(w[(..., *tap)].transpose(0, 2, 1))
        dx[at] += (f * dy if k == g else np.matmul(f, dy)).reshape(n, g * cg, P, Q)
    return dx[:, :, top : top + h, left : left + wide]


def conv_dw(x, dy, p, acc, window):
    x, g = padded(x.astype(acc), p["padding"]), p["groups"]
    (n, k, P, Q), cg = dy.shape, x.shape[1] // g
    dy = dy.astype(acc).reshape(n, g, k // g, P * Q).transpose(1, 2, 0, 3).reshape(g, k // g, n * P * Q)
    dw = np.zeros((g, k // g, cg, *window), acc)
    for tap, at in taps(window, (P, Q), p):
        t = x[at].reshape(n, g, cg, P * Q).transpose(1, 0, 3, 2).reshape(g, n * P * Q, cg)
        dw[(..., *tap)] = np.matmul(dy, t)
    return dw.reshape(k, cg, *window)


def patches(x, w, p, acc):
    """im2col: [N,G,Cg*R*S,PQ], [G,Kg,Cg*R*S], and the shape of y."""
    x, g = padded(x.astype(acc), p["padding"]), p["groups"]
    (n, _, *image), (k, _, *window) = x.shape, w.shape
    P, Q = extents(image, window, {**p, "padding": ((0, 0), (0, 0))})
    f = w.astype(acc).reshape(g, k // g, -1)
    columns = np.stack([x[at] for _, at in taps(window, (P, Q), p)], 2)
    return columns.reshape(n, g, f.shape[2], P * Q), f, (n, k, P, Q)


def conv_forward(i, p, acc=None, conv=conv):
    (x, w, bias), L = i, p["layout"]
    acc = acc or acc_of(x)
    y = conv(nchw(x, L), nchw(w, L), p, acc)
    return back(y if bias is None else y + ch(bias.astype(acc)), L, x.dtype)


def conv_backward_data(i, p, acc=None):
    (dy, w), L = i, p["layout"]
    return back(conv_dx(nchw(dy, L), nchw(w, L), p, acc or acc_of(dy), p["input_size"]), L, dy.dtype)


def conv_backward_weight(i, p, acc=None):
    (x, dy), L = i, p["layout"]
    acc = acc or acc_of(x)
    dw = back(conv_dw(nchw(x, L), nchw(dy, L), p, acc, p["kernel_size"]), L, x.dtype)
    return (dw, total(nchw(dy, L).astype(acc)).astype(x.dtype)) if p["with_bias"] else dw


def convolved(x, w, p, acc, between):
    """z of batch normalisation; `between` kernels it is stored in the format of x."""
    z = conv(nchw(x, p["layout"]), nchw(w, p["layout"]), p, acc)
    return z.astype(x.dtype).astype(acc) if between else z


def moments(z, acc, p, raw):
    """Count, mean, the variance that is asked for, and the unbiased one."""
    m = z.shape[0] * z.shape[2] * z.shape[3]
    mean = total(z) / acc(m)
    squares = total(np.square(z - ch(mean)))
    if raw:
        squares = np.maximum(total(z * z) / acc(m) - mean * mean, 0) * acc(m)
    unbiased = squares / acc(max(m - 1, 1))
    return m, mean, unbiased if p["eps_outside"] else squares / acc(m), unbiased


def denominator(var, p, acc):
    return np.sqrt(var) + acc(p["eps"]) if p["eps_outside"] else np.sqrt(var + acc(p["eps"]))


def affine(y, gamma, beta, acc):
    return y if gamma is None else y * ch(gamma.astype(acc)) + ch(beta.astype(acc))


def conv_bn_forward(i, p, acc=None, raw=False, between=False):
    x, w, gamma, beta, *running = i
    acc, st = acc or acc_of(x), acc_of(x)
    z = convolved(x, w, p, acc, between)
    _, mean, var, unbiased = moments(z, acc, p, raw)
    y = affine((z - ch(mean)) / ch(denominator(var, p, acc)), gamma, beta, acc)
    out = (back(y, p["layout"], x.dtype), mean.astype(st), var.astype(st))
    if running[0] is not None:
        mo = acc(p["momentum"])
        pairs = zip(running, (mean, unbiased), strict=True)
        out += tuple(((1 - mo) * old.astype(acc) + mo * new).astype(st) for old, new in pairs)
    return out


def conv_bn_backward(i, p, acc=None, raw=False, between=False):
    (dy, x, w, gamma), L = i, p["layout"]
    acc, st = acc or acc_of(x), acc_of(x)
    xs, ws, g = nchw(x, L), nchw(w, L), nchw(dy, L).astype(acc)
    z = convolved(x, w, p, acc, between)
    m, mean, var, _ = moments(z, acc, p, raw)
    den = denominator(var, p, acc)
    xhat = (z - ch(mean)) / ch(den)
    dbeta, dgamma = total(g), total(g * xhat)
    scale = acc(1) if gamma is None else ch(gamma.astype(acc))
    if p["eps_outside"]:
        sd = np.sqrt(var)
        f = np.where(sd > 0, dgamma / (np.where(sd > 0, sd, 1) * acc(max(m - 1, 1))), 0)
        dz = scale * ((g - ch(dbeta / acc(m))) / ch(den) - xhat * ch(f))
    else:
        dz = scale * (g - ch(dbeta / acc(m)) - xhat * ch(dgamma / acc(m))) / ch(den)
    if between:
        dz = dz.astype(x.dtype).astype(acc)
    dx = back(conv_dx(dz, ws, p, acc, xs.shape[2:]), L, x.dtype)
    dw = back(conv_dw(xs, dz, p, acc, ws.shape[2:]), L, x.dtype)
    return (dx, dw) if gamma is None else (dx, dw, dgamma.astype(st), dbeta.astype(st))


def conv_bn_inference(i, p, acc=None, between=False):
    x, w, gamma, beta, mean, var = i
    acc = acc or acc_of(x)
    z = convolved(x, w, p, acc, between)
    y = (z - ch(mean.astype(acc))) / ch(denominator(var.astype(acc), p, acc))
    return back(affine(y, gamma, beta, acc), p["layout"], x.dtype)


def room(image, counts, p):
    """Padding before and after each axis so that every window fits, those of ceil mode too."""
    axes = zip(image, counts, p["kernel_size"], p["stride"], p.get("dilation", (1, 1)), p["padding"], strict=True)
    return [(a[0], max(0, (n - 1) * u + d * (k - 1) + 1 - size - a[0])) for size, n, k, u, d, a in axes]


def divisor(image, counts, p, acc):
    if p["divisor_override"]:
        return acc(p["divisor_override"])
    found = []
    axes = zip(image, counts, p["kernel_size"], p["stride"], p["padding"], strict=True)
    for size, n, k, u, pad in axes:
        start = np.arange(n) * u - pad[0]
        end = np.minimum(start + k, size + pad[1])
        found.append(end - start if p["count_include_pad"] else np.minimum(end, size) - np.maximum(start, 0))
    return np.outer(*found).astype(acc)


def window_sums(x, p, acc, window=None):
    """Of the window's first positions only, where it is told how many."""
    counts = extents(x.shape[2:], p["kernel_size"], p)
    x = padded(x.astype(acc), room(x.shape[2:], counts, p))
    y = np.zeros((*x.shape[:2], *counts), acc)
    for _, at in list(taps(p["kernel_size"], counts, p))[:window]:
        y += x[at]
    return y


def avg_pool_forward(i, p, acc=None, window=None):
    (x,), L = i, p["layout"]
    acc, xs = acc or acc_of(x), nchw(x, L)
    y = window_sums(xs, p, acc, window)
    return back(y / divisor(xs.shape[2:], y.shape[2:], p, acc), L, x.dtype)


def spread(g, size, p, at_tap):
    """dx of a pool: to every position of the window what of g `at_tap` gives to it."""
    counts = g.shape[2:]
    rows, columns = room(size, counts, p)
    (h, w), (n, c) = size, g.shape[:2]
    dx = np.zeros((n, c, h + sum(rows), w + sum(columns)), g.dtype)
    for tap, at in taps(p["kernel_size"], counts, p):
        dx[at] += at_tap(tap)
    return dx[:, :, rows[0] : rows[0] + h, columns[0] : columns[0] + w]


def avg_pool_backward(i, p, acc=None):
    (dy,), L = i, p["layout"]
    acc = acc or acc_of(dy)
    g = nchw(dy, L).astype(acc)
    g = g / divisor(p["input_size"], g.shape[2:], p, acc)
    return back(spread(g, p["input_size"], p, lambda tap: g), L, dy.dtype)


def maxima(x, p):
    """Maxima, and the positions in their windows of the first of each; NaN is the largest."""
    counts = extents(x.shape[2:], p["kernel_size"], p)
    edges = room(x.shape[2:], counts, p)
    inside = padded(np.ones((1, 1, *x.shape[2:]), bool), edges, False)
    x = padded(x, edges, -np.inf)
    best = np.full((*x.shape[:2], *counts), -np.inf, x.dtype)
    index = np.full(best.shape, -1)
    for (r, s), at in taps(p["kernel_size"], counts, p):
        take = inside[at] & ((index < 0) | (x[at] > best) | (np.isnan(x[at]) & ~np.isnan(best)))
        best = np.where(take, x[at], best)
        index = np.where(take, r * p["kernel_size"][1] + s, index)
    return best, index


def max_pool_forward(i, p, acc=None):
    (x,), L = i, p["layout"]
    return back(maxima(nchw(x, L).astype(acc_of(x)), p)[0], L, x.dtype)


def max_pool_backward(i, p, acc=None, kept=lambda index: index):
    """`kept` are the positions of the maxima as they are kept between forward and backward."""
    (dy, x), L = i, p["layout"]
    xs, g = nchw(x, L).astype(acc_of(x)), nchw(dy, L).astype(acc or acc_of(x))
    index, width = kept(maxima(xs, p)[1]), p["kernel_size"][1]
    dx = spread(g, xs.shape[2:], p, lambda tap: np.where(index == tap[0] * width + tap[1], g, g.dtype.type(0)))
    return back(dx, L, dy.dtype)


RIGHT = {operator: globals()[operator] for operator in OPERATORS}
