"""The site of a survey: what its page says, where its links lead, and what differs between variants and their base."""

from __future__ import annotations

import copy
import gzip
import json
import re
import shlex
from collections.abc import Iterable
from pathlib import Path
from typing import Any
from urllib.parse import unquote, urlsplit

import pytest
from syrupy.assertion import SnapshotAssertion

pytest.importorskip("jinja2", reason="no jinja2 (extra: report)")

from conformance.reporting.page.merge import read
from conformance.survey import changes, site, survey_file
from conformance.survey.changes import SurveyedEnvironment, parted
from conformance.survey.survey_file import Survey, Surveyed, SurveyError
from tests.page_outline import outline
from tests.report_samples import absent, broken, checked, failed, sample, written
from tests.test_report_page import HOSTILE, Parsed

Records = list[dict[str, Any]]
REFUSED: dict[str, Any] = {
    "status": "unsupported",
    "reason": "dtype fp64 is not declared",
    "checks": {},
    "profile": None,
}


def one(name: str, engine: str = "", **rest: Any) -> Surveyed:
    """An environment, with records of its name."""
    packages = rest.pop("packages", {engine or name: "3.0"})
    found = {"name": name, "engine": engine or name, "packages": packages}
    return Surveyed(**{**found, "records": f"records/{name}.jsonl", **rest})


def survey(folder: Path, held: Iterable[tuple[Surveyed, Records]], **rest: Any) -> Path:
    """A folder as a survey leaves it."""
    (folder / "records").mkdir(parents=True)
    held = list(held)
    for environment, records in held:
        if environment.records == f"records/{environment.name}.jsonl":
            written(folder / environment.records, records)
    facts = {"suite": "0.1.0", "machine": "Xeon, x86_64, Linux", "level": "standard", "seed": 0, **rest}
    started = "2026-11-22T10:00:00+00:00"
    survey_file.write(Survey(started=started, environments=tuple(env for env, _ in held), **facts), folder)
    return folder


def opened(tmp_path: Path, held: Iterable[tuple[Surveyed, Records]]) -> list[SurveyedEnvironment]:
    """The environments of a survey, without a site."""
    found = []
    for surveyed, records in held:
        (source,) = read([written(tmp_path / f"{surveyed.name}.jsonl", records)])
        found.append(SurveyedEnvironment(surveyed, surveyed.name, source))
    return found


def words(path: Path) -> str:
    return " ".join(" ".join(Parsed(path.read_text("utf-8")).words).split())


def tile(path: Path, label: str) -> dict[str, str]:
    """The only tile of a page whose label begins so."""
    elements = Parsed(path.read_text("utf-8")).of("a")
    (found,) = (a for a in elements if "tile" in a.get("class", "") and a["aria-label"].startswith(label))
    return found


