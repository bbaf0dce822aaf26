"""A small factory: implementations with the signatures of the guide, and inputs to call them with."""
import re
import sys

import ml_dtypes
import numpy as np

import _right as R
from conformance import Contract, Implementation, Unsupported  # noqa: F401

ALL = ("fp32", "fp64", "fp16", "bf16")
BOTH = ("nchw", "nhwc")
TYPES = {"fp32": np.float32, "fp64": np.float64, "fp16": np.float16, "bf16": ml_dtypes.bfloat16}
CF, CD, CW = "conv_forward", "conv_backward_data", "conv_backward_weight"
BF, BB, BI = "conv_bn_forward", "conv_bn_backward", "conv_bn_inference"
AF, AB, MF, MB = "avg_pool_forward", "avg_pool_backward", "max_pool_forward", "max_pool_backward"


class A(dict):  # keyword arguments as attributes too
    __getattr__ = dict.__getitem__


def signature(op, fn):
    """A function with the arguments of the operator that calls fn(inputs, keywords)."""
    ins, keys = (part.split() for part in R.KEYS[op])
    scope = {"fn": fn, "A": A}
    exec(f"def {op}({', '.join(ins)}, *, {', '.join(keys)}):\n    return fn([{', '.join(ins)}], A({', '.join(f'{k}={k}' for k in keys)}))", scope)
    return scope[op]


def right(op, ins, kw, **more):
    return R.OPS[op](*ins, **kw, **more)


def tup(r):
    return r if isinstance(r, tuple) else (r,)


class Book:
    def __init__(self, module, klass):
        self.module, self.klass = sys.modules[module], klass
        self.module.DEFECTS, self.module.CHECKS = {}, {}

    def __call__(self, slug, op, defect, dtypes=("fp32", "bf16"), layouts=BOTH, when=None, on=None, prep=None, seq=None, kwargs=None, demo=None, contract=None, dtype=None, waive=None):
        def decorate(fn):
            name = f"{self.klass}-{slug}"
            more = {}
            if when:
                more["when"] = when
            if contract is not None:
                more["contract"] = contract
            impl = Implementation(name)
            kernel = signature(op, fn)
            if waive:
                impl.waive(op, **waive)
            impl.implements(op, dtypes=dtypes, layouts=layouts, **more)(kernel)
            setattr(self.module, re.sub(r"\W", "_", name), impl)
            self.module.DEFECTS[name] = defect
            self.module.CHECKS[name] = dict(op=op, kernel=kernel, on=on, prep=prep, seq=seq, kwargs=kwargs, demo=demo, dtype=dtype or dtypes[0], layout=layouts[0])
            return kernel

        return decorate


def parse(text, op):
    v = dict(n=1, c=1, h=1, w=1, k=1, r=1, s=1, u=(1, 1), p=((0, 0), (0, 0)), d=(1, 1), g=1, b=0)
    for word in text.split():
        key, val = re.match(r"([a-z]+)(.+)", word).groups()
        if key in "ud":
            a = [int(i) for i in val.split("x")]
            v[key] = (a[0], a[-1])
        elif key == "p":
            a = [tuple(int(i) for i in part.split(":")) for part in val.split("x")]
            a = [(i[0], i[-1]) for i in a]
            v[key] = (a[0], a[-1])
        else:
            v[key] = int(val)
    return v


def problem(op, text, dtype="fp32", layout="nchw", seed=0, **over):
    """Inputs and keywords of a problem, random."""
    rng = np.random.default_rng(seed)
    v = parse(text, op)
    t = TYPES[dtype]
    par = np.float64 if dtype == "fp64" else np.float32
    kernel, dil = (v["r"], v["s"]), v["d"]
    ceil = bool(v.get("ceil", 0))
    p = R.out_size(v["h"], v["p"][0], v["r"], v["u"][0], dil[0], ceil)
    q = R.out_size(v["w"], v["p"][1], v["s"], v["u"][1], dil[1], ceil)
    k = v["c"] if "pool" in op else v["k"]

    def img(*shape):
        a = rng.integers(-64, 65, shape).astype(np.float64) / 32
        return np.ascontiguousarray(R.last(a.astype(t), layout))

    vec = lambda lo, hi: rng.uniform(lo, hi, v["k"]).astype(par)  # noqa: E731
    make = {
        "x": lambda: img(v["n"], v["c"], v["h"], v["w"]),
        "dy": lambda: img(v["n"], k, p, q),
        "w": lambda: img(v["k"], v["c"] // v["g"], v["r"], v["s"]),
        "bias": lambda: rng.uniform(-1, 1, v["k"]).astype(t) if v["b"] else None,
        "gamma": lambda: vec(0.5, 2) if v.get("affine", 1) else None,
        "beta": lambda: vec(-1, 1) if v.get("affine", 1) else None,
        "running_mean": lambda: vec(-1, 1) if v.get("run", 1) or op == BI else None,
        "running_var": lambda: vec(0.5, 2) if v.get("run", 1) or op == BI else None,
    }
    keys = dict(stride=v["u"], padding=v["p"], dilation=dil, groups=v["g"], layout=layout, input_size=(v["h"], v["w"]), kernel_size=kernel,
                with_bias=bool(v["b"]), eps=10.0 ** -v.get("eps", 5), eps_outside=bool(v.get("outside", 0)), momentum=v.get("mom", 10) / 100, ceil_mode=ceil,
                count_include_pad=not v.get("valid", 0), divisor_override=v.get("div"))
    ins, names = (part.split() for part in R.KEYS[op])
    return [make[i]() for i in ins], A({i: keys[i] for i in names} | over)
