"""The two networks that the suite trains, in plain torch.nn; `replace_convolutions` sends them through kernels."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn
from torch.nn import functional


def digits_network() -> Any:
    """Return two convolution-batch norm pairs and two linear layers: [N,1,28,28] -> logits [N,10]."""
    return nn.Sequential(
        *(nn.Conv2d(1, 32, 3), nn.BatchNorm2d(32), nn.ReLU()),
        *(nn.Conv2d(32, 64, 3), nn.BatchNorm2d(64), nn.ReLU()),
        *(nn.MaxPool2d(2), nn.Flatten(), nn.Linear(9216, 128), nn.ReLU(), nn.Linear(128, 10)),
    )


class DoubleConv(nn.Sequential):
    """(3x3 convolution without bias, batch norm, ReLU) twice."""

    def __init__(self, before: int, after: int, between: int | None = None) -> None:
        between = between or after
        super().__init__(
            *(nn.Conv2d(before, between, 3, padding=1, bias=False), nn.BatchNorm2d(between), nn.ReLU()),
            *(nn.Conv2d(between, after, 3, padding=1, bias=False), nn.BatchNorm2d(after), nn.ReLU()),
        )


class Down(nn.Module):
    """Half the size, then DoubleConv: [N,before,H,W] -> [N,after,H/2,W/2]."""

    def __init__(self, before: int, after: int) -> None:
        super().__init__()
        self.pool = nn.MaxPool2d(2)
        self.convs = DoubleConv(before, after)

    def forward(self, x: Any) -> Any:
        return self.convs(self.pool(x))


class Up(nn.Module):
    """Twice the size, beside the encoder's features of that size, then DoubleConv."""

    def __init__(self, before: int, after: int, bilinear: bool) -> None:
        super().__init__()
        self.up: Any
        if bilinear:
            self.up = nn.Upsample(scale_factor=2, mode="bilinear", align_corners=True)
            self.convs = DoubleConv(before, after, before // 2)
        else:
            self.up = nn.ConvTranspose2d(before, before // 2, 2, stride=2)
            self.convs = DoubleConv(before, after)

    def forward(self, x: Any, skipped: Any) -> Any:
        """Map x[N,.,H/2,W/2] and skipped[N,.,H,W] to [N,after,H,W]; odd H and W are filled with zeros."""
        x = self.up(x)
        rows, columns = (skipped.shape[axis] - x.shape[axis] for axis in (2, 3))
        x = functional.pad(x, (columns // 2, columns - columns // 2, rows // 2, rows - rows // 2))
        return self.convs(torch.cat([skipped, x], dim=1))


class UNet(nn.Module):
    """Ronneberger et al. 2015 with padding and batch norm: [N,n_channels,H,W] -> logits [N,n_classes,H,W].

    `width` channels at full size, 16 times as many at the bottom. The way up is by transposed convolutions, or
    bilinear; then the deepest features are halved.
    """

    def __init__(self, n_channels: int, n_classes: int, width: int = 64, bilinear: bool = False) -> None:
        super().__init__()
        halves = 2 if bilinear else 1
        self.inc = DoubleConv(n_channels, width)
        self.down1 = Down(width, 2 * width)
        self.down2 = Down(2 * width, 4 * width)
        self.down3 = Down(4 * width, 8 * width)
        self.down4 = Down(8 * width, 16 * width // halves)
        self.up1 = Up(16 * width, 8 * width // halves, bilinear)
        self.up2 = Up(8 * width, 4 * width // halves, bilinear)
        self.up3 = Up(4 * width, 2 * width // halves, bilinear)
        self.up4 = Up(2 * width, width, bilinear)
        self.outc = nn.Conv2d(width, n_classes, 1)

    def forward(self, x: Any) -> Any:
        """Compute the logits; H and W must be at least 16."""
        features = [self.inc(x)]
        for down in (self.down1, self.down2, self.down3, self.down4):
            features.append(down(features[-1]))
        x = features.pop()
        for up in (self.up1, self.up2, self.up3, self.up4):
            x = up(x, features.pop())
        return self.outc(x)
