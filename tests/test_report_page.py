"""The page: what it holds, what it cannot do, and what nothing from outside can do to it."""

from __future__ import annotations

import base64
import gzip
import hashlib
import json
import re
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("jinja2", reason="no jinja2 (extra: report)")

from conformance.reporting.page import sections, speeds, verdict_list
from conformance.reporting.page.merge import load
from conformance.reporting.page.render import page, texts
from conformance.reporting.page.tables import Digest
from tests.report_samples import (
    CAUSES,
    H100,
    absent,
    benchmarks,
    checked,
    digest,
    failed,
    sample,
    spread,
    waived,
)
from tests.test_renderings import five, several_machines, with_times

MARK = '<span class="mark" aria-hidden="true"></span>'
HOSTILE = "\"'><script>alert(1)</script><img src=x onerror=alert(2)>\u2028{{ 7 * 7 }}${7}"
WAIVERS = frozenset({"https:/", "https://example.org"})
LINKS = frozenset({"https://example.org/known", "http://example.org/also"})


class Parsed(HTMLParser):
    """Elements, their attributes, and the text of each script and style."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.elements: list[tuple[str, dict[str, str]]] = []
        self.inside: list[str] = []
        self.raw: list[tuple[str, str]] = []
        self.words: list[str] = []
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.elements.append((tag, {name: value or "" for name, value in attrs}))
        self.inside.append(tag)

    def handle_endtag(self, tag: str) -> None:
        while self.inside and self.inside.pop() != tag:
            pass

    def handle_data(self, data: str) -> None:
        if self.inside and self.inside[-1] in ("script", "style"):
            self.raw.append((self.inside[-1], data))
        else:
            self.words.append(data)

    def of(self, tag: str) -> list[dict[str, str]]:
        return [attributes for name, attributes in self.elements if name == tag]


def rich(tmp_path: Path) -> Digest:
    """Something of everything."""
    return with_times(tmp_path, [record for record in (*five(), *several_machines()) if "work" not in record])


@pytest.fixture(scope="module")
def text(tmp_path_factory: pytest.TempPathFactory) -> str:
    return page(rich(tmp_path_factory.mktemp("rich")), "A title")


def unpacked(text: str) -> dict[str, Any]:
    (data,) = (raw for tag, raw in Parsed(text).raw if tag == "script" and raw.startswith("H4sI"))
    shared, *verdicts = map(json.loads, gzip.decompress(base64.b64decode(data)).splitlines())
    return {**shared, "verdicts": verdicts}


@pytest.mark.parametrize("name", sections.MADE)
def test_a_section_that_fails_takes_no_other_with_it(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
):
    """An exception in any of them left no page."""
    monkeypatch.setitem(sections.MADE, name, lambda *_: 1 // 0)
    shown = rich(tmp_path)
    summary, text = texts(shown).values()
    there = {attributes["id"] for attributes in Parsed(text).of("section")}
    own = {"speeds": "speed", "speed_tables": "speed"}.get(name, name)
    assert {"overview", "failures", "findings", "machines", "verdicts"} - there <= {own}
    assert ("speed" in there, "## Accuracy profile" in summary) == (own != "speed", own != "accuracy")
    assert len(unpacked(text)["verdicts"]) == len(shown.results.verdicts)
    said = f"{name.replace('_', ' ')} of the report: the explanation failed (ZeroDivisionError at test_report_page.py:"
    assert [line.startswith(said) for line in caplog.messages] == [True]


def test_the_title_says_what_was_verified_when_and_where(tmp_path: Path):
    found = digest(tmp_path, [sample(run_level="smoke"), failed(problem="f")])
    shown = Parsed(page(found))
    words = [word for word in map(str.strip, shown.words) if word]
    when, where = "4 May 2026, 03:02 UTC, 60 min", "cpu, x86_64 Linux"
    result = f"acme conv_forward fp32: 1 of 2 fail: {CAUSES[0]}, or {CAUSES[1]}"
    assert words[0] == f"{result} · {when} · {where}"
    place = words.index("Conformance of acme conv_forward")
    assert words[place + 1 : place + 5] == [when, where, "level smoke", "seed 0"]
    several = [sample(implementation=name, operator=f"conv_{name}") for name in "abcd"]
    assert "Conformance of 4 implementations (4 operators)" in Parsed(page(digest(tmp_path, several))).words
    assert "A title" in Parsed(page(found, "A title")).words


def test_the_page_can_load_nothing(text: str):
    (policy,) = (meta["content"] for meta in Parsed(text).of("meta") if meta.get("http-equiv"))
    rules = dict(rule.strip().split(" ", 1) for rule in policy.split(";"))
    assert rules["default-src"] == "'none'"
    assert not {"connect-src", "img-src", "font-src", "media-src", "frame-src"} & rules.keys()
    for tag, rule in (("style", "style-src"), ("script", "script-src")):
        own = [raw for name, raw in Parsed(text).raw if name == tag and not raw.startswith("H4sI")]
        hashes = [base64.b64encode(hashlib.sha256(raw.encode()).digest()).decode() for raw in own]
        assert rules[rule] == " ".join(f"'sha256-{known}'" for known in hashes)


def test_nothing_refers_to_another_file(text: str):
    parsed = Parsed(text)
    addresses = [
        a[name] for _, a in parsed.elements for name in ("href", "src", "srcset", "action", "data") if name in a
    ]
    assert {address.rpartition("/")[0] for address in addresses if not address.startswith("#")} <= WAIVERS
    assert not {"link", "img", "iframe", "object", "embed", "base"} & {tag for tag, _ in parsed.elements}
    assert not re.search(r"url\((?!#)|@import", text)


def test_everything_that_scrolls_can_be_reached_by_keyboard_and_has_a_name(text: str):
    boxes = [a for tag, a in Parsed(text).elements if tag == "div" and a.get("class") == "scroll"]
    assert boxes
    assert all(box["tabindex"] == "0" and box["role"] == "region" for box in boxes)
    assert all(box.get("aria-label") or box.get("aria-labelledby") for box in boxes)


def test_ids_are_unique_and_labels_lead_somewhere(text: str):
    found = [a["id"] for _, a in Parsed(text).elements if "id" in a]
    assert len(found) == len(set(found))
    referred = [name for _, a in Parsed(text).elements for name in a.get("aria-labelledby", "").split()]
    assert set(referred) <= set(found)


FIELDS = (
    "implementation",
    "operator",
    "device",
    "problem",
    "descriptor",
    "dtype",
    "layout",
    "distribution",
    "check",
    "reason",
)


@pytest.mark.parametrize("name", [*FIELDS, "title", "versions", "accepted", "contract"])
def test_nothing_from_outside_becomes_markup(tmp_path: Path, name: str):
    values: dict[str, Any] = {
        "versions": {"python": HOSTILE, HOSTILE: "1"},
        "accepted": [HOSTILE],
        "contract": {"a": HOSTILE},
    }
    changes = {} if name in ("title", "accepted") else {name: values.get(name, HOSTILE)}
    head = {n: HOSTILE for n in ("implementation", "operator", "device", "reason") if n in changes}
    records = [make(**changes, seed=place) for place, make in enumerate((sample, failed, waived))]
    records += [absent(status=status, **head) for status in ("unsupported", "unavailable")]
    records += [checked({"accepted": values["accepted"]} if name == "accepted" else {}, **changes)]
    other = {k: v for k, v in changes.items() if k != "implementation"}
    timed = [(sample(**changes), 0.5), (sample(implementation="torch-cpu", **other), 0.25)]
    bench = benchmarks(tmp_path / "b.json", timed)
    text = page(digest(tmp_path, records, bench), HOSTILE if name == "title" else "t")
    tags = [tag for tag, _ in Parsed(text).elements]
    assert tags.count("script") == 2
    assert "img" not in tags
    assert not [a for _, a in Parsed(text).elements if any(key.startswith("on") for key in a)]
    assert "49" not in "".join(Parsed(text).words[:40])
    held = json.dumps(unpacked(text), ensure_ascii=False) + "".join(Parsed(text).words)
    assert "<script>alert(1)" in held  # it is shown, as what it is


def test_only_addresses_of_the_web_become_links(tmp_path: Path):
    reason = "see https://example.org/known, (http://example.org/also) javascript:a() file:///b data:text/html,c"
    waiver = {"reason": reason, "url": "https://example.org/known"}
    shown = Parsed(page(digest(tmp_path, [waived(waiver=waiver)]), "t"))
    outside = {a["href"] for a in shown.of("a") if not a["href"].startswith("#")}
    assert outside == LINKS


def test_dtypes_are_offered_in_the_order_of_the_suite(tmp_path: Path):
    records = [sample(dtype=name) for name in ("fp64", "bf16", "fp16", "fp32")]
    found = unpacked(page(digest(tmp_path, records), "t"))
    assert found["dtype"] == ["fp32", "bf16", "fp16", "fp64"]


def test_verdicts_come_back_from_the_page(tmp_path: Path):
    found = rich(tmp_path)
    data = unpacked(page(found, "t"))
    for verdict, held in zip(found.results.verdicts, data["verdicts"], strict=True):
        record = verdict.record
        assert data["rows"][held["row"]] == [found.name(verdict.row), verdict.machine.label]
        assert all(held[name] == record.text(name) for name in verdict_list.TEXTS)
        assert held["command"] == record.command
        assert (held["group"] is not None) == (record.status in ("fail", "error"))
        assert {output for output, *_ in held["checks"]} == {*record.checks}
    (wrong,) = (held for held in data["verdicts"] if held["problem"] == "wrong")
    assert wrong["checks"] == [["y", "worst error / bound", "inf", 1.0], ["y", "rms", 5e5, 0.5438]]
    assert (wrong["worst"], wrong["elements"]) == (1e300, None)
    assert wrong["facts"]["inferred precision y"] == "fp32 accumulation"


def test_speed_is_relative_to_torch_on_the_same_machine(tmp_path: Path):
    cuda, other = {"device": "cuda", "versions": H100}, H100 | {"device": "NVIDIA A100"}
    timed = [
        (sample(implementation="torch-cuda", **cuda), 1.0),
        (sample(implementation="acme", **cuda), 0.5),
        (sample(implementation="acme", versions=H100, device="cuda", dtype="bf16"), 0.1),
        (sample(implementation="torch-cuda", device="cuda", versions=other), 6.0),
        (sample(implementation="acme", device="cuda", versions=other), 1.0),
    ]
    found = speeds.speeds(Digest(load([benchmarks(tmp_path / "b.json", timed)])))
    ratios = {
        (s.clocked.implementation, s.clocked.machine.short, s.clocked.record.dtype): s.ratio and s.ratio.value
        for s in found
    }
    assert ratios["acme", "NVIDIA H100", "fp32"] == 2.0
    assert ratios["acme", "NVIDIA A100", "fp32"] == 6.0
    assert ratios["acme", "NVIDIA H100", "bf16"] is None


@pytest.mark.parametrize("worst", [-1e308, 1e308, 5e-324, 0, "nan", "-inf", "inf"])
def test_an_error_of_any_size_has_a_page(tmp_path: Path, worst: float | str):
    profile = sample()["profile"]["y"] | {"lambda": worst, "lambda_limit": 1.0, "rms": worst}
    checks = {"y": {"worst error / bound": [worst, 5e-324]}}
    text = page(digest(tmp_path, [sample(profile={"y": profile}, checks=checks)]), "t")
    assert unpacked(text)["verdicts"][0]["worst"] in (0, 1, 1e300)


def test_twenty_thousand_verdicts_weigh_less_than_five_megabytes(tmp_path: Path):
    seeds = [
        sample(problem=f"p{n}", distribution=distribution)
        for n in range(40)
        for distribution in ("fixed", "integer", "special")
    ]
    text = page(digest(tmp_path, list(spread([*seeds, failed(problem="q"), absent()], 20_000))), "t")
    assert len(text.encode()) < 5_000_000
    assert len(unpacked(text)["verdicts"]) == 20_000
