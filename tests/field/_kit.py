"""How a known-bad kernel is made of a right one: a row for one thing that is changed, a function for the rest."""

from __future__ import annotations

import ctypes
import itertools
import threading
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np

from conformance import Implementation
from tests.field._right import *
from tests.field._right import INPUTS, extents, lay, nchw

S = np.s_
as_strided = np.lib.stride_tricks.as_strided


def published():
    """The lines of `conformance list problems`, in words: what a kernel can know of the tables."""
    return [line.split() for line in Path(__file__).with_name("_problems.txt").read_text().splitlines()]


class Call(SimpleNamespace):
    """A problem in letters: sizes as the guide calls them, parameters by their names. L is the layout, t the dtype,
    M = N*P*Q, `length` products of a sum, `one` a 1x1 window, `dw` depthwise; `bias`, `affine` and `running` say
    whether there are a bias, gamma and beta, running statistics. i and p are what it was made from, and `state` is
    what the implementation keeps between calls.
    """

    def again(self, *inputs, by=None, **changed):
        """What the right kernel returns: of other inputs, all of them or some by name, with other parameters, `by`
        arguments of its own."""
        names, i = INPUTS[self.op], [*(inputs or self.i)]
        for name in [name for name in changed if name in names]:
            i[names.index(name)] = changed.pop(name)
        return RIGHT[self.op](i, self.p | changed, **(by or {}))


def call_of(operator, i, p, state):
    a, o = dict(zip(INPUTS[operator], i, strict=True)), Call(**p, i=[*i], p=p, state=state)
    o.op, o.L, o.g = operator, p["layout"], p.get("groups", 1)
    (o.u, o.v), o.pad, (o.d, o.e) = p["stride"], p["padding"], p.get("dilation", (1, 1))
    x, w, dy = (nchw(a.get(name), o.L) for name in ("x", "w", "dy"))
    first = dy if x is None else x
    o.t = {"float32": "fp32", "float64": "fp64", "float16": "fp16"}.get(str(first.dtype), "bf16")
    o.n, o.c, o.h, o.w = first.shape
    if x is None:
        o.h, o.w = p["input_size"]
    if w is None:
        o.k, (o.r, o.s) = first.shape[1] if dy is None else dy.shape[1], p["kernel_size"]
    else:
        o.k, _, o.r, o.s = w.shape
        o.c = w.shape[1] * o.g
    o.P, o.Q = extents((o.h, o.w), (o.r, o.s), p)
    o.M, o.size, o.length = o.n * o.P * o.Q, o.n * o.c * o.h * o.w, o.c // o.g * o.r * o.s
    o.one, o.dw, o.unpadded = o.r == o.s == 1, o.g > 1 and o.g == o.c, not np.any(o.pad)
    o.bias, o.affine, o.running = (a.get(name) is not None for name in ("bias", "gamma", "running_mean"))
    return o


def kernel(
    operators: str | tuple[str, ...],
    dtypes: tuple[str, ...] = ("fp32", "bf16"),
    layouts: tuple[str, ...] = BOTH,
    where: Callable[[Any], Any] = lambda o: True,
    waive: dict[str, Any] | None = None,
    name: str = "",
    deterministic: bool = False,
    unsafe: tuple[str, ...] = (),
    **declared: Any,
) -> Callable[[Callable[[Any], Any]], Implementation]:
    """A function of a call as an implementation, which is called as it is.

    It computes `where` its condition holds of the call; elsewhere the right kernel does.
    """

    def decorate(body: Callable[[Any], Any]) -> Implementation:
        called = name or body.__name__.replace("_", "-")
        made = Implementation(called, deterministic=deterministic, unsafe=unsafe)
        state: dict[Any, Any] = {}
        for operator in (operators,) if isinstance(operators, str) else operators:
            if waive is not None:
                made.waive(operator, **waive)
            made.implements(operator, dtypes=dtypes, layouts=layouts, **declared)(_called(operator, body, where, state))
        return made

    return decorate


def _called(operator, body, where, state):
    def called(*i, **p):
        o = call_of(operator, i, p, state)
        with np.errstate(all="ignore"):
            return body(o) if where(o) else o.again()

    return called


OPERANDS = frozenset(operand for operands in INPUTS.values() for operand in operands)


