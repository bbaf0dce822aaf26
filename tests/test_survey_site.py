"""The site of a survey: what it says, where its links lead, and what it keeps."""

from __future__ import annotations

import base64
import copy
import gzip
import hashlib
import json
import os
import re
import shlex
import shutil
from collections.abc import Iterable
from pathlib import Path
from typing import Any
from urllib.parse import unquote, urlsplit
from xml.etree import ElementTree

import pytest

pytest.importorskip("jinja2", reason="no jinja2 (extra: report)")
pytest.importorskip("vl_convert", reason="no vl-convert-python (extra: report)")

from conformance.reporting.page.context import GROUPS
from conformance.survey import badge, changes, index, model, site
from conformance.survey.matrix import Environment, lines, parted, usual
from conformance.survey.model import Survey, Surveyed, SurveyError
from tests.report_samples import absent, broken, checked, failed, sample, waived, written
from tests.test_report_page import HOSTILE, Parsed

Records = list[dict[str, Any]]
REFUSED: dict[str, Any] = {
    "status": "unsupported",
    "reason": "dtype fp64 is not declared",
    "checks": {},
    "profile": None,
}


def one(name: str, engine: str = "", version: str = "", **rest: Any) -> Surveyed:
    """An environment, with records of its name."""
    packages = rest.pop("packages", {engine or name: f"{version or '3'}.0"})
    found = {"name": name, "engine": engine or name, "version": version, "packages": packages}
    return Surveyed(**{**found, "records": f"records/{name}.jsonl", **rest})


def survey(
    folder: Path,
    held: Iterable[tuple[Surveyed, Records]],
    started: str = "2026-11-22T10:00:00+00:00",
    **rest: Any,
) -> Path:
    """A folder as a survey leaves it."""
    (folder / "records").mkdir(parents=True)
    held = list(held)
    for environment, records in held:
        if environment.records == f"records/{environment.name}.jsonl":
            written(folder / environment.records, records)
    facts = {"suite": "0.1.0", "machine": "Xeon, x86_64, Linux", "level": "standard", "seed": 0, **rest}
    model.write(Survey(started=started, environments=tuple(env for env, _ in held), **facts), folder)
    return folder


def opened(tmp_path: Path, held: Iterable[tuple[Surveyed, Records]]) -> list[Environment]:
    """The environments of a survey, without a site."""
    folder = survey(tmp_path / "survey", held)
    (tmp_path / "beside").mkdir()
    return site._read(model.read(folder), folder, tmp_path / "beside")[0]


def identity(page: Path) -> str:
    """The newest run's, from the first page's links."""
    return next(path.name for path in (page.parent / "runs").iterdir() if path.name in page.read_text("utf-8"))


def words(path: Path) -> str:
    return " ".join(" ".join(Parsed(path.read_text("utf-8")).words).split())


def tiles(path: Path, label: str) -> list[tuple[str, dict[str, str]]]:
    """Elements of a page whose label begins so, in the matrix."""
    elements = Parsed(path.read_text("utf-8")).elements
    return [
        (tag, attributes)
        for tag, attributes in elements
        if "tile" in attributes.get("class", "").split() and attributes["aria-label"].startswith(label)
    ]


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
    old = [*(sample(problem=f"p{n}") for n in range(3)), failed(problem="p3"), sample(problem="wrong")]
    held = [
        (one("acme"), acme),
        (one("acme-variants", "acme"), variants),
        (one("acme==2", "acme", "2"), old),
        (one("zeta", packages={"zeta-headless": "5.1"}), [absent(implementation="zeta", operator="conv_forward")]),
        (one("gone", records="", packages={}, reason="pip install: no matching distribution"), []),
    ]
    page, errors = site.build(survey(folder / "survey", held), folder / "site")
    assert errors == ()
    return page


