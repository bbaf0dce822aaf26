"""The page in a real browser: filters, search, keyboard, colours, width, and that it asks nobody for anything."""

from __future__ import annotations

import os
import re
import shutil
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

sync_api = pytest.importorskip("playwright.sync_api", reason="no playwright (pip install playwright)")
pytest.importorskip("jinja2", reason="no jinja2 (extra: report)")

from conformance.reporting.page.render import build  # noqa: E402
from tests.report_samples import absent, benchmarks, failed, sample, spread, waived, written  # noqa: E402

BROWSERS = ("chromium", "chromium-browser", "google-chrome")
WIDE, NARROW = 1400, 400
SCROLLED = "document.documentElement.scrollWidth"
CUT = "box => box.scrollWidth > box.clientWidth + 1"


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    """Whatever Chromium is installed. As root it runs only without its sandbox."""
    path = next(filter(None, map(shutil.which, BROWSERS)), None)
    if path is None:
        pytest.skip(f"no browser: none of {', '.join(BROWSERS)} is installed")
    options = ["--no-sandbox"] if os.geteuid() == 0 else []
    with sync_api.sync_playwright() as playwright:
        launched = playwright.chromium.launch(executable_path=path, args=options)
        yield launched
        launched.close()


@pytest.fixture(scope="module")
def report(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A page verdicts."""
    folder = tmp_path_factory.mktemp("report")
    seeds = [
        *(
            sample(problem=f"p{place}", dtype=dtype, distribution="fixed")
            for place in range(20)
            for dtype in ("fp32", "bf16")
        ),
        *(sample(problem=f"p{place}", distribution="wide") for place in range(20)),
        waived(implementation="another", operator="conv_backward_data", problem="needle"),
        failed(problem="wrong"),
        failed(
            implementation="another",
            operator="conv_backward_data",
            problem="counted",
            checks={"y": {"mismatched elements": [2e6, 0.0]}},
        ),
        absent(),
    ]
    page, digest = build([written(folder / "run.jsonl", spread(seeds, 3000))], folder)
    assert digest.results.errors == ()
    return page


@dataclass
class Shown:
    """A page in a browser, and what it said and asked for."""

    page: Any
    said: list[str] = field(default_factory=list)
    asked: list[str] = field(default_factory=list)

    @property
    def found(self) -> int:
        """Verdicts that fit the filters."""
        return int(self.page.text_content("#found").split(" verdict")[0].replace(",", ""))

    def until(self, selector: str, pattern: str) -> None:
        """Wait for a text. From outside: the page forbids to evaluate one."""
        sync_api.expect(self.page.locator(selector)).to_have_text(re.compile(pattern))

    def cells(self, column: int) -> set[str]:
        """Distinct texts of a column of the list."""
        return set(self.page.locator(f"#list > tr:not(.detail) > td:nth-child({column})").all_text_contents())

    def colour(self, selector: str = "body", of: str = "backgroundColor") -> str:
        """As the browser computes it."""
        return str(self.page.eval_on_selector(selector, f"element => getComputedStyle(element).{of}"))


Opener = Callable[..., Shown]


@pytest.fixture
def opened(browser: Any, report: Path) -> Iterator[Opener]:
    """Opens the page; afterwards nothing may have been logged or asked for."""
    contexts: list[tuple[Any, Shown]] = []

    def run(width: int = WIDE, scheme: str = "light", suffix: str = "#verdicts", init: str = "") -> Shown:
        context = browser.new_context(
            viewport={"width": width, "height": 900}, color_scheme=scheme, reduced_motion="reduce"
        )
        shown = Shown(context.new_page())
        shown.page.add_init_script(init or "0")
        shown.page.on("console", lambda message: shown.said.append(message.text))
        shown.page.on("pageerror", lambda problem: shown.said.append(str(problem)))
        shown.page.on("request", lambda request: shown.asked.append(request.url))
        shown.page.goto(report.as_uri() + suffix)
        if not init:
            shown.page.wait_for_selector("html[data-ready]")
        contexts.append((context, shown))
        return shown

    yield run
    for context, shown in contexts:
        context.close()
        assert shown.said == []
        assert {url.partition("#")[0] for url in shown.asked} == {report.as_uri()}


def test_the_page_lists_everything(opened: Opener):
    shown = opened()
    assert shown.found == 3000
    assert shown.page.locator("#list > tr").count() == 100
    shown.page.click("#more")
    assert shown.page.locator("#list > tr").count() == 200
    assert shown.page.evaluate("document.activeElement.closest('tr').rowIndex") == 101


def test_a_status_filters_and_its_button_says_so(opened: Opener):
    shown = opened()
    chip = shown.page.locator(".chip[data-status=waived]")
    chip.click()
    assert chip.get_attribute("aria-pressed") == "true"
    assert shown.cells(1) == {"waived"}
    shown.page.locator(".chip[data-status=error]").click()
    assert shown.cells(1) == {"error", "waived"}
    shown.page.click("button[type=reset]")
    shown.until("#found", "^3,000 verdicts")


def test_choices_filter_together(opened: Opener):
    shown = opened()
    shown.page.select_option("#f-dtype", "bf16")
    assert (0 < shown.found < 3000, shown.cells(3)) == (True, {"bf16"})
    shown.page.select_option("#f-dtype", "fp32")
    shown.page.select_option("#f-distribution", "wide")
    assert (shown.cells(3), shown.cells(5)) == ({"fp32"}, {"wide"})
    shown.page.click("button[type=reset]")
    shown.page.select_option("#f-row", label="another")
    shown.page.select_option("#f-operator", "conv_backward_data")
    assert shown.found > 0
    shown.page.select_option("#f-operator", "conv_forward")
    assert shown.found == 0
    assert shown.page.is_hidden("#list-box")


def test_search_finds_all_words_anywhere(opened: Opener):
    shown = opened()
    shown.page.fill("#search", "NEEDLE conv_backward")
    shown.until("#found", "^[1-9][0-9]* verdicts")
    assert shown.found > 0
    assert all("needle" in text for text in shown.cells(2))
    shown.page.fill("#search", "needle nonsense")
    shown.until("#found", "^0 verdicts")


def test_a_cell_of_the_matrix_leads_to_its_verdicts_and_they_to_their_diagnosis(opened: Opener):
    shown = opened()
    shown.page.click("button.tile[aria-label^='acme, conv_forward, fp32']")
    assert shown.cells(3) == {"fp32"}
    assert shown.page.evaluate("document.activeElement.id") == "verdicts-title"
    first = shown.page.locator(".open").first
    first.click()
    assert first.get_attribute("aria-expanded") == "true"
    detail = shown.page.locator(f"#{first.get_attribute('aria-controls')}")
    assert "likely cause: last row of y" in detail.locator(".reason").text_content()
    assert detail.locator(".command code").text_content().startswith("conformance check acme 'n2")
    assert detail.locator("tr.exceeds").first.text_content().startswith("yworst error / bound")
    first.click()
    assert first.get_attribute("aria-expanded") == "false"
    assert detail.count() == 0


def test_mismatched_elements_are_counted_and_no_share_of_a_bound(opened: Opener):
    shown = opened()
    shown.page.fill("#search", "counted.0")
    shown.until("#found", "^1 verdict$")
    assert re.fullmatch(r"1,\d{3},\d{3} elements", shown.cells(6).pop())


def test_a_group_of_failures_leads_to_its_cases_and_the_address_keeps_all_filters(opened: Opener):
    shown = opened()
    button = shown.page.locator("#failures .of-group").first
    words = button.text_content()
    button.click()
    assert words == f"All {shown.found} cases in the list"
    assert shown.cells(1) <= {"fail", "error"}
    assert shown.page.evaluate("document.activeElement.id") == "verdicts-title"
    shown.page.select_option("#f-dtype", "bf16")
    shown.page.locator(".chip[data-status=fail]").click()
    again = opened(suffix=shown.page.evaluate("location.hash"))
    assert (again.found, again.cells(1), again.cells(3)) == (shown.found, {"fail"}, {"bf16"})
    assert again.page.input_value("#f-dtype") == "bf16"
    again.page.click("button[type=reset]")
    again.until("#found", "^3,000 verdicts")


def test_the_copy_button_copies_the_line(opened: Opener):
    shown = opened()
    shown.page.context.grant_permissions(["clipboard-read", "clipboard-write"])
    card = shown.page.locator("#failures .card").first
    card.locator(".copy").click()
    shown.until("#said", "^Copied$")
    assert shown.page.evaluate("navigator.clipboard.readText()") == card.locator("code").text_content()


def test_everything_works_by_keyboard_and_the_focus_is_seen(opened: Opener):
    shown = opened(suffix="")
    shown.page.keyboard.press("Tab")
    assert shown.page.evaluate("document.activeElement.className") == "skip"
    assert shown.page.evaluate("document.activeElement.getBoundingClientRect().top") >= 0
    shown.page.keyboard.press("Enter")
    assert shown.page.evaluate("document.activeElement.id") == "main"
    tile = shown.page.locator("button.tile").first
    tile.focus()
    shown.page.keyboard.press("Enter")
    assert shown.page.evaluate("document.activeElement.id") == "verdicts-title"
    for _ in range(20):
        shown.page.keyboard.press("Tab")
        if shown.page.evaluate("document.activeElement.className") == "open":
            break
    shown.page.keyboard.press("Space")
    assert shown.page.locator("tr.detail").count() == 1
    assert shown.page.evaluate("parseFloat(getComputedStyle(document.activeElement).outlineWidth)") >= 2


def test_every_section_can_be_chosen_on_a_narrow_screen(opened: Opener):
    shown = opened(NARROW)
    right = "all => all.every(one => one.getBoundingClientRect().right <= innerWidth)"
    assert shown.page.eval_on_selector_all("nav a", right)


@pytest.mark.parametrize("width", [WIDE, NARROW])
@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_the_page_never_scrolls_sideways(opened: Opener, width: int, scheme: str):
    shown = opened(width, scheme)
    shown.page.eval_on_selector_all("details", "all => all.forEach(one => { one.open = true; })")
    shown.page.locator(".open").first.click()
    assert shown.page.evaluate(SCROLLED) <= width
    assert shown.page.eval_on_selector_all(".scroll", f"all => all.filter({CUT}).length") == 0


def test_one_kernel_is_one_screen(browser: Any, tmp_path: Path):
    """A file of one operator that passes: what a reader looks for first, and nothing that is folded."""
    records = [sample(problem=f"p{n}") for n in range(100)] + [absent(operator=f"o{n}") for n in range(13)]
    page, _ = build([written(tmp_path / "run.jsonl", records)], tmp_path)
    shown = browser.new_page(viewport={"width": WIDE, "height": 900})
    shown.goto(page.as_uri())
    shown.wait_for_selector("html[data-ready]")
    assert shown.evaluate("document.documentElement.scrollHeight") <= 1000
    assert shown.is_hidden("#list-box")


def test_a_folded_section_that_is_jumped_to_opens(opened: Opener):
    shown = opened(suffix="")
    assert shown.page.is_hidden("#search")
    shown.page.click("nav a[href='#verdicts']")
    assert shown.page.is_visible("#search")


@pytest.fixture(scope="module")
def timed(tmp_path_factory: pytest.TempPathFactory) -> str:
    """The address of a page with times of two implementations."""
    folder = tmp_path_factory.mktemp("timed")
    timing = {"low_s": 0.45, "high_s": 0.61, "minimum_s": 0.41}
    held = [
        (sample(implementation=name, timing=timing, roofline_share=0.5), seconds)
        for name, seconds in (("torch-cpu", 0.5), ("acme", 0.52))
    ]
    page, _ = build([benchmarks(folder / "bench.json", held)], folder)
    return page.as_uri()


def test_a_time_is_broken_between_its_parts_where_it_does_not_fit(browser: Any, timed: str):
    shown = browser.new_page(viewport={"width": NARROW, "height": 800})
    shown.goto(timed)
    lines = shown.eval_on_selector_all(".parts span", "all => all.map(one => one.getClientRects().length)")
    assert set(lines) == {1}
    assert shown.evaluate(SCROLLED) <= NARROW


def test_colours_follow_the_system_and_the_switch(opened: Opener):
    light, dark = opened(scheme="light"), opened(scheme="dark")
    paper, ink = light.colour(), light.colour(of="color")
    assert sum(map(int, paper[4:-1].split(", "))) > 3 * 200
    assert sum(map(int, dark.colour()[4:-1].split(", "))) < 3 * 60
    dark.page.click("#theme")
    assert (dark.colour(), dark.colour(of="color")) == (paper, ink)
    light.page.click("#theme")
    assert light.colour() != paper
    deadline = time.monotonic() + 30
    chosen = light.colour()
    while True:  # a busy browser stores a choice a moment later: reloaded before, it is lost, and made again
        light.page.wait_for_timeout(100)
        light.page.reload()
        light.page.wait_for_selector("html[data-ready]")
        if light.colour() == chosen or time.monotonic() > deadline:
            break
        light.page.click("#theme")
    assert light.colour() == chosen  # it is remembered


def test_charts_take_the_colours_of_the_page(browser: Any, timed: str):
    light, dark = (Shown(browser.new_page(color_scheme=scheme)) for scheme in ("light", "dark"))
    for shown in (light, dark):
        shown.page.goto(timed)
    axis, point = ".chart svg text", ".chart svg circle"
    assert light.colour(axis, "fill") != dark.colour(axis, "fill")
    assert light.colour(point, "fill") != dark.colour(point, "fill")
    assert light.colour(point, "fill") == "rgb(0, 114, 178)"


def test_a_browser_that_cannot_unpack_says_where_the_verdicts_are(opened: Opener):
    shown = opened(init="delete window.DecompressionStream;")
    assert "The records that this page was made from hold all" in shown.page.text_content("#trouble")
    assert shown.page.is_visible("#trouble")
    assert shown.page.is_visible(".matrix")