def spoilt(
    name: str,
    operators: str | tuple[str, ...],
    dtypes: tuple[str, ...] = ("fp32", "bf16"),
    layouts: tuple[str, ...] = BOTH,
    asked: Callable[[Any], dict[str, Any]] = lambda o: {},
    result: Callable[[Any, Any], Any] = lambda out, o: out,
    by: dict[str, Any] | None = None,
    **more: Any,
) -> Implementation:
    """A right kernel with one thing changed: what it is given, what it is `asked`, its `result`.

    An operand's name gives a function of that operand and the call, `asked` one of the call that returns parameters,
    `result` one of what the right kernel returns and the call; `by` are arguments of the right kernel itself.
    """
    given = {operand: more.pop(operand) for operand in OPERANDS & more.keys()}

    def body(o):
        operands = zip(INPUTS[o.op], o.i, strict=True)
        changed = {operand: given[operand](a, o) for operand, a in operands if operand in given}
        return result(o.again(by=by, **changed, **asked(o)), o)

    return kernel(operators, dtypes, layouts, name=name, **more)(body)


def first(out):
    return out[0] if isinstance(out, tuple) else out


def with_first(out, y):
    return (y, *out[1:]) if isinstance(out, tuple) else y


def changed(out, o, place, value=0, at=0):
    """Copied results, or a copied tensor, with one number `at` changed at a place of its view with channels first.
    The value may be a function of that view."""
    if isinstance(out, tuple):
        return (*out[:at], changed(out[at], o, place, value), *out[at + 1 :])
    out = out.copy()
    view = nchw(out, o.L) if out.ndim == 4 else out
    view[place] = value(view) if callable(value) else value
    return out


def reshaped(out, shape, place, value=0):
    """The first result, seen in another shape, changed at a place."""
    view = first(out).reshape(shape)
    view[place] = value(view) if callable(value) else value
    return out


def flat(a, o, place, value=0):
    """A tensor, with channels first in memory, changed at a place of its [N, C*H*W]."""
    a = np.array(nchw(a, o.L), order="C")
    a.reshape(len(a), -1)[:, place] = value
    return lay(a, o.L)


def pixels(a, o, place, value=0):
    """A tensor changed at some of all its N*H*W pixels."""
    a = np.array(nchw(a, o.L).transpose(0, 2, 3, 1), order="C")
    a.reshape(-1, a.shape[3])[place] = value
    return lay(a.transpose(0, 3, 1, 2), o.L)


def finite(i):
    return all(np.isfinite(a).all() for a in i if a is not None)


def replaced(a, where, value):
    return a if a is None else np.where(where(a), a.dtype.type(value), a)


def cut(a, bits):
    """The last bits of the fraction are dropped."""
    t = {2: np.uint16, 4: np.uint32, 8: np.uint64}[a.dtype.itemsize]
    b = np.ascontiguousarray(a).view(t) & t((1 << 8 * a.dtype.itemsize) - (1 << bits))
    return np.where(np.isfinite(a), b.view(a.dtype), a)


def tiny(a):
    """The smallest normal number; bf16 has that of fp32."""
    return a.dtype.type(2.0 ** {"float64": -1022, "float16": -14}.get(str(a.dtype), -126))


def flushed(a):
    return a if a is None else np.where(np.abs(a) < tiny(a), np.copysign(a.dtype.type(0), a), a).astype(a.dtype)


def tf32(a):
    """To nearest even, 10 bits of fraction; NaN and Inf as they are."""
    b = np.ascontiguousarray(a).view(np.uint32)
    r = ((b + np.uint32(0xFFF) + ((b >> np.uint32(13)) & np.uint32(1))) & np.uint32(0xFFFFE000)).view(np.float32)
    return np.where(np.isfinite(a), r, a)


def beyond(a, before=0, after=1):
    """The elements just before, or just behind, a contiguous array; None if it is not contiguous, or is empty."""
    if a is None or not a.flags.c_contiguous or a.size == 0 or before + after == 0:
        return None
    start = a.ctypes.data - before * a.itemsize if before else a.ctypes.data + a.nbytes
    return np.frombuffer((ctypes.c_char * ((before + after) * a.itemsize)).from_address(start), a.dtype)


def write(out, v, value):
    """What lies around an operand is overwritten, where v is not None."""
    if v is not None:
        v[:] = value
    return out


def touch(out, v):
    """What lies around an operand is read, and goes nowhere."""
    if v is not None:
        v.tobytes()
    return out


