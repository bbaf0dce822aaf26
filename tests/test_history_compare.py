"""Two benchmark files compared: exit status, other machines, conditions, and what else files may hold."""

from __future__ import annotations

import copy
import json
import math
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from conformance.__main__ import main
from conformance.reporting.comparison import compare, runs
from conformance.reporting.comparison.compare import RunComparison, compared
from conformance.results.schema import MachineState
from tests.noisy_runs import BUSY, Bench, Noise, row, run_of, tried, write


@pytest.mark.parametrize(
    ("timing", "reason"),
    [
        ({"status": "finding", "finding": "faster than the roofline"}, "in doubt: faster than"),
        ({"clock": "device"}, "clocks unknown and device"),
    ],
)
def test_times_in_doubt_are_not_compared(timing, reason, pair):
    before, _, document = pair
    spoilt = next(entry["extra_info"] for entry in document["benchmarks"] if entry["extra_info"]["problem"] == "p3")
    spoilt["timing"] = timing
    found = compared(runs.read(before), run_of(document))
    assert sum(reason in note for note in found.notes) == 1
    name = f"{spoilt['operator']} p3"
    assert not any(a.name == name and a.implementation == spoilt["implementation"] for a in found.answers)


@pytest.fixture
def pair(tmp_path: Path) -> tuple[Path, Path, dict[str, Any]]:
    """Two files of the same code, and the document of the second."""
    rng, bench = np.random.default_rng(7), Bench()
    one, two = bench.drawn(rng), bench.drawn(rng)
    return write(tmp_path / "a.json", one), write(tmp_path / "b.json", two), two


def seen(before: Path, after: Path, *words: str) -> tuple[int, RunComparison]:
    """The exit status of the command, and what it prints."""
    return main(["compare", str(before), str(after), *words]), compared(runs.read(before), runs.read(after))


def test_one_file_is_no_two_runs(pair, capsys):
    before, after, _ = pair
    assert main(["compare", str(before), str(before.parent / "." / before.name)]) == 4
    assert "a.json is given as both runs" in capsys.readouterr().err
    assert main(["compare", str(before), str(after), "--and", str(after), str(after)]) == 4


def slowed(document: dict[str, Any], factor: float, name: str = "") -> dict[str, Any]:
    """The same run, in which an implementation, or all of them, took longer."""
    for entry in document["benchmarks"]:
        if name in ("", entry["extra_info"]["implementation"]):
            entry["stats"]["data"] = [factor * seconds for seconds in entry["stats"]["data"]]
    return document


def test_equal_runs_have_not_changed(pair):
    before, after, _ = pair
    status, found = seen(before, after)
    assert (status, found.changed, found.worse, found.missing) == (0, False, (), ())


def test_a_slow_kernel(pair, capsys):
    before, after, document = pair
    write(after, slowed(document, 1.2, "acme"))
    status, found = seen(before, after)
    assert (status, {(a.implementation, a.outcome) for a in found.answers if a.overall}) == (
        1,
        {("acme", "slower"), ("other", "unchanged")},
    )
    interval = next(a for a in found.answers if a.outcome == "slower").relative
    low, middle, high = (math.exp(value) for value in (interval.low, interval.middle, interval.high))
    assert 1.1 < low < 1.2 < high < 1.3
    assert low < middle < high
    told = " ".join(capsys.readouterr().out.partition("\n\n")[0].split())
    assert told.startswith("Slower in B: acme all operators (20 problems): +")
    assert told.count("acme") == 1  # its operators are in the details
    assert "Of 6 implementations and operators: 3 slower, 3 unchanged within 5%." in told
    assert main(["compare", str(before), str(after), "--threshold", "30%"]) == 0
    assert main(["compare", str(before), str(after), "--threshold=0.05"]) == 1


def test_a_verdict_that_got_worse(pair):
    before, after, document = pair
    document["benchmarks"][0]["extra_info"]["status"] = "fail"
    write(after, document)
    status, found = seen(before, after)
    assert (status, [line[-15:] for line in found.worse], found.better) == (1, ["pass, then fail"], ())
    status, found = seen(after, before)
    assert (status, found.worse, [line[-15:] for line in found.better]) == (0, (), ["fail, then pass"])


def test_missing_and_new_benchmarks(pair):
    before, after, document = pair
    gone = document["benchmarks"].pop(0)["extra_info"]
    name = f"{gone['implementation']} {gone['operator']} {gone['problem']}"
    write(after, document)
    status, found = seen(before, after)
    assert (status, found.missing, found.new) == (1, (name,), ())
    assert main(["compare", str(before), str(after), "--subset"]) == 0
    status, found = seen(after, before)
    assert (status, found.missing, found.new) == (0, (), (name,))


def test_another_machine_is_refused_unless_forced(pair):
    before, after, document = pair
    write(after, document | {"machine_info": document["machine_info"] | {"cpu": {"brand_raw": "Other", "count": 2}}})
    status, found = seen(before, after)
    assert (status, found.answers) == (4, ())
    assert found.refused.startswith("times are not comparable: CPU Acme CPU and Other")
    assert main(["compare", str(before), str(after), "--force"]) == 0


