"""`conformance list`: what there is to verify, and what to verify it with."""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path

from conformance.execution.process import Limits
from conformance.execution.selection import SelectionError, split
from conformance.execution.trial import absence_reason
from conformance.execution.workers import Workers, share
from conformance.exit_codes import ExitCode
from conformance.implementations import registry
from conformance.implementations.devices import DEVICES, missing
from conformance.operators import FAMILIES, OPERATORS, takes
from conformance.problems import PROBLEMS
from conformance.resources import IMPLS

Rows = list[dict[str, str]]


def _implementations(words: list[str]) -> Rows:
    _, paths = split(words)
    with Workers(Limits(memory=share(1))) as workers:
        catalogue = workers.load(paths or registry.discover(IMPLS))
        if not paths:
            workers.load_installed(catalogue)
        return _rows(catalogue)


def _rows(catalogue: registry.Registry) -> Rows:
    rows = []
    for implementation in catalogue.implementations.values():
        operators = {OPERATORS[kernel.operator] for kernel in implementation.kernels}
        families = " ".join(name for name, family in FAMILIES.items() if operators & {*family.operators})
        status = absence_reason(implementation) or "ready"
        variants = " ".join(f"[{setting.label}]" for setting in implementation.settings)
        rows.append(
            {
                "name": implementation.name,
                "device": implementation.device,
                "operators": families,
                "variants": variants,
                "status": status,
            }
        )
    for word, reasons in (("unavailable", catalogue.unavailable), ("broken", catalogue.broken)):
        rows += [
            {"name": n, "device": "", "operators": "", "variants": "", "status": f"{word}: {why}"}
            for n, why in reasons.items()
        ]
    return rows


def _operators(_: list[str]) -> Rows:
    rows = []
    for name, operator in OPERATORS.items():
        workloads = (operator.on(problem.geometry) for problem in PROBLEMS if takes(name, problem.geometry))
        workload = max(workloads, key=lambda workload: len(workload.inputs) + len(workload.outputs))
        words = (workload.inputs, workload.outputs, operator.keywords)
        rows.append({"name": name} | dict(zip(("inputs", "returns", "parameters"), map(" ".join, words), strict=True)))
    return rows


def _problems(_: list[str]) -> Rows:
    return [{"name": p.name, "level": p.level, "descriptor": p.geometry.descriptor} for p in PROBLEMS]


def _distributions(_: list[str]) -> Rows:
    names = dict.fromkeys(name for family in FAMILIES.values() for name in family.distributions)
    return [
        {"name": name, "families": " ".join(f for f, family in FAMILIES.items() if name in family.distributions)}
        for name in names
    ]


def _devices(_: list[str]) -> Rows:
    return [{"name": device, "status": missing(device) or "here"} for device in DEVICES]


KINDS = {
    "implementations": _implementations,
    "operators": _operators,
    "problems": _problems,
    "distributions": _distributions,
    "devices": _devices,
}


def declare(parser: argparse.ArgumentParser) -> None:
    """Show implementations, operators, problems, input distributions or devices."""
    parser.set_defaults(run=_run)
    parser.add_argument("kind", choices=KINDS)
    parser.add_argument(
        "words", nargs="*", metavar="WORD", help="only rows with all of these; files and folders of implementations"
    )
    parser.add_argument("--json", action="store_true", help="print JSON instead of text")


def _run(arguments: argparse.Namespace) -> int:
    try:
        named = arguments.kind == "implementations"
        files = [word for word in arguments.words if named and (Path(word).exists() or word.endswith(".py"))]
        words = [word.lower() for word in arguments.words if word not in files]
        rows = KINDS[arguments.kind](files)
    except SelectionError as error:
        print(f"list: {error}", file=sys.stderr)
        return ExitCode.UNUSABLE
    rows = [row for row in rows if all(word in " ".join(row.values()).lower() for word in words)]
    if not rows:
        print(f"list: no {arguments.kind[:-1]} with {' and '.join(words)}" if words else "list: none", file=sys.stderr)
        return ExitCode.UNUSABLE if words else ExitCode.GOOD
    if arguments.json:
        print(json.dumps(rows, indent=1))
        return ExitCode.GOOD
    lines = [tuple(row.values()) for row in rows]
    widths = [max(map(len, column)) for column in zip(*lines, strict=True)]
    for line in lines:
        print("  ".join(text.ljust(width) for text, width in zip(line, widths, strict=True)).rstrip())
    return ExitCode.GOOD
