"""Tables of trainings: how networks trained through an implementation's kernels, and the memory that a call keeps for
its backward pass and that a training step takes."""

from __future__ import annotations

import math
from collections.abc import Iterable

from conformance.dtypes import dtype_place
from conformance.reporting.table import Table
from conformance.results.schema import CheckRecord, Record, TrainingRecord

HEADS = (
    "implementation", "network", "status", "steps", "test accuracy", "baseline", "verified", "worst error", "s", "loss",
    "accuracy", "test loss",
)  # fmt: skip
NOTE = (
    "baseline: majority-class baseline, the test accuracy of always answering the commonest class; verified: tensors "
    "compared with their bound; worst error: as a share of it"
)


def table(records: Iterable[Record]) -> Table | None:
    """Return the table of trainings; None if no training finished."""
    rows = []
    for record in records:
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
        rows.append((record.implementation, run.network, *cells))
    return Table("Networks trained through their convolutions", HEADS, tuple(rows), 3, NOTE) if rows else None


PUBLISHED = "published for batch 2048 on an RTX 3070: unfused 2.68 GB, fused 1.56 GB at the peak"
SAVED = (
    "implementation", "variant", "dtype", "activation bytes", "buffers", "parameter bytes", "per-channel bytes",
)  # fmt: skip
STEP = ("implementation", "variant", "batch", "peak bytes", "bytes after forward")


def memory_tables(records: Iterable[Record]) -> list[Table]:
    """Return the tables of memory."""
    checks = [record for record in records if isinstance(record, CheckRecord)]
    saved = [
        Table(
            f"Saved for backward, {descriptor}",
            SAVED,
            tuple(sorted(
                ((record.implementation, row.variant, record.dtype,
                  *(f"{n:,}" for n in (row.activation_bytes, row.buffers, row.parameter_bytes, row.vector_bytes)))
                 for record in checks if record.descriptor == descriptor
                 for row in record.facts.saved_for_backward),
                key=lambda cells: (*cells[:2], dtype_place(cells[2]), *cells[3:]),
            )),
            3,
        )
        for descriptor in sorted({record.descriptor for record in checks if record.facts.saved_for_backward})
    ]  # fmt: skip
    steps = sorted(
        (record.implementation, row.variant, *(f"{n:,}" for n in (row.batch, row.peak_bytes, row.forward_bytes)))
        for record in checks
        for row in record.facts.training_steps
    )
    title = "A training step of the tutorial's network (conv 1-32-64 with batch norm, 28x28, fp32)"
    return [*saved, *([Table(title, STEP, tuple(steps), 2, PUBLISHED)] if steps else [])]
