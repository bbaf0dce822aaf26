"""Markdown, JUnit and CSV: what they hold, how large they get, and what nothing from outside can do to them."""

from __future__ import annotations

import csv
import io
import re
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import pytest

from conformance.reporting import command
from conformance.reporting.page import junit, lines, markdown
from conformance.reporting.page.merge import load
from conformance.reporting.page.tables import Digest
from tests.conftest import absence
from tests.report_samples import CAUSES, DIAGNOSIS, absent, failed, sample, waived, written

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
    assert text.startswith("# Nightly\n\n2 of 40 cases of 2 implementations fail or raise an error.\n")
    assert "**1** pass, **1** fail, **1** error, **18** unsupported, **1** waived, **18** unavailable" in text
    assert "    likely cause: last row of y (dy) left out" in text
    assert (
        "### acme: 1 likely cause, 1 other kind of failure, 2 cases\n\n"
        "**last row of y (dy) left out, or padding of H one too small after**: 1 case of" in text
    )
    assert "    reproduce: pytest --impl acme --operator conv_forward" in text
    assert "- acme: 1 x known (<https://example.org/known>)" in text
    assert "| acme | 1 1F 1E 1w | 18u |" in text


def test_the_summary_tells_the_level(tmp_path: Path):
    text = markdown.summary(digest(tmp_path, [sample(run_level="smoke"), sample(problem="b")]), "t")
    assert "2 cases, level smoke: **2** pass." in text
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
    assert "- acme: 1 x a.py (" in text
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
    assert {line.count("|") for line in rows if "pass" not in line} <= {3, 10}


def test_the_summary_fits_a_comment(tmp_path: Path):
    long = [failed(problem=f"p{n}", command="x" * 3500, implementation=f"acme-{n}" + "x" * 200) for n in range(400)]
    text = markdown.summary(digest(tmp_path, long), "t")
    assert len(text.encode()) < 60_000
    assert "Too long for this summary, see index.html: " in text


def test_junit_has_a_case_for_every_verdict(tmp_path: Path):
    root = ElementTree.fromstring("".join(junit.document(digest(tmp_path, every()), "Nightly")))
    counts = {name: root.get(name) for name in ("tests", "failures", "errors", "skipped")}
    assert counts == {"tests": "6", "failures": "1", "errors": "1", "skipped": "3"}
    assert sum(int(suite.get("tests", "")) for suite in root.iter("testsuite")) == 6
    (wrong,) = (case for case in root.iter("testcase") if case.find("failure") is not None)
    assert wrong.findtext("failure") == DIAGNOSIS
    properties = {p.get("name"): p.get("value", "") for p in wrong.iter("property")}
    assert properties["status"] == "fail"
    assert properties["cause"] == CAUSES[0]
    assert properties["command"].startswith("pytest --impl acme")
    assert (wrong.get("classname"), wrong.get("time")) == ("acme.conv_forward", "0.006000")
    kinds = {skipped.get("type") for skipped in root.iter("skipped")}
    assert kinds == {"waived", "unsupported", "unavailable"}


def test_no_file_holds_what_it_may_not_whatever_names_are(tmp_path: Path):
    if lacking := absence(command.require):
        pytest.skip(lacking)
    from conformance.reporting.page.build import FILES, build

    names = ("implementation", "operator", "problem", "reason", "command", "check")
    records = [sample(**dict.fromkeys(names, HOSTILE)), failed(**dict.fromkeys(names, HOSTILE))]
    records += [failed(implementation="\x08" * 3, problem="]]>&amp;"), sample(implementation="\uffff", dtype="\x00")]
    page, errors = build([written(tmp_path / "run.jsonl", records)], tmp_path / "out", HOSTILE)
    assert not errors
    for name in FILES:
        assert not re.search("[\x00-\x08\x0b\x0c\x0e-\x1f\ufffe\uffff]", page.with_name(name).read_text("utf-8")), name
    root = ElementTree.parse(page.with_name("junit.xml")).getroot()
    texts = [failure.text or "" for failure in root.iter("failure")]
    assert any("\\u001b\\ufffe" in text and "<img src=x>" in text for text in texts)
    assert {"\\u0008" * 3, "\\uffff"} < {suite.get("name") for suite in root.iter("testsuite")}


def rows(text: str) -> list[dict[str, str]]:
    return list(csv.DictReader(io.StringIO(text, newline="")))


def test_csv_has_a_line_for_every_verdict(tmp_path: Path):
    found = rows("".join(lines.as_csv(digest(tmp_path, every()), "t")))
    assert sorted(row["status"] for row in found) == ["error", "fail", "pass", "unavailable", "unsupported", "waived"]
    assert {row["status"]: row["cause"] for row in found if row["cause"]} == {"fail": CAUSES[0]}
    (good,) = (row for row in found if row["status"] == "pass")
    assert (good["implementation"], good["dtype"], good["seconds"]) == ("acme", "fp32", "0.006")
    assert (float(good["worst_error_over_bound"]), good["mismatched_elements"]) == (0.28 / 0.55, "")
    exact: dict[str, dict[str, list[Any]]] = {
        place: {"mismatched elements": [count, 0.0]} for place, count in (("dw", 700), ("dbias", 81))
    }
    (counted,) = rows("".join(lines.as_csv(digest(tmp_path, [failed(distribution="integer", checks=exact)]), "t")))
    assert (counted["worst_error_over_bound"], counted["mismatched_elements"]) == ("", "781")
    exact = {"dw": {"mismatched elements": ["inf", 0.0]}}
    assert rows("".join(lines.as_csv(digest(tmp_path, [failed(checks=exact)]), "t")))[0]["mismatched_elements"] == ""
    assert sum(int(row["cases"]) for row in found) == 40


SEEN = ("=1+1", "+1", "-1", "@SUM(1)", "\t=1", " =1", "\r=1", "\n=1", "\uff1d1", "\uff0b1", "\uff0d1", "\uff20A1")
HIDDEN = ("\u200b=1", "\ufeff=1", "\u3000=1", "\u2060\u00ad=1", "\u202e=1", "\u034f=1", "\u200b\uff1d1", "\t\u200b=1")
"""Formulas, and formulas behind characters that nobody sees."""


@pytest.mark.parametrize("start", SEEN + HIDDEN)
def test_no_cell_is_a_formula(tmp_path: Path, start: str):
    names = ("implementation", "operator", "problem", "reason", "command", "check", "device")
    (row,) = rows("".join(lines.as_csv(digest(tmp_path, [sample(**dict.fromkeys(names, start))]), "t")))
    assert {row[name] for name in names} == {"'" + start.replace("\r", "\n")}


@pytest.mark.parametrize("text", ['a "b", c\nd', "a\rb", "a\r\nb", "x,y;z", "\u2028"])
def test_a_cell_stays_a_cell(tmp_path: Path, text: str):
    found = rows("".join(lines.as_csv(digest(tmp_path, [sample(reason=text), sample(problem="z")]), "t")))
    assert [row["status"] for row in found] == ["pass", "pass"]
    assert found[0]["reason"] == text.replace("\r\n", "\n").replace("\r", "\n")
