"""Units by number: what `--unit` names, and which of the parts of a command belong to it."""

from __future__ import annotations

import argparse
import re
from collections.abc import Iterable, Iterator
from itertools import islice
from typing import TypeVar

from conformance.execution.selection import SelectionError
from conformance.results.schema import Part

T = TypeVar("T")


def declare(parser: argparse.ArgumentParser, parts: str) -> None:
    """Add `--unit` for a command that has such parts."""
    parser.add_argument("--unit", metavar="K/N", help=f"only every Nth of its {parts}, from the Kth on")


def declare_cluster(parser: argparse.ArgumentParser) -> None:
    """Add the options of a command whose units can be carried out on a cluster."""
    parser.add_argument("--ray", metavar="ADDRESS", help="a unit for each device of a Ray cluster; auto: the one here")
    parser.add_argument("--resource", metavar="NAME", help="with --ray: what the cluster calls the device (CPU)")


def read(text: str | None) -> Part | None:
    """Return the unit that --unit names. Raises SelectionError."""
    if text is None:
        return None
    written = re.fullmatch(r"([1-9]\d{0,6})/([1-9]\d{0,6})", text, re.ASCII)
    number, count = map(int, written.groups()) if written else (1, 0)
    if number > count:
        raise SelectionError(f"--unit {text}: give the unit's number, from 1, and how many there are: --unit 3/8")
    return Part(number=number, count=count)


def share(parts: Iterable[T], unit: Part | None) -> Iterator[T]:
    """Yield the parts of a unit, or all: neighbours, which take about as long as each other, are in different units."""
    return islice(parts, unit.number - 1, None, unit.count) if unit else iter(parts)
