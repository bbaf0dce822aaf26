"""Right NumPy kernels for all ten operators, and a factory for deviating ones."""
import numpy as np
import ml_dtypes
from types import SimpleNamespace as NS

BF16 = ml_dtypes.bfloat16
ARGS = {
    "conv_forward": ("x w bias", "stride padding dilation groups layout"),
    "conv_backward_data": ("dy w", "stride padding dilation groups layout input_size"),
    "conv_backward_weight": ("x dy", "stride padding dilation groups layout kernel_size with_bias"),
    "conv_bn_forward": ("x w gamma beta running_mean running_var", "stride padding dilation groups eps eps_outside layout momentum"),
    "conv_bn_backward": ("dy x w gamma", "stride padding dilation groups eps eps_outside layout"),
    "conv_bn_inference": ("x w gamma beta running_mean running_var", "stride padding dilation groups eps eps_outside layout"),
    "avg_pool_forward": ("x", "kernel_size stride padding ceil_mode count_include_pad divisor_override layout"),
    "avg_pool_backward": ("dy", "kernel_size stride padding ceil_mode count_include_pad divisor_override layout input_size"),
    "max_pool_forward": ("x", "kernel_size stride padding dilation ceil_mode layout"),
    "max_pool_backward": ("dy x", "kernel_size stride padding dilation ceil_mode layout"),
}
OPS = tuple(ARGS)
CONVS = OPS[:3]
BN = OPS[3:6]
POOLS = OPS[6:]
ALL = ("fp32", "fp64", "fp16", "bf16")
BOTH = ("nchw", "nhwc")
IMAGES = {"x", "w", "dy"}


def acc_of(a):
    return np.float64 if a.dtype == np.float64 else np.float32


def nchw(a, layout):
    return a if layout == "nchw" or a is None else a.transpose(0, 3, 1, 2)


def back(a, layout, dtype):
    if layout != "nchw":
        a = a.transpose(0, 2, 3, 1)
    return np.ascontiguousarray(a.astype(dtype))


def out_size(n, k, u, pad, d=1):
    return (n + pad[0] + pad[1] - d * (k - 1) - 1) // u + 1


