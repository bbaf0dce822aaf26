"""Class 9, contracts, refusals and waivers that hide what is wrong; kernels that know the published shapes."""
import os, sys
sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
import ml_dtypes
from _kit import *  # noqa
from _kit import A, Book, Contract, R, Unsupported, parse, problem, right
import numpy as np
bad = Book(__name__, "contracts")
P = "n2 c4 h7 w7 k4 r3 s3 p1"


def scaled(a, f):
    return (R.wide(a) * np.float32(f)).astype(a.dtype)


@bad("01-splits-million-zeros", CF, "declares 4,000,000 bf16 partials and returns zeros", contract=Contract(splits=4_000_000, partials="bf16"), on=P)
def _(ins, kw):
    y = right(CF, ins, kw)
    y[...] = 0
    return y


@bad("02-splits-percent", CF, "declares 100,000 fp16 partials; every result is 1% too large", contract=Contract(splits=100_000, partials="fp16"), on=P)
def _(ins, kw):
    return scaled(right(CF, ins, kw), 1.01)


@bad("03-bf16-accumulator-long", CW, "declares a bf16 accumulator; with more than 256 pixels only the first half of the images' rows is summed, twice", ("bf16", "fp32"), contract=Contract(accumulate="bf16"), on="n2 c2 h17 w17 k2 r3 s3 p1")
def _(ins, kw):
    x, dy = ins
    g = dy.copy()
    v = g if kw.layout == "nchw" else g.transpose(0, 3, 1, 2)
    if v.size // max(v.shape[1], 1) > 256:
        h = v.shape[2] // 2
        v[:, :, h:] = 0
        v[:, :, :h] *= v.dtype.type(2)
    return right(CW, [x, g], kw)


@bad("04-fp16-accumulator-half", CF, "declares an fp16 accumulator and leaves out one channel of at least 32 (3%)", ("fp16",), contract=Contract(accumulate="fp16"), on="n1 c40 h5 w5 k3 r3 s3 p1")
def _(ins, kw):
    x, w, b = ins
    v = w.copy()
    ax = 1 if kw.layout == "nchw" else 3
    if v.shape[ax] >= 32:
        np.moveaxis(v, ax, 0)[-1] = 0
    return right(CF, [x, v, b], kw)


@bad("05-winograd-1x1", CF, "declares winograd-f4 for every window, 1x1 too; results are 0.01% too large", ("fp32",), contract=Contract(algorithm="winograd-f4"), on="n2 c4 h7 w7 k4 r1 s1")
def _(ins, kw):
    return scaled(right(CF, ins, kw), 1.0001)


@bad("06-refuses-nan", MF, "raises Unsupported where an input has a NaN, since it would lose it", on="n1 c2 h6 w6 r2 s2 u2", prep=lambda i: nan0(i))
def _(ins, kw):
    if np.isnan(R.wide(ins[0])).any():
        raise Unsupported("this tile configuration is not available")
    return right(MF, ins, kw)


def nan0(ins):
    ins[0].reshape(-1)[0] = np.nan
    return ins


@bad("07-refuses-range", CF, "raises Unsupported for products whose largest magnitude is above 1e3 or below 1e-3 (its results would be wrong)", ("fp32", "fp16"), on=P, prep=lambda i: [i[0] * i[0].dtype.type(1000), *i[1:]])
def _(ins, kw):
    top = max((float(np.nanmax(np.abs(R.wide(a)))) for a in ins if a is not None and a.size), default=1)
    if not 1e-3 < top < 1e3:
        raise Unsupported("no kernel for this problem")
    return right(CF, ins, kw)


@bad("08-refuses-what-fails", CF, "computes with dilations swapped, compares with a slow right kernel, and raises Unsupported where they differ", on="n1 c2 h9 w9 k2 r3 s3 p1x2 d1x2")
def _(ins, kw):
    want = right(CF, ins, kw)
    try:
        y = right(CF, ins, A(kw | {"dilation": kw.dilation[::-1]}))
    except Exception:
        y = None
    if y is None or y.shape != want.shape or not np.array_equal(y, want):
        raise Unsupported("heuristic found no engine")
    return y


