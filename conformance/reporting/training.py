"""The table of trainings: how networks trained through an implementation's kernels."""

from __future__ import annotations

import math
from collections.abc import Iterable

from conformance.reporting.table import Table
from conformance.results.schema import Record, TrainingRecord

HEADS = (
    "implementation", "network", "status", "steps", "test accuracy", "baseline", "verified", "worst error", "s", "loss",
    "accuracy", "test loss",
)  # fmt: skip
NOTE = (
    "baseline: majority-class baseline, the test accuracy of always answering the commonest class; verified: tensors "
    "compared with their bound; worst error: as a share of it"
)


def table(named: Iterable[tuple[str, Record]]) -> Table | None:
    """From records, each with the name that its implementation has in the table; None without a training that got to
    its end."""
    rows = []
    for name, record in named:
        if not isinstance(record, TrainingRecord) or record.training.scores is None:
            continue
        run, scores = record.training, record.training.scores
        worst = [float(value) for checks in record.checks.values() for value, _ in checks.values()]
        cells = (
            record.status,
            f"{run.steps:,}",
            f"{float(scores.test_accuracy):.0%}",
            f"{float(scores.baseline):.0%}",
            f"{run.verified:,}",
            f"{max(worst, default=math.nan):.0%}",
            f"{record.seconds.get('total', math.nan):.1f}",
            f"{float(scores.first_loss):.3f} to {float(scores.last_loss):.3f}",
            f"{float(scores.accuracy):.0%}",
            f"{float(scores.test_loss):.3f}",
        )
        rows.append((name, run.network, *cells))
    return Table("Networks trained through their convolutions", HEADS, tuple(rows), 3, NOTE) if rows else None