def test_an_operator_that_is_refused_or_absent_is_grey(rich: Path):
    refused, absent_one, passing = (tiles(rich, f"{name}:")[0] for name in (
        "acme, conv_forward, fp64", "zeta, conv_forward", "acme[fast], conv_forward, fp32",
    ))  # fmt: skip
    assert refused[1]["class"] == absent_one[1]["class"] == "tile s-unsupported"
    assert passing[1]["class"] == "tile s-pass"
    label = "zeta, conv_forward: 18 unsupported"
    elements = Parsed(rich.read_text("utf-8")).elements
    assert "s-unsupported" in [a["class"] for _, a in elements if a.get("aria-label") == label]
    assert "Nothing was verified (1): zeta" in words(rich)
    assert badge.GREY in (rich.parent / "badges" / "zeta.svg").read_text()


def test_a_cell_with_a_failure_is_red_and_leads_to_that_failure(rich: Path):
    ((tag, tile),) = tiles(rich, "acme, max_pool_forward, bf16")
    assert (tag, tile["class"]) == ("a", "tile s-fail")
    path, _, anchor = tile["href"].partition("#")
    page = (rich.parent / path).read_text("utf-8")
    card = page[page.index(f'id="{anchor}"') :].partition("</details>")[0]
    assert "--operator max_pool_forward" in "".join(Parsed(card).words)
    assert path.startswith(f"runs/{identity(rich)}/acme/")


def test_every_link_leads_to_a_file_and_an_anchor_that_exist(rich: Path):
    pages = [*rich.parent.rglob("*.html")]
    assert len(pages) == 2 + 4
    count = 0
    for page in pages:
        for attributes in Parsed(page.read_text("utf-8")).of("a"):
            parts = urlsplit(attributes["href"])
            assert not parts.scheme or parts.scheme == "https"
            if not parts.scheme:
                target = page.parent / unquote(parts.path) if parts.path else page
                assert target.is_file(), (page, attributes)
                if parts.fragment:
                    ids = {a.get("id") for _, a in Parsed(target.read_text("utf-8")).elements}
                    assert parts.fragment in ids, (page, attributes)
                count += 1
    assert count > 60


def test_ids_are_unique_and_the_page_can_load_nothing(rich: Path):
    text = rich.read_text("utf-8")
    parsed = Parsed(text)
    ids = [attributes["id"] for _, attributes in parsed.elements if "id" in attributes]
    assert len(ids) == len(set(ids))
    (style,) = [content for kind, content in parsed.raw if kind == "style"]
    allowed = base64.b64encode(hashlib.sha256(style.encode()).digest()).decode()
    (policy,) = [a["content"] for a in parsed.of("meta") if a.get("http-equiv") == "Content-Security-Policy"]
    assert policy == f"default-src 'none'; style-src 'sha256-{allowed}'; base-uri 'none'; form-action 'none'"
    assert not {tag for tag, _ in parsed.elements} & {"script", "link", "img", "iframe"}
    assert not any("style" in attributes for _, attributes in parsed.elements)
    assert {a.get("href", "#")[:1] for a in parsed.of("a")} <= set("#r.m")


def test_rows_are_those_of_the_usual_version_each_once_and_variants_below_their_base(rich: Path):
    rows = [
        a["title"] for _, a in Parsed(rich.read_text("utf-8")).elements if "title" in a and "/" in a.get("href", "")
    ]
    assert [title for title in rows if ":" not in title] == ["acme", "acme[fast]", "zeta"]
    assert len(tiles(rich, "acme, conv_forward, fp32")) == 1
    assert "5 pass" not in tiles(rich, "acme, conv_forward, fp32")[0][1]["aria-label"]
    text = rich.read_text("utf-8")
    assert len(re.findall(r'<tr id="row-\d+" class="variant">', text)) == 1
    assert "zeta-headless 5.1" in text


def test_what_could_not_be_run_is_named_with_the_reason(rich: Path):
    assert "gone not run pip install: no matching distribution" in words(rich)
    assert "nothing verified" in (rich.parent / "badges" / "gone.svg").read_text()


