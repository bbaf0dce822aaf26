"""Every operator, verified on the problems of its family; dense and grouped convolutions separately."""

from __future__ import annotations

import pytest

from conformance.engine.tasks import VERIFIED


def _suite(operator: str, when):
    @pytest.mark.verifies(operator, when=when)
    def test(verify, case):
        verify(case)

    return test


globals().update({f"test_{suite}": _suite(*verified) for suite, verified in VERIFIED.items()})
