"""Networks trained through the three directions of an implementation, every call of every step judged."""

from __future__ import annotations

import pytest


@pytest.mark.trains("digits")
def test_digits(train, case):
    """Train two convolutions with batch norm and two linear layers on handwritten digits."""
    train(case)


@pytest.mark.trains("unet")
def test_unet(train, case):
    """Train a UNet to find digits on photographs."""
    train(case)
