"""Forward and both gradients belong together."""

from __future__ import annotations

import pytest

from conformance.checks.adjoint import directions_are_adjoint


@pytest.mark.behaves("conv_forward")
def test_directions_are_adjoint(kept, case):
    """<dy, conv(x, w)> = <backward_data(dy, w), x> = <backward_weight(x, dy), w>."""
    kept(case, directions_are_adjoint)
