"""Places of the axes in each layout."""

from __future__ import annotations

import jax.numpy as jnp

LAYOUTS = ("nchw", "nhwc", "ncw", "nwc", "ncdhw", "ndhwc")
SPATIAL = {layout: tuple(layout.index(axis) for axis in "dhw" if axis in layout) for layout in LAYOUTS}
CHANNELS = {layout: layout.index("c") for layout in LAYOUTS}
BUT_CHANNELS = {layout: tuple(axis for axis in range(len(layout)) if layout[axis] != "c") for layout in LAYOUTS}


def shape(layout, batch, channels, size):
    return (batch, *size, channels) if layout.endswith("c") else (batch, channels, *size)


def channels(array, layout):
    return array.shape[CHANNELS[layout]]


def size(array, layout):
    return tuple(array.shape[axis] for axis in SPATIAL[layout])


def along_channels(vector, layout):
    """Return a vector [K] in a shape that broadcasts against images."""
    return vector if layout.endswith("c") else vector.reshape(-1, *(1 for _ in SPATIAL[layout]))


def on_spatial(values, layout):
    """Return values for the spatial axes, and 1 for the other two."""
    return shape(layout, 1, 1, values)


def wide(dtype):
    """Return the format that inputs of fewer bits are accumulated in; fp32 and fp64 are accumulated in themselves."""
    if jnp.dtype(dtype).itemsize > 1:
        return jnp.promote_types(dtype, jnp.float32)
    return jnp.int32 if jnp.issubdtype(dtype, jnp.integer) else jnp.float32  # jax promotes no fp8


def result(dtype):
    """Return the format of an operator's result: that of its inputs, unless these have 8 bits."""
    return wide(dtype) if jnp.dtype(dtype).itemsize == 1 else dtype
