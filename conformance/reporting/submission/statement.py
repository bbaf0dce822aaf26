"""The statement: who submits what, and signs for it."""

from __future__ import annotations

import re
from dataclasses import dataclass

from conformance.problems import LEVELS
from conformance.results.reading import shown

MAX_BYTES = 1 << 14
"""Bytes of a statement."""
MAX_LINE = 300
"""Characters of a line of it."""
FIELDS = ("Submitter", "Contact", "Device", "Implementation", "Level")
SIGNED = "Signed-off-by"
EXAMPLE = """\
Submitter: Acme Inc.
Contact: kernels@acme.example
Device: Acme A1, 16 GB, driver 4.2
Implementation: acme
Level: standard

Anything else that a reader should know.

Signed-off-by: Jane Doe <jane@acme.example>
"""
_MAIL = r"[^\s@<>]+@[^\s@<>]+\.[^\s@<>]+"


class StatementError(ValueError):
    """A statement that says too little; the message is the defect."""


@dataclass(frozen=True, slots=True)
class Statement:
    """What is signed for."""

    submitter: str
    contact: str
    device: str
    implementations: tuple[str, ...]
    level: str
    signed: tuple[str, ...]


def understood(content: bytes) -> Statement:
    """The statement in a file's bytes. Raises StatementError."""
    text = _text(content)
    fields = {name: _field(text, name) for name in FIELDS}
    if not re.fullmatch(rf"{_MAIL}|https?://\S+", fields["Contact"]):
        raise StatementError(f"Contact: {shown(fields['Contact'])} is neither a mail address nor a page")
    if fields["Level"] not in LEVELS:
        raise StatementError(f"Level: {shown(fields['Level'])} is not one of {', '.join(LEVELS)}")
    names = tuple(name.strip() for name in fields["Implementation"].split(","))
    if len(set(names)) != len(names) or not all(names):
        raise StatementError("Implementation: a name is empty or given twice")
    return Statement(fields["Submitter"], fields["Contact"], fields["Device"], names, fields["Level"], _signed(text))


def _text(content: bytes) -> str:
    if len(content) > MAX_BYTES:
        raise StatementError(f"is longer than {MAX_BYTES} bytes")
    try:
        text = content.decode("utf-8").replace("\r\n", "\n")
    except UnicodeDecodeError as problem:
        raise StatementError(f"is not UTF-8 (byte {problem.start})") from None
    bad = next((c for c in text if not c.isprintable() and c != "\n"), None)
    if bad is not None:
        raise StatementError(f"holds the control character {shown(bad)}")
    if any(len(line) > MAX_LINE for line in text.split("\n")):
        raise StatementError(f"holds a line of more than {MAX_LINE} characters")
    return text


def _field(text: str, name: str) -> str:
    found = re.findall(rf"^{name}:(.*)$", text, re.MULTILINE)
    if len(found) != 1 or not found[0].strip():
        count = "no" if not found else "an empty" if len(found) == 1 else "more than one"
        raise StatementError(f"has {count} line '{name}: ...'")
    return str(found[0]).strip()


def _signed(text: str) -> tuple[str, ...]:
    """Who signed, in the form of the Developer Certificate of Origin."""
    found = re.findall(rf"^{SIGNED}:(.*)$", text, re.MULTILINE)
    if not found:
        raise StatementError(f"is not signed: it has no line '{SIGNED}: Name <mail address>'")
    people = [re.fullmatch(rf"\s*([^\s<>][^<>]*?)\s+<({_MAIL})>\s*", line) for line in found]
    for line, person in zip(found, people, strict=True):
        if person is None:
            raise StatementError(f"{SIGNED}:{shown(line)} is not 'Name <mail address>'")
    return tuple(f"{person[1]} ({person[2]})" for person in people if person)
