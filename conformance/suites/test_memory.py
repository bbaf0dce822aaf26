"""Memory: what an operator keeps for its backward. A fused convolution and batch norm keeps the convolution's input."""

from __future__ import annotations

import pytest

from conformance.checks import memory
from conformance.problems.normalised import MEMORY_PAIRS, MEMORY_STEPS


@pytest.mark.measures("conv_bn_forward", problems=MEMORY_PAIRS, dtypes=("fp32", "bf16"))
def test_backward_keeps_what_is_declared(kept, case):
    """Activations that are kept between forward and backward, counted and in bytes; results and gradients are right."""
    kept(case, memory.backward_keeps_what_is_declared)


@pytest.mark.measures("conv_bn_forward", problems=MEMORY_STEPS, dtypes=("fp32",))
def test_training_holds_what_autograd_shows(kept, case):
    """A training step of two pairs in a network: its peak, and nothing that lives unseen after forward."""
    kept(case, memory.training_holds_what_autograd_shows)
