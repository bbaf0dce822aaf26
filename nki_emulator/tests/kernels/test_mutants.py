"""Mistakes planted in the text of the NKI kernels: each fails a case or breaks a rule of the emulator, and without it
all cases pass."""

from __future__ import annotations

from pathlib import Path

import pytest

from nki_emulator.tests.kernels.nki_kernels import implementation, tried
from nki_emulator.tests.kernels.nki_mutants import planted_cases

PLANTED = planted_cases()


@pytest.mark.parametrize("name", PLANTED)
def test_a_planted_mistake_fails(name: str, tmp_path: Path):
    verdict = tried(implementation(PLANTED[name].mutant.planted(tmp_path)), *PLANTED[name].case)
    assert verdict.status in ("fail", "error"), verdict.reason
    assert "rule kernel-error" not in verdict.reason, "the mutant itself does not run"


@pytest.mark.parametrize("case", sorted({row.case for row in PLANTED.values()}))
def test_without_it_the_case_passes(case: tuple[str, str, str, str]):
    verdict = tried(implementation(), *case)
    assert verdict.status == "pass", verdict.reason


def test_the_tutorials_own_problem_does_not_see_its_sums(tmp_path: Path):
    """Those in the format of the tensor, rounded before they are divided."""
    kernels = PLANTED["avg_pool: sums in bf16"].mutant.planted(tmp_path)
    problem = "pool n1 c2 h6 w6 r2 s2"
    assert tried(implementation(kernels), "avg_pool_forward", problem, "integer", "bf16").status == "pass"
