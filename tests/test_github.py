"""What GitHub's runners are told: the line of the change that a failure is shown at, and what a vendor has them run."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import textwrap
from pathlib import Path
from typing import Any

import pytest

from conformance import __version__
from conformance.__main__ import main
from conformance.execution import environment
from conformance.reporting.github import annotation
from tests.conftest import ROOT, TINY, Project
from tests.kit import source

pytest_plugins = ["pytester"]

WRONG = "y[0] += 1; return y"
TWICE = ')\n@acme.implements("conv_forward", dtypes=("bf16",)'
PARTIAL = 'acme.kernels.clear(); acme.implements("conv_forward")(functools.partial(conv_forward))'
FOUND: dict[str, tuple[dict[str, str], str]] = {
    "wrong": ({"body": WRONG}, "def conv_forward("),
    "several decorators": ({"body": WRONG, "declares": TWICE}, "def conv_forward("),
    "raises": ({"body": "raise ValueError('no')"}, "raise ValueError"),
    "raises in a helper": ({"head": "def helper(): 1 / 0", "body": "helper()"}, "1 / 0"),
    "crashes": ({"head": "import os, signal", "body": "os.kill(os.getpid(), signal.SIGSEGV)"}, "os.kill("),
    "no name": ({"body": WRONG, "tail": "del conv_forward"}, "def conv_forward("),
    "partial": ({"head": "import functools", "body": WRONG, "tail": PARTIAL}, "def conv_forward("),
    "cannot be loaded": ({"tail": "nobody_knows_this"}, "nobody_knows_this"),
    "no Python": ({"tail": "1 +"}, "1 +"),
}


def lines(file: Path, text: str) -> list[int]:
    """In which a text stands."""
    return [n for n, found in enumerate(file.read_text().splitlines(), start=1) if text in found]


@pytest.mark.parametrize("name", FOUND)
def test_a_failure_is_annotated_at_its_line(project: Project, monkeypatch: pytest.MonkeyPatch, name: str):
    """Relative to the repository, not to the folder that the command runs in."""
    changes, text = FOUND[name]
    monkeypatch.setenv("GITHUB_ACTIONS", "true")
    monkeypatch.setenv("GITHUB_WORKSPACE", str(project.folder.parent))
    file = project.kernel(**{"body": "return y"} | changes)
    (line,) = lines(file, text)
    (said,) = (text for text in project.run().text.splitlines() if text.startswith("::error "))
    assert said.startswith(f"::error file={project.folder.name}/impls/acme.py,line={line},title=acme"), said


def test_a_failure_of_a_torch_module_is_annotated_at_its_class(project: Project, monkeypatch: pytest.MonkeyPatch):
    pytest.importorskip("torch")
    monkeypatch.setenv("GITHUB_ACTIONS", "true")
    monkeypatch.setenv("GITHUB_WORKSPACE", str(project.folder))
    text = (
        "from torch import nn", "Model = nn.Conv2d", "class ModelNew(nn.Conv2d):",
        "    def forward(self, x): return super().forward(x) + 1",
    )  # fmt: skip
    project.write("impls/acme.py", "\n".join(text))
    (said,) = (line for line in project.run().text.splitlines() if line.startswith("::error "))
    assert said.startswith("::error file=impls/acme.py,line=3,title=acme::")


def test_a_place_is_seen_from_the_repository_and_one_outside_is_none(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    (tmp_path / "repository" / ".git").mkdir(parents=True)
    kernels = tmp_path / "repository" / "ker,nels"
    kernels.mkdir()
    for file in (kernels / "a.py", tmp_path / "outside.py"):
        file.write_text("")
    monkeypatch.delenv("GITHUB_WORKSPACE", raising=False)
    monkeypatch.chdir(kernels)
    places: list[Any] = [(tmp_path / "outside.py", 3), (kernels / "gone.py", 2), (Path("a.py"), 7)]
    assert annotation("a:b", "c\nd%", places) == "::error file=ker%2Cnels/a.py,line=7,title=a%3Ab::c%0Ad%25"
    assert annotation("a", "b", places[:2]) == "::error title=a::b"
    assert annotation("a", "b", [(Path("a.py"), 0)]) == "::error file=ker%2Cnels/a.py,title=a::b"


def scripts(file: Path) -> list[str]:
    """Of the steps of a workflow or an action that run a shell."""
    found = re.findall(r"^( *)(?:- )?run: (?:\|\n((?:\1 +.*\n)+)|(.*)\n)", file.read_text(), re.MULTILINE)
    return [textwrap.dedent(block) or line for _, block, line in found]


def ended(script: str, folder: Path, **environment: str) -> tuple[int, str]:
    """Exit status and output of a step, as a runner in a vendor's repository has it."""
    alone = {name: value for name, value in os.environ.items() if not name.startswith(("PYTEST_", "GITHUB"))}
    alone |= {"GITHUB_ACTIONS": "true", "GITHUB_WORKSPACE": str(folder), "GITHUB_STEP_SUMMARY": str(folder / "job.md")}
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    done = subprocess.run(
        ["bash", "--noprofile", "--norc", "-eo", "pipefail", "-c", script],
        cwd=folder, env=alone | {"PATH": path, "PYTHONPATH": str(ROOT)} | environment,
        capture_output=True, text=True, timeout=300, check=False,
    )  # fmt: skip
    return done.returncode, done.stdout + done.stderr


