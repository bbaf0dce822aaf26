"""The tables of memory at the end of a run."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

PUBLISHED = "published for batch 2048 on an RTX 3070: unfused 2.68 GB, fused 1.56 GB at the peak"
KEPT = ("implementation", "variant", "dtype", "activation bytes", "buffers", "parameter bytes", "per-channel bytes")
TRAINED = ("implementation", "variant", "batch", "peak bytes", "bytes after forward")
_FIELDS = ("activation_bytes", "buffers", "parameter_bytes", "vector_bytes")


def lines(records: Sequence[Mapping[str, Any]]) -> Iterator[str]:
    """What is kept for the backward of a call, by problem; what a training step takes."""
    kept = [record for record in records if "kept" in record]
    for problem in dict.fromkeys(record["descriptor"] for record in kept):
        yield f"kept for backward, {problem}"
        yield from _table(KEPT, [row for record in kept if record["descriptor"] == problem for row in _kept(record)])
        yield ""
    trained = [row for record in records for row in _trained(record)]
    if trained:
        yield "a training step of the tutorial's network (conv 1-32-64 with batch norm, 28x28, fp32)"
        yield from _table(TRAINED, trained)
        yield PUBLISHED


def _kept(record: Mapping[str, Any]) -> Iterator[tuple[str, ...]]:
    for row in record["kept"]:
        yield record["implementation"], row["variant"], record["dtype"], *(f"{row[name]:,}" for name in _FIELDS)


def _trained(record: Mapping[str, Any]) -> Iterator[tuple[str, ...]]:
    for row in record.get("trained", ()):
        sizes = (row["batch"], row["peak_bytes"], row["forward_bytes"])
        yield record["implementation"], row["variant"], *(f"{size:,}" for size in sizes)


def _table(head: tuple[str, ...], rows: Iterable[tuple[str, ...]]) -> Iterator[str]:
    """Names to the left, numbers to the right."""
    every = [head, *sorted(rows)]
    widths = [max(map(len, column)) for column in zip(*every, strict=True)]
    for row in every:
        cells = [text.ljust(w) if i < 2 else text.rjust(w) for i, (text, w) in enumerate(zip(row, widths, strict=True))]
        yield "  ".join(cells).rstrip()
