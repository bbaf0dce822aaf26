"""The trainings of each level, as data: full width where there is an accelerator, narrow and small on a CPU."""

from __future__ import annotations

from dataclasses import dataclass

DISTRIBUTION = "training"
"""Name of training data in `--distribution`, the records and the judge: only the elementwise bound holds for it."""
OPERATOR = "training"
"""Column of a training in the matrix."""
DIRECTIONS = ("conv_forward", "conv_backward_data", "conv_backward_weight")
"""Operators that a network is trained through."""


@dataclass(frozen=True, slots=True)
class TrainingConfiguration:
    """One training: a network, its data, its length. Every epoch sees `images` images in batches of `batch`.

    `falls_to` is the share of its first value that the loss must have fallen to: the mean over the last epoch against
    the first step, which is the untrained network's.
    """

    network: str
    images: int
    batch: int
    epochs: int
    held: int
    rate: float
    falls_to: float
    side: int = 28
    width: int = 0
    bilinear: bool = False

    @property
    def steps(self) -> int:
        return self.epochs * (self.images // self.batch)


CPU: dict[tuple[str, str], TrainingConfiguration] = {
    ("digits", "standard"): TrainingConfiguration("digits", 32, 4, 3, 64, 5e-4, 0.5),
    ("digits", "full"): TrainingConfiguration("digits", 1024, 32, 3, 512, 1e-3, 0.1),
    ("unet", "standard"): TrainingConfiguration("unet", 4, 4, 40, 8, 2e-2, 0.1, 16, 8),
    ("unet", "full"): TrainingConfiguration("unet", 8, 4, 80, 8, 1e-2, 0.1, 64, 16),
}
"""(network, level) -> configuration, for implementations whose device is the CPU. Nothing is trained at `smoke`: a
training takes longer than everything else there."""

ACCELERATOR: dict[tuple[str, str], TrainingConfiguration] = {
    ("digits", "standard"): TrainingConfiguration("digits", 1024, 32, 3, 512, 1e-3, 0.1),
    ("digits", "full"): TrainingConfiguration("digits", 1280, 32, 5, 512, 1e-3, 0.1),
    ("unet", "standard"): TrainingConfiguration("unet", 4, 4, 60, 8, 1e-3, 0.1, 64, 64),
    ("unet", "full"): TrainingConfiguration("unet", 8, 4, 80, 8, 1e-3, 0.1, 64, 64),
}
"""(network, level) -> configuration, for every other device."""

EMULATED: dict[str, TrainingConfiguration] = {
    "digits": TrainingConfiguration("digits", 4, 4, 2, 4, 5e-4, 1.0),
    "unet": TrainingConfiguration("unet", 2, 2, 2, 2, 1e-2, 1.0, 16, 2),
}
"""Network -> configuration for an emulator: two steps, every tensor of which is verified."""


def networks(level: str) -> tuple[str, ...]:
    """Return the networks that are trained at a level."""
    return tuple(network for network, trained_at in CPU if trained_at == level)


def configuration(network: str, level: str, device: str) -> TrainingConfiguration:
    if network not in networks(level):
        raise KeyError(f"no training configuration for network {network!r} at level {level!r}")
    if device == "emulator":
        return EMULATED[network]
    return (CPU if device == "cpu" else ACCELERATOR)[network, level]
