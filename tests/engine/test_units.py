"""Units of a run: they are the whole, each program lies in one, and what is missing is named."""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from conformance.__main__ import main
from conformance.cli.plan import scheduled
from conformance.engine import units
from conformance.engine.task_wire import UnknownKernelError, decode, encode
from conformance.engine.tasks import Task, tasks
from conformance.engine.units import Unit, divided, program
from conformance.execution.process import Limits
from conformance.execution.workers import Workers
from conformance.results.units import UnitRun, mixed
from tests.kit import command, loaded, source, standard, timeless


@pytest.fixture(scope="module")
def planned(tmp_path_factory: pytest.TempPathFactory) -> list[Task]:
    """Tasks of a kernel at level standard."""
    workers = Workers(Limits())
    try:
        implementation = loaded(workers, tmp_path_factory.mktemp("units"), source())
        return tasks(standard(implementation), None)[0]
    finally:
        workers.close()


@pytest.mark.parametrize("count", [1, 7, 64, 10_000])
def test_units_are_the_whole_and_a_program_is_in_one(planned: list[Task], count: int):
    parts = divided(planned, count)
    assert len(parts) == count
    assert Counter(task.id for unit in parts for task in unit.tasks) == Counter(task.id for task in planned)
    programs = Counter(key for unit in parts for key in {program(task) for task in unit.tasks})
    assert set(programs.values()) == {1}
    again = divided(planned, count)
    assert [[task.id for task in unit.tasks] for unit in again] == [[task.id for task in unit.tasks] for unit in parts]


def test_units_are_about_as_long_as_each_other(planned: list[Task]):
    lengths = [unit.seconds for unit in divided(planned, 7)]
    assert max(lengths) < 1.1 * sum(lengths) / 7
    # by costs of its own: a task that took a minute is alone
    slow = planned[-1]
    parts = divided(planned, 7, lambda task: 60.0 if program(task) == program(slow) else 0.01)
    (unit,) = (unit for unit in parts if slow in unit.tasks)
    assert {program(task) for task in unit.tasks} == {program(slow)}


def test_a_task_is_the_same_behind_the_wire(planned: list[Task]):
    subject: Any = planned[0].subject
    implementation = subject.implementation
    received = decode(encode(planned), {implementation.name: implementation})
    assert [(task.id, task.key, task.check) for task in received] == [(t.id, t.key, t.check) for t in planned]
    assert [task.subject.place for task in received] == [t.subject.place for t in planned]  # type: ignore[union-attr]
    with pytest.raises(UnknownKernelError, match=implementation.name):
        decode(encode(planned[:1]), {})


@pytest.mark.parametrize(("count", "sets"), [(2, {frozenset("a"), frozenset("b")}), (1, {frozenset("ab")})])
def test_an_implementation_has_units_of_its_own(
    planned: list[Task], monkeypatch: pytest.MonkeyPatch, count: int, sets: Any
):
    """Unless there are fewer units than implementations."""
    names = {id(task): "ab"[number % 2] for number, task in enumerate(planned)}
    monkeypatch.setattr(units, "program", lambda task: (names[id(task)], task.id))
    parts = divided(planned, count)
    assert {frozenset(names[id(task)] for task in unit.tasks) for unit in parts} == sets


def test_devices_begin_the_longest_units_first():
    task: Any = object()
    schedule = scheduled([Unit((task,), seconds) for seconds in (1.0, 9.0, 5.0, 4.0)] + [Unit((), 0.0)], 2)
    assert schedule == (19.0, 14.0, 0)
    assert scheduled([Unit((task,), seconds) for seconds in (1.0, 9.0, 5.0)], 2) == (15.0, 11.0, 2)


WORDS = ("run", "acme.py", "--level=smoke", "--dtype=fp32", "--layout=nchw")


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "acme.py").write_text(source(body="return y", declares=", when=lambda p: p.groups == 1 and p.n < 3"))
    return tmp_path


def recorded(*files: str) -> Counter[str]:
    lines = [json.loads(line) for file in files for line in Path(file).read_text().splitlines()]
    records = timeless(line for line in lines if line["kind"] not in ("header", "footer"))
    for record in records:
        record.pop("covers", None)  # which record of a process names the files that it has opened
    return Counter(json.dumps(record, sort_keys=True) for record in records)


def test_the_records_of_units_are_those_of_the_whole(folder: Path, capsys: pytest.CaptureFixture[str]):
    assert command(*WORDS, "--records=all.jsonl")[0] == 0
    for number in "123":
        assert command(*WORDS, f"--unit={number}/3", f"--records={number}.jsonl")[0] == 0
    assert recorded("1.jsonl", "2.jsonl", "3.jsonl") == recorded("all.jsonl")
    assert main(["report", "1.jsonl", "3.jsonl"]) == 1
    assert "report: 1 of 3 units are missing, whose cases were not verified: 2" in capsys.readouterr().err
    assert main(["report", "3.jsonl", "2.jsonl", "1.jsonl"]) == 0
    whole = capsys.readouterr().out
    assert main(["report", "all.jsonl"]) == 0
    assert capsys.readouterr().out == whole
    # another unit cannot go on with the file of this one
    status, text = command(*WORDS, "--unit=2/3", "--records=1.jsonl", "--resume")
    assert (status, "--unit 1/3, this one has 2/3" in text) == (4, True)


SMALL = (*WORDS, "--operator=conv_forward", "--distribution=integer")


