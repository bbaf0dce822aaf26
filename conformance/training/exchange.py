"""Messages between a network that is trained and the judge of its kernels' calls, which may be another process.

Both sides import this module: it depends neither on a framework nor on the references.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal, Protocol

import numpy as np
from msgspec import Struct

from conformance.contract import Contract
from conformance.implementations.implementation import Unsupported
from conformance.operators.conv.geometry import ConvGeometry
from conformance.training.tables import TrainingConfiguration

if TYPE_CHECKING:
    from conformance.worker.serve import Server

Role = Literal["forward", "backward-data", "backward-weight"]
"""Purpose for which a layer calls a kernel; a transposed convolution's forward is the direction backward-data."""
Direction = Literal["conv_forward", "conv_backward_data", "conv_backward_weight"]


class RefusedError(Unsupported):
    """A configuration that the implementation has no kernel for; the message names both and the reason."""


class Place(Struct, frozen=True, tag=True):
    """Where in a training a kernel is called."""

    when: str
    layer: str
    """Path of the layer in the model; empty where the layer has no name."""
    what: str
    """Configuration of the layer in words."""
    role: Role
    direction: Direction
    descriptor: str

    @property
    def geometry(self) -> ConvGeometry:
        """Geometry of the call. Raises GeometryError."""
        return ConvGeometry.parse(self.descriptor)

    @property
    def alike(self) -> str:
        """Text that is the same in every step and on every problem."""
        return f"layer {self.layer or 'without a name'}, {self.role}"

    def __str__(self) -> str:
        layer = self.layer or "without a name"
        return f"{self.when}, layer {layer}, {self.role}: {self.direction} of {self.descriptor} ({self.what})"


@dataclass(frozen=True, slots=True, eq=False)
class Call:
    """One finished call of a kernel: its inputs, its results, and the contract that it promises."""

    direction: str
    geometry: ConvGeometry
    dtype: str
    contract: Contract
    inputs: dict[str, Any]
    """Tensors in canonical order, without an absent bias: torch tensors beside the network, NumPy arrays for
    observers."""
    outputs: dict[str, Any]


class Observer(Protocol):
    """Watches the calls of a model's layers. `when` tells where training is."""

    when: str

    def begins(self, place: Place) -> None: ...

    def returned(self, place: Place, call: Call) -> None:
        """Receive a finished call, whose arrays are NumPy's."""
        ...


class CallTensors(Struct, frozen=True, tag=True):
    """Tensors of a call that was announced by its `Place`."""

    inputs: dict[str, np.ndarray]
    outputs: dict[str, np.ndarray]


class History(Struct, frozen=True, tag=True):
    """Losses and accuracies of a training."""

    losses: tuple[float, ...]
    """Loss of every step's batch, before the step."""
    accuracies: tuple[float, ...]
    """Accuracy (of pixels, for masks) in every step's batch."""
    test_loss: float
    test_accuracy: float
    baseline: float
    """Test accuracy of always answering the commonest class."""


@dataclass(slots=True)
class Consulting:
    """An observer in a kernel's process: training continues when the judge allows it."""

    server: Server
    when: str = "before training"

    def begins(self, place: Place) -> None:
        self.server.consult(place)

    def returned(self, place: Place, call: Call) -> None:
        self.server.consult(CallTensors(dict(call.inputs), dict(call.outputs)))


def train(server: Server, name: str, configuration: TrainingConfiguration, layout: str, seed: int) -> History:
    """Train in the kernel's process; before this returns, `server` consults the judge on every call: first with its
    `Place`, then with its `CallTensors`."""
    from conformance.training.loop import run  # torch is needed from here on

    return run(configuration, server.implementations[name], layout, seed, Consulting(server))