def test_counts_are_there_as_data_and_are_those_of_the_records(rich: Path):
    data = json.loads((rich.parent / "matrix.json").read_text())
    assert data == json.loads((rich.parent / "runs" / identity(rich) / "matrix.json").read_text())
    row = next(row for row in data["rows"] if row["environment"] == "acme")
    assert row["counts"] == {"pass": 4, "fail": 2, "unsupported": 19}
    assert row["cells"]["conv_forward"] == {"fp32": {"pass": 4, "fail": 1}, "fp64": {"unsupported": 1}}
    assert row["cells"]["avg_pool_forward"] == {"other": {"unsupported": 18}}
    assert [(r["implementation"], r["version"], r["usual"], r["variant_of"]) for r in data["rows"]] == [
        ("acme", "3.0", True, None), ("acme", "3.0", True, None), ("acme", "2.0", False, None),
        ("acme[fast]", "3.0", True, "acme"), ("zeta", "5.1", True, None),
    ]  # fmt: skip
    assert [(m["environment"], m["reason"]) for m in data["incomplete"]] == [
        ("gone", "pip install: no matching distribution")
    ]


def test_records_can_be_had_as_they_were(rich: Path):
    packed = rich.parent / "runs" / identity(rich) / "records" / "acme==2.jsonl.gz"
    lines = gzip.decompress(packed.read_bytes()).decode().splitlines()
    assert [json.loads(line)["problem"] for line in lines] == ["p0", "p1", "p2", "p3", "wrong"]


def test_a_change_between_versions_has_an_example_its_command_and_a_link(rich: Path):
    said = words(rich)
    assert "broken since 3.0 conv_ forward fp32" in said
    assert "fixed in 3.0 conv_ forward fp32" in said
    assert failed(problem="wrong")["command"] in said
    assert "In the report of 3.0" in said
    assert "In the report of 2.0" in said
    assert f"runs/{identity(rich)}/acme==2/index.html#failure-0" in rich.read_text("utf-8")


def test_the_way_to_make_it_again_is_one_command(tmp_path: Path):
    every = [one("torch"), one("torch-variants", "torch"), one("torch==2.9", "torch", "2.9"), one("a b")]
    held: list[tuple[Surveyed, Records]] = [(environment, []) for environment in every]
    again = index.again(model.read(survey(tmp_path / "s", held, seed=7, level="full")))
    assert shlex.split(again) == [
        "conformance", "survey", "torch", "a b", "--versions", "torch==2.9", "--level", "full", "--seed", "7",
    ]  # fmt: skip


def small(folder: Path, started: str, **changes: Any) -> Path:
    return survey(folder, [(one("acme"), [sample(**changes)])], started)


def test_links_to_a_run_stay_valid_when_another_one_is_added(tmp_path: Path):
    out = tmp_path / "site"
    site.build(survey(tmp_path / "1", [(one("acme"), [failed()])], "2026-11-22T10:00:00+00:00"), out)
    before = {path: path.read_bytes() for path in out.rglob("*") if path.is_file() and "runs" in path.parts}
    (first,) = (path.name for path in (out / "runs").iterdir())
    assert re.fullmatch(r"2026-11-22-[0-9a-f]{8}", first)
    page, _ = site.build(small(tmp_path / "2", "2026-12-24T10:00:00+01:00"), out)
    assert {path: path.read_bytes() for path in before} == before
    text = page.read_text("utf-8")
    assert f'href="runs/{first}/index.html">22 November 2026' in text
    assert "24 December 2026" in words(page)
    (second,) = {path.name for path in (out / "runs").iterdir()} - {first}
    assert f'href="../{first}/index.html"' in (out / "runs" / second / "index.html").read_text("utf-8")
    assert "../../index.html" in before[out / "runs" / first / "index.html"].decode()
    assert "Wrong results" not in words(page)


def test_the_same_survey_is_the_same_run_and_other_records_are_another(tmp_path: Path):
    out, started = tmp_path / "site", "2026-11-22T10:00:00+00:00"
    folder = small(tmp_path / "1", started)
    site.build(folder, out)
    (out / "runs" / next((out / "runs").iterdir()) / "stale").write_text("")
    page, _ = site.build(folder, out)
    (run,) = (out / "runs").iterdir()
    assert page.read_text("utf-8").count(f'href="runs/{run.name}/index.html"') == 1
    assert not (run / "stale").exists()
    site.build(small(tmp_path / "2", started, problem="another"), out)
    assert len([*(out / "runs").iterdir()]) == 2


