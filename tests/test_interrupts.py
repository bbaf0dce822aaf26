"""Signals that end a command."""

from __future__ import annotations

import signal

import pytest

from conformance import interrupts


class Freed:
    """What is interrupted while it is freed."""

    def __del__(self) -> None:
        signal.raise_signal(signal.SIGINT)


@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
def test_an_interrupt_that_python_loses_counts_before_the_next_case():
    before = signal.signal(signal.SIGINT, interrupts.Interrupt())
    try:
        interrupts.require_none()
        Freed()
        with pytest.raises(KeyboardInterrupt):
            interrupts.require_none()
    finally:
        signal.signal(signal.SIGINT, before)