def use(out, v):
    """The last element of the result gets 0 * v: nothing changes where v is finite."""
    y = first(out)
    if v is not None and y.size:
        y.reshape(-1)[-1] += (v.astype(np.float32) * 0).sum().astype(y.dtype)
    return out


def writable(a):
    """A writable alias of an input, however it is marked."""
    if not a.flags.writeable and a.size:
        try:
            a.flags.writeable = True
        except ValueError:
            one = np.frombuffer((ctypes.c_char * a.itemsize).from_address(a.ctypes.data), a.dtype)
            return as_strided(one, a.shape, a.strides, writeable=True)
    return a


def overwrites(out, a, at, value):
    """An input is written to, after it has been used."""
    writable(a)[at] = value
    return out


def frozen(v):
    return tuple(map(frozen, v)) if isinstance(v, (tuple, list)) else v


def key_of(o, without=()):
    """The parameters of a call, for the key of a cache."""
    return tuple((name, frozen(value)) for name, value in o.p.items() if name not in without)


def shapes(o):
    return tuple(None if a is None else a.shape for a in o.i)


def known(out, o, *key):
    """Results are those of the first call with this key, dtype and these parameters."""
    held = o.state.setdefault((o.t, key_of(o), *key), out)
    return tuple(map(np.copy, held)) if isinstance(held, tuple) else held.copy()


def by_address(a, o):
    """An operand as it was when one of its shape lay at its address for the first time."""
    if len(o.state) > 200:
        o.state.clear()
    return o.state.setdefault((a.ctypes.data, a.shape, a.strides, o.t), np.array(a))


def by_id(a, o):
    return o.state.setdefault((id(a), a.shape, o.t), np.array(a))


def keeps(out, o, key, made):
    """What is `made` is kept for every key, and never freed."""
    if key not in o.state:
        o.state[key] = made()
    return out


def number_of(o):
    """How many calls there have been, with this one."""
    return next(o.state.setdefault("calls", itertools.count(1)))


def kept_in(buffers, y):
    """y in a buffer of its shape, which the next call overwrites."""
    held = buffers.setdefault((y.shape, str(y.dtype)), np.empty_like(y))
    held[...] = y
    return held


def dense(a):
    """The strides of a contiguous array of that shape."""
    return tuple(int(np.prod(a.shape[axis + 1 :])) * a.itemsize for axis in range(a.ndim))


def span(a):
    """Elements from the pointer to the last one, or -1 if some lie before it or strides are not whole elements."""
    if any(s < 0 or s % a.itemsize for s in a.strides):
        return -1
    return sum((n - 1) * s for n, s in zip(a.shape, a.strides, strict=True)) // a.itemsize + 1


def unflipped(a):
    return a[tuple(slice(None, None, -1) if s < 0 else slice(None) for s in a.strides)]


def blind(a):
    """Read as if it were contiguous; what lies behind its span reads as 0."""
    if a is None or a.flags.c_contiguous or a.size == 0:
        return a
    m = span(a)
    if m < 0:
        return np.ascontiguousarray(unflipped(a))
    out = np.zeros(a.size, a.dtype)
    out[: min(m, a.size)] = as_strided(a, (m,), (a.itemsize,))[: a.size]
    return out.reshape(a.shape)


def only_first(a):
    """All but the first element are 0."""
    out = np.zeros(a.shape, a.dtype)
    out.reshape(-1)[:1] = a.reshape(-1)[:1]
    return out


def late(write, seconds):
    """A thread does it, after the call has returned."""
    timer = threading.Timer(seconds, write)
    timer.daemon = True
    timer.start()


def late_place(out, view, seconds):
    """A part of a result is 0 until then."""
    value = view.copy()
    view[...] = 0
    late(lambda: view.__setitem__(..., value), seconds)
    return out


class Lazy:
    """A result that is computed when it is looked at."""

    def __init__(self, compute, y):
        self.compute, self.shape, self.dtype, self.ndim, self.size = compute, y.shape, y.dtype, y.ndim, y.size

    def __array__(self, dtype=None, copy=None):
        y = first(self.compute())
        return y if dtype is None else y.astype(dtype)

    def __getitem__(self, key):
        return self.__array__()[key]


def is_prime(n):
    return all(n % q for q in range(2, int(n**0.5) + 1))
