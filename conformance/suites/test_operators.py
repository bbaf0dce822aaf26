"""Every operator, verified on the problems of its family; dense and grouped convolutions separately."""

from __future__ import annotations

import pytest

from conformance.engine.tasks import VERIFIED
from conformance.operators import OPERATORS

FIRST = ("conv", "conv_requantized", "conv_transpose")
"""Families whose tests stand before the others', which decides between tests of one place in the ranking."""


def _place(suite: str) -> int:
    family = OPERATORS[VERIFIED[suite][0]].family
    return [*FIRST, family].index(family)


def _suite(operator: str, when):
    @pytest.mark.verifies(operator, when=when)
    def test(verify, case):
        verify(case)

    return test


globals().update({f"test_{suite}": _suite(*VERIFIED[suite]) for suite in sorted(VERIFIED, key=_place)})
