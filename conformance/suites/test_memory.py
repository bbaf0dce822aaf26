"""Memory: what an operator keeps for its backward. A fused convolution and batch norm keeps the convolution's input."""

from __future__ import annotations

from dataclasses import replace

import pytest

from conformance.checks import memory
from conformance.problems import typed

PAIRS = tuple(map(typed, ("bn n8 c32 h26 w26 k64 r3 s3", "bn n4 c24 h14 w14 k40 r3 s3 u2 p1 affine0 run0")))
STEP = typed("bn n64 c32 h26 w26 k64 r3 s3 affine0 run0 eps3")
PUBLISHED_STEP = replace(typed("bn n2048 c32 h26 w26 k64 r3 s3 affine0 run0 eps3"), level="full")


@pytest.mark.measures("conv_bn_forward", problems=PAIRS, dtypes=("fp32", "bf16"))
def test_backward_keeps_what_is_declared(kept, case):
    """Activations that are kept between forward and backward, counted and in bytes; results and gradients are right."""
    kept(case, memory.backward_keeps_what_is_declared)


@pytest.mark.measures("conv_bn_forward", problems=(STEP, PUBLISHED_STEP), dtypes=("fp32",))
def test_training_holds_what_autograd_shows(kept, case):
    """A training step of two pairs in a network: its peak, and nothing that lives unseen after forward."""
    kept(case, memory.training_holds_what_autograd_shows)