@pytest.fixture(scope="module")
def rich(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The first page of a site with something of everything."""
    folder = tmp_path_factory.mktemp("rich")
    acme = [
        *(sample(problem=f"p{n}", run_level="standard") for n in range(4)),
        failed(problem="odd", operator="max_pool_forward", dtype="bf16", causes=[]),
        failed(problem="wrong"),
        sample(problem="no", dtype="fp64", **REFUSED),
        absent(),
    ]
    variants = [
        *(sample(problem=f"p{n}") for n in range(2)),
        *(sample(problem=f"p{n}", implementation="acme[fast]") for n in range(2)),
    ]
    held = [
        (one("acme"), acme),
        (one("acme-variants", "acme"), variants),
        (one("zeta", packages={"zeta-headless": "5.1"}), [absent(implementation="zeta", operator="conv_forward")]),
        (one("gone", records="", packages={}, reason="pip install: no matching distribution"), []),
    ]
    page, errors = site.build(survey(folder / "survey", held), folder / "site")
    assert errors == ()
    return page


def test_page(rich: Path, snapshot: SnapshotAssertion):
    assert outline(rich.read_text("utf-8")) == snapshot


def test_every_link_leads_to_a_file_and_an_anchor_that_exist(rich: Path):
    pages = [*rich.parent.rglob("*.html")]
    assert len(pages) == 1 + 3
    for page in pages:
        for attributes in Parsed(page.read_text("utf-8")).of("a"):
            parts = urlsplit(attributes["href"])
            assert not parts.scheme or parts.scheme == "https"
            if not parts.scheme:
                target = page.parent / unquote(parts.path) if parts.path else page
                assert target.is_file(), (page, attributes)
                if parts.fragment and not parts.fragment.startswith("?"):
                    ids = {a.get("id") for _, a in Parsed(target.read_text("utf-8")).elements}
                    assert parts.fragment in ids, (page, attributes)


def test_records_can_be_had_as_they_were(rich: Path):
    lines = gzip.decompress((rich.parent / "records" / "acme.jsonl.gz").read_bytes()).decode().splitlines()
    assert [json.loads(line).get("problem", "") for line in lines[1:-1]] == [
        "p0", "p1", "p2", "p3", "odd", "wrong", "no", "",
    ]  # fmt: skip


def test_the_way_to_make_it_again_is_one_command(tmp_path: Path):
    every = [one("torch"), one("torch-variants", "torch"), one("a b")]
    held: list[tuple[Surveyed, Records]] = [(environment, []) for environment in every]
    again = site.again(survey_file.read(survey(tmp_path / "s", held, seed=7, level="full")))
    assert shlex.split(again) == ["conformance", "survey", "torch", "a b", "--level", "full", "--seed", "7"]


def test_a_folder_that_cannot_be_written_or_read_is_an_error(tmp_path: Path):
    with pytest.raises(SurveyError, match=r"survey\.json: cannot be read"):
        site.build(tmp_path, tmp_path / "site")
    assert not (tmp_path / "site").exists()
    folder = survey(tmp_path / "survey", [(one("acme"), [sample()])])
    (tmp_path / "site").write_text("in the way")
    with pytest.raises(SurveyError, match="cannot be written"):
        site.build(folder, tmp_path / "site")


@pytest.mark.parametrize(
    ("records", "content", "said"),
    [
        ("records/cut.jsonl", b'{"kind":"case","sch', "cut.jsonl, line 8"),
        ("records/cut.jsonl", b"\xff\n", "cut.jsonl, line 8"),
        ("records/none.jsonl", b"", "none.jsonl: cannot be read"),
        ("../secret.jsonl", b"", "are not in the folder of the survey"),
        ("records/cut.jsonl", b'{"kind":"header"}\n', "cut.jsonl, line 8"),
    ],
)
def test_records_that_cannot_be_read_cost_a_notice_and_not_the_site(
    records: str, content: bytes, said: str, tmp_path: Path
):
    held = [(one("cut", records=records), []), (one("whole"), [sample(implementation="whole")])]
    folder = survey(tmp_path / "survey", held)
    secret = written(tmp_path / "secret.jsonl", [sample(problem="secret")])
    good = written(folder / "records" / "cut.jsonl", [sample(problem=f"p{n}") for n in range(5)])
    good.write_bytes(good.read_bytes() + content)
    page, (notice,) = site.build(folder, tmp_path / "site")
    assert said in notice
    assert notice in words(page)
    assert tile(page, "whole, conv_forward, all dtypes")["aria-label"].endswith("1 pass")
    assert secret.exists()
    assert not any(b"secret" in gzip.decompress(path.read_bytes()) for path in page.parent.rglob("*.gz"))
    if "line 8" in said:
        assert tile(page, "acme, conv_forward, all dtypes")["aria-label"].endswith("5 pass")


def test_nothing_from_outside_becomes_markup_or_leaves_its_folder(tmp_path: Path):
    bad = f"{HOSTILE}\x00\x0b"
    records = [
        failed(implementation=bad, problem=bad, operator=bad, reason=bad, dtype=bad),
        sample(implementation=f"{bad}[{bad}]", problem=bad, dtype=bad),
        absent(implementation=bad, status="unavailable", reason=bad),
        broken(implementation=bad, reason=bad),
    ]
    rest: dict[str, Any] = {"engine": bad, "packages": {bad: bad}}
    held: list[tuple[Surveyed, Records]] = [
        (one(f"../../{HOSTILE}", **rest, records="records/a.jsonl", reason=bad), []),
        (one("x", **rest, records="records/b.jsonl"), []),
        (one("RECORDS", **rest, records=""), []),
    ]
    folder = survey(tmp_path / "survey", held, machine=bad, suite=bad, level=bad)
    written(folder / "records" / "a.jsonl", records)
    written(folder / "records" / "b.jsonl", [sample(implementation=bad, problem=bad, operator=bad, dtype=bad)])
    page, _ = site.build(folder, tmp_path / "out" / "site")
    text = page.read_text("utf-8")
    parsed = Parsed(text)
    assert [tag for tag, _ in parsed.elements].count("script") == 1
    assert not any(key.startswith("on") for _, attributes in parsed.elements for key in attributes)
    assert "alert(1)" in words(page)
    assert not set("\x00\x0b") & set(text)
    assert [path.name for path in (tmp_path / "out").iterdir()] == ["site"]
    assert all(re.fullmatch(r"[\w.=+-]+", path.name) for path in page.parent.iterdir())
    for attributes in parsed.of("a"):
        assert (page.parent / unquote(urlsplit(attributes["href"]).path)).exists()


def test_folders_differ_where_names_differ_in_case_alone():
    taken = {"records"}
    assert [site._slug(name, taken) for name in ("a", "A", "a", "records", "..", "a==2.9", "Ä/Ä")] == [
        "a", "A-2", "a-3", "records-2", "environment", "a==2.9", "environment-2",
    ]  # fmt: skip


def pairs(tmp_path: Path, base: Records, variant: Records) -> changes.Difference:
    named = [{**record, "implementation": "acme[fast]"} for record in variant]
    (found,) = changes.differences(opened(tmp_path, [(one("acme"), [*base, *named])]))
    return found


def test_a_variant_with_the_same_numbers_has_no_effect(tmp_path: Path):
    records = [*(sample(problem=f"p{n}") for n in range(3)), checked({}, checks={}, profile=None, problem="k")]
    slower = copy.deepcopy(records)
    for record in slower:
        record["seconds"]["total"] = 9.0
    found = pairs(tmp_path, records, slower)
    assert (found.shared, found.differing, found.broken) == (3, 0, 0)
    assert found.words == "same numbers in all 3 cases: the setting has no effect here"


@pytest.mark.parametrize("where", ["checks", "profile"])
def test_any_number_that_differs_is_an_effect(where: str, tmp_path: Path):
    records = [sample(problem=f"p{n}") for n in range(4)]
    other = copy.deepcopy(records)
    if where == "checks":
        other[2]["checks"]["y"]["rms"][0] += 1e-12
    else:
        other[2]["profile"]["y"]["rms"] += 1e-12
    found = pairs(tmp_path, records, other)
    assert (found.shared, found.differing) == (4, 1)
    assert found.words == "other numbers in 1 of 4 cases"


def test_what_only_one_of_them_verified_is_not_compared(tmp_path: Path):
    base = [sample(problem="p"), sample(problem="q", **REFUSED), sample(problem="r"), sample(problem="only")]
    variant = [sample(problem="p"), sample(problem="q"), failed(problem="r", status="error"), sample(problem="here")]
    found = pairs(tmp_path, base, variant)
    assert (found.shared, found.differing, found.broken) == (1, 0, 1)
    (tmp_path / "2").mkdir()
    nothing = pairs(tmp_path / "2", base[1:2], variant[1:2])
    assert nothing.words == "nothing was measured in both"


def test_a_variant_is_compared_with_the_base_of_its_own_run_else_with_that_of_the_engine(tmp_path: Path):
    fast, other = sample(implementation="acme[fast]"), sample(checks={"y": {"rms": [0.9, 1.0]}})
    main, second, third = one("acme"), one("acme-variants", "acme"), one("acme-again", "acme")
    held = [(main, [other, sample(problem="q")]), (second, [sample(), fast]), (third, [sample()])]
    assert [d.differing for d in changes.differences(opened(tmp_path, held))] == [0]
    held[1] = (second, [fast])
    (difference,) = changes.differences(opened(tmp_path, held))
    assert (difference.shared, difference.differing) == (1, 1)


def test_the_label_of_a_variant_is_what_stands_in_brackets_at_the_end():
    assert parted("torch-cpu[isa=avx2]") == ("torch-cpu", "isa=avx2")
    assert parted("a[b]c") == ("a[b]c", "")
    assert parted("[b]") == ("[b]", "")


def test_an_empty_survey_has_a_site(tmp_path: Path):
    page, errors = site.build(survey(tmp_path / "survey", []), tmp_path / "site")
    assert errors == ()
    assert "Nothing was verified." in words(page)
