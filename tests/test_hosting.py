"""docs/hosting.md: what of its commands needs no container works, and the records that it refuses are refused."""

from __future__ import annotations

import re
import shlex
import subprocess
import sys
import tomllib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from conformance.cli.words import read
from tests.conftest import ROOT, Project
from tests.report_samples import sealed

pytest_plugins = ["pytester"]

PAGE = (ROOT / "docs/hosting.md").read_text()
HOSTING = ROOT / "examples/hosting"
BLOCKS = [block.replace("\\\n", "") for block in re.findall(r"```sh\n(.*?)```", PAGE, re.DOTALL)]


def block(words: str) -> str:
    found: list[str] = [text for text in BLOCKS if words in text]
    assert len(found) == 1
    return found[0]


def bash(text: str, folder: Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run(["bash", "-euc", text], cwd=folder, capture_output=True, text=True)


def test_the_submission_is_frozen_and_a_seed_drawn(tmp_path: Path):
    (tmp_path / "submission").mkdir()
    (tmp_path / "submission/acme.py").write_text("a kernel")
    (first, seed), (again, drawn) = (bash(block("sha256sum"), tmp_path).stdout.splitlines() for _ in range(2))
    assert (first == again, seed == drawn) == (True, False)
    *_, options = read(["--seed", (tmp_path / "seed").read_text().strip()])
    assert options.selection.seed == int(drawn)


def test_a_signature_is_of_these_records_alone(tmp_path: Path):
    (tmp_path / "run.jsonl").write_text("records")
    assert 'Good "conformance" signature' in bash(block("ssh-keygen"), tmp_path).stdout
    (tmp_path / "run.jsonl").write_text("records!")
    changed = bash(block("ssh-keygen").splitlines()[-1], tmp_path)
    assert changed.returncode == 255


def test_the_image_has_what_the_package_declares():
    declared = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    container = (HOSTING / "Containerfile").read_text()
    assert f'"{declared["name"]}[$EXTRAS]"' in container
    assert set(re.findall(r"EXTRAS=(\w+)", PAGE)) <= declared["optional-dependencies"].keys()
    (path,) = re.findall(r"--file (\S+)", block("docker build"))
    assert (ROOT / path).is_file()
    version, *_ = re.findall(r"--python-version (\S+)", block("docker build"))
    assert f">={version}" == declared["requires-python"], "Debian 12 brings this one"


def test_the_container_is_given_options_of_a_run():
    line, *_ = block("docker run").replace("$(cat seed)", "1").splitlines()
    _, _, given = line.replace("/submission/acme.py", str(ROOT / "examples/modules/right/conv2d_bias.py")).partition(
        " conformance "
    )
    given, _, redirected = given.partition(" 2>")
    *_, options = read(shlex.split(given))
    assert (options.records, redirected.strip(), options.selection.seed) == ("/dev/stderr", "run.jsonl", 1)


Lines = list[dict[str, Any]]
SPOILT: dict[str, tuple[Callable[[Lines], object], str]] = {
    "level": (lambda lines: lines[0].update(level="full"), "it ran level full with seed 0"),
    "seed": (lambda lines: lines[0].update(seed=5), "it ran level standard with seed 5"),
    "part": (lambda lines: lines[0]["selection"].update({"--dtype": ["fp32"]}), "a part of the level: --dtype"),
    "status": (lambda lines: lines[-1].update(exit_status=1), "the run ended with 1, the container with 0"),
    "interrupted": (lambda lines: lines[-1].update(interrupted=True), "the run ended with 0"),
    "version": (lambda lines: lines[1]["versions"].update({"kernel-conformance": "0"}), "another version"),
    "isolation": (lambda lines: lines[1]["versions"].update(process="not isolated"), "was not isolated"),
    "in process": (lambda lines: lines[1].update(in_process=True), "was not isolated"),
    "source": (lambda lines: lines[1].update(source="0" * 64), "another source than the frozen one"),
    "a helper": (
        lambda lines: lines[1].update(covers={"later": {"helper.py": "0" * 64}}),
        "another source than the frozen one",
    ),
    "two runs": (lambda lines: lines.extend([*lines]), "more or less than one run"),
    "cut off": (lambda lines: lines.pop(), "more or less than one run"),
}


@pytest.fixture
def recorded(project: Project) -> Lines:
    """Lines as a whole, isolated run would have written them, wherever this one runs."""
    project.kernel()
    project.run()
    lines = project.lines()
    lines[0]["selection"] = {"--impl": ["impls/acme.py"]}
    for line in lines[1:-1]:
        line["versions"].pop("process", None)
    return lines


def accepted(project: Project, lines: Lines, *words: str) -> subprocess.CompletedProcess[str]:
    (project.folder / "run.jsonl").write_bytes(sealed(lines))
    given = words or ("run.jsonl", "impls/acme.py", "standard", "0", "0")
    command = [sys.executable, str(HOSTING / "accept.py"), *given]
    return subprocess.run(command, cwd=project.folder, capture_output=True, text=True)


def test_records_as_the_host_asked_for_them_are_accepted(project: Project, recorded: Lines):
    found = accepted(project, recorded)
    assert (found.returncode, found.stdout) == (0, "accepted\n"), found


@pytest.mark.parametrize(("spoil", "message"), SPOILT.values(), ids=SPOILT)
def test_other_records_are_refused(
    project: Project, recorded: Lines, spoil: Callable[[Lines], object], message: str
):  # fmt: skip
    spoil(recorded)
    found = accepted(project, recorded)
    assert found.returncode == 1
    (line,) = found.stdout.splitlines()
    assert line.startswith("REFUSED: ")
    assert message in line


@pytest.mark.parametrize("words", [("run.jsonl",), ("run.jsonl", "none.py", "standard", "0", "0")])
def test_words_that_cannot_be_used_end_with_4(project: Project, recorded: Lines, words: tuple[str, ...]):
    found = accepted(project, recorded, *words)
    assert (found.returncode, "Traceback" in found.stderr) == (4, False), found
    assert found.stderr.startswith("accept.py RECORDS SUBMISSION LEVEL SEED STATUS: ")
