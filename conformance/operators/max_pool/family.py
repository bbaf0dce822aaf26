"""Two-dimensional max pooling."""

from __future__ import annotations

from conformance.operators.family import LINEAR, Family
from conformance.operators.image_mistakes import FURTHER_DILATIONS
from conformance.operators.max_pool.geometry import MaxPoolGeometry
from conformance.operators.max_pool.mistakes import MISTAKES
from conformance.operators.max_pool.operators import MaxPoolBackward, MaxPoolForward
from conformance.operators.pooling_mistakes import FURTHER

FAMILY = Family(
    name="max_pool",
    geometry=MaxPoolGeometry,
    operators=(MaxPoolForward(), MaxPoolBackward()),
    distributions=(*LINEAR, "close"),
    mistakes=MISTAKES,
    further=(*FURTHER, *FURTHER_DILATIONS),
)
