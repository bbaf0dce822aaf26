"""The summary in Markdown: what it holds, how large it gets, and what nothing from outside can do to it."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest

from conformance.reporting import report_command
from conformance.reporting.page import markdown
from conformance.reporting.page.merge import load
from conformance.reporting.page.tables import Digest
from tests.conftest import absence
from tests.report_samples import absent, failed, sample, waived, written

HOSTILE = "| `x` **b** <img src=x> [a](javascript:b) @octocat #12 $x$ ~s~ ![i](j)\n# head\n- item\x00\x1b\ufffe\r\n=1+1"


def digest(tmp_path: Path, records: list[dict[str, Any]]) -> Digest:
    return Digest(load([written(tmp_path / "run.jsonl", records)]))


def every() -> list[dict[str, Any]]:
    return [
        sample(), failed(problem="wrong"), waived(problem="w"),
        sample(problem="e", status="error", reason="ValueError: no"), absent(),
        absent(implementation="nki@sim", status="unavailable", reason="no module named nki"),
    ]  # fmt: skip


def test_the_summary_says_what_happened(tmp_path: Path):
    text = markdown.summary(digest(tmp_path, every()), "Nightly")
    facts = "4 May 2026, 03:02 UTC, 60 min; cpu, x86_64 Linux; seed 0"
    verdict = "acme conv_forward fp32: 2 of 4 fail, 1 waived (1 error): last row of y"
    assert text.startswith(f"# Nightly\n\n{facts}\n\n- {verdict}")
    assert text.count(verdict) == 1
    assert "<details><summary>Unsupported</summary>\n\n| implementation | reason | cases |" in text
    assert "    likely cause: last row of y (dy) left out" in text
    assert (
        "### acme: 1 likely cause, 1 other kind of failure, 2 cases\n\n"
        "**conv_forward: last row of y (dy) left out, or padding of H one too small after**: 1 case;" in text
    )
    assert "    reproduce: conformance check acme 'n2 c8 h9 w9 k16 r3 s3 p1 b1' --operator conv_forward" in text
    assert "| acme | known (<https://example.org/known>) | 1 |" in text


def test_many_kernels_that_pass_are_one_line(tmp_path: Path):
    text = markdown.summary(digest(tmp_path, [sample(implementation=f"acme-{n}") for n in range(9)]), "t")
    assert "<details><summary>9 kernels: 9 of 9 pass</summary>\n\n- acme-0 conv_forward fp32: 1 of 1 pass\n" in text


def test_the_summary_tells_the_level(tmp_path: Path):
    text = markdown.summary(digest(tmp_path, [sample(run_level="smoke"), sample(problem="b")]), "t")
    assert "; level smoke; seed 0\n\n- acme conv_forward fp32: 2 of 2 pass\n" in text
    assert "level" not in markdown.summary(digest(tmp_path, [sample()]), "t").partition("## ")[0]


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
