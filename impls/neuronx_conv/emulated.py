"""The vendor's kernel in the emulator, where its source is given: it cannot be shipped.

It is public in the history of the vendor's samples: https://github.com/aws-neuron/nki-samples, commit 0898a77, folder
contributed/neuron-team-kernels. Convolutions here are on NumPy arrays, and the file that calls the kernel is the one
that calls it on a device.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache
from hashlib import sha256
from pathlib import Path
from typing import Any

import numpy as np

import nki_emulator
from conformance.implementations.devices import Unavailable

from .bridge import KERNELS, NAME

VARIABLE = "CONFORMANCE_NEURONX_CONV"
HOW = "git clone https://github.com/aws-neuron/nki-samples && git -C nki-samples checkout 0898a77"
WHERE = "nki-samples/contributed/neuron-team-kernels"


@dataclass(frozen=True)
class Emulated:
    """Runs the vendor's kernel without a device, for one generation of the NeuronCore."""

    target: str
    stands_for: tuple[str, ...]
    untimed = "it executes the kernel on another device"
    install = ""

    @property
    def file(self) -> Path:
        """Path of conv.py in the folder that the environment names."""
        return Path(os.environ.get(VARIABLE, "")) / "conv.py"

    def require(self) -> None:
        """Raise Unavailable with the command that gets the source, where the source is missing."""
        if VARIABLE not in os.environ:
            raise Unavailable(f"the vendor's source is not here: {HOW}; export {VARIABLE}={WHERE}")
        if not self.file.is_file() or f"def {NAME}(" not in self.file.read_text():
            raise Unavailable(f"{self.file} of {VARIABLE} does not define {NAME}; {HOW}; it is in {WHERE}")

    @contextmanager
    def metered(self) -> Iterator[dict[str, int]]:
        """Count the bytes through the DMA, and the instructions in all and of the Tensor Engine."""
        counts: dict[str, int] = {}
        with nki_emulator.counting() as counters:
            yield counts
        counts |= {
            "dma_bytes": counters.dma_bytes_in + counters.dma_bytes_out,
            "instructions": counters.instructions.total(),
            "matmuls": counters.matmuls,
        }

    def describe(self) -> dict[str, str]:
        """Return facts for records: there is no toolchain; hashes name the emulator and the vendor's source."""
        facts = {"tier": "emulator", "device": f"emulator, {self.target}", "nki": "none", "target": self.target}
        hashes = {"emulator": nki_emulator.source_hash()}
        return facts | hashes | {"kernel": sha256(self.file.read_bytes()).hexdigest()}

    @cache  # noqa: B019 - lives as long as the process
    def module(self, file: Path) -> Any:
        """Load the file that calls the kernel, on this source, with a `print` that does not print the kernel's
        tiling."""
        here = Path(__file__).parent
        modules = {"nki.language.constants": here / "constants.py", KERNELS: file}
        found = nki_emulator.load(here / "kernel.py", target=self.target, modules=modules)
        found.private_kernel.__globals__["print"] = lambda *_, **__: None
        return found

    def convolved(self, image: np.ndarray, weights: np.ndarray, shape: tuple[int, ...]) -> np.ndarray:
        """Return image[N,C,H,W] * weights[K,C,3,3] -> [N,K,H,W] = shape."""
        result: np.ndarray = self.module(self.file).convolved(image, np.ascontiguousarray(weights), shape)
        return result


def turned(weights: np.ndarray) -> np.ndarray:
    """Return the window turned by half a turn."""
    return weights[:, :, ::-1, ::-1]
