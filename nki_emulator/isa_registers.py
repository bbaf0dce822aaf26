"""Registers and the loops that count in them. Pages: "nki.isa.register_alloc" and so on, "nki.language.fori_loop",
"nki.language.while_loop", Neuron SDK 2.32."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from .errors import refuse
from .indexing import VirtualRegister, select_index
from .machine import begin
from .operands import SBUF, read, tile, write
from .patterns import integer
from .tensor import NkiTensor


def _register(value: Any) -> VirtualRegister:
    if not isinstance(value, VirtualRegister):
        refuse("operand", f"{value!r} is no register")
    return value


def _writable(value: Any) -> VirtualRegister:
    if _register(value).frozen:
        refuse("register-frozen", "a loop owns this register; it cannot be written")
    return value  # type: ignore[no-any-return]


def _one(value: Any, what: str) -> NkiTensor:
    found = tile(value, what, SBUF)
    if found.size != 1 or found.dtype.is_float:
        refuse("shape", f"{what} {found} must be a (1, 1) tile of integers")
    return found


def register_alloc(x: int | None = None) -> VirtualRegister:
    begin("register_alloc")
    return VirtualRegister(None if x is None else integer(x, "x"))


def register_move(dst: VirtualRegister, src: Any) -> None:
    begin("register_move")
    _writable(dst).value = select_index(src)


def register_load(dst: VirtualRegister, src: NkiTensor) -> None:
    """dst = a (1, 1) tile in SBUF."""
    begin("register_load")
    _writable(dst).value = int(read(_one(src, "src"), "src").reshape(-1)[0])


def register_store(dst: NkiTensor, src: VirtualRegister) -> None:
    """A (1, 1) tile in SBUF = src."""
    machine = begin("register_store")
    write(machine, _one(dst, "dst"), np.full(dst.shape, select_index(_register(src)), np.int64))


def fori_loop(lower: Any, upper: Any, body_fun: Callable[[VirtualRegister], None], step: int = 1) -> None:
    """body_fun(i) for i in range(lower, upper, step); bounds may be registers, i is one that the loop owns."""
    if integer(step, "step") < 1:
        refuse("index", f"step {step} is not positive")
    for i in range(select_index(lower), select_index(upper), step):
        body_fun(VirtualRegister(i, frozen=True))


def while_loop(init: VirtualRegister, body_fun: Callable[[VirtualRegister], VirtualRegister]) -> None:
    """register = body_fun(register) while it is not 0."""
    register = _register(init)
    while select_index(register):
        register = _register(body_fun(VirtualRegister(register.value)))
