"""A run of a kernel of the Beta 1 API: its grid, its arguments and what it returns.

Pages: "NKI Programming Model" and "nki.jit", Neuron SDK 2.26.
"""

from __future__ import annotations

from collections.abc import Callable
from math import prod
from typing import Any

import numpy as np

from .beta_tensor import BetaTensor, Memory
from .dtypes import dtype_of
from .errors import refuse
from .machine import Machine, current
from .storage import Region
from .targets import Target


class BetaMachine(Machine):
    """A run of a kernel, or of one instance of a grid; shared HBM is that of the first instance."""

    def __init__(self, kernel: str, target: Target, precise: bool, instructions: int) -> None:
        super().__init__(kernel, target, precise, instructions)
        self.grid: tuple[int, ...] = ()
        self.random = np.random.Generator(np.random.Philox(0))
        self.partial_outputs = False
        self.program: tuple[int, ...] = ()
        self._shared: list[Memory] = []
        self._taken = 0

    def begin_instance(self, program: tuple[int, ...]) -> None:
        self.program, self._taken = program, 0

    def shared(self, make: Callable[[], Memory]) -> Memory:
        """The memory that every instance of the grid allocates at this point."""
        if self._taken == len(self._shared):
            self._shared.append(make())
        self._taken += 1
        return self._shared[self._taken - 1]

    def argument(self, value: Any, name: str) -> Any:
        """An array as a tensor in HBM; other values stay as they are."""
        if not isinstance(value, np.ndarray):
            return value
        if value.size == 0 or value.ndim == 0:
            refuse("argument", f"{name} is an array of shape {value.shape}")
        memory = Memory(self, value.shape, dtype_of(value), Region.hbm, 0, name)
        memory.values[...], memory.defined[...], memory.is_input = value, True, True
        return BetaTensor.of(memory)

    def returned(self, value: Any) -> Any:
        """Tensors as arrays; each in HBM and written."""
        if type(value) in (tuple, list):
            return tuple(self.returned(item) for item in value)
        if not isinstance(value, BetaTensor) or value.buffer.on_chip:
            refuse("output-missing", f"the kernel returned {value!r}; return tensors in nl.shared_hbm")
        values, defined = value.read()
        missing = defined.size - np.count_nonzero(defined)
        if missing and self.partial_outputs and value.dtype.is_float:
            values = np.where(defined, values, np.float32(np.nan))
        elif missing:
            refuse("output-unwritten", f"{missing} of {defined.size} elements of {value} were never written")
        return np.ascontiguousarray(values).astype(value.dtype.stored)


def instance() -> BetaMachine:
    """The run of this thread."""
    machine = current()
    assert isinstance(machine, BetaMachine), "a tensor of the first generation in a kernel of the present one"
    return machine


def call(machine: BetaMachine, function: Callable[..., Any], grid: tuple[int, ...], bound: Any) -> Any:
    """Run every instance of a grid, one after another; what kernels store into arguments reaches their arrays.

    Raises:
        Refusal: neither a tensor was returned nor an argument written.
    """
    arguments = dict(bound.arguments)
    machine.grid = grid or (1,)
    if not all(machine.grid):
        refuse(
            "not-implemented", f"a launch on a grid of {machine.grid}, of which no page says how many instances it has"
        )
    tensors = {key: machine.argument(value, key) for key, value in arguments.items()}
    bound.arguments.update(tensors)
    for number in range(prod(machine.grid)):
        machine.begin_instance(tuple(int(i) for i in np.unravel_index(number, machine.grid)))
        value = function(*bound.args, **bound.kwargs)
    stored = {key for key, tensor in tensors.items() if isinstance(tensor, BetaTensor) and tensor.memory.is_stored}
    for key in stored:
        arguments[key][...] = tensors[key].values.astype(arguments[key].dtype)
    return None if value is None and stored else machine.returned(value)
