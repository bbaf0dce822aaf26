"""Parameters of a convolution, and the errors for invalid ones."""

from __future__ import annotations

from dataclasses import dataclass

import torch

Pair = tuple[int, int]


def _pair(value: object) -> bool:
    return isinstance(value, (tuple, list)) and len(value) == 2


def _whole_pair(value: object) -> bool:
    return _pair(value) and all(isinstance(number, int) for number in value)


@dataclass(frozen=True)
class Parameters:
    """Parameters of a convolution: (rows, columns); padding ((top, bottom), (left, right))."""

    stride: Pair = (1, 1)
    padding: tuple[Pair, Pair] = ((0, 0), (0, 0))
    dilation: Pair = (1, 1)
    groups: int = 1

    def __post_init__(self) -> None:
        for name in ("stride", "dilation"):
            if not _whole_pair(getattr(self, name)):
                raise TypeError(f"{name}={getattr(self, name)!r}: must be (rows, columns), whole numbers")
        if not (_pair(self.padding) and all(map(_whole_pair, self.padding))):
            raise TypeError(f"padding={self.padding!r}: must be ((top, bottom), (left, right)), whole numbers")
        positive = {"stride": min(self.stride), "dilation": min(self.dilation), "groups": self.groups}
        for name, value in positive.items():
            if value < 1:
                raise ValueError(f"{name}={getattr(self, name)}: must be at least 1")
        if min(map(min, self.padding)) < 0:
            raise ValueError(f"padding={self.padding}: must not be negative")

    def output_size(self, size, kernel_size) -> Pair:
        spans = [d * (extent - 1) + 1 for d, extent in zip(self.dilation, kernel_size, strict=True)]
        axes = zip(size, spans, self.stride, self.padding, strict=True)
        rows, columns = ((length + sum(pads) - span) // u + 1 for length, span, u, pads in axes)
        return rows, columns


def require_convolution(x: torch.Tensor, w: torch.Tensor, window: Parameters) -> None:
    """Raise TypeError for dtypes and ValueError for shapes and parameters that no convolution has."""
    require_image("x", x)
    require_image("w", w)
    if x.dtype != w.dtype:
        raise TypeError(f"x is {x.dtype} and w is {w.dtype}: convert one, results have the dtype of both")
    groups, (k, share), channels = window.groups, w.shape[:2], x.shape[1]
    if share * groups != channels or k % groups:
        raise ValueError(
            f"x has {channels} channels and w is {tuple(w.shape)} with groups={groups}: w must be [K, C/groups, R, S], "
            f"C = {channels}, and groups must divide K"
        )
    sizes = zip("HW", x.shape[2:], w.shape[2:], window.dilation, window.padding, strict=True)
    for axis, size, extent, dilation, padding in sizes:
        span = dilation * (extent - 1) + 1
        if span > size + sum(padding):
            raise ValueError(
                f"the window spans {span} on axis {axis}, more than the padded image's {size + sum(padding)}; "
                "enlarge the image or its padding, or shrink the window or its dilation"
            )


def require_normalization(shape, wide, vectors: dict[str, torch.Tensor | None], eps: float, momentum: float) -> None:
    """Raise TypeError or ValueError unless y[N,K,P,Q] of this shape can be normalized with these vectors [K]."""
    count, channels = shape[0] * shape[2] * shape[3], shape[1]
    if count < 2:
        raise ValueError(
            f"there is {count} element a channel in {tuple(shape)}: its variance is undefined; enlarge the batch or "
            "the image, or normalize with running statistics"
        )
    for first, second in (("gamma", "beta"), ("running_mean", "running_var")):
        if (vectors.get(first) is None) != (vectors.get(second) is None):
            raise ValueError(f"{first} and {second} are given together or not at all")
    for name, vector in vectors.items():
        if vector is not None and tuple(vector.shape) != (channels,):
            raise ValueError(
                f"{name} has shape {tuple(vector.shape)}: must be ({channels},), one for each output channel"
            )
        if vector is not None and vector.dtype != wide:
            raise TypeError(f"{name} is {vector.dtype}: must be {wide}, the format of statistics")
    if not 0 <= eps < float("inf"):
        raise ValueError(f"eps={eps}: must be a number that is not negative")
    if not 0 <= momentum <= 1:
        raise ValueError(f"momentum={momentum}: must be from 0 to 1, the share of the new statistics")


def require_image(name: str, tensor: torch.Tensor) -> None:
    if not tensor.dtype.is_floating_point:
        raise TypeError(f"{name} is {tensor.dtype}: must be of a floating-point dtype; convert it first")
    if tensor.ndim != 4:
        raise ValueError(f"{name} has shape {tuple(tensor.shape)}: must have four axes")
    if not all(tensor.shape[1:]):  # an empty batch is allowed; its lack of statistics is refused elsewhere
        raise ValueError(f"{name} has shape {tuple(tensor.shape)}: has no elements")


PLAIN = Parameters()
