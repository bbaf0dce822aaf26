"""Right NumPy kernels for all ten operators: fp32 accumulators (fp64 for fp64), one rounding."""
import warnings

import numpy as np

warnings.filterwarnings("ignore")
np.seterr(all="ignore")


def wide(a, acc=None):
    if a is None:
        return None
    return np.asarray(a).astype(acc or (np.float64 if a.dtype == np.float64 else np.float32))


def first(a, layout):  # to channels first
    return a if layout == "nchw" else np.ascontiguousarray(a.transpose(0, 3, 1, 2))


def last(a, layout):
    return a if layout == "nchw" else np.ascontiguousarray(a.transpose(0, 2, 3, 1))


def out_size(h, pad, k, s, d=1, ceil=False):
    span = h + pad[0] + pad[1] - d * (k - 1) - 1
    if not ceil:
        return span // s + 1
    p = -(-span // s) + 1
    return p - 1 if (p - 1) * s >= h + pad[0] else p


def padded(x, padding, need=(0, 0), value=0.0):
    """x with its padding; at least `need` rows and columns."""
    n, c, h, w = x.shape
    (t, b), (l, r) = padding
    hh, ww = max(h + t + b, need[0]), max(w + l + r, need[1])
    if (hh, ww) == (h, w):
        return x
    y = np.full((n, c, hh, ww), value, x.dtype)
    y[:, :, t : t + h, l : l + w] = x
    return y


def taps(r, s, p, q, stride, dilation):
    for i in range(r):
        for j in range(s):
            a, b = i * dilation[0], j * dilation[1]
            yield i, j, (Ellipsis, slice(a, a + (p - 1) * stride[0] + 1, stride[0]), slice(b, b + (q - 1) * stride[1] + 1, stride[1]))


def fwd(x, w, b, stride, padding, dilation, groups):
    n, c = x.shape[:2]
    k, cg, r, s = w.shape
    p = out_size(x.shape[2], padding[0], r, stride[0], dilation[0])
    q = out_size(x.shape[3], padding[1], s, stride[1], dilation[1])
    xp = padded(x, padding)
    y = np.zeros((n, groups, k // groups, p * q), x.dtype)
    for i, j, at in taps(r, s, p, q, stride, dilation):
        t = xp[at].reshape(n, groups, cg, p * q)
        m = w[:, :, i, j].reshape(1, groups, k // groups, cg)
        y += m * t if cg == 1 else np.matmul(m, t)
    y = y.reshape(n, k, p, q)
    return y if b is None else y + b[:, None, None]


def bwd_data(dy, w, size, stride, padding, dilation, groups):
    n, k, p, q = dy.shape
    _, cg, r, s = w.shape
    (t, b), (l, rr) = padding
    dx = np.zeros((n, cg * groups, size[0] + t + b, size[1] + l + rr), dy.dtype)
    g = dy.reshape(n, groups, k // groups, p * q)
    for i, j, at in taps(r, s, p, q, stride, dilation):
        m = w[:, :, i, j].reshape(1, groups, k // groups, cg).swapaxes(2, 3)
        v = m * g if k == groups else np.matmul(m, g)
        dx[at] += v.reshape(n, groups * cg, p, q)
    return dx[:, :, t : t + size[0], l : l + size[1]]


def bwd_weight(x, dy, kernel, stride, padding, dilation, groups):
    n, k, p, q = dy.shape
    c = x.shape[1]
    xp = padded(x, padding)
    g = dy.reshape(n, groups, k // groups, p * q).transpose(1, 2, 0, 3).reshape(groups, k // groups, n * p * q)
    dw = np.zeros((k, c // groups, *kernel), x.dtype)
    for i, j, at in taps(*kernel, p, q, stride, dilation):
        t = xp[at].reshape(n, groups, c // groups, p * q).transpose(1, 0, 3, 2).reshape(groups, n * p * q, c // groups)
        dw[:, :, i, j] = np.matmul(g, t).reshape(k, c // groups)
    return dw


def per_channel(a):  # [K, N*P*Q]
    return np.ascontiguousarray(a.transpose(1, 0, 2, 3)).reshape(a.shape[1], -1)


def col(v):
    return v[:, None, None]


def conv_forward(x, w, bias, *, stride, padding, dilation, groups, layout, acc=None):
    y = fwd(first(wide(x, acc), layout), first(wide(w, acc), layout), wide(bias, acc), stride, padding, dilation, groups)
    return last(y.astype(x.dtype), layout)


def conv_backward_data(dy, w, *, stride, padding, dilation, groups, layout, input_size, acc=None):
    dx = bwd_data(first(wide(dy, acc), layout), first(wide(w, acc), layout), input_size, stride, padding, dilation, groups)
    return np.ascontiguousarray(last(dx.astype(dy.dtype), layout))


def conv_backward_weight(x, dy, *, stride, padding, dilation, groups, layout, kernel_size, with_bias, acc=None):
    g = first(wide(dy, acc), layout)
    dw = last(bwd_weight(first(wide(x, acc), layout), g, kernel_size, stride, padding, dilation, groups).astype(x.dtype), layout)
    return (dw, per_channel(g).sum(1).astype(x.dtype)) if with_bias else dw


def moments(z, eps_outside):
    f = per_channel(z)
    m = f.shape[1]
    mean = f.mean(1)
    ss = np.square(f - mean[:, None]).sum(1)
    return mean, ss / max(m - 1 if eps_outside else m, 1), ss / max(m - 1, 1), m


def root(var, eps, eps_outside):
    return np.sqrt(var) + eps if eps_outside else np.sqrt(var + eps)


def conv_bn_forward(x, w, gamma, beta, running_mean, running_var, *, stride, padding, dilation, groups, eps, eps_outside, layout, momentum, acc=None, between=None):
    z = fwd(first(wide(x, acc), layout), first(wide(w, acc), layout), None, stride, padding, dilation, groups)
    if between is not None:
        z = z.astype(x.dtype).astype(z.dtype)
    t = z.dtype.type
    eps, momentum = t(eps), t(momentum)
    mean, var, unbiased, m = moments(z, eps_outside)
    y = (z - col(mean)) / col(root(var, eps, eps_outside))
    if gamma is not None:
        y = y * col(wide(gamma, acc)) + col(wide(beta, acc))
    p = np.float64 if x.dtype == np.float64 else np.float32
    out = [last(y.astype(x.dtype), layout), mean.astype(p), var.astype(p)]
    if running_mean is not None:
        out.append(((1 - momentum) * wide(running_mean, acc) + momentum * mean).astype(p))
        out.append(((1 - momentum) * wide(running_var, acc) + momentum * unbiased).astype(p))
    return tuple(out)


def conv_bn_backward(dy, x, w, gamma, *, stride, padding, dilation, groups, eps, eps_outside, layout, acc=None, between=None):
    xf, wf, g = (first(wide(a, acc), layout) for a in (x, w, dy))
    z = fwd(xf, wf, None, stride, padding, dilation, groups)
    t = z.dtype.type
    eps = t(eps)
    mean, var, _, m = moments(z, eps_outside)
    d = root(var, eps, eps_outside)
    h = (z - col(mean)) / col(d)
    dbeta = per_channel(g).sum(1)
    dgamma = per_channel(g * h).sum(1)
    scale = 1 / d if gamma is None else wide(gamma, acc) / d
    if eps_outside:
        s = np.sqrt(var)
        factor = np.where(s > 0, d / (s * t(max(m - 1, 1))), t(0))
    else:
        factor = np.full_like(d, t(1) / t(m))
    dz = col(scale) * (g - col(dbeta / t(m)) - h * col(dgamma * factor))
    if between is not None:
        dz = dz.astype(x.dtype).astype(z.dtype)
    dx = bwd_data(dz, wf, xf.shape[2:], stride, padding, dilation, groups)
    dw = bwd_weight(xf, dz, wf.shape[2:], stride, padding, dilation, groups)
    p = np.float64 if x.dtype == np.float64 else np.float32
    out = (np.ascontiguousarray(last(dx.astype(x.dtype), layout)), last(dw.astype(x.dtype), layout))
    return out if gamma is None else (*out, dgamma.astype(p), dbeta.astype(p))


def conv_bn_inference(x, w, gamma, beta, running_mean, running_var, *, stride, padding, dilation, groups, eps, eps_outside, layout, acc=None, between=None):
    z = fwd(first(wide(x, acc), layout), first(wide(w, acc), layout), None, stride, padding, dilation, groups)
    if between is not None:
        z = z.astype(x.dtype).astype(z.dtype)
    y = (z - col(wide(running_mean, acc))) / col(root(wide(running_var, acc), z.dtype.type(eps), eps_outside))
    if gamma is not None:
        y = y * col(wide(gamma, acc)) + col(wide(beta, acc))
    return last(y.astype(x.dtype), layout)


def pool_geometry(h, w, kernel, stride, padding, ceil, dilation=(1, 1)):
    p = out_size(h, padding[0], kernel[0], stride[0], dilation[0], ceil)
    q = out_size(w, padding[1], kernel[1], stride[1], dilation[1], ceil)
    need = tuple((n - 1) * s + d * (k - 1) + 1 for n, s, d, k in zip((p, q), stride, dilation, kernel))
    return p, q, need


def counts(h, n, k, s, pad, include):
    a = np.arange(n) * s - pad[0]
    e = np.minimum(a + k, h + pad[1])
    return e - a if include else np.minimum(e, h) - np.maximum(a, 0)


def divisors(h, w, p, q, kernel, stride, padding, include, override, dtype):
    if override:
        return np.full((p, q), override, dtype)
    return np.outer(counts(h, p, kernel[0], stride[0], padding[0], include), counts(w, q, kernel[1], stride[1], padding[1], include)).astype(dtype)


def avg_pool_forward(x, *, kernel_size, stride, padding, ceil_mode, count_include_pad, divisor_override, layout, acc=None):
    f = first(wide(x, acc), layout)
    n, c, h, w = f.shape
    p, q, need = pool_geometry(h, w, kernel_size, stride, padding, ceil_mode)
    xp = padded(f, padding, need)
    y = np.zeros((n, c, p, q), f.dtype)
    for _, _, at in taps(*kernel_size, p, q, stride, (1, 1)):
        y += xp[at]
    y /= divisors(h, w, p, q, kernel_size, stride, padding, count_include_pad, divisor_override, f.dtype)
    return last(y.astype(x.dtype), layout)


def avg_pool_backward(dy, *, kernel_size, stride, padding, ceil_mode, count_include_pad, divisor_override, layout, input_size, acc=None):
    g = first(wide(dy, acc), layout)
    h, w = input_size
    n, c, p, q = g.shape
    _, _, need = pool_geometry(h, w, kernel_size, stride, padding, ceil_mode)
    (t, b), (l, r) = padding
    g = g / divisors(h, w, p, q, kernel_size, stride, padding, count_include_pad, divisor_override, g.dtype)
    dx = np.zeros((n, c, max(h + t + b, need[0]), max(w + l + r, need[1])), g.dtype)
    for _, _, at in taps(*kernel_size, p, q, stride, (1, 1)):
        dx[at] += g
    return np.ascontiguousarray(last(dx[:, :, t : t + h, l : l + w].astype(dy.dtype), layout))


def maxima(f, kernel, stride, padding, dilation, ceil):
    n, c, h, w = f.shape
    p, q, need = pool_geometry(h, w, kernel, stride, padding, ceil, dilation)
    xp = padded(f, padding, need, -np.inf)
    inside = padded(np.ones((1, 1, h, w), bool), padding, need, False)
    y = np.full((n, c, p, q), -np.inf, f.dtype)
    at_ = np.full((n, c, p, q), -1, np.int32)
    for i, j, at in taps(*kernel, p, q, stride, dilation):
        v = xp[at]
        new = inside[at] & ((at_ < 0) | (v > y) | (np.isnan(v) & ~np.isnan(y)))
        y = np.where(new, v, y)
        at_ = np.where(new, i * kernel[1] + j, at_)
    return y, at_, need


def max_pool_forward(x, *, kernel_size, stride, padding, dilation, ceil_mode, layout, acc=None):
    y, _, _ = maxima(first(wide(x, acc), layout), kernel_size, stride, padding, dilation, ceil_mode)
    return last(y.astype(x.dtype), layout)


def max_pool_backward(dy, x, *, kernel_size, stride, padding, dilation, ceil_mode, layout, acc=None):
    f, g = first(wide(x, acc), layout), first(wide(dy, acc), layout)
    n, c, h, w = f.shape
    _, chosen, need = maxima(f, kernel_size, stride, padding, dilation, ceil_mode)
    p, q = chosen.shape[2:]
    (t, b), (l, r) = padding
    dx = np.zeros((n, c, max(h + t + b, need[0]), max(w + l + r, need[1])), f.dtype)
    for i, j, at in taps(*kernel_size, p, q, stride, dilation):
        dx[at] += np.where(chosen == i * kernel_size[1] + j, g, f.dtype.type(0))
    return np.ascontiguousarray(last(dx[:, :, t : t + h, l : l + w].astype(x.dtype), layout))


CONV = "stride padding dilation groups layout"
KEYS = {
    "conv_forward": ("x w bias", CONV),
    "conv_backward_data": ("dy w", CONV + " input_size"),
    "conv_backward_weight": ("x dy", CONV + " kernel_size with_bias"),
    "conv_bn_forward": ("x w gamma beta running_mean running_var", CONV + " eps eps_outside momentum"),
    "conv_bn_backward": ("dy x w gamma", CONV + " eps eps_outside"),
    "conv_bn_inference": ("x w gamma beta running_mean running_var", CONV + " eps eps_outside"),
    "avg_pool_forward": ("x", "kernel_size stride padding ceil_mode count_include_pad divisor_override layout"),
    "avg_pool_backward": ("dy", "kernel_size stride padding ceil_mode count_include_pad divisor_override layout input_size"),
    "max_pool_forward": ("x", "kernel_size stride padding dilation ceil_mode layout"),
    "max_pool_backward": ("dy x", "kernel_size stride padding dilation ceil_mode layout"),
}
OPS = {name: globals()[name] for name in KEYS}
