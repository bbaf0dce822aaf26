"""Networks trained through the three directions of an implementation, every call of every step judged."""

from __future__ import annotations

import pytest


@pytest.mark.trains("digits")
def test_digits(trained, training):
    """Two convolutions with batch norm and two linear layers learn handwritten digits."""
    trained(training)


@pytest.mark.trains("unet")
def test_unet(trained, training):
    """A UNet learns to find digits on photographs."""
    trained(training)