def pool_size(n, k, u, pad, d, ceil):
    span = n + pad[0] + pad[1] - d * (k - 1) - 1
    o = (-(-span // u) if ceil else span // u) + 1
    if ceil and (o - 1) * u >= n + pad[0]:
        o -= 1
    return o


def pad2(x, padding, value=0):
    return np.pad(x, ((0, 0), (0, 0), *padding), constant_values=value) if any(map(any, padding)) else x


def tap(x, r, s, p, P, Q):
    (u, v), (d, e) = p["stride"], p["dilation"]
    return x[:, :, r * d : r * d + (P - 1) * u + 1 : u, s * e : s * e + (Q - 1) * v + 1 : v]


def conv(x, w, p, acc):
    """nchw, in and out in acc."""
    x, w = pad2(x.astype(acc), p["padding"]), w.astype(acc)
    g = p["groups"]
    n, c, h, wd = x.shape
    k, cg, R, S = w.shape
    (u, v), (d, e) = p["stride"], p["dilation"]
    P, Q = (h - d * (R - 1) - 1) // u + 1, (wd - e * (S - 1) - 1) // v + 1
    w = w.reshape(g, k // g, cg, R, S)
    y = np.zeros((n, g, k // g, P * Q), acc)
    for r in range(R):
        for s in range(S):
            t = tap(x, r, s, p, P, Q).reshape(n, g, cg, P * Q)
            f = np.ascontiguousarray(w[:, :, :, r, s])
            y += f * t if cg == 1 else np.matmul(f, t)
    return y.reshape(n, k, P, Q)


def conv_dx(dy, w, p, acc, size):
    g = p["groups"]
    n, k, P, Q = dy.shape
    k, cg, R, S = w.shape
    (t, b), (l, q) = p["padding"]
    h, wd = size
    dy, w = dy.astype(acc).reshape(n, g, k // g, P * Q), w.astype(acc).reshape(g, k // g, cg, R, S)
    dx = np.zeros((n, g * cg, h + t + b, wd + l + q), acc)
    for r in range(R):
        for s in range(S):
            f = np.ascontiguousarray(w[:, :, :, r, s].transpose(0, 2, 1))
            part = f * dy if k // g == 1 else np.matmul(f, dy)
            view = tap(dx, r, s, p, P, Q)
            view += part.reshape(n, g * cg, P, Q)
    return dx[:, :, t : t + h, l : l + wd]


def conv_dw(x, dy, p, acc, kernel):
    g = p["groups"]
    x = pad2(x.astype(acc), p["padding"])
    n, c = x.shape[:2]
    k, P, Q = dy.shape[1:]
    R, S = kernel
    dy = dy.astype(acc).reshape(n, g, k // g, P * Q).transpose(1, 2, 0, 3).reshape(g, k // g, n * P * Q)
    dw = np.zeros((g, k // g, c // g, R, S), acc)
    for r in range(R):
        for s in range(S):
            t = tap(x, r, s, p, P, Q).reshape(n, g, c // g, P * Q).transpose(1, 0, 3, 2).reshape(g, n * P * Q, c // g)
            dw[:, :, :, r, s] = np.matmul(dy, t)
    return dw.reshape(k, c // g, R, S)


def total(z):
    """[N,K,P,Q] -> [K], pairwise."""
    return np.ascontiguousarray(z.transpose(1, 0, 2, 3)).reshape(z.shape[1], -1).sum(1)


def moments(z, acc, outside, raw=False):
    m = z.shape[0] * z.shape[2] * z.shape[3]
    mean = total(z) / acc(m)
    if raw:
        ss = np.maximum(total(z * z) / acc(m) - mean * mean, 0) * acc(m)
    else:
        ss = total(np.square(z - ch(mean)))
    biased, unbiased = ss / acc(m), ss / acc(max(m - 1, 1))
    return m, mean, unbiased if outside else biased, unbiased


def ch(v):
    return v[:, None, None]


def denominator(var, p, acc):
    return np.sqrt(var) + acc(p["eps"]) if p["eps_outside"] else np.sqrt(var + acc(p["eps"]))


def conv_forward(i, p, acc=None, conv=conv):
    x, w, bias = i
    acc, L = acc or acc_of(x), p["layout"]
    y = conv(nchw(x, L), nchw(w, L), p, acc)
    if bias is not None:
        y = y + ch(bias.astype(acc))
    return back(y, L, x.dtype)


def conv_backward_data(i, p, acc=None):
    dy, w = i
    acc, L = acc or acc_of(dy), p["layout"]
    return back(conv_dx(nchw(dy, L), nchw(w, L), p, acc, p["input_size"]), L, dy.dtype)


def conv_backward_weight(i, p, acc=None, conv_dw=conv_dw):
    x, dy = i
    acc, L = acc or acc_of(x), p["layout"]
    dw = back(conv_dw(nchw(x, L), nchw(dy, L), p, acc, p["kernel_size"]), L, x.dtype)
    if not p["with_bias"]:
        return dw
    return dw, total(nchw(dy, L).astype(acc)).astype(x.dtype)


def conv_bn_forward(i, p, acc=None, raw=False, between=None, conv=conv):
    x, w, gamma, beta, rm, rv = i
    acc, L = acc or acc_of(x), p["layout"]
    st = acc_of(x)
    z = conv(nchw(x, L), nchw(w, L), p, acc)
    if between:
        z = z.astype(x.dtype).astype(acc)
    m, mean, var, unb = moments(z, acc, p["eps_outside"], raw)
    y = (z - ch(mean)) / ch(denominator(var, p, acc))
    if gamma is not None:
        y = y * ch(gamma.astype(acc)) + ch(beta.astype(acc))
    out = (back(y, L, x.dtype), mean.astype(st), var.astype(st))
    if rm is not None:
        mo = acc(p["momentum"])
        out += (((1 - mo) * rm.astype(acc) + mo * mean).astype(st), ((1 - mo) * rv.astype(acc) + mo * unb).astype(st))
    return out


def conv_bn_backward(i, p, acc=None, raw=False, between=None):
    dy, x, w, gamma = i
    acc, L = acc or acc_of(x), p["layout"]
    st = acc_of(x)
    xs, ws, g = nchw(x, L), nchw(w, L), nchw(dy, L).astype(acc)
    z = conv(xs, ws, p, acc)
    if between:
        z = z.astype(x.dtype).astype(acc)
    m, mean, var, unb = moments(z, acc, p["eps_outside"], raw)
    den = denominator(var, p, acc)
    zc = z - ch(mean)
    xhat = zc / ch(den)
    dbeta, dgamma = total(g), total(g * xhat)
    scale = acc(1) if gamma is None else ch(gamma.astype(acc))
    if p["eps_outside"]:
        sd = np.sqrt(var)
        f = np.where(sd > 0, dgamma / (np.where(sd > 0, sd, 1) * acc(max(m - 1, 1))), 0)
        dz = scale * ((g - ch(dbeta / acc(m))) / ch(den) - zc / ch(den) * ch(f))
    else:
        dz = scale * (g - ch(dbeta / acc(m)) - xhat * ch(dgamma / acc(m))) / ch(den)
    if between:
        dz = dz.astype(x.dtype).astype(acc)
    dx = back(conv_dx(dz, ws, p, acc, xs.shape[2:]), L, x.dtype)
    dw = back(conv_dw(xs, dz, p, acc, ws.shape[2:]), L, x.dtype)
    return (dx, dw) if gamma is None else (dx, dw, dgamma.astype(st), dbeta.astype(st))


def conv_bn_inference(i, p, acc=None, between=None):
    x, w, gamma, beta, rm, rv = i
    acc, L = acc or acc_of(x), p["layout"]
    z = conv(nchw(x, L), nchw(w, L), p, acc)
    if between:
        z = z.astype(x.dtype).astype(acc)
    y = (z - ch(rm.astype(acc))) / ch(denominator(rv.astype(acc), p, acc))
    if gamma is not None:
        y = y * ch(gamma.astype(acc)) + ch(beta.astype(acc))
    return back(y, L, x.dtype)


def pool_geometry(h, w, p):
    R, S = p["kernel_size"]
    d, e = p.get("dilation", (1, 1))
    P = pool_size(h, R, p["stride"][0], p["padding"][0], d, p["ceil_mode"])
    Q = pool_size(w, S, p["stride"][1], p["padding"][1], e, p["ceil_mode"])
    return R, S, d, e, P, Q


def grow(h, P, k, u, d, pad):
    """Padding before and after so that every window fits."""
    return pad[0], max(0, (P - 1) * u + d * (k - 1) + 1 - h - pad[0])


def counts(h, P, k, u, pad, include):
    start = np.arange(P) * u - pad[0]
    end = np.minimum(start + k, h + pad[1])
    return end - start if include else np.minimum(end, h) - np.maximum(start, 0)


def divisor(h, w, p, acc, P, Q):
    if p["divisor_override"]:
        return acc(p["divisor_override"])
    (R, S), (u, v), (a, b) = p["kernel_size"], p["stride"], p["padding"]
    i = p["count_include_pad"]
    return (counts(h, P, R, u, a, i)[:, None] * counts(w, Q, S, v, b, i)).astype(acc)


def avg_pool_forward(i, p, acc=None):
    x = i[0]
    acc, L = acc or acc_of(x), p["layout"]
    xs = nchw(x, L)
    n, c, h, w = xs.shape
    R, S, d, e, P, Q = pool_geometry(h, w, p)
    (u, v), (a, b) = p["stride"], p["padding"]
    t = pad2(xs.astype(acc), (grow(h, P, R, u, 1, a), grow(w, Q, S, v, 1, b)))
    y = np.zeros((n, c, P, Q), acc)
    for r in range(R):
        for s in range(S):
            y += tap(t, r, s, {**p, "dilation": (1, 1)}, P, Q)
    return back(y / divisor(h, w, p, acc, P, Q), L, x.dtype)


def avg_pool_backward(i, p, acc=None):
    dy = i[0]
    acc, L = acc or acc_of(dy), p["layout"]
    g = nchw(dy, L).astype(acc)
    h, w = p["input_size"]
    n, c = g.shape[:2]
    R, S, d, e, P, Q = pool_geometry(h, w, p)
    (u, v), (a, b) = p["stride"], p["padding"]
    (t, bo), (l, q) = grow(h, P, R, u, 1, a), grow(w, Q, S, v, 1, b)
    g = g / divisor(h, w, p, acc, P, Q)
    dx = np.zeros((n, c, h + t + bo, w + l + q), acc)
    for r in range(R):
        for s in range(S):
            view = tap(dx, r, s, {**p, "dilation": (1, 1)}, P, Q)
            view += g
    return back(dx[:, :, t : t + h, l : l + w], L, dy.dtype)


def maxima(xs, p):
    n, c, h, w = xs.shape
    R, S, d, e, P, Q = pool_geometry(h, w, p)
    (u, v), (a, b) = p["stride"], p["padding"]
    rows, cols = grow(h, P, R, u, d, a), grow(w, Q, S, v, e, b)
    t = pad2(xs, (rows, cols), -np.inf)
    inside = pad2(np.ones((1, 1, h, w), bool), (rows, cols), False)
    best = np.full((n, c, P, Q), -np.inf, xs.dtype)
    index = np.full((n, c, P, Q), -1)
    for r in range(R):
        for s in range(S):
            val, ok = tap(t, r, s, p, P, Q), tap(inside, r, s, p, P, Q)
            take = ok & ((index < 0) | (val > best) | (np.isnan(val) & ~np.isnan(best)))
            best = np.where(take, val, best)
            index = np.where(take, r * S + s, index)
    return best, index, rows, cols


def max_pool_forward(i, p, acc=None):
    x = i[0]
    acc, L = acc_of(x), p["layout"]
    return back(maxima(nchw(x, L).astype(acc), p)[0], L, x.dtype)


def max_pool_backward(i, p, acc=None):
    dy, x = i
    L = p["layout"]
    acc = acc or acc_of(x)
    xs, g = nchw(x, L).astype(acc_of(x)), nchw(dy, L).astype(acc)
    n, c, h, w = xs.shape
    _, index, rows, cols = maxima(xs, p)
    P, Q = index.shape[2:]
    R, S = p["kernel_size"]
    dx = np.zeros((n, c, h + sum(rows), w + sum(cols)), acc)
    for r in range(R):
        for s in range(S):
            view = tap(dx, r, s, p, P, Q)
            view += np.where(index == r * S + s, g, acc(0))
    return back(dx[:, :, rows[0] : rows[0] + h, cols[0] : cols[0] + w], L, dy.dtype)


RIGHT = {op: globals()[op] for op in OPS}


def quiet(op, i, p, **more):
    with np.errstate(all="ignore"):
        return RIGHT[op](tuple(i), p, **more)


def info(op, i, p):
    """Sizes of a problem, from its arguments: n c h w k r s P Q g u v d e pad M t (dtype) L b, and products."""
    a = dict(zip(ARGS[op][0].split(), i))
    L = p["layout"]
    o = NS(L=L, g=p.get("groups", 1), op=op, a=a)
    (o.u, o.v), o.pad = p["stride"], p["padding"]
    o.d, o.e = p.get("dilation", (1, 1))
    sh = lambda t: nchw(t, L).shape
    first = a.get("x") if a.get("x") is not None else a["dy"]
    o.t = {"float32": "fp32", "float64": "fp64", "float16": "fp16"}.get(str(first.dtype), "bf16")
    o.n = first.shape[0]
    if "x" in a:
        _, o.c, o.h, o.w = sh(a["x"])
    else:
        o.h, o.w = p["input_size"]
        o.c = sh(a["w"])[1] * o.g if "w" in a else sh(a["dy"])[1]
    if "w" in a:
        o.k, _, o.r, o.s = sh(a["w"])
    else:
        o.r, o.s = p["kernel_size"]
        o.k = sh(a["dy"])[1] if "dy" in a else o.c
    if "ceil_mode" in p:
        o.P, o.Q = pool_geometry(o.h, o.w, p)[4:]
    else:
        o.P, o.Q = out_size(o.h, o.r, o.u, o.pad[0], o.d), out_size(o.w, o.s, o.v, o.pad[1], o.e)
    o.M = o.n * o.P * o.Q
    o.b = a.get("bias") is not None
    o.size = o.n * o.c * o.h * o.w
    o.len = o.c // o.g * o.r * o.s
    o.one = o.r == o.s == 1
    o.dw = o.g > 1 and o.g == o.c
    o.unpadded = not any(map(any, o.pad))
    return o


def bind(op, fn):
    """fn(inputs, parameters) as a function with the operator's own signature."""
    a, k = ARGS[op]
    a, k = a.split(), k.split()
    text = f"def {op}({', '.join(a)}, *, {', '.join(k)}):\n    return _fn([{', '.join(a)}], dict({', '.join(f'{q}={q}' for q in k)}))\n"
    space = {"_fn": fn}
    exec(text, space)
    return space[op]


class Kit:
    """kit = Kit(globals(), "sizes"); @kit("slug", "conv_forward", "what is wrong", dtypes=, layouts=) def _(R, i, p): ..."""

    def __init__(self, space, cls):
        self.space, self.cls, self.count = space, cls, 0
        space["DEFECTS"], space["KERNELS"], space["CHECKS"] = {}, {}, {}

    def __call__(self, slug, ops, text, dtypes=("fp32", "bf16"), layouts=BOTH, when=None, contract=None, at=None, data=None, before=(), how=None, t=None, after=None, **more):
        """at: a problem on which it is wrong; data(inputs by name): values that are needed; before: problems called first."""
        from conformance import Implementation

        ops = (ops,) if isinstance(ops, str) else ops
        self.count += 1
        name = f"{self.cls}-{self.count:02d}-{slug}"
        imp = Implementation(name, **more)
        after and after(imp)
        self.space[name.replace("-", "_")] = imp
        self.space["DEFECTS"][name] = text
        self.space["CHECKS"][name] = NS(op=ops[0], dtype=t or dtypes[0], layout=layouts[0], at=at, data=data, before=before, how=how)

        def decorate(fn):
            for op in ops:
                def run(i, p, op=op):
                    with np.errstate(all="ignore"):
                        return fn(lambda i, p, **m: quiet(op, i, p, **m), i, p, info(op, i, p))

                kernel = bind(op, run)
                options = {} if when is None else {"when": when}
                if contract is not None:
                    options["contract"] = contract
                imp.implements(op, dtypes=dtypes, layouts=layouts, **options)(kernel)
                self.space["KERNELS"][name, op] = kernel
            return fn

        return decorate


def ed(out, L, fn, at=0):
    """out with fn(its nchw view) applied to a copy of result number at."""
    many = isinstance(out, tuple)
    parts = list(out) if many else [out]
    parts[at] = parts[at].copy()
    fn(nchw(parts[at], L) if parts[at].ndim == 4 else parts[at])
    return tuple(parts) if many else parts[0]


def put(i, at, value):
    i = list(i)
    i[at] = value
    return i


def vi(a, L, fn):
    """A copy of the image or filter a with fn(its nchw view) applied."""
    a = np.array(a)
    fn(nchw(a, L))
    return a


def zero(*index):
    def fn(y):
        y[index] = 0
    return fn
