"""Two-dimensional average pooling."""

from __future__ import annotations

from conformance.operators.avg_pool.geometry import PoolGeometry
from conformance.operators.avg_pool.mistakes import MISTAKES
from conformance.operators.avg_pool.operators import AvgPoolBackward, AvgPoolForward
from conformance.operators.family import LINEAR, Family
from conformance.operators.pooling_mistakes import FURTHER

FAMILY = Family(
    name="avg_pool",
    geometry=PoolGeometry,
    operators=(AvgPoolForward(), AvgPoolBackward()),
    distributions=(*LINEAR, "large"),
    mistakes=MISTAKES,
    further=FURTHER,
)
