"""Layers of networks, each implementation against torch on the same device in the same run.

Targets, as geometric means relative to torch over the UNet's layers in each direction: numba-cuda-igemm at least 0.5
(goal 0.8), numba-cuda-tiled at least 0.2; numba-cpu at least 0.5 on the same threads. Over the weight gradients of
grouped and depthwise layers, where general kernels waste most of their work: numba-cuda-igemm at least 1.0. They are
printed, not asserted: a time depends on what else the machine does.
"""

from __future__ import annotations

import pytest

from conformance.operators import FAMILIES
from conformance.problems import of_section


def _benchmark(operator: str, problems):
    @pytest.mark.benchmarks(operator, problems=problems)
    def test(measure_time, case):
        measure_time(case)

    return test


for _family in FAMILIES.values():
    for _operator in _family.operators if _family.timed else ():
        _layers = of_section(_family.name, *_family.timed)
        globals()[f"test_{_operator.name}"] = _benchmark(_operator.name, _layers)
