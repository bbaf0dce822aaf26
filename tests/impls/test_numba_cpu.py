"""numba-cpu in one and three dimensions, on the shapes that its plans treat each in a way of its own."""

from __future__ import annotations

import pytest

from conformance.execution.verify import verify
from conformance.implementations import registry
from conformance.layouts import layouts_of
from conformance.problems import typed
from conformance.resources import IMPLS
from tests.kit import trial_of

pytest.importorskip("numba")

SHAPES = {
    "one row": "n2 c5 w23 k9 s4 u2 p2:1 d2 b1",
    "a row longer than a block": "n1 c8 w3200 k6 s3 p1",
    "edges of planes": "n2 c5 d4 h5 w6 k9 t3 r3 s3 p1 b1",
    "residues of planes": "n2 c4 d7 h6 w5 k8 t3 r2 s3 u2x1x3 p1 dil2x1x1 b1",
    "planes of padding alone": "n2 c4 d2 h4 w3 k5 t1 r2 s2 p2x1x0 b1",
    "some planes, of one tap": "n2 c6 d5 h4 w7 k5 t1 r1 s1 u2x1x3 b1",
    "a tap that meets no plane": "n2 c4 d2 h5 w4 k8 t3 r2 s2 p2x0x0 dil2x1x1",
    "no tap that reaches the image": "n2 c5 d4 h1 w3 k4 t1 r1 s2 u1x3x1 p0x1x0",
    "window along the planes": "n2 c6 d9 h4 w5 k8 t3 r1 s1 u2x1x1 p1:0x0x0 b1",
    "window along the columns": "n2 c6 d3 h4 w9 k8 t1 r1 s3 p0x0x1 b1",
    "window of a pixel": "n2 c6 d3 h4 w5 k8 t1 r1 s1 b1",
    "depthwise, rows as many as columns": "n2 c3 d5 h6 w7 k3 t3 r1 s3 p1x0x1 g3 b1",
    "depthwise in a plane": "n2 c3 d5 h6 w7 k3 t1 r3 s3 p0x1x1 g3",
}


@pytest.mark.parametrize("operator", ["conv_forward", "conv_backward_data", "conv_backward_weight"])
@pytest.mark.parametrize("shape", SHAPES)
def test_every_way_to_treat_an_axis_is_right(shape: str, operator: str):
    """Integers must come out exactly, and NaN and Inf where the definition has them."""
    implementation, problem = registry.load([IMPLS / "numba_cpu"]).implementations["numba-cpu"], typed(SHAPES[shape])
    for layout in layouts_of(len(problem.geometry.size)):
        for distribution in "integer", "nonfinite":
            verdict = verify(trial_of(implementation, problem, operator, layout=layout, distribution=distribution))
            assert verdict.status == "pass", f"{layout} {distribution}: {verdict.reason}"
