"""Mistakes in the text of an NKI kernel: how they are planted, and what they must come to."""

from __future__ import annotations

import shutil
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from nki_emulator.tests.kernels.nki_kernels import FOLDER, implementation, tried

KERNELS = FOLDER / "kernels"


@dataclass(frozen=True)
class Mutant:
    """A text that a file has once, what replaces it, and a case that must fail."""

    file: str
    text: str
    instead: str
    operator: str
    problem: str
    distribution: str = "integer"
    dtype: str = "fp32"

    @property
    def case(self) -> tuple[str, str, str, str]:
        """What `tried` takes."""
        return self.operator, self.problem, self.distribution, self.dtype

    def planted(self, folder: Path) -> Path:
        """A copy of the kernels with the mistake."""
        copy = folder / "kernels"
        shutil.copytree(KERNELS, copy, ignore=shutil.ignore_patterns("__pycache__"))
        text = (copy / self.file).read_text()
        assert text.count(self.text) == 1
        (copy / self.file).write_text(text.replace(self.text, self.instead))
        return copy


def assert_detected(mutant: Mutant, folder: Path) -> None:
    """By a verdict or a rule, not because the mutant's own text does not run."""
    verdict = tried(implementation(mutant.planted(folder)), *mutant.case)
    assert verdict.status in ("fail", "error"), verdict.reason
    assert "rule kernel-error" not in verdict.reason, "the mutant itself does not run"


def cases(mutants: Iterable[Mutant]) -> list[tuple[str, str, str, str]]:
    """Each case once, for the kernels without a mistake."""
    return sorted({mutant.case for mutant in mutants})