def test_another_accelerator_is_refused(pair):
    *_, document = pair
    one = copy.deepcopy(document)
    for each, device in ((one, "H100"), (document, "H200")):
        for entry in each["benchmarks"]:
            entry["extra_info"]["versions"]["device"] = device
    found = compared(run_of(one), run_of(document))
    assert "device H100 and H200" in found.refused
    assert not found.answers


def test_a_verdict_counts_where_times_do_not(pair):
    before, after, document = pair
    document["benchmarks"][0]["extra_info"]["status"] = "fail"
    write(after, document | {"machine_info": {"cpu": {"brand_raw": "Other"}}})
    assert main(["compare", str(before), str(after)]) == 1


def test_another_contract_is_noted(pair):
    before, _, document = pair
    document["benchmarks"][0]["extra_info"]["contract"] = {"inputs": "tf32"}
    found = compared(runs.read(before), run_of(document))
    assert any(note.startswith("another contract in 1 benchmarks") for note in found.notes)


def test_runs_of_different_sources_are_not_taken_together(pair):
    before, after, document = pair
    for entry in document["benchmarks"]:
        entry["extra_info"]["source"] = "c" * 64
    changed = write(after.with_name("c.json"), document)
    assert main(["compare", str(before), str(after), "--and", str(changed), str(after)]) == 4
    assert main(["compare", str(before), str(after), "--and", str(before), str(after)]) == 0


def judged(document: dict[str, Any], state: str, *reasons: str) -> dict[str, Any]:
    """The same run, one benchmark of which says how the machine was."""
    held = copy.deepcopy(document)
    held["benchmarks"][5]["extra_info"]["timing"]["machine"] = {"state": state, "reasons": reasons}
    return held


def test_on_an_unusable_machine_nothing_is_told(pair, capsys):
    before, after, document = pair
    write(after, judged(slowed(document, 1.5), "unusable", "4 other processes ran"))
    status, found = seen(before, after)
    assert (status, {answer.outcome for answer in found.answers}) == (0, {"inconclusive"})
    assert found.states == (None, MachineState(state="unusable", reasons=("4 other processes ran",)))
    assert all(answer.relative == answer.measured == compare.UNKNOWN for answer in found.answers)
    told = capsys.readouterr().out
    assert "unusable during B (4 other processes ran)" in " ".join(told.split())
    assert not re.search(r"^\s*(acme|other|drift|ratios)|\(\+", told, re.MULTILINE)
    assert main(["compare", str(before), str(after), "--strict"]) == 4


def test_a_noisy_machine_is_told(pair):
    before, after, document = pair
    write(after, judged(document, "noisy", "clock", "load"))
    status, found = seen(before, after)
    assert (status, found.during("noisy"), found.during("unusable")) == (0, "during B (clock; load)", "")
    assert any("noisy during B (clock; load)" in text for text in compare.sentences(found))
    calm = write(before, judged(document, "stable"))
    _, steady = seen(calm, calm)
    assert "The machine was stable during both." in compare.sentences(steady)


def test_a_disturbed_run_taken_with_others_is_told(pair):
    before, after, document = pair
    disturbed = run_of(judged(document, "unusable", "load"))
    side = runs.pooled([runs.read(before), disturbed])
    assert side.state == disturbed.state
    assert runs.pooled([runs.read(before), runs.read(after)]).state is None
    document["benchmarks"][0]["extra_info"]["timing"]["status"] = "finding"
    side = runs.pooled([runs.read(before), run_of(document)])
    assert [timed.timing.doubt for timed in side.benchmarks.values()].count("doubted") == 1


def test_the_worst_condition_counts_with_all_of_its_reasons():
    stable, noisy = MachineState(state="stable"), MachineState(state="noisy", reasons=("clock",))
    one, two = (MachineState(state="unusable", reasons=reasons) for reasons in (("load",), ("load", "heat")))
    assert runs.worst([stable, one, None, noisy, two]) == two
    assert runs.worst([stable, noisy]) == noisy
    assert runs.worst([None]) is None


def test_strict_needs_something_to_compare(pair):
    before, after, document = pair
    for entry in document["benchmarks"]:
        entry["extra_info"]["problem"] += "other"
    write(after, document)
    status, found = seen(before, after, "--subset")
    assert (status, found.answers) == (0, ())
    assert main(["compare", str(before), str(after), "--subset", "--strict"]) == 4


def test_strict_is_about_implementations_and_operators(pair):
    """Single kernels are inconclusive in nearly every comparison: a gate on them would never open."""
    before, after, document = pair
    quiet = tried(Bench(Noise(visit=0.03)), 1)
    assert any(answer.outcome == "inconclusive" for answer in quiet.answers if not answer.overall)
    assert quiet.status(subset=False, strict=True) == 0
    wide = tried(Bench(BUSY, visits=3), 5)
    assert (wide.status(subset=False), wide.status(subset=False, strict=True)) == (0, 4)
    single = tried(Bench(BUSY, problems=1), 5)
    assert single.undecided
    assert {answer.overall for answer in single.undecided} == {True}
    write(after, document | {"benchmarks": document["benchmarks"][:1]})
    assert main(["compare", str(after), str(after), "--strict"]) == 4
    document["benchmarks"][0]["extra_info"]["status"] = "fail"
    write(after, document)
    assert main(["compare", str(before), str(after), "--strict"]) == 1