def test_an_older_survey_does_not_replace_a_newer_one(tmp_path: Path):
    out = tmp_path / "site"
    site.build(small(tmp_path / "1", "2026-11-22T10:00:00+00:00"), out)
    before = {path: path.read_bytes() for path in out.rglob("*") if path.is_file()}
    with pytest.raises(SurveyError, match="newer than that of 2026-11-22T10:30:00\\+02:00"):
        site.build(small(tmp_path / "2", "2026-11-22T10:30:00+02:00"), out)
    assert {path: path.read_bytes() for path in out.rglob("*") if path.is_file()} == before


def test_the_badge_of_an_engine_that_is_not_surveyed_any_more_says_so(tmp_path: Path):
    out = tmp_path / "site"
    site.build(small(tmp_path / "1", "2026-11-22T10:00:00+00:00"), out)
    assert badge.GREEN in (out / "badges" / "acme.svg").read_text()
    site.build(survey(tmp_path / "2", [(one("zeta"), [sample()])], "2026-11-23T10:00:00+00:00"), out)
    stale = (out / "badges" / "acme.svg").read_text()
    assert "not surveyed" in stale
    assert badge.GREEN not in stale


@pytest.mark.parametrize("place", ["page", "_moved", "report"])
def test_nothing_is_written_when_it_fails(place: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path):
    def full(*_: Any, **__: Any) -> None:
        raise OSError(28, "No space left on device")

    folder, out = small(tmp_path / "survey", "2026-11-22T10:00:00+00:00"), tmp_path / "new" / "site"
    monkeypatch.setattr(site, place, full)
    with pytest.raises(SurveyError, match="cannot be written \\(No space left on device\\)"):
        site.build(folder, out)
    assert not out.parent.exists()
    monkeypatch.undo()
    site.build(folder, out)
    before = {path: path.read_bytes() for path in out.rglob("*") if path.is_file()}
    monkeypatch.setattr(site, place, full)
    with pytest.raises(SurveyError):
        site.build(small(tmp_path / "later", "2026-11-23T10:00:00+00:00"), out)
    assert {path: path.read_bytes() for path in out.rglob("*") if path.is_file()} == before


def test_a_survey_that_cannot_be_read_is_an_error_and_writes_nothing(tmp_path: Path):
    with pytest.raises(SurveyError, match=r"survey\.json: cannot be read"):
        site.build(tmp_path, tmp_path / "site")
    folder = survey(tmp_path / "survey", [], started="yesterday")
    with pytest.raises(SurveyError, match="started is 'yesterday'"):
        site.build(folder, tmp_path / "site")
    assert not (tmp_path / "site").exists()


