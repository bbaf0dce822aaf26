"""What a run tells GitHub's runners: at which line of the change a failure is shown, and the summary of the job."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from conformance.reporting.github import annotation
from tests.conftest import Project

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


@pytest.mark.parametrize("name", FOUND)
def test_a_failure_is_annotated_at_its_line(project: Project, monkeypatch: pytest.MonkeyPatch, name: str):
    """Relative to the repository, not to the folder that the command runs in."""
    changes, text = FOUND[name]
    monkeypatch.setenv("GITHUB_ACTIONS", "true")
    monkeypatch.setenv("GITHUB_WORKSPACE", str(project.folder.parent))
    file = project.kernel(**{"body": "return y"} | changes)
    (line,) = (n for n, found in enumerate(file.read_text().splitlines(), start=1) if text in found)
    (said,) = (text for text in project.run().text.splitlines() if text.startswith("::error "))
    assert said.startswith(f"::error file={project.folder.name}/impls/acme.py,line={line},title=acme"), said


def test_a_failure_of_a_torch_module_is_annotated_at_its_class(project: Project, monkeypatch: pytest.MonkeyPatch):
    pytest.importorskip("torch")
    monkeypatch.setenv("GITHUB_ACTIONS", "true")
    monkeypatch.setenv("GITHUB_WORKSPACE", str(project.folder))
    lines = (
        "from torch import nn", "Model = nn.Conv2d", "class ModelNew(nn.Conv2d):",
        "    def forward(self, x): return super().forward(x) + 1",
    )  # fmt: skip
    project.write("impls/acme.py", "\n".join(lines))
    (said,) = (text for text in project.run().text.splitlines() if text.startswith("::error "))
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
