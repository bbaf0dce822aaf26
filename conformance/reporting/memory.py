"""Tables of memory: what is saved for the backward of a call, by problem, and what a training step takes."""

from __future__ import annotations

from collections.abc import Iterable

from conformance.reporting.page.model import dtype_place
from conformance.reporting.table import Table
from conformance.results.schema import CheckRecord, Record

PUBLISHED = "published for batch 2048 on an RTX 3070: unfused 2.68 GB, fused 1.56 GB at the peak"
SAVED = (
    "implementation", "variant", "dtype", "activation bytes", "buffers", "parameter bytes", "per-channel bytes",
)  # fmt: skip
STEP = ("implementation", "variant", "batch", "peak bytes", "bytes after forward")


def tables(named: Iterable[tuple[str, Record]]) -> list[Table]:
    """From records, each with the name that its implementation has in the table."""
    checks = [(name, record) for name, record in named if isinstance(record, CheckRecord)]
    found = [
        Table(
            f"Saved for backward, {descriptor}",
            SAVED,
            tuple(sorted(
                ((name, row.variant, record.dtype,
                  *(f"{n:,}" for n in (row.activation_bytes, row.buffers, row.parameter_bytes, row.vector_bytes)))
                 for name, record in checks if record.descriptor == descriptor
                 for row in record.facts.saved_for_backward),
                key=lambda cells: (*cells[:2], dtype_place(cells[2]), *cells[3:]),
            )),
            3,
        )
        for descriptor in sorted({r.descriptor for _, r in checks if r.facts.saved_for_backward})
    ]  # fmt: skip
    steps = sorted(
        (name, row.variant, *(f"{n:,}" for n in (row.batch, row.peak_bytes, row.forward_bytes)))
        for name, record in checks
        for row in record.facts.training_steps
    )
    title = "A training step of the tutorial's network (conv 1-32-64 with batch norm, 28x28, fp32)"
    return [*found, *([Table(title, STEP, tuple(steps), 2, PUBLISHED)] if steps else [])]
