"""Mistakes in the text of an NKI kernel: the table of them, and how they are planted."""

from __future__ import annotations

import shutil
import tomllib
from dataclasses import dataclass
from pathlib import Path

from nki_emulator.tests.kernels.nki_kernels import FOLDER

KERNELS = FOLDER / "kernels"


@dataclass(frozen=True)
class Mutant:
    """A text that a file has once, and what replaces it."""

    file: str
    text: str
    instead: str

    def planted(self, folder: Path) -> Path:
        """A copy of the kernels with the mistake."""
        copy = folder / "kernels"
        shutil.copytree(KERNELS, copy, ignore=shutil.ignore_patterns("__pycache__"))
        text = (copy / self.file).read_text()
        assert text.count(self.text) == 1
        (copy / self.file).write_text(text.replace(self.text, self.instead))
        return copy


@dataclass(frozen=True)
class PlantedCase:
    """A mistake, and what `tried` takes for the case that must fail: operator, problem, distribution and dtype."""

    mutant: Mutant
    case: tuple[str, str, str, str]


def planted_cases() -> dict[str, PlantedCase]:
    """Those of mistakes.toml, by file and name."""
    found = {}
    for file, rows in tomllib.loads(Path(__file__).with_name("mistakes.toml").read_text()).items():
        for name, row in rows.items():
            operator, problem, *variant = row["case"].split(" | ")
            distribution, dtype = variant or ("integer", "fp32")
            mutant = Mutant(f"{file}.py", row["text"], row["instead"])
            found[f"{file}: {name}"] = PlantedCase(mutant, (operator, problem, distribution, dtype))
    return found
