"""What a waiver may not excuse."""

from __future__ import annotations

import numpy as np
import pytest

from conformance import Implementation
from conformance.data.golden import GoldenError
from conformance.harness import verify
from conformance.harness.case import Case
from conformance.operators import OPERATORS
from conformance.problems import Variant
from conformance.problems.table import typed


def test_a_golden_that_does_not_hold_is_not_waived(monkeypatch: pytest.MonkeyPatch):
    acme = Implementation("acme")
    acme.implements("conv_forward")(lambda x, w, bias: np.zeros((1, 1, 1, 1), np.float32))
    acme.waive("conv_forward", reason="known", url="https://example.org/1")
    case = Case(acme, OPERATORS["conv_forward"], typed("n1 c1 h1 w1 k1 r1 s1"), Variant("fp32", "nchw", "fixed"), 0)
    assert verify.verify(case).status == "waived"

    def spoiled(expected):
        raise GoldenError("spoiled")

    monkeypatch.setattr(verify, "check", spoiled)
    assert verify.verify(case).status == "error"