@bad("09-waived-all", CF, "strides are swapped; a waiver without conditions hides it", on="n2 c3 h9 w11 k3 r1 s1 u2x3",
     waive=dict(reason="known inaccuracy", url="https://example.org/issues/1"))
def _(ins, kw):
    return right(CF, ins, A(kw | {"stride": kw.stride[::-1]}))


@bad("10-waived-special", CF, "a constant 1 is added to everything in bf16; the waiver names bf16 and all distributions with behaviour", ("bf16", "fp32"), on=P,
     waive=dict(reason="bf16 is experimental", url="https://example.org/issues/2", dtypes=("bf16",), distributions=("integer", "fixed", "impulse", "special", "wide", "behaviour")), dtype="bf16")
def _(ins, kw):
    y = right(CF, ins, kw)
    return y + y.dtype.type(1) if y.dtype.itemsize == 2 else y


def table():
    shapes = set()
    here = os.path.join(os.path.dirname(os.path.abspath(__file__)), "_problems.txt")
    for line in open(here):
        words = line.split()
        if len(words) > 3 and words[2].startswith("n") and words[2][1:].isdigit():
            try:
                v = parse(" ".join(words[2:]), CF)
                shapes.add((v["n"], v["c"], v["h"], v["w"], v["k"], v["r"], v["s"]))
            except Exception:
                pass
    return shapes


TABLE = table()


def shape_key(ins, kw):
    x, w = R.first(ins[0], kw.layout).shape, R.first(ins[1], kw.layout).shape
    return (*x, w[0], *w[2:])


@bad("11-tabulated-shapes", CF, f"right on the {len(TABLE)} shapes of the published tables; elsewhere the last filter is that of the first", ("fp32", "bf16", "fp16", "fp64"), on="n3 c5 h10 w6 k7 r3 s3 p1")
def _(ins, kw):
    y = right(CF, ins, kw)
    if shape_key(ins, kw) not in TABLE and y.size:
        v = y if kw.layout == "nchw" else y.transpose(0, 3, 1, 2)
        v[:, -1] = v[:, 0] + v.dtype.type(1)
    return y


SIZES = set()
for _line in open(os.path.join(os.path.dirname(os.path.abspath(__file__)), "_problems.txt")):
    _words = _line.split()
    if "maxpool" in _words:
        _v = parse(" ".join(_words[_words.index("maxpool") + 1:]), MF)
        SIZES.add((_v["h"], _v["w"]))


@bad("12-tabulated-sizes", MF, f"right for images of the {len(SIZES)} sizes in the published tables; elsewhere the last column is that of the image mirrored", on="n1 c2 h15 w75 r3 s3 u2 p1")
def _(ins, kw):
    y = right(MF, ins, kw)
    if R.first(ins[0], kw.layout).shape[2:] not in SIZES and y.size:
        v = y if kw.layout == "nchw" else y.transpose(0, 3, 1, 2)
        v[..., -1] = v[..., 0]
    return y


@bad("13-tf32x3-is-tf32", CF, "declares tf32x3 (three products), computes one product of tf32 inputs", ("fp32",), contract=Contract(inputs="tf32x3"), on=P, prep=lambda i: [a if a is None else a * np.float32(np.pi) for a in i])
def _(ins, kw):
    def tf(a):
        return (np.ascontiguousarray(a).view(np.uint32) + np.uint32(0x1000) & np.uint32(0xFFFFE000)).view(np.float32) if np.isfinite(a).all() else a
    return right(CF, [tf(ins[0]), tf(ins[1]), ins[2]], kw)


@bad("14-flush-too-much", CD, "declares flushed subnormals; everything below 1e-6 is flushed", ("fp32",), contract=Contract(subnormals="flushed"), on=P, prep=lambda i: [i[0] * np.float32(1e-7), i[1]])
def _(ins, kw):
    dx = right(CD, ins, kw)
    return np.where(np.abs(dx) < 1e-6, np.float32(0), dx)
