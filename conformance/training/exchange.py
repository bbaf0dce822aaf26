"""What passes between a network that is trained and whoever verifies its kernels' calls, who may be in another process.

Both sides import this: it knows neither a framework nor right results.
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
"""What a layer calls a kernel for; a transposed convolution's forward is the direction backward-data."""
Direction = Literal["conv_forward", "conv_backward_data", "conv_backward_weight"]


class RefusedError(Unsupported):
    """A configuration that the implementation has no kernel for; the message names both and the reason."""


class Place(Struct, frozen=True, tag=True):
    """Where in a training a kernel is called."""

    when: str
    layer: str
    """Its path in the model; empty where nobody has named it."""
    what: str
    """The layer's configuration in words."""
    role: Role
    direction: Direction
    descriptor: str

    @property
    def geometry(self) -> ConvGeometry:
        """Raises GeometryError."""
        return ConvGeometry.parse(self.descriptor)

    @property
    def alike(self) -> str:
        """The same in every step and on every problem."""
        return f"layer {self.layer or 'without a name'}, {self.role}"

    def __str__(self) -> str:
        layer = self.layer or "without a name"
        return f"{self.when}, layer {layer}, {self.role}: {self.direction} of {self.descriptor} ({self.what})"


@dataclass(frozen=True, slots=True, eq=False)
class Call:
    """One finished call of a kernel: what it was given, what it returned, what it promises."""

    direction: str
    geometry: ConvGeometry
    dtype: str
    contract: Contract
    inputs: dict[str, Any]
    """In canonical order, without an absent bias. Torch tensors beside the network, NumPy arrays for observers."""
    outputs: dict[str, Any]


class Observer(Protocol):
    """Watches the calls of a model's layers. `when` says where training is."""

    when: str

    def begins(self, place: Place) -> None: ...

    def returned(self, place: Place, call: Call) -> None:
        """Arrays of the call are NumPy's."""
        ...


class CallTensors(Struct, frozen=True, tag=True):
    """A call whose beginning was told, with its tensors."""

    inputs: dict[str, np.ndarray]
    outputs: dict[str, np.ndarray]


class History(Struct, frozen=True, tag=True):
    """What became of a training."""

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
    """An observer in a kernel's process: training goes on when the judge says so."""

    server: Server
    when: str = "before training"

    def begins(self, place: Place) -> None:
        self.server.consult(place)

    def returned(self, place: Place, call: Call) -> None:
        self.server.consult(CallTensors(dict(call.inputs), dict(call.outputs)))


def train(server: Server, name: str, configuration: TrainingConfiguration, layout: str, seed: int) -> History:
    """Runs in the kernel's process; before it returns, `server` consults the judge on every call: first its `Place`,
    then its `CallTensors`."""
    from conformance.training.loop import run  # torch is needed from here on

    return run(configuration, server.known[name], layout, seed, Consulting(server))
