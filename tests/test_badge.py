"""The badge of a run: what it says, and that a name cannot become markup."""

from __future__ import annotations

from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import pytest

from conformance.__main__ import main
from conformance.reporting.badge import NOTHING, RIGHT, WRONG, badge
from conformance.reporting.page.merge import load
from conformance.reporting.page.tables import Digest
from tests.report_samples import HEADER, absent, digest, failed, sample, waived, written

SVG = "{http://www.w3.org/2000/svg}"


@pytest.mark.parametrize(
    ("records", "said", "color"),
    [
        ([sample(run_level="standard"), sample(problem="b"), absent()], "standard: 2 of 2 pass", RIGHT),
        ([sample(), failed(problem="b"), sample(implementation="other")], "1 of 3 fail", WRONG),
        ([sample(), waived(problem="b")], "1 of 2 pass, 1 waived", RIGHT),
        ([absent()], "nothing verified", NOTHING),
    ],
)
def test_a_badge_says_how_much_passes(tmp_path: Path, records: list[dict[str, Any]], said: str, color: str):
    drawn = badge(digest(tmp_path, records))
    image = ElementTree.fromstring(drawn)
    assert [text.text for text in image.iter(f"{SVG}text")] == ["conformance", said]
    assert f'fill="{color}"' in drawn


def test_a_badge_says_that_a_run_was_of_some_cases_only(tmp_path: Path):
    part, whole = ({"selection": {"--impl": ["acme"], **more}} for more in ({"--operator": ["conv_forward"]}, {}))
    files = [
        written(tmp_path / f"{name}.jsonl", [sample(problem=name, run_level="smoke")], HEADER | selection)
        for name, selection in (("part", part), ("whole", whole))
    ]
    drawn = badge(Digest(load(files[:1])))
    assert "smoke, part: 1 of 1 pass" in drawn
    assert "--operator conv_forward</title>" in drawn
    assert "part" not in badge(Digest(load(files)))


def test_a_badge_of_a_file_that_was_changed_is_not_green(tmp_path: Path):
    path = written(tmp_path / "run.jsonl", [sample(), sample(problem="b")])
    path.write_bytes(path.read_bytes()[:-9])
    drawn = badge(Digest(load([path])))
    assert RIGHT not in drawn


def test_a_name_is_no_markup(tmp_path: Path):
    hostile = "\"'></title><script>alert(1)</script>\x00"
    image = ElementTree.fromstring(badge(digest(tmp_path, [sample(implementation=hostile, run_level=hostile)])))
    assert {one.tag.removeprefix(SVG) for one in image.iter()} == {"svg", "title", "rect", "path", "g", "text"}


def test_a_badge_is_written_with_or_without_a_page(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    records = str(written(tmp_path / "a.jsonl", [sample(), failed(problem="b")]))
    image = tmp_path / "deep" / "badge.svg"
    assert main(["report", records, "--badge", str(image)]) == 0
    assert capsys.readouterr().out == f"{image}\n"
    assert [path.name for path in image.parent.iterdir()] == ["badge.svg"]
    assert main(["report", records, "--badge", str(image), "-o", str(tmp_path / "out")]) == 0
    assert capsys.readouterr().out == f"{tmp_path / 'out' / 'index.html'}\n{image}\n"
    assert main(["report", records]) == 0
    assert capsys.readouterr().out.startswith("acme conv_forward fp32: 1 of 2 fail: last row of y")
