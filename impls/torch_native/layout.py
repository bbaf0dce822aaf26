"""Layouts and padding as torch sees them."""

from __future__ import annotations

import torch

CHANNEL = (slice(None), None, None)
"""Index that lines a per-channel vector up with NCHW."""
POSITIONS = (0, 2, 3)
"""All axes of NCHW but the channels."""


def nchw(tensor: torch.Tensor, layout: str) -> torch.Tensor:
    """A channels-last tensor as torch sees it: NCHW shape over NHWC memory."""
    return tensor if layout == "nchw" else tensor.permute(0, 3, 1, 2)


def restored(tensor: torch.Tensor, layout: str) -> torch.Tensor:
    return tensor if layout == "nchw" else tensor.permute(0, 2, 3, 1)


def empty(shape, layout: str, like: torch.Tensor) -> torch.Tensor:
    """An uninitialized tensor of NCHW shape over memory of the given layout."""
    _, c, h, w = shape
    strides = (c * h * w, h * w, w, 1) if layout == "nchw" else (c * h * w, 1, w * c, c)
    return torch.empty_strided(shape, strides, dtype=like.dtype, device=like.device)


def split(padding):
    """What conv2d pads itself, and what is asymmetric and must be padded before (left, right, top, bottom)."""
    (top, bottom), (left, right) = padding
    if top == bottom and left == right:
        return (top, left), None
    return (0, 0), (left, right, top, bottom)


def wide(dtype: torch.dtype) -> torch.dtype:
    """The format of statistics and of per-channel parameters."""
    return torch.promote_types(dtype, torch.float32)