@pytest.fixture
def repository(tmp_path: Path) -> Path:
    """Of a vendor: the kernel of README, with its strides swapped."""
    readme = (ROOT / "README.md").read_text()
    acme = readme.partition("```python\n")[2].partition("```")[0]
    swapped = acme.replace(":: stride[0], :: stride[1]", ":: stride[1], :: stride[0]")
    assert swapped != acme
    (tmp_path / "acme.py").write_text(swapped)
    return tmp_path


def test_the_workflow_of_the_documents_runs(repository: Path):
    """But for its first command, of which the file is what `pip wheel` makes."""
    install, run, badge = scripts(ROOT / "docs" / "vendor-repository.md")
    assert install == f'python -m pip install "./wheels/kernel_conformance-{__version__}-py3-none-any.whl[report]"'
    status, text = ended(run, repository)
    assert status == 1, text
    (line,) = (
        n for n, found in enumerate((repository / "acme.py").read_text().splitlines(), start=1) if "def " in found
    )
    assert f"::error file=acme.py,line={line},title=acme::strides swapped: " in text
    assert "- acme conv_forward fp32: " in (repository / "job.md").read_text()
    assert ended(badge, repository)[0] == 0
    out = repository / "out"
    assert {file.name for file in out.iterdir()} == {
        "conformance.svg", "index.html", "junit.xml", "records.jsonl", "summary.md",
    }  # fmt: skip
    assert re.search(r">smoke: \d+ of \d+ fail<", (out / "conformance.svg").read_text())
    assert "reproduce: conformance check acme.py" in (out / "junit.xml").read_text()


def test_the_second_step_of_the_action_runs(repository: Path):
    (repository / "conformance").mkdir()
    (repository / "conformance" / "bin").symlink_to(Path(sys.executable).parent)
    _, verify = scripts(ROOT / ".github/actions/conformance/action.yml")
    given = {
        "RUNNER_TEMP": str(repository), "GITHUB_OUTPUT": str(repository / "output"), "REPORT": "out", "LEVEL": "smoke",
        "IMPLEMENTATION": "acme.py", "ARGUMENTS": "--operator conv_forward",
    }  # fmt: skip
    status, text = ended(verify, repository, **given)
    assert status == 1, text
    assert re.search(r"^::notice title=Kernel conformance::level smoke, \d+ s, exit status 1$", text, re.MULTILINE)
    assert (repository / "output").read_text() == "status=1\nreport=out\n"
    assert (repository / "out" / "conformance.svg").is_file()
    assert (repository / "job.md").read_text().count("# Conformance of acme") == 1


COMMANDS = ("::error::forged", "  ::set-output name=a::b", "##[error]forged", "see ##[warning]forged")


