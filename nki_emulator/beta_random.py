"""Random numbers of the Beta 1 API. Which ones a device draws is not documented; these are the same in every run.

Page of each: "nki.language.<name>" and "nki.isa.dropout", Neuron SDK 2.26.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from .beta_index import executed
from .beta_machine import instance
from .beta_math import data_type, new_tile, tile
from .beta_tensor import BetaTensor
from .errors import refuse
from .indexing import positive
from .machine import begin
from .operands import as_float


def rand(shape: Any, dtype: Any = np.float32) -> BetaTensor:
    """A new tile in SBUF of uniform numbers from 0 to 1."""
    begin("rand")
    sizes = positive(tuple(int(size) for size in shape), "shape")
    return new_tile(instance().random.random(sizes, np.float32), True, data_type(dtype))


def dropout(data: BetaTensor, prob: Any, *, mask: Any = None, dtype: Any = None) -> BetaTensor:
    """A new tile: data, with elements replaced by 0 at random; `prob` is a number from 0 to 1, or one a partition."""
    begin("dropout")
    values, defined = tile(data, "data").read(mask)
    chance: Any = prob
    if isinstance(prob, BetaTensor):
        probabilities, sound = tile(prob, "prob").read()
        if not sound.all() or prob.size not in (1, data.shape[0]):
            refuse("operand-shape", f"prob {prob} must be ({data.shape[0]}, 1), and defined")
        chance = as_float(probabilities).reshape((-1,) + (1,) * (data.ndim - 1))
    if not ((np.asarray(chance) >= 0) & (np.asarray(chance) <= 1)).all():
        refuse("operand", "prob is a probability; what one outside of 0 to 1 does is not documented")
    dropped = instance().random.random(values.shape, np.float32) < chance
    return new_tile(
        np.where(dropped, np.float32(0), as_float(values)), defined, data_type(dtype, data.dtype),
        ran=executed(mask, data.shape),
    )  # fmt: skip
