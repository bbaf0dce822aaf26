"""Where a layout keeps which axis."""

from __future__ import annotations

import jax.numpy as jnp

SPATIAL = {"nchw": (2, 3), "nhwc": (1, 2)}
CHANNELS = {"nchw": 1, "nhwc": 3}
BUT_CHANNELS = {"nchw": (0, 2, 3), "nhwc": (0, 1, 2)}


def shape(layout, batch, channels, size):
    return (batch, channels, *size) if layout == "nchw" else (batch, *size, channels)


def channels(array, layout):
    return array.shape[CHANNELS[layout]]


def size(array, layout):
    return tuple(array.shape[axis] for axis in SPATIAL[layout])


def along_channels(vector, layout):
    """A vector [K] in a shape that broadcasts against 4-D tensors."""
    return vector[:, None, None] if layout == "nchw" else vector


def on_spatial(rows, columns, layout):
    """Values for the two spatial axes, 1 for the other two."""
    return shape(layout, 1, 1, (rows, columns))


def wide(dtype):
    """What 16-bit storage is accumulated in; fp32 and fp64 are their own."""
    return jnp.promote_types(dtype, jnp.float32)
