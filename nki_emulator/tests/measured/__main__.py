"""`python -m nki_emulator.tests.measured`: the model beside what others measured, written into modelled-time.md."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from nki_emulator.tests.measured.publications import PUBLISHED, Published

DOCUMENT = Path(__file__).parents[2] / "docs" / "modelled-time.md"
BEGIN, END = "<!-- measured: begin -->\n", "<!-- measured: end -->"
HEADS = (
    "kernel", "device", "measured us", "modelled us", "scheduled", "least / measured", "scheduled / measured", "limit",
    "source",
)  # fmt: skip


def _lines() -> Iterator[str]:
    yield f"| {' | '.join(HEADS)} |"
    yield f"|{'---|' * len(HEADS)}"
    for row in PUBLISHED:
        yield f"| {' | '.join(_cells(row))} |"
    yield ""
    yield from (f"- {name}: {text}" for name, text in sorted({(row.source.name, row.source.text) for row in PUBLISHED}))


def _cells(row: Published) -> Iterator[str]:
    found = row.modelled()
    yield from (row.what, row.device, f"{row.us:,.0f}")
    yield from (f"{found.lower_us:,.0f} to {found.upper_us:,.0f}", f"{found.scheduled_us:,.0f}")
    yield from (f"{found.lower_us / row.us:.2f}", f"{found.scheduled_us / row.us:.2f}", found.limit, row.source.name)


if __name__ == "__main__":
    document = DOCUMENT.read_text(encoding="utf-8")
    start, rest = document.split(BEGIN, 1)
    table = "\n".join(_lines())
    DOCUMENT.write_text(f"{start}{BEGIN}\n{table}\n\n{END}{rest.split(END, 1)[1]}", encoding="utf-8")
    print(table)
