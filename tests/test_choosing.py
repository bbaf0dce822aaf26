"""Names that -k chooses, and what failed in the last run."""

from __future__ import annotations

from pathlib import Path

import pytest

from conformance.cli.choosing import LastRun, named_by
from conformance.execution.selection import SelectionError

NAME = "conv_forward[acme-edge.plain-fp32-nchw-fixed]"


@pytest.mark.parametrize(
    ("expression", "chosen"),
    [
        ("edge.plain", True),
        ("ACME and not bf16", True),
        ("bf16 or nchw and acme", True),
        ("(bf16 or nchw) and not acme", False),
        ("not (bf16 or nhwc)", True),
        ("not not fixed", True),
    ],
)
def test_an_expression_chooses_names(expression: str, chosen: bool):
    assert named_by(expression)(NAME) is chosen


@pytest.mark.parametrize(
    ("expression", "why"),
    [("(a", "is not closed"), ("a b", "unexpected 'b'"), ("a and", "a word is missing"), ("a)", "unexpected")],
)
def test_an_expression_that_cannot_be_read(expression: str, why: str):
    with pytest.raises(SelectionError, match=why):
        named_by(expression)


def test_what_failed_is_remembered_until_it_passes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    LastRun().end({"a", "b"}, {"a", "b", "c"})
    LastRun().end({"c"}, {"a", "c"})
    assert LastRun().failed == {"b", "c"}
