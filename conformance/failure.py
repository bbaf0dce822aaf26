"""Why a verdict is not a pass, as data. The words beside it are for people, and no program reads them back."""

from __future__ import annotations

import re
from typing import Annotated, Literal

from msgspec import Meta, Struct, structs

Kind = Literal[
    "elements", "malformed", "differs", "memory", "behaviour", "state", "contract", "refusal", "cheat", "training",
    "raised", "crashed", "hung", "not run", "no process", "declaration", "source", "file", "claim", "waiver",
    "reference", "golden", "suite", "not repeatable",
]  # fmt: skip
"""
- `elements`: results beyond their limits; `malformed`: of another shape, dtype or number, or no arrays
- `differs`: results that differ from call to call
- `memory`: a write to inputs or to memory around operands, or a read beyond them
- `behaviour`: what else a call does; `state`: a call depends on earlier ones
- `contract`: a declared contract too weak to verify anything
- `refusal`: a call that is refused although others like it are computed
- `cheat`: a time that is not that of the work, or an attempt to find the judge
- `training`: a training that ended at a call of a kernel, or did not learn
- `raised`; `crashed`: the kernel's process ended; `hung`: no answer in time
- `not run`: left out, because others had crashed; `no process`: there is none to run the kernel in
- `declaration`: a predicate or a declaration that raises or cannot be meant; `source`: files that have changed
- `file`: a file that cannot be used
- `claim`: a case that was claimed and is no longer supported; `waiver`: a waiver of what passes
- `reference`, `golden`: no right results to compare with, which is no fault of the kernel
- `suite`: the suite's own process or verdict was lost
- `not repeatable`: a failure that came neither again on its device nor on another one, of the kernel or of the device
"""
Edge = Literal["first", "last", "both"]
Elements = Annotated[int, Meta(ge=0, lt=10**18)]

_FOREIGN: frozenset[Kind] = frozenset({"behaviour", "raised", "refusal", "declaration", "file", "waiver", "golden"})
"""Kinds whose message quotes a kernel's author or another program."""
_NUMBERS = re.compile(r"(?:0x[0-9a-f]+|\d[\d.,]*(?:e[-+]?\d+)?)(?:[\s,x:*-]+\d[\d.,]*)*", re.IGNORECASE)
"""A number, an address or a list of sizes."""


class WrongElements(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """The elements of one output that are beyond their limits; none where only statistics are.

    every   whether all elements are beyond their limits
    nan     whether some elements, or all, are NaN where they must not be
    edges   axes at whose first or last index, or at both, all wrong elements are
    """

    output: str
    mismatched: Elements
    compared: Elements
    every: bool = False
    nan: Literal["", "some", "all"] = ""
    edges: tuple[tuple[str, Edge], ...] = ()


class Failure(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Why a verdict is `fail` or `error`, or would be without its waiver.

    message    the first line of what was raised, or what happened without its sizes and values; may be empty where the
               kind, or the check that found it, says enough
    file       with `line` the place in the kernel's own file, as far as it is known
    dtype      the wrong dtype of malformed results, if they have one
    on_plain   whether a behaviour check reports what is wrong with the results on plain inputs, whatever the check
    elements   the wrong elements of each output that is wrong
    details    lines of the reason, counted from 0, that are left out in brief: a count that stands there already, and
               statistics of elements further off than any precision
    headed     lines that the heading of a group of failures says as well
    fits       contracts in whose known arithmetic these results would pass, in their order: the arithmetic in words,
               and its declaration; None where nobody has looked. No contract fits errors in a part of the places: no
               arithmetic is worse there than elsewhere
    confused   the problem on which a call was wrong after one with another value of a parameter, and that parameter
    """

    kind: Kind
    message: str = ""
    file: str = ""
    line: Elements = 0
    dtype: str = ""
    on_plain: bool = False
    elements: tuple[WrongElements, ...] = ()
    details: tuple[Elements, ...] = ()
    headed: tuple[Elements, ...] = ()
    fits: tuple[tuple[str, str], ...] | None = None
    confused: tuple[str, str] | None = None

    def below(self, lines: int) -> Failure:
        """Return the failure of a reason that stands below `lines` other lines."""
        details, headed = (tuple(line + lines for line in which) for which in (self.details, self.headed))
        return structs.replace(self, details=details, headed=headed)

    @property
    def alike(self) -> str:
        """The message for comparisons: without numbers where somebody else has written it."""
        return without_numbers(self.message) if self.kind in _FOREIGN else self.message

    @property
    def title(self) -> str:
        """The kind in words, or the message, without sizes and values."""
        before = {"raised": "raised ", "crashed": "crashed: "}.get(self.kind, "")
        return f"{before}{self.alike or self.kind}"


class Undeclared(Struct, frozen=True, kw_only=True):
    """Something that an implementation does not declare: an operator, dtype or layout by name; or for a torch module
    the shape that it is made for, and then why."""

    kind: Literal["operator", "dtype", "layout", "shape"]
    what: str


def in_brief(reason: str, failure: Failure | None, *, headed: bool = False) -> str:
    """Return a reason without details, and under a heading also without the lines that the heading says."""
    if failure is None:
        return reason
    hidden = {*failure.details, *(failure.headed if headed else ())}
    return "\n".join(line for number, line in enumerate(reason.split("\n")) if number not in hidden)


def without_numbers(text: str) -> str:
    """Return a text with a sign for each number, so that it is the same for all sizes."""
    return _NUMBERS.sub("#", text)
