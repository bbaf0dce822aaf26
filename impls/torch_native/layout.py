"""Layouts and padding as torch sees them."""

from __future__ import annotations

import torch


def along_channels(vector: torch.Tensor, like: torch.Tensor) -> torch.Tensor:
    """Return a per-channel vector lined up with NCHW."""
    return vector.view(-1, *(1 for _ in like.shape[2:]))


def positions(tensor: torch.Tensor) -> tuple[int, ...]:
    """Return all axes of NCHW but the channels."""
    return (0, *range(2, tensor.dim()))


def channels_last(layout: str) -> bool:
    return layout.endswith("c")


def nchw(tensor: torch.Tensor, layout: str) -> torch.Tensor:
    """Return a channels-last tensor as torch sees it: NCHW shape over NHWC memory."""
    return tensor.movedim(-1, 1) if channels_last(layout) else tensor


def restored(tensor: torch.Tensor, layout: str) -> torch.Tensor:
    return tensor.movedim(1, -1) if channels_last(layout) else tensor


def empty(shape, layout: str, like: torch.Tensor) -> torch.Tensor:
    """Return an uninitialized tensor of NCHW shape over memory of the given layout."""
    n, c, *size = shape
    stored = (n, *size, c) if channels_last(layout) else tuple(shape)
    return nchw(torch.empty(stored, dtype=like.dtype, device=like.device), layout)


def split(padding):
    """Return padding that torch does itself, and asymmetric padding to do before (or None), from the last axis on."""
    if all(before == after for before, after in padding):
        return tuple(before for before, _ in padding), None
    return (0,) * len(padding), border_of(padding)


def border_of(padding):
    """Return (left, right, top, bottom) for torch.nn.functional.pad."""
    return tuple(side for sides in reversed(padding) for side in sides)


def wide(dtype: torch.dtype) -> torch.dtype:
    """Return the format of statistics and of per-channel parameters."""
    return torch.promote_types(dtype, torch.float32)
