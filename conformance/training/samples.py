"""Real images from scikit-learn's wheel: handwritten digits, and the same digits on crops of two photographs.

Digits: UCI ML hand-written digits (E. Alpaydin, C. Kaynak, 1998), 8x8 pixels of 17 levels, enlarged to 28x28. Shapes on
texture: a digit in a colour of its own laid over a crop of `china.jpg` or `flower.jpg`; the mask to be found is where
its ink covers more than half, so that truth is known by construction and not by a rule on the pixels that are seen.
Training and test take different digits, and crops of the left and of the right halves of the photographs.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch.nn import functional

INK = 0.5
"""Share of ink from which a pixel belongs to the digit."""


@dataclass(frozen=True, slots=True)
class Samples:
    """Images [N,C,H,W] in [0, 1] and what they show: labels [N], or masks [N,H,W]."""

    images: Any
    truth: Any

    def __len__(self) -> int:
        return len(self.images)

    def to(self, device: str) -> Samples:
        return Samples(self.images.to(device), self.truth.to(device))

    @property
    def baseline(self) -> float:
        """Majority-class baseline: the accuracy of always answering the commonest class."""
        _, counts = self.truth.unique(return_counts=True)
        return float(counts.max() / counts.sum())


def digits(count: int, test_count: int, seed: int) -> tuple[Samples, Samples]:
    """Return `count` digits [N,1,28,28] to train on and `test_count` others to test on, drawn by `seed`."""
    images, labels = _digits(28)
    return tuple(Samples(images[chosen], labels[chosen]) for chosen in _split(len(images), count, test_count, seed))  # type: ignore[return-value]


def shapes(count: int, test_count: int, side: int, seed: int) -> tuple[Samples, Samples]:
    """Return `count` digits on texture [N,3,side,side] with masks to train on, and `test_count` others."""
    chosen = _split(len(_digits(8)[0]), count, test_count, seed)
    return tuple(_laid(indices, half, side, seed + half) for half, indices in enumerate(chosen))  # type: ignore[return-value]


def _split(available: int, count: int, test_count: int, seed: int) -> tuple[Any, Any]:
    order = torch.randperm(available, generator=torch.Generator().manual_seed(seed))
    return order[:count], order[count : count + test_count]


def _digits(side: int) -> tuple[Any, Any]:
    from sklearn.datasets import load_digits

    dataset = load_digits()
    images = torch.from_numpy(dataset.images.astype(np.float32) / 16)[:, None]
    images = functional.interpolate(images, size=(side, side), mode="bilinear", align_corners=False)
    return images, torch.from_numpy(dataset.target.astype(np.int64))


def _laid(indices: Any, half: int, side: int, seed: int) -> Samples:
    """Lay digits on crops of one half (0: left) of the photographs."""
    generator = np.random.Generator(np.random.PCG64(seed))
    ink = _digits(side * 3 // 4)[0][indices]
    placed = torch.zeros(len(ink), 1, side, side)
    for sample, digit in zip(placed, ink, strict=True):
        top, left = generator.integers(0, side - digit.shape[-1] + 1, 2)
        sample[:, top : top + digit.shape[-2], left : left + digit.shape[-1]] = digit
    behind = torch.stack([_crop(generator, half, side) for _ in placed])
    colours = torch.from_numpy(generator.random((len(ink), 3, 1, 1), np.float32))
    return Samples(placed * colours + (1 - placed) * behind, (placed[:, 0] > INK).long())


def _crop(generator: np.random.Generator, half: int, side: int) -> Any:
    """Return [3,side,side] of one half of a photograph, at every second pixel."""
    from sklearn.datasets import load_sample_images

    photographs = load_sample_images().images
    photograph = photographs[generator.integers(len(photographs))][::2, ::2]
    middle = photograph.shape[1] // 2
    part = photograph[:, middle * half : middle * (half + 1)]
    top, left = (int(generator.integers(0, size - side + 1)) for size in part.shape[:2])
    crop = part[top : top + side, left : left + side].astype(np.float32) / 255
    return torch.from_numpy(crop.transpose(2, 0, 1).copy())
