"""Which verdicts of a run are evidence of where a kernel fails, and the line that says it."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from itertools import product
from pathlib import Path
from typing import Any

import msgspec
import pytest

from conformance.diagnosis.where import WorkLeft
from conformance.execution.workers import MAX_CRASHES
from conformance.operators import parse
from conformance.reporting.evidence import RunEvidence
from conformance.reporting.groups import group, located
from conformance.results import schema
from tests.conftest import ROOT
from tests.kit import results, source
from tests.report_samples import RAISED, as_read, failed, reported, sample

PROBLEMS = [
    f"n{n} c{c} h{size} w{size} k8 r3 s3 p1{stride}"
    for n, c, size, stride in product((1, 2), (4, 8), (7, 8, 9), ("", " u2", " u1x2"))
]


def run(wrong: Any, **changes: Any) -> list[schema.Record]:
    """A record of each problem in two dtypes, and whether it fails."""
    found = []
    for text, dtype in product(PROBLEMS, ("fp32", "bf16")):
        given = {"descriptor": text, "dtype": dtype, **changes}
        found.append(as_read(failed(**given) if wrong(text, dtype) else sample(**given)))
    return found


def raising(record: schema.Record) -> schema.Record:
    """The same case, where the kernel has raised something."""
    kept = {name: getattr(record, name) for name in ("operator", "descriptor", "dtype", "distribution")}
    return as_read(sample(**RAISED, **kept))


def line(records: list[schema.Record]) -> str:
    evidence = RunEvidence(records)
    return located(group(records, evidence)[0], evidence)


@pytest.mark.parametrize(
    ("causes", "attributed"),
    [
        # a tail that was lost was told once as itself and once, where it is one channel, as that: of one defect
        ([("A",), ("B",)], 0),
        # a halo without the dilation was told as dilation ignored, and where that is one column as that
        ([("A", "B"), ("A", "B"), ("A", "B"), ("C",)], 6),
    ],
)
def test_mistakes_that_explain_parts_of_one_condition_are_one_group(causes: list[tuple[str, ...]], attributed: int):
    records = run(lambda text, dtype: "u2" in text)
    for place, record in enumerate([record for record in records if record.status == "fail"]):
        causes_here = causes[place % len(causes)]
        records[records.index(record)] = msgspec.structs.replace(record, causes=causes_here)
    (only,) = group(records, RunEvidence(records))
    assert (only.cause, only.cases, only.attributed) == ("A, or B", 24, attributed)


def test_problems_that_were_run_to_decide_choose_no_other_evidence():
    """They fail without the storage in which alone those of the tables did: of thirteen failures one was left."""
    stored = run(lambda text, dtype: "u2" in text and dtype == "bf16", storage="w:strided")
    before = line(stored)
    drawn = as_read(failed(descriptor="n1 c4 h6 w6 k8 r3 s3 p1 u2", dtype="bf16", origin="where"))
    assert before == line([*stored, drawn]).replace("all 13", "all 12")
    assert "bf16 and stride of H > 1: all 12 similar cases" in before


def test_the_condition_is_said_with_its_counts():
    records = run(lambda text, dtype: "u2" in text and dtype == "bf16")
    counts = "all 12 similar cases that meet this condition fail, none of the other 60"
    assert line(records).startswith(f"fails where bf16 and stride of H > 1: {counts}")


def test_what_differs_in_one_parameter_and_passes_is_named():
    assert line(run(lambda text, dtype: dtype == "bf16")).endswith("; the smallest case passes with dtype = fp32")


def test_where_a_behaviour_check_fails_is_said_by_the_problems_on_which_it_passes():
    """Of three of thirty kernels whose behaviour is wrong on some problems alone nothing was said."""
    check = {"kind": "check", "check": "calls_are_right_later", "distribution": "behaviour", "checks": {}}
    state = {"reason": "changed later", "failure": {"kind": "state"}}
    plain, checked = run(lambda text, dtype: False), list[schema.Record]()
    for record in run(lambda text, dtype: "u2" in text):
        fails = record.status == "fail"
        given = check | (state if fails else {"reason": "", "failure": None}) | {"status": record.status}
        checked.append(as_read(sample(**given, descriptor=record.descriptor, dtype=record.dtype)))
    assert line([*plain, *checked]).startswith("fails where stride of H > 1: all 24 similar cases")
    assert line([*run(lambda text, dtype: "n2" in text), *checked]).startswith("fails where N >= 2: "), (
        "apart from results"
    )


def test_where_strides_of_an_operand_are_ignored_is_said_by_the_cases_that_are_stored_so():
    """`strides of dy ignored` stood without "one group"."""
    cause = ["strides of w ignored"]
    stored = run(lambda text, dtype: "u2" in text, storage="w:strided", causes=cause)
    stored = [one if one.status == "fail" else msgspec.structs.replace(one, causes=()) for one in stored]
    contiguous = run(lambda text, dtype: False)
    assert line([*stored, *contiguous]).startswith("fails where stride of H > 1: all 24 similar cases that meet this")
    cropped = run(lambda text, dtype: False, storage="w:crop")
    assert line([*stored, *contiguous, *cropped]).startswith("fails where w:strided and stride of H > 1: all 24"), (
        "it ignores strides in one kind of view, and is right in another"
    )


def test_other_kinds_of_failure_are_no_evidence():
    """Neither for nor against: another error could hide the mistake or be it."""
    records = run(lambda text, dtype: "n2" in text)
    others = [as_read(sample(**RAISED, descriptor="n1 c4 h5 w5 k8 r1 s1"))]
    evidence = RunEvidence([*records, *others])
    kept = next(one for one in group([*records, *others]) if one.smallest.status == "fail")
    assert located(kept, evidence) == line(records) != ""


def test_inputs_that_may_hide_a_mistake_are_no_evidence():
    """A case on impulses that passes does not make the condition another one."""
    hidden = run(lambda text, dtype: False, distribution="impulse")
    records = run(lambda text, dtype: "n2" in text)
    assert line([*records, *hidden]) == line(records)


def test_a_problem_that_nobody_can_have_run_is_no_evidence():
    """A line of records with 10^15 rows made `--resume` look at each of them."""
    huge = as_read(failed(descriptor="n1 c4 h999999999999999 w9 k8 r3 s3"))
    records = run(lambda text, dtype: "n2" in text)
    assert line([*records, huge]) == line(records) != ""


def test_nothing_is_said_of_few_failures_and_of_what_fails_everywhere():
    assert line(run(lambda text, dtype: (text, dtype) in ((PROBLEMS[0], "fp32"), (PROBLEMS[5], "bf16")))) == ""
    assert line(run(lambda text, dtype: True)) == ""
    check = {"kind": "check", "check": "results_are_plain", "distribution": "behaviour", "checks": {}, "status": "fail"}
    check |= {"reason": "wrong result (call 2 of the same 5)", "failure": {"kind": "elements"}}
    assert line([as_read(sample(**check))] * 3) == ""


def test_two_mistakes_are_two_groups_with_a_condition_each():
    records = run(lambda text, dtype: "u2" in text or "n2" in text, causes=[])
    evidence = RunEvidence(records)
    found = {str(*one.where): located(one, evidence) for one in group(records, evidence)}
    assert found.keys() == {"stride of H > 1", "N >= 2"}
    assert not any("none of" in text for text in found.values())


def test_one_mistake_under_two_conditions_is_one_group_with_both():
    found = line(run(lambda text, dtype: "u2" in text or "n2" in text))
    assert "; and where " in found
    assert "none of" not in found


@pytest.mark.parametrize(("origin", "asked"), [("drawn", True), ("where", False)])
def test_problems_are_run_unless_an_earlier_run_has_done_so(origin: Any, asked: bool):
    """Level standard draws problems as well, of which one that failed left no problem to decide by."""
    records = [msgspec.structs.replace(one, origin=origin) for one in run(lambda text, dtype: "u2" in text)]
    called: list[Any] = []
    evidence = RunEvidence(records)
    evidence.decide([one for one in records if one.status == "fail"], lambda *problem: called.append(problem))
    assert bool(called) == asked


@pytest.mark.parametrize("other", ["another family", "behaviour check", "not run"])
def test_only_cases_of_the_first_ones_operator_that_ran_are_evidence(other: str):
    """Averages and maxima that raise at one line ended a run in KeyError: 'valid', with all verdicts lost; problems on
    the inputs of a behaviour check, of which there are none to draw, were told as KeyError: 'behaviour' of a kernel."""
    others: dict[str, dict[str, Any]] = {
        "another family": {"operator": "max_pool_forward", "descriptor": "maxpool n1 c1 h4 w4 r2 s2"},
        "behaviour check": {"kind": "check", "check": "results_are_plain", "distribution": "behaviour"},
        "not run": {"reason": "not run, crashed too often", "failure": {"kind": "not run"}, "dtype": "fp16"},
    }
    records = [
        raising(one) if one.status == "fail" else one
        for one in run(lambda text, dtype: "u2" in text, distribution="special")
    ]
    failing = [one for one in records if one.status == "error"]
    evidence = RunEvidence(records)
    asked: list[tuple[Any, Any]] = []
    alone = evidence.of(failing)
    failing += [as_read(sample(**{**RAISED, "distribution": "special", **others[other]}))] * 20
    assert evidence.of(failing) == alone
    evidence.decide(failing, lambda *problem: asked.append(problem))
    assert asked
    assert {(geometry.family, variant.distribution) for geometry, variant in asked} == {("conv", "special")}
    assert "fp16" not in {variant.dtype for _, variant in asked}


@pytest.mark.parametrize(("passes", "asked"), [(True, True), (False, False)])
def test_of_a_kernel_that_always_raises_no_more_is_run(passes: bool, asked: bool):
    records = [as_read(sample(**RAISED, descriptor=text, layout=lay)) for text in PROBLEMS for lay in ("nchw", "nhwc")]
    called: list[Any] = []
    evidence = RunEvidence([*records, *[as_read(sample())] * passes])
    evidence.decide(records, lambda *problem: called.append(problem))
    assert bool(called) == asked


def test_the_condition_of_what_one_operator_raises_is_none_of_another_one():
    """Of maxima that raise once, "where no image" was said, as of averages that raise at the same line."""
    records = [raising(one) if one.status == "fail" else one for one in run(lambda text, dtype: "u2" in text)]
    records.append(as_read(sample(**RAISED, operator="conv_backward_data")))
    found = {one.operator: one.why for one in reported(records).verdicts}
    assert found == {
        "conv_forward": "where stride of H > 1",
        "conv_backward_data": "raised ValueError: no at acme.py:7",
    }


def test_problems_that_were_run_to_find_out_where_are_counted_apart():
    """How many there are was said among the cases of the level: "30 of 142 fail", and "22 of 127" on a busy machine."""
    records = run(lambda text, dtype: "u2" in text)
    failing = [one for one in records if one.status == "fail"]
    more = [msgspec.structs.replace(one, origin="where") for one in records[:9]]
    report = reported([*records, *more])
    (verdict,), (one,) = report.verdicts, report.groups
    assert (verdict.failed, verdict.ran) == (len(failing), len(records))
    assert one.cases == len(failing)
    assert len(one.records) > len(failing), "they are evidence all the same"
    (alone,) = group([msgspec.structs.replace(failing[0], origin="where")])
    assert alone.counted == "only in 1 more problem"


def test_how_many_problems_are_run_to_find_out_where_depends_on_their_work_alone():
    small, large = parse(PROBLEMS[0]), parse("n1 c2 h70001 w1 k2 r1 s1")
    work = WorkLeft()
    assert all(work.covers(small) for _ in range(1000))
    covered = sum(work.covers(large) for _ in range(1000))
    assert 30 < covered < 1000
    assert work.covers(small), "what is too large leaves room for what is not"


def smoke(folder: Path, body: str, *options: str) -> subprocess.CompletedProcess[str]:
    """A run of a kernel, by processes that import what lies in the folder."""
    (folder / "acme.py").write_text(source(body=body))
    asked = "--operator conv_forward --layout nchw --distribution fixed --level smoke -n2 --timeout 1000"
    return subprocess.run(
        [sys.executable, "-m", "conformance", "run", "acme.py", *asked.split(), *options],
        cwd=folder, env=os.environ | {"PYTHONPATH": f"{folder}:{ROOT}", "GITHUB_ACTIONS": "true"}, capture_output=True,
        text=True, check=False,
    )  # fmt: skip


def test_where_a_kernel_fails_everywhere_problems_are_run_in_vain(tmp_path: Path):
    """The precision of the smallest case is not said beside that of all."""
    text = smoke(tmp_path, "return y.astype('float16').astype(y.dtype)").stdout
    assert re.search(r"\nacme: 1 kind of failure, \d+ cases; ran \d+ more problems; found no common condition\n", text)
    assert ", errors as large as with " in text
    assert "gain z" in text
    assert "inferred precision" not in text


def test_of_a_kernel_that_has_crashed_too_often_no_more_is_run(tmp_path: Path):
    """ "24 of 24 fail, 321 not run" stood above "242 more problems run"."""
    run = smoke(tmp_path, "__import__('os').kill(__import__('os').getpid(), 11)")
    assert "not run (" in run.stdout
    more = re.search(r"ran (\d+) more problems?", run.stdout)
    assert more
    assert int(more[1]) <= MAX_CRASHES  # this process has not seen its crashes before


def test_wrong_results_that_are_right_in_a_new_process_depend_on_the_calls_before(tmp_path: Path):
    """The line that reproduces the smallest case passed, and nothing said why."""
    count = "import builtins; builtins.calls = getattr(builtins, 'calls', 0) + 1; "
    run = smoke(tmp_path, f"{count}return y * 2 if builtins.calls > 20 else y", "--dtype=fp32")
    said = " ".join(run.stdout.split())
    assert "right alone in a new process: it depends on the calls before" in said
    assert "more problem" not in said
    run = smoke(tmp_path, "return y * 2 if n > 1 else y", "--dtype=fp32")
    assert "right alone" not in run.stdout


PARTLY_WRONG = "return y * 2 if groups > 1 and max(stride) > 1 else y"


@pytest.fixture(scope="module")
def partly_wrong(tmp_path_factory: pytest.TempPathFactory) -> tuple[subprocess.CompletedProcess[str], Path]:
    """A run of a kernel that is wrong under a condition of two parts, and its records."""
    folder = tmp_path_factory.mktemp("partly_wrong")
    run = smoke(folder, PARTLY_WRONG, "--dtype=fp32", "--records=records.jsonl")
    return run, folder / "records.jsonl"


def test_a_run_decides_by_problems_of_its_own(partly_wrong: tuple[subprocess.CompletedProcess[str], Path]):
    """Few cases of smoke fail; with the problems that are drawn for it the condition is the kernel's. The process that
    writes the summary is none of those that ran the cases."""
    run, _ = partly_wrong
    (annotation,) = (text for text in run.stdout.splitlines() if text.startswith("::error file=acme.py,line="))
    assert "%0Areproduce: conformance check acme.py '" in annotation
    line = re.sub(r"\n(?!smallest case)", " ", run.stdout.partition("fails where ")[2].partition("\nsmallest case")[0])
    condition, counts = line.split(": ", 1)
    assert sorted(condition.split(" and ")) == ["groups > 1", "stride of some axis > 1"]
    found = re.match(
        r"(?:all|(\d+) of the) (\d+) similar cases that meet this condition fail, none of the other \d", counts
    )
    assert found, line
    fails, such = int(found[1] or found[2]), int(found[2])
    assert such - fails <= 1, "an empty batch hides it"
    said = re.search(
        r"^acme: .*, (\d+) cases; ran (\d+) more problems to locate the failure$", run.stdout, re.MULTILINE
    )
    assert said, run.stdout
    cases, decided = map(int, said.groups())
    assert fails <= cases + decided
    assert decided > 0
    assert re.search(rf"^acme conv_forward fp32: \d+ of \d+ fail: .*where {condition} \(", run.stdout, re.MULTILINE)
    assert run.returncode == 1


HURRY = """
import time
for clock in ("monotonic", "perf_counter", "time"):
    setattr(time, clock, lambda now=getattr(time, clock), begun=getattr(time, clock)(): begun + 20 * (now() - begun))
"""
"""A sitecustomize: of every process, as if twenty times as long had gone by."""


def test_a_busy_machine_changes_no_verdict_and_no_word(
    tmp_path: Path, partly_wrong: tuple[subprocess.CompletedProcess[str], Path]
):
    """It stopped looking for where the kernel fails after 20 seconds."""
    quiet, records = partly_wrong
    (tmp_path / "sitecustomize.py").write_text(HURRY)
    loaded = smoke(tmp_path, PARTLY_WRONG, "--dtype=fp32", "--records=records.jsonl").stdout
    assert words(loaded) == words(quiet.stdout)
    assert results(tmp_path / "records.jsonl") == results(records)


def words(output: str) -> list[str]:
    """The lines of the summary, without times."""
    summary = output[output.index("= conformance =") :]
    return re.sub(r" \((\d+ min )?\d+ s\)", "", summary).splitlines()
