"""Pages of defects: what their scripts come to, and pages that cannot be run."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from conformance.__main__ import main
from conformance.resources import FINDINGS
from conformance.survey import findings
from conformance.survey.survey_file import SurveyError
from tests.conftest import ROOT

PAGE = """# A title

| fact | |
| --- | --- |
| engine | torch |
| seen in | torch 2.13.0 |
| shows | {shows} |
| upstream | not found |

What is wrong.

```python
{script}
```
"""


def page(script: str = "assert 1 == 2", shows: str = "AssertionError") -> str:
    return PAGE.format(shows=shows, script=script)


@pytest.mark.parametrize(
    ("script", "shows", "word"),
    [
        ("assert 1 == 2, [1, 2]", "AssertionError", "reproduces"),
        ("assert 1 == 2, 'two\\n  lines'", "SIGSEGV or AssertionError", "reproduces"),
        ("import os, signal; os.kill(os.getpid(), signal.SIGSEGV)", "SIGSEGV", "reproduces"),
        ("import numpy; numpy.linalg.inv(numpy.zeros((1, 1)))", "LinAlgError", "reproduces"),
        ("import os, signal; os.kill(os.getpid(), signal.SIGFPE)", "SIGSEGV", "differs"),
        ("raise ValueError('assert')", "AssertionError", "differs"),
        ("raise SystemExit(3)", "AssertionError", "differs"),
        ("assert 1 == 1", "AssertionError", "fixed"),
        ("import no_such_engine", "AssertionError", "not installed"),
    ],
)
def test_what_a_script_comes_to(script: str, shows: str, word: str):
    found = findings.parsed("torch-it", page(script, shows))
    assert findings.reproduced(found, Path(sys.executable)).word == word


def test_a_defect_of_a_device_that_is_not_here_is_neither_fixed_nor_reproduced(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(findings, "missing", lambda device: "no driver")
    found = findings.parsed("torch-it", page("pass").replace("torch 2.13.0", "torch 2.11.0, CUDA 13.0"))
    assert findings.reproduced(found, Path(sys.executable)).word == "no device"


def test_a_script_that_does_not_end(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(findings, "PATIENCE", 1.0)
    found = findings.parsed("torch-it", page("while True: pass"))
    assert findings.reproduced(found, Path(sys.executable)).word == "differs"


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (page().replace("| upstream | not found |\n", ""), "torch-it.md: has no row 'upstream'"),
        (page().replace("engine | torch", "engine | troch"), "engine 'troch' is none of"),
        (page(shows="it fails"), "shows must name an exception"),
        (page("pass\n" * 15 + "pass"), "its script has 16 lines; 15 are allowed"),
        (page("pass\n```\n\n```python\npass"), "has 2 blocks of Python"),
        ("", "has no row 'engine'"),
    ],
)
def test_pages_that_cannot_be_run(text: str, message: str):
    with pytest.raises(SurveyError) as caught:
        findings.parsed("torch-it", text)
    assert message in str(caught.value)


def test_the_command(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]):
    monkeypatch.setattr(findings, "FINDINGS", tmp_path)
    here = ["--folder", str(tmp_path)]
    (tmp_path / "torch-it.md").write_text(page())
    (tmp_path / "torch-other.md").write_text(page("import no_such_engine"))
    assert main(["survey", "--findings", *here]) == 0
    assert capsys.readouterr().out.splitlines()[-1] == "1 not installed, 1 reproduces"
    assert main(["survey", "--findings", "torch-other", *here]) == 5
    (tmp_path / "torch-fixed.md").write_text(page("pass"))
    assert main(["survey", "--findings", "torch", *here]) == 1
    capsys.readouterr()
    assert main(["survey", "--findings", "nothing", *here]) == 4
    assert "nothing: no such finding. Choices: torch-fixed, torch-it, torch-other" in capsys.readouterr().err


def test_every_page_can_be_run_and_is_linked():
    every = findings.read(FINDINGS)
    assert len(every) >= 10
    overview = (ROOT / "docs/findings.md").read_text()
    assert [one.name for one in every if f"(findings/{one.name}.md)" not in overview] == []
    assert f"{len(every)} defects of " in overview