@pytest.mark.parametrize("counts", [[3, 3, 3, 3], [21, 0], [22]])
def test_visits_that_are_not_those_of_the_rounds_are_refused(counts: list[int], pair, capsys):
    before, after, document = pair
    document["benchmarks"][0]["extra_info"]["timing"] = {"visits": counts}
    assert main(["compare", str(before), str(write(after, document))]) == 4
    assert "benchmark 1: has 21 rounds, which are not those of its visits" in capsys.readouterr().err


def test_a_file_without_visits_has_one(pair):
    _, _, document = pair
    key, timed = next(iter(run_of(document).benchmarks.items()))
    assert [len(visit) for visit in timed.runs[0]] == [3] * 7
    for entry in document["benchmarks"]:
        del entry["extra_info"]["timing"]
    assert run_of(document).benchmarks[key].runs == ((timed.rounds,),)


KEY = Bench().keys()[0]
BAD = {
    "is cut off": "{",
    "field machine_info.release: expected `str`, got `int`": '{"machine_info": {"release": 3}, "benchmarks": []}',
    "field benchmarks[0].stats.median: number out of range": json.dumps(
        {"machine_info": {}, "benchmarks": [{"stats": {"median": 10**400}}]}
    ),
    "missing required field `machine_info`; write it with": "{}",
    "missing required field `benchmarks`": '{"machine_info": {}}',
    "times no verified kernel": '{"machine_info": {}, "benchmarks": []}',
    "benchmark 1: object missing required field `status`": json.dumps(
        {"machine_info": {}, "benchmarks": [row(KEY, [1.0], status=None)]}
    ),
    "benchmark 1: written in schema 1, this version reads schema 3": json.dumps(
        {"machine_info": {}, "benchmarks": [row(KEY, [1.0], schema=1)]}
    ),
    "has no rounds": json.dumps({"machine_info": {}, "benchmarks": [row(KEY, [])]}),
    "stats.data[0]: expected `float` above 1e-15": json.dumps({"machine_info": {}, "benchmarks": [row(KEY, [0.0])]}),
    "times cpu torch-cpu conv_forward p0 fp32 nchw fixed twice": json.dumps(
        {"machine_info": {}, "benchmarks": [row(KEY, [1.0])] * 2}
    ),
}


@pytest.mark.parametrize("defect", BAD)
def test_bad_files_are_named_with_their_defect(defect: str, pair, capsys):
    before, after, _ = pair
    after.write_text(BAD[defect])
    assert main(["compare", str(before), str(after)]) == 4
    told = capsys.readouterr().err
    assert defect in told
    assert str(after) in told
    assert "Traceback" not in told


def test_benchmarks_of_something_else_are_passed_over(pair):
    """As a project's own tests write them: the file of `tox -e bench` was refused for it."""
    before, after, document = pair
    other = {"name": "other", "extra_info": {"note": [1.0]}, "stats": {"data": [1.0]}}
    write(after, document | {"benchmarks": [other, *document["benchmarks"]]})
    status, found = seen(before, after)
    assert (status, found.changed, found.new) == (0, False, ())


def test_files_that_cannot_be_read(pair, capsys):
    before, after, _ = pair
    assert main(["compare", str(before), str(after.with_name("none.json"))]) == 4
    assert "cannot be read" in capsys.readouterr().err
    after.write_bytes(b"\xff")
    assert main(["compare", str(before), str(after)]) == 4
    assert "is not UTF-8" in capsys.readouterr().err


@pytest.mark.parametrize("text", ["0", "-5%", "5 %", "200%", "nan", "1e-3", "\u0665%", ""])
def test_thresholds_that_cannot_be_meant(text: str, pair):
    before, after, _ = pair
    with pytest.raises(SystemExit) as end:
        main(["compare", str(before), str(after), f"--threshold={text}"])
    assert end.value.code == 4


def test_names_cannot_act_on_a_terminal(pair, capsys):
    before, after, document = pair
    document["benchmarks"].append(row(KEY._replace(implementation="\x1b[2J<b>"), [1.0]))
    write(after, document)
    assert main(["compare", str(before), str(after)]) == 0
    told = capsys.readouterr().out
    assert "\\x1b[2J\\x3cb\\x3e" in told
    assert "\x1b" not in told


def test_lists_are_whole_where_all_is_asked_for(pair, capsys):
    before, after, document = pair
    write(after, document | {"benchmarks": document["benchmarks"][12:]})
    for words, count in (((), compare.MOST), (("--all",), 12)):
        assert main(["compare", str(before), str(after), *words]) == 1
        told = capsys.readouterr().out
        assert len(re.findall(r"^  [\w-]+ conv_forward p\d$", told.partition("missing")[2], re.MULTILINE)) == count
        assert ("--all" in told) == (not words)
