"""What the READMEs tell a newcomer to do works as written."""

from __future__ import annotations

import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]


def blocks(text: str, language: str) -> list[str]:
    return re.findall(rf"```{language}\n(.*?)```", text, re.DOTALL)


def test_example_in_impls_readme_passes(tmp_path: Path):
    example, *_ = blocks((ROOT / "impls/README.md").read_text(), "python")
    acme = tmp_path / "acme.py"
    acme.write_text(example)
    run = subprocess.run(
        [
            sys.executable,
            "-m",
            "pytest",
            f"--impl={acme}",
            "--operator",
            "conv_forward",
            "-k",
            "1x1 or pointwise or one-product",
        ],
        cwd=ROOT,
        capture_output=True,
        text=True,
    )
    assert run.returncode == 0, run.stdout
    counts = {word: int(number) for number, word in re.findall(r"(\d+) (pass|fail|error|unsupported)\b", run.stdout)}
    assert counts["pass"] > 10
    assert "fail" not in counts
    assert "error" not in counts


def commands() -> list[str]:
    lines = (ROOT / "README.md").read_text().splitlines()
    return [line.strip().split("#")[0] for line in lines if line.startswith("    pytest")]


@pytest.mark.parametrize("command", commands())
def test_readme_commands_are_understood(command: str):
    words = shlex.split(command)[1:]
    if "--require" in words:
        pytest.skip("refuses to start without the device, as it should")
    words = [word for word in words if not word.startswith("--records")]
    run = subprocess.run(
        [sys.executable, "-m", "pytest", "--collect-only", "-qq", "-p", "no:xdist", *without_workers(words)],
        cwd=ROOT,
        capture_output=True,
        text=True,
    )
    assert run.returncode == 0, run.stdout + run.stderr


def without_workers(words: list[str]) -> list[str]:
    """The command without `-n auto`."""
    if "-n" not in words:
        return words
    place = words.index("-n")
    return words[:place] + words[place + 2 :]
