"""The network of a PyTorch tutorial on fusing convolution and batch norm by a custom function, and its memory.

Two convolutions 3x3 without padding, 1 -> 32 -> 64 channels, on 28x28 pixels, each followed by batch norm without
parameters and ReLU; max-pooling by 2; fully connected layers 9216 -> 128 -> 10.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch.nn import functional

from conformance.implementations.bridges.tape import Footprint
from conformance.implementations.bridges.torch_memory import CudaBytes, LiveBytes, by_memory, recorded, stashed

IMAGE = (1, 28, 28)
PARAMETERS = ((32, 1, 3, 3), (64, 32, 3, 3), (128, 9216), (128,), (10, 128), (10,))
CLASSES = 10
SMALLEST = 32 * 26 * 26 * 4
"""Bytes an image of the smallest activation behind a convolution. CUDA's libraries keep less for themselves."""

Pair = Callable[[Any, Any], Any]
"""(x, w) -> batch norm of conv(x, w), of one implementation."""


def footprint(pair: Pair, batch: int, device: str) -> Footprint:
    """One training step on `batch` images; on CUDA after another one, which allocates what libraries keep."""
    meter = CudaBytes if device == "cuda" else LiveBytes
    if device == "cuda":
        _step(pair, batch, device, CudaBytes())
    return _step(pair, batch, device, meter())


def _step(pair: Pair, batch: int, device: str, meter: Any) -> Footprint:
    images, target, parameters = _drawn(batch, device)
    given = [images, target, *parameters]
    with meter:
        meter.count(given)
        with recorded() as kept:
            loss = _loss(pair, images, target, parameters)
        kept += stashed(loss.grad_fn)
        known = by_memory([*given, loss, *kept]).values()
        explained = sum(tensor.untyped_storage().nbytes() for tensor in known)
        kept.clear()  # the graph keeps the list
        del known
        forward = meter.live
        loss.backward()
    scratch = batch * SMALLEST if device == "cuda" else 0
    return Footprint(meter.peak, forward, explained, scratch)


def _drawn(batch: int, device: str) -> tuple[Any, Any, list[Any]]:
    generator = torch.Generator().manual_seed(0)
    images, *parameters = (torch.randn(shape, generator=generator) for shape in ((batch, *IMAGE), *PARAMETERS))
    target = torch.randint(CLASSES, (batch,), generator=generator)
    return images.to(device), target.to(device), [(p / 8).to(device).requires_grad_() for p in parameters]


def _loss(pair: Pair, images: Any, target: Any, parameters: list[Any]) -> Any:
    first, second, *rest = parameters
    x = functional.relu_(pair(images, first))
    x = functional.relu_(pair(x, second))
    x = functional.max_pool2d(x, 2).flatten(1)
    x = functional.relu_(functional.linear(x, *rest[:2]))
    return functional.cross_entropy(functional.linear(x, *rest[2:]), target)