def test_units_of_different_plans_make_no_whole(folder: Path):
    """Each job has its share of another whole, and the report said that all cases of the two pass."""
    assert command(*SMALL, "--unit=1/2", "--records=1.jsonl")[0] == 0
    record = next(line for line in Path("1.jsonl").read_text().splitlines() if '"kind":"case"' in line)
    Path("costs.jsonl").write_text(json.dumps(json.loads(record) | {"seconds": {"total": 600.0}}) + "\n")
    assert command(*SMALL, "--unit=2/2", "--records=2.jsonl", "--costs=costs.jsonl")[0] == 0
    status, text = command("report", "1.jsonl", "2.jsonl")
    assert (status, "units are of different plans" in text) == (1, True), text
    assert "1.jsonl (unit 1) | 2.jsonl (unit 2)" in text
    # nor does a unit of one plan go on with the file of the other
    status, text = command(*SMALL, "--unit=2/2", "--records=2.jsonl", "--resume")
    assert (status, "its unit is of another plan" in text) == (4, True), text
    assert command(*SMALL, "--unit=2/2", "--records=2.jsonl", "--costs=costs.jsonl", "--resume")[0] == 0
    # two runs that are whole are no mixture
    assert command(*SMALL, "--unit=1/2", "--records=costs-1.jsonl", "--costs=costs.jsonl")[0] == 0
    assert command(*SMALL, "--unit=2/2", "--records=plain-2.jsonl")[0] == 0
    status, text = command("report", "1.jsonl", "plain-2.jsonl", "costs-1.jsonl", "2.jsonl")
    assert (status, "different plans" in text) == (0, False), text


def test_units_of_different_kernels_make_no_whole(folder: Path):
    """The file was changed between two jobs, and the report said that the kernel passes."""
    for number in "12":
        assert command(*SMALL, f"--unit={number}/2", f"--records={number}.jsonl")[0] == 0
    Path("acme.py").write_text(Path("acme.py").read_text() + "# mended\n")
    for number in "12":
        assert command(*SMALL, f"--unit={number}/2", f"--records=later-{number}.jsonl")[0] == 0
    status, text = command("report", "1.jsonl", "later-2.jsonl")
    assert (status, "acme: units are not those of one kernel, some have another source: " in text) == (1, True), text
    assert "1.jsonl (unit 1) | later-2.jsonl (unit 2)" in text
    # the kernel of yesterday and that of today, each whole
    status, text = command("report", "1.jsonl", "2.jsonl", "later-1.jsonl", "later-2.jsonl")
    assert (status, "one kernel" in text) == (0, False), text


@pytest.mark.parametrize(
    ("codes", "is_told"),
    [
        (["a: s", "a: s"], False),
        (["a: s", "a: t"], True),
        (["a: s", "b: t"], False),
        (["a: s, a h.py: s", "a: s, a h.py: t"], True),
        (["a: s, a h.py: s", "a: s"], False),
    ],
)
def test_a_kernel_is_its_source_and_the_code_that_it_opens(codes: list[str], is_told: bool):
    """A unit may have none of an implementation, and opens what its cases need."""
    parts = []
    for number, text in enumerate(codes, 1):
        named = [(*part.partition(": ")[0].partition(" ")[::2], part[-1]) for part in text.split(", ")]
        parts.append(UnitRun(("smoke", 2), number, "plan", f"{number}.jsonl", {*named}))
    assert bool([*mixed(parts)]) == is_told


def test_a_unit_without_a_case_ends_well(folder: Path):
    words = (*WORDS, "--problem=n1 c2 h4 w4 k2 r3 s3 p1", "--distribution=integer")
    assert command(*words, "--unit=2/9")[1].splitlines()[-1].strip("= ").startswith("unit 2/9 has no case")
    assert command(*words, "--unit=2/9")[0] == 0
    assert command(*words, "--unit=1/9")[0] == 0
    # but a file that cannot be used is the first unit's error
    (folder / "acme.py").write_text("1/0")
    assert (command(*words, "--unit=1/9")[0], command(*words, "--unit=2/9")[0]) == (1, 0)


@pytest.mark.parametrize("text", ["0/3", "4/3", "3", "a/b", "-1/3"])
def test_a_unit_that_is_none_is_refused(folder: Path, text: str):
    status, said = command(*WORDS, f"--unit={text}")
    assert (status, f"--unit {text}: give the unit's number" in said) == (4, True)


def test_a_plan_says_what_is_in_its_units(folder: Path):
    status, text = command("plan", *WORDS[1:], "--units=2", "--devices=2", "-o", "units.jsonl")
    lines = [json.loads(line) for line in Path("units.jsonl").read_text().splitlines()]
    assert (status, [line["unit"] for line in lines]) == (0, ["1/2", "2/2"])
    assert f"2 units of {sum(len(line['cases']) for line in lines)} cases" in text
    assert "none of the programs in more than one unit" in text
    assert "2 devices: " in text
    status, said = command("plan", *WORDS[1:], "--costs=units.jsonl")
    assert (status, "--costs units.jsonl" in said) == (4, True)


def test_the_report_on_a_terminal_needs_no_packages(
    folder: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
):
    """In a job's environment the report of the whole ended with "needs jinja2"."""
    assert command(*WORDS, "--distribution=integer", "--records=all.jsonl")[0] == 0
    monkeypatch.setattr("conformance.reporting.report_command.find_spec", lambda name: None)
    assert main(["report", "all.jsonl"]) == 0
    assert capsys.readouterr().out.startswith("acme conv_forward fp32: ")
    assert main(["report", "all.jsonl", "-o", "page"]) == 4