@pytest.mark.parametrize("command", ["run", "run -s", "pytest -s", "check", "verify"])
def test_nothing_that_a_kernel_says_is_a_command(
    project: Project, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], command: str
):
    """As part of what it raises, prints or calls itself; `verify` shows what a file of records says."""
    monkeypatch.setenv("GITHUB_ACTIONS", "true")
    monkeypatch.chdir(project.folder)
    said, file = "\\n".join(["", *COMMANDS, ""]), "impls/::error::it.py"
    parted = "[os.write(1, c.encode()) and time.sleep(0.01) for c in '::error::parted']"
    body = f"print('{said}', flush=True); {parted}; raise ValueError('{said}')"
    project.write(file, source("::error::it", body, head="import os, time"))
    ran = project.pytest if command == "pytest -s" else project.run
    text = ran(f"--impl={file}", *command.split()[1:]).text
    if command.endswith("-s"):
        assert ": :error::parted" in text
    words = {"check": [file, TINY, "--operator=conv_forward"], "verify": ["records.jsonl"]}
    if command in words:
        main([command, *words[command]])
        text = "\n".join(capsys.readouterr())
    begun = [line for line in text.splitlines() if line.lstrip().startswith("::") or "##[" in line]
    assert [line for line in begun if not line.startswith("::error file=impls/%3A%3A")] == []
    assert len(begun) == (command not in words)
    assert "forged" in text or command == "verify"


WITHHELD = ("GITHUB_ENV", "ACTIONS_RUNTIME_URL", "TORCH_TOKEN", "aws_secret_access_key", "ACME_HOME", "ACME_API_KEY")


@pytest.mark.parametrize(
    ("named", "extended", "more"),
    [
        ((), "", set()),
        (("ACME_*",), "", {"ACME_HOME"}),
        (("ACME_API_KEY",), "TORCH_*,ACME_H?ME", {"ACME_API_KEY", "ACME_HOME"}),
        ((), "TORCH_TOKEN GITHUB_ENV", {"TORCH_TOKEN", "GITHUB_ENV"}),
    ],
)
def test_a_kernel_is_given_what_frameworks_read_and_what_is_named(
    monkeypatch: pytest.MonkeyPatch, named: tuple[str, ...], extended: str, more: set[str]
):
    passed = {"PATH", "OMP_NUM_THREADS", "CUDA_VISIBLE_DEVICES", "TORCH_LOGS", "https_proxy", "LC_ALL"}
    for name in (*WITHHELD, *passed):
        monkeypatch.setenv(name, os.environ["PATH"])
    monkeypatch.setenv(environment.EXTENDS, extended)
    given = environment.of_kernels(named).keys()
    assert passed <= given
    assert {*WITHHELD} & given == more


@pytest.mark.parametrize("front", ["run", "pytest", "check"])
def test_a_run_passes_the_variables_that_it_is_told(project: Project, monkeypatch: pytest.MonkeyPatch, front: str):
    file = project.kernel(head="import os\nassert os.environ['ACME_HOME']\nassert 'ACME_TOO' not in os.environ")
    for name in ("ACME_HOME", "ACME_TOO"):
        monkeypatch.setenv(name, "here")
    if front == "check":
        monkeypatch.setenv(environment.EXTENDS, "ACME_HOME")
        assert main(["check", str(file), TINY, "--operator=conv_forward"]) == 0
        return
    ran = project.run if front == "run" else project.pytest
    assert ran("--pass-env=ACME_HOME").exit == 0
    assert "KeyError: 'ACME_HOME'" in ran().text


def test_a_summary_that_became_a_pipe_is_a_note(project: Project, monkeypatch: pytest.MonkeyPatch):
    """Nobody waits for who would read it."""
    os.mkfifo(project.folder / "job.md")
    project.kernel()
    monkeypatch.setenv("GITHUB_STEP_SUMMARY", str(project.folder / "job.md"))
    outcome = project.run()
    assert outcome.exit == 0
    assert "GITHUB_STEP_SUMMARY: cannot be written (" in outcome.text
