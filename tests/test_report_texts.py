"""The summary in Markdown: what it holds, how large it gets, and what nothing from outside can do to it."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from conformance.reporting import report_command
from conformance.reporting.page import markdown
from tests.conftest import absence
from tests.report_samples import digest, failed, sample, waived

HOSTILE = "| `x` **b** <img src=x> [a](javascript:b) @octocat #12 $x$ ~s~ ![i](j)\n# head\n- item\x00\x1b\ufffe\r\n=1+1"


def test_the_summary_shows_no_folder_of_the_machine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    (tmp_path / "my folder").mkdir()
    monkeypatch.chdir(tmp_path / "my folder")
    inside, outside = Path.cwd() / "a.py", f"/other{tmp_path / 'my folder' / 'b.py'}"
    records = [
        sample(status="error", reason=f"raised E: {outside} at {inside}:15", command=f"conformance run '{inside}'"),
        waived(problem="w", waiver={"reason": str(inside), "url": "https://example.org/known"}),
    ]
    text = markdown.summary(digest(tmp_path, records), "t")
    assert f"    raised E: {outside} at a.py:15\n    reproduce: conformance run 'a.py'\n" in text
    assert "| acme | a.py (" in text
    monkeypatch.chdir("/")
    text = markdown.summary(digest(tmp_path, records), "t")
    assert f"at {inside}:15\n" in text
    assert "<https://example.org/known>" in text


def test_nothing_from_outside_is_markdown(tmp_path: Path):
    names = ("implementation", "operator", "problem", "reason", "command")
    records = [make(seed=n, **dict.fromkeys(names, HOSTILE)) for n, make in enumerate((failed, waived, sample))]
    text = markdown.summary(digest(tmp_path, records), HOSTILE)
    told = [line for line in text.splitlines() if not line.startswith("    ")]
    assert not [line for line in told if re.search(r"<(?!https?://)|`|\*\*b|\]\(|(?<!\w)@\w|(?<![\w&])#\w|\$|~s", line)]
    heads = [line for line in told if line.startswith("#")]
    assert all(line.startswith(("# &#124;", "## ", "### &#124;")) for line in heads)
    rows = [line for line in told if line.startswith("|")]
    assert {line.count("|") for line in rows if "pass" not in line} <= {3, 4, 10}


def test_the_summary_fits_a_comment(tmp_path: Path):
    long = [failed(problem=f"p{n}", command="x" * 3500, implementation=f"acme-{n}" + "x" * 200) for n in range(400)]
    text = markdown.summary(digest(tmp_path, long), "t")
    assert len(text.encode()) < 60_000
    assert "Too long for this summary, see index.html: " in text


def test_no_file_holds_what_it_may_not_whatever_names_are(tmp_path: Path):
    if lacking := absence(report_command.require):
        pytest.skip(lacking)
    from conformance.reporting.page.render import texts

    names = ("implementation", "operator", "problem", "reason", "command", "check")
    records = [sample(**dict.fromkeys(names, HOSTILE)), failed(**dict.fromkeys(names, HOSTILE))]
    records += [failed(implementation="\x08" * 3, problem="]]>&amp;"), sample(implementation="\uffff", dtype="\x00")]
    found = digest(tmp_path, records)
    assert not found.results.errors
    for name, text in texts(found, HOSTILE).items():
        assert not re.search("[\x00-\x08\x0b\x0c\x0e-\x1f\ufffe\uffff]", text), name
