"""The table of trainings at the end of a run."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

HEADINGS = (
    "implementation",
    "network",
    "steps",
    "loss",
    "accuracy",
    "test loss",
    "accuracy",
    "majority",
    "verified",
    "worst",
    "s",
)
LEGEND = (
    "accuracy: share of right answers; majority: what always answering the commonest class scores in the test; "
    "verified: tensors compared with their bound; worst: error as a share of it"
)


def lines(records: Sequence[Mapping[str, Any]]) -> Iterator[str]:
    """One line per training that got as far as a test, headings first."""
    rows = [_row(record) for record in records if record.get("training", {}).get("scores")]
    if not rows:
        return
    rows = [HEADINGS, *rows]
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    for row in rows:
        yield "  ".join(text.ljust(width) for text, width in zip(row, widths, strict=True)).rstrip()
    yield LEGEND


def _row(record: Mapping[str, Any]) -> tuple[str, ...]:
    training = record["training"]
    scores = {name: float(score) for name, score in training["scores"].items()}
    worst = max(float(check["worst error / bound"][0]) for check in record["checks"].values())
    return (
        record["implementation"],
        training["network"],
        str(training["steps"]),
        f"{scores['first loss']:.3f} to {scores['last loss']:.3f}",
        f"{scores['accuracy']:.0%}",
        f"{scores['test loss']:.3f}",
        f"{scores['test accuracy']:.0%}",
        f"{scores['commonest']:.0%}",
        f"{training['judged']:,}",
        f"{worst:.0%}",
        f"{record['seconds']['total']:.1f}",
    )
