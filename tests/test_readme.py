"""What the READMEs tell a newcomer to do works as written."""

from __future__ import annotations

import json
import re
import shlex
import subprocess
import sys
from pathlib import Path

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


COLLECT = """
import json, sys, pytest
for words in json.load(sys.stdin):
    ended = pytest.main(["--collect-only", "-qq", "-p", "no:xdist", "-p", "no:cacheprovider", *words])
    print("ENDED", int(ended), *words)
"""
"""Every command in one process, which imports everything once."""


def test_readme_commands_are_understood():
    words = [shlex.split(command)[1:] for command in commands()]
    # one that requires a device refuses to start without it, as it should
    understood = [quick(each) for each in words if "--require" not in each]
    run = subprocess.run(
        [sys.executable, "-c", COLLECT], input=json.dumps(understood), cwd=ROOT, capture_output=True, text=True
    )
    ended = re.findall(r"^ENDED (\d+) ?(.*)$", run.stdout, re.MULTILINE)
    assert len(ended) == len(understood), run.stdout + run.stderr
    assert [command for status, command in ended if status != "0"] == [], run.stdout + run.stderr


def quick(words: list[str]) -> list[str]:
    """The command without `-n auto` and files that it would write; of one implementation if it names none."""
    kept = [word for word in words if not word.startswith("--records")]
    place = kept.index("-n") if "-n" in kept else len(kept)
    kept[place : place + 2] = []
    selects = {"--impl", "-m"} & {*kept} or any(word.startswith("conformance/") for word in kept)
    return kept if selects else [*kept, "--impl", "numpy-direct"]