@pytest.mark.parametrize(
    ("records", "content", "said"),
    [
        ("records/cut.jsonl", b'{"kind":"case","sch', "cut.jsonl, line 6"),
        ("records/cut.jsonl", b"\xff\n", "cut.jsonl, line 6"),
        ("records/none.jsonl", b"", "none.jsonl: cannot be read"),
        ("../secret.jsonl", b"", "are not in the folder of the survey"),
        ("records/cut.jsonl", b'{"kind":"case","schema":1}\n', "schema"),
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
    assert "1 pass" in tiles(page, "whole, conv_forward, fp32")[0][1]["aria-label"]
    assert badge.GREEN not in (page.parent / "badges" / "cut.svg").read_text()
    assert badge.GREEN in (page.parent / "badges" / "whole.svg").read_text()
    assert secret.exists()
    assert not any(b"secret" in gzip.decompress(path.read_bytes()) for path in page.parent.rglob("*.gz"))
    if content.startswith((b'{"kind":"case","sch', b"\xff")) and b"schema" not in content:
        assert "incomplete" in words(page)
        assert "5 pass" in tiles(page, "acme, conv_forward, fp32")[0][1]["aria-label"]


def test_nothing_from_outside_becomes_markup_or_leaves_its_folder(tmp_path: Path):
    bad = f"{HOSTILE}\x00\x0b"
    name = f"../../{HOSTILE}"
    records = [
        failed(implementation=bad, problem=bad, operator=bad, reason=bad, dtype=bad),
        sample(implementation=f"{bad}[{bad}]", problem=bad, dtype=bad),
        absent(implementation=bad, status="unavailable", reason=bad),
        broken(implementation=bad, reason=bad),
    ]
    rest: dict[str, Any] = {"engine": bad, "packages": {bad: bad}}
    held: list[tuple[Surveyed, Records]] = [
        (one(name, **rest, records="records/a.jsonl", reason=bad), []),
        (one("x", **rest, version=bad, records="records/b.jsonl"), []),
        (one("RECORDS", **rest, records=""), []),
    ]
    folder = survey(tmp_path / "survey", held, machine=bad, suite=bad, level=bad)
    written(folder / "records" / "a.jsonl", records)
    written(folder / "records" / "b.jsonl", [sample(implementation=bad, problem=bad, operator=bad, dtype=bad)])
    page, _ = site.build(folder, tmp_path / "out" / "site")
    text = page.read_text("utf-8")
    parsed = Parsed(text)
    assert not {tag for tag, _ in parsed.elements} & {"script", "img"}
    assert not any(key.startswith("on") for _, attributes in parsed.elements for key in attributes)
    assert "alert(1)" in words(page)
    assert not set("\x00\x0b") & set(text)
    assert [path.name for path in (tmp_path / "out").iterdir()] == ["site"]
    run = page.parent / "runs" / identity(page)
    assert all(re.fullmatch(r"[\w.=+-]+", path.name) for path in run.iterdir())
    assert len([path for path in run.iterdir() if path.is_dir()]) == 3
    for path in (page.parent / "badges").iterdir():
        ElementTree.parse(path)
    for attributes in parsed.of("a"):
        parts = urlsplit(attributes["href"])
        assert (page.parent / unquote(parts.path)).exists()


def test_folders_differ_where_names_differ_in_case_alone():
    taken = {"records"}
    assert [site._slug(name, taken) for name in ("a", "A", "a", "records", "..", "torch==2.9", "Ä/Ä")] == [
        "a", "A-2", "a-3", "records-2", "environment", "torch==2.9", "environment-2",
    ]  # fmt: skip


def history(tmp_path: Path, statuses: dict[str, list[str]]) -> list[changes.Change]:
    """Changes where cases had these statuses in versions 2.9, 2.13 and the usual one, 3.0; "" where there is none."""
    made = {"pass": sample, "fail": failed, "error": failed, "unsupported": sample, "waived": waived}
    environments = []
    for place, version in enumerate(("2.13", "2.9", "")):
        order = {"2.9": 0, "2.13": 1, "": 2}[version]
        records = []
        for problem, row in statuses.items():
            if status := row[order]:
                extra: dict[str, Any] = REFUSED if status == "unsupported" else {}
                extra |= {"status": "error", "reason": "raised E: no", "causes": []} if status == "error" else {}
                records.append(made[status](problem=problem, **extra))
        environments.append((one(f"acme{place}", "acme", version, packages={"acme": version or "3.0"}), records))
    found = changes.histories(opened(tmp_path, environments))
    assert [environment.version for environment in found["acme"]] == ["2.9", "2.13", "3.0"]
    return changes.changes(found["acme"])


@pytest.mark.parametrize(
    ("row", "expected"),
    [
        (["pass", "fail", "fail"], [("broken since", "2.9", "2.13")]),
        (["fail", "fail", "pass"], [("fixed in", "2.13", "3.0")]),
        (["fail", "", "pass"], [("fixed in", "2.9", "3.0")]),
        (["pass", "fail", "pass"], [("broken since", "2.9", "2.13"), ("fixed in", "2.13", "3.0")]),
        (["unsupported", "pass", "error"], [("broken since", "2.13", "3.0"), ("supported since", "2.9", "2.13")]),
        (["unsupported", "fail", "fail"], [("fails since", "2.9", "2.13")]),
        (["fail", "error", "unsupported"], [("fail to error in", "2.9", "2.13"), ("unsupported since", "2.13", "3.0")]),
        (["waived", "waived", "pass"], [("waived to pass in", "2.13", "3.0")]),
        (["pass", "pass", "pass"], []),
        (["pass", "", ""], []),
    ],
)
def test_what_is_fixed_and_broken_is_found_in_order_of_versions(
    row: list[str], expected: list[tuple[str, str, str]], tmp_path: Path
):
    found = history(tmp_path, {"p": row})
    assert sorted((c.kind, c.before, c.version) for c in found) == sorted(expected)
    for change in found:
        failing = change.version if change.kind in ("broken since", "fails since") else change.before
        if "fail" in change.kind or change.kind in ("broken since", "fixed in"):
            failing = change.version if "to error" in change.kind else failing
            assert change.environment.version == failing
            assert change.place == 0


def test_changes_of_a_kind_are_one_group_with_the_most_cases_first(tmp_path: Path):
    rows = {f"p{n}": ["fail", "pass", "pass"] for n in range(3)} | {
        "q": ["fail", "fail", "pass"],
        "r": ["pass", "pass", "fail"],
    }
    found = history(tmp_path, rows)
    assert [(c.kind, c.version, len(c.records)) for c in found] == [
        ("broken since", "3.0", 1), ("fixed in", "2.13", 3), ("fixed in", "3.0", 1),
    ]  # fmt: skip
    assert found[0].failure.startswith("last row of y (dy) left out")


def test_cases_of_another_operator_dtype_or_check_are_other_cases(tmp_path: Path):
    old = [sample(), sample(dtype="bf16"), checked({}), sample(storage="x:flipped"), sample(implementation="b")]
    new = [failed(layout="nhwc"), failed(operator="conv_backward_data"), failed(distribution="wide"), failed(seed=1)]
    held = [(one("acme==1", "acme", "1"), old), (one("acme"), new)]
    (environments,) = changes.histories(opened(tmp_path, held)).values()
    assert changes.changes(environments) == []


def pairs(tmp_path: Path, base: Records, variant: Records) -> changes.Difference:
    named = [{**record, "implementation": "acme[fast]"} for record in variant]
    (found,) = changes.differences(lines(opened(tmp_path, [(one("acme"), [*base, *named])])))
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
    old = one("acme==1", "acme", "1")
    held = [(main, [other, sample(problem="q")]), (second, [sample(), fast]), (third, [sample()])]
    held += [(old, [other, fast])]  # of other versions, the question is what has changed
    found = lines(opened(tmp_path, held))
    assert [d.differing for d in changes.differences(found)] == [0]
    assert [line.environment.surveyed.name for line in usual(found)] == ["acme", "acme-variants"]
    held[1] = (second, [fast])
    (tmp_path / "2").mkdir()
    (difference,) = changes.differences(lines(opened(tmp_path / "2", held)))
    assert (difference.shared, difference.differing) == (1, 1)


def test_an_implementation_that_fails_in_its_second_run_alone_is_shown_there_too(tmp_path: Path):
    held = [(one("acme"), [sample(), sample(problem="q")]), (one("acme-variants", "acme"), [failed()])]
    rows = usual(lines(opened(tmp_path, held)))
    assert [(line.environment.slug, line.fails) for line in rows] == [("acme", False), ("acme-variants", True)]


def test_an_implementation_that_fails_in_both_runs_is_shown_once(tmp_path: Path):
    held = [(one("acme"), [failed(), sample(problem="q")]), (one("acme-variants", "acme"), [failed()])]
    assert [line.environment.slug for line in usual(lines(opened(tmp_path, held)))] == ["acme"]


def test_a_tile_says_what_its_contract_is_weaker_in(tmp_path: Path):
    held = [(one("acme"), [sample(contract=sample()["contract"] | {"algorithm": "winograd-f4"})])]
    (line,) = lines(opened(tmp_path, held))
    tile = index._tile(line, "conv_forward", line.tiles("conv_forward")[0], "")
    assert "winograd-f4" in tile["weak"]
    assert tile["label"].endswith(f"1 pass; contract: {tile['weak']}")


def test_a_cell_leads_to_the_first_of_its_own_failures(tmp_path: Path):
    raised: dict[str, Any] = {"status": "error", "reason": "raised E: no", "causes": []}
    records = [*(failed(problem=f"p{n}") for n in range(3)), failed(problem="q", dtype="bf16", **raised)]
    (line,) = lines(opened(tmp_path, [(one("acme"), [*records, sample(problem="r", dtype="fp64")])]))
    assert [line.failure("conv_forward", dtype) for dtype in ("fp32", "bf16", "fp64")] == [0, 1, None]
    together = line.together("conv_forward")
    assert together is not None
    assert together.counts == {"fail": 3, "error": 1, "pass": 1}
    assert index._tile(line, "conv_forward", together, "")["link"] == "acme/index.html#failure-0"


def test_a_history_takes_the_run_of_most_cases_without_variants(tmp_path: Path):
    variants = [sample(problem=f"p{n}", implementation="acme[fast]") for n in range(5)]
    held = [
        (one("acme-variants", "acme"), [sample(), *variants]),
        (one("acme"), [sample(), sample(problem="q")]),
        (one("acme==1", "acme", "1"), [sample()]),
        (one("zeta"), [sample(implementation="zeta")]),
    ]
    found = changes.histories(opened(tmp_path, held))
    assert {engine: [e.surveyed.name for e in row] for engine, row in found.items()} == {"acme": ["acme==1", "acme"]}
    assert found["acme"][1].plain == {"pass": 2}


def test_the_label_of_a_variant_is_what_stands_in_brackets_at_the_end():
    assert parted("torch-cpu[isa=avx2]") == ("torch-cpu", "isa=avx2")
    assert parted("a[b]c") == ("a[b]c", "")
    assert parted("[b]") == ("[b]", "")


@pytest.mark.parametrize(
    ("counts", "verified", "complete", "said", "colour"),
    [
        ({"pass": 1234, "unsupported": 9}, 1234, True, "1,234 pass", badge.GREEN),
        ({"pass": 1234, "fail": 5}, 1239, True, "1,234 pass, 5 fail", badge.RED),
        ({"pass": 3, "error": 1}, 3, True, "3 pass, 1 error", badge.RED),
        ({"error": 1}, 0, True, "1 error", badge.RED),
        ({"pass": 3, "waived": 1}, 4, True, "3 pass, 1 waived", badge.AMBER),
        ({"pass": 3}, 0, True, "nothing verified", badge.GREY),
        ({"unsupported": 3}, 0, True, "nothing verified", badge.GREY),
        ({}, 0, False, "nothing verified", badge.GREY),
        ({"pass": 3}, 3, False, "3 pass, incomplete", badge.GREY),
        ({"pass": 3, "fail": 1}, 4, False, "3 pass, 1 fail", badge.RED),
    ],
)
def test_a_badge_is_green_only_if_all_that_was_verified_passes(
    counts: dict[str, int], verified: int, complete: bool, said: str, colour: str
):
    assert badge.words(counts, verified, complete) == (said, colour)


def test_a_badge_is_xml_with_a_title_and_room_for_its_text():
    root = ElementTree.fromstring(badge.svg(f"{HOSTILE}\x00", badge.RED, f"<{HOSTILE}>"))
    names = {element.tag.rpartition("}")[2] for element in root.iter()}
    assert names == {"svg", "title", "rect", "g", "text"}
    assert not any("id" in element.attrib for element in root.iter())
    title = next(element for element in root if element.tag.endswith("title"))
    assert title.text == root.get("aria-label") == f"<{HOSTILE}>"
    texts = [element for element in root.iter() if element.tag.endswith("}text")]
    assert [text.text for text in texts] == ["conformance", f"{HOSTILE}\\u0000"]
    ends = [int(text.get("x", "")) + int(text.get("textLength", "")) for text in texts]
    assert int(texts[1].get("x", "")) > ends[0]
    assert int(root.get("width", "")) > ends[1]
    short, long = (ElementTree.fromstring(badge.svg(text, badge.RED, "t")).get("width", "") for text in ("1", "1,000"))
    assert int(short) < int(long)


@pytest.mark.parametrize("colour", [badge.GREEN, badge.RED, badge.AMBER, badge.GREY, badge.DARK])
def test_white_text_is_legible_on_every_badge(colour: str):
    parts = [int(colour[place : place + 2], 16) / 255 for place in (1, 3, 5)]
    linear = [part / 12.92 if part <= 0.04045 else ((part + 0.055) / 1.055) ** 2.4 for part in parts]
    luminance = sum(weight * part for weight, part in zip((0.2126, 0.7152, 0.0722), linear, strict=True))
    assert 1.05 / (luminance + 0.05) >= 4.9


def test_badges_count_every_case_of_an_engine_once(tmp_path: Path):
    held = [
        (one("acme"), [sample(), sample(problem="q"), failed(problem="r")]),
        (one("acme-variants", "acme"), [sample(), sample(implementation="acme[fast]")]),
        (one("acme==1", "acme", "1"), [failed(problem=f"p{n}") for n in range(9)]),
        (one("zeta"), [broken()]),
        (one("omega==1", "omega", "1"), [sample(implementation="omega")]),
    ]
    found = site.badges(opened(tmp_path, held))
    assert [*found] == ["acme.svg", "zeta.svg"]
    assert "3 pass, 1 fail" in found["acme.svg"]
    assert "1 error" in found["zeta.svg"]
    assert badge.RED in found["zeta.svg"]


def test_accuracy_stands_side_by_side_and_not_where_an_error_exceeds_the_contract(tmp_path: Path):
    profile = sample()["profile"]["y"] | {"lambda": 12.0}
    records = [
        sample(), sample(dtype="bf16", problem="b"), sample(implementation="other"),
        sample(implementation="other", dtype="bf16", profile={"y": profile}, problem="c"),
    ]  # fmt: skip
    found = index._accuracy(lines(opened(tmp_path, [(one("acme"), records)])))
    assert found is not None
    assert found["dtypes"] == ["fp32", "bf16"]
    assert [(name, cells) for name, _, cells in found["rows"]] == [
        ("acme", {"fp32": ("19.7", "32%", "0.28", False), "bf16": ("19.7", "32%", "0.28", False)}),
        ("other", {"fp32": ("19.7", "32%", "0.28", False), "bf16": ("-", "200%", "-", True)}),
    ]


def test_a_failure_beyond_those_that_are_shown_leads_to_the_section(tmp_path: Path):
    (environment,) = opened(tmp_path, [(one("acme"), [sample()])])
    assert index.link(environment, "r/", GROUPS - 1) == f"r/acme/index.html#failure-{GROUPS - 1}"
    assert index.link(environment, "r/", GROUPS) == "r/acme/index.html#failures"


@pytest.mark.parametrize("width", [1400, 400])
def test_the_page_fits_its_window_and_only_tables_scroll(width: int, rich: Path):
    sync_api = pytest.importorskip("playwright.sync_api", reason="no playwright (extra: dev)")
    path = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)
    if path is None:
        pytest.skip("no browser")
    options = ["--no-sandbox"] if os.geteuid() == 0 else []
    with sync_api.sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=path, args=options)
        page = browser.new_page(viewport={"width": width, "height": 900})
        said: list[str] = []
        page.on("console", lambda message: said.append(message.text))
        page.goto(rich.as_uri())
        assert page.evaluate("document.documentElement.scrollWidth") == width
        assert said == []  # the policy refuses nothing that the page asks for
        stacked = page.evaluate("getComputedStyle(document.querySelector('.stacks tr')).display") == "block"
        assert stacked == (width < 640)
        browser.close()


def test_an_empty_survey_has_a_site(tmp_path: Path):
    page, errors = site.build(survey(tmp_path / "survey", []), tmp_path / "site")
    assert errors == ()
    assert "No engine could be run" in words(page)
