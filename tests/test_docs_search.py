"""The site's search where its pages are opened as files: a browser starts no worker there."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.conftest import ROOT

pytest.importorskip("playwright.sync_api", reason="no playwright (pip install playwright)")

from tests.test_report_browser import browser  # noqa: F401

PAGE = """<!doctype html><title>search</title><script src="iframe-worker.js"></script><script>
  const worker = new Worker("worker.js");
  worker.addEventListener("message", (event) => { document.title = event.data; });
  worker.postMessage("asked");
</script>"""
WORKER = """addEventListener("message", async (event) => {
  await importScripts("answer.js");
  postMessage(answer(event.data));
});"""


def test_a_worker_of_a_page_that_is_a_file_answers(browser: Any, tmp_path: Path):  # noqa: F811
    shim = (ROOT / "docs/assets/iframe-worker.js").read_text()
    files = {"iframe-worker.js": shim, "page.html": PAGE, "worker.js": WORKER}
    for name, text in (files | {"answer.js": "answer = (asked) => `${asked}, answered`;"}).items():
        (tmp_path / name).write_text(text)
    page = browser.new_page()
    page.goto((tmp_path / "page.html").as_uri())
    page.wait_for_function("document.title === 'asked, answered'", timeout=10_000)
    page.close()
