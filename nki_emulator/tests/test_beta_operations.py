"""Operations of the first generation of NKI against float64: equality, or an argued bound."""

from __future__ import annotations

import numpy as np
import pytest

from nki_emulator.tests.beta_operations import BETA_OPERATIONS, BetaOperation
from nki_emulator.tests.beta_selections import BETA_SELECTIONS
from nki_emulator.tests.sources import loaded, wide


@pytest.mark.parametrize("operation", [*BETA_OPERATIONS, *BETA_SELECTIONS], ids=lambda operation: operation.name)
def test_operation(tmp_path, operation: BetaOperation):
    a, b = operation.operands()
    found = wide(loaded(tmp_path, operation.source).kernel(a, b))
    expected = np.asarray(operation.expected(wide(a), wide(b)), np.float64)
    assert found.shape == expected.shape
    allowed = 0.0 if operation.bound is None else operation.bound(wide(a), wide(b))
    assert (np.abs(found - expected) <= allowed).all()
