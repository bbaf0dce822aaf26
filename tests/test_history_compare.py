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
from conformance.reporting.comparison.compare import compared
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


def test_exit_status_of_equal_runs(pair, capsys):
    before, after, _ = pair
    assert main(["compare", str(before), str(after)]) == 0
    assert capsys.readouterr().out.startswith("Nothing was found to be slower or faster by more than 5%.")


def test_exit_status_of_a_slow_kernel(pair, capsys):
    before, after, document = pair
    for entry in document["benchmarks"]:
        if entry["extra_info"]["implementation"] == "acme":
            entry["stats"]["data"] = [1.2 * seconds for seconds in entry["stats"]["data"]]
    write(after, document)
    assert main(["compare", str(before), str(after)]) == 1
    found = compared(runs.read(before), runs.read(after))
    assert {(a.implementation, a.outcome) for a in found.answers if a.overall} == {
        ("acme", "slower"),
        ("other", "unchanged"),
    }
    interval = next(a for a in found.answers if a.outcome == "slower").relative
    low, middle, high = (math.exp(value) for value in (interval.low, interval.middle, interval.high))
    assert 1.1 < low < 1.2 < high < 1.3
    assert low < middle < high


def test_a_smaller_change_than_the_threshold_is_no_alarm(pair):
    before, after, document = pair
    for entry in document["benchmarks"]:
        if entry["extra_info"]["implementation"] == "acme":
            entry["stats"]["data"] = [1.2 * seconds for seconds in entry["stats"]["data"]]
    write(after, document)
    assert main(["compare", str(before), str(after), "--threshold", "30%"]) == 0
    assert main(["compare", str(before), str(after), "--threshold=0.05"]) == 1


def test_a_verdict_that_got_worse(pair, capsys):
    before, after, document = pair
    document["benchmarks"][0]["extra_info"]["status"] = "fail"
    write(after, document)
    assert main(["compare", str(before), str(after)]) == 1
    assert "pass, then fail" in capsys.readouterr().out
    assert main(["compare", str(after), str(before)]) == 0
    assert "fail, then pass" in capsys.readouterr().out


def test_missing_and_new_benchmarks(pair, capsys):
    before, after, document = pair
    gone = document["benchmarks"].pop(0)["extra_info"]
    write(after, document)
    assert main(["compare", str(before), str(after)]) == 1
    name = f"{gone['implementation']} {gone['operator']} {gone['problem']}"
    assert f"no longer verified, or broken):\n  {name}\n" in capsys.readouterr().out
    assert main(["compare", str(before), str(after), "--subset"]) == 0
    capsys.readouterr()
    assert main(["compare", str(after), str(before)]) == 0
    assert f"new:\n  {name}\n" in capsys.readouterr().out


def test_another_machine_is_refused_unless_forced(pair, capsys):
    before, after, document = pair
    write(after, document | {"machine_info": document["machine_info"] | {"cpu": {"brand_raw": "Other", "count": 2}}})
    assert main(["compare", str(before), str(after)]) == 4
    assert "times are not comparable: CPU Acme CPU and Other" in capsys.readouterr().out
    assert main(["compare", str(before), str(after), "--force"]) == 0
    assert "note: CPU differs" in capsys.readouterr().out


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
    for entry in document["benchmarks"]:
        entry["stats"]["data"] = [1.5 * seconds for seconds in entry["stats"]["data"]]
    write(after, judged(document, "unusable", "4 other processes ran"))
    assert main(["compare", str(before), str(after)]) == 0
    told = capsys.readouterr().out
    assert " ".join(told.split()).startswith(
        "The machine was unusable during B (4 other processes ran), so that all times are inconclusive"
    )
    assert not any(
        line.lstrip().startswith(("acme", "other", "drift", "ratios")) or "(+" in line for line in told.splitlines()
    )
    found = compared(runs.read(before), runs.read(after))
    assert found.states == (None, MachineState(state="unusable", reasons=("4 other processes ran",)))
    assert {answer.outcome for answer in found.answers} == {"inconclusive"}
    assert all(answer.relative == answer.measured == compare.UNKNOWN for answer in found.answers)
    assert main(["compare", str(before), str(after), "--strict"]) == 4


def test_a_noisy_machine_is_told(pair, capsys):
    before, after, document = pair
    write(after, judged(document, "noisy", "clock", "load"))
    assert main(["compare", str(before), str(after)]) == 0
    assert "The machine was noisy during B (clock; load): believe the intervals" in " ".join(
        capsys.readouterr().out.split()
    )
    steady = write(before, judged(document, "stable"))
    main(["compare", str(steady), str(steady)])
    assert "The machine was stable during both." in " ".join(capsys.readouterr().out.split())


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


def test_strict_needs_something_to_compare(pair, capsys):
    before, after, document = pair
    for entry in document["benchmarks"]:
        entry["extra_info"]["problem"] += "other"
    write(after, document)
    assert main(["compare", str(before), str(after), "--subset"]) == 0
    assert capsys.readouterr().out.startswith("There are no times to compare.")
    assert main(["compare", str(before), str(after), "--subset", "--strict"]) == 4


def test_strict_is_about_implementations_and_operators(pair, capsys):
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
    write(after, document | {"benchmarks": []} | {"benchmarks": document["benchmarks"][:1]})
    assert main(["compare", str(after), str(after), "--strict"]) == 4
    document["benchmarks"][0]["extra_info"]["status"] = "fail"
    write(after, document)
    assert main(["compare", str(before), str(after), "--strict"]) == 1


def test_the_paragraph_is_about_what_changed(pair, capsys):
    before, after, document = pair
    for entry in document["benchmarks"]:
        if entry["extra_info"]["implementation"] == "acme":
            entry["stats"]["data"] = [1.2 * seconds for seconds in entry["stats"]["data"]]
    write(after, document)
    main(["compare", str(before), str(after)])
    told = " ".join(capsys.readouterr().out.partition("\n\n")[0].split())
    assert told.startswith("Slower in B: acme all operators (20 problems): +")
    assert "Nothing was found" not in told
    assert told.count("acme") == 1  # its operators are in the details
    assert "Of 6 implementations and operators: 3 slower, 3 unchanged within 5%." in told


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
    "is not JSON": "nothing",
    "is nested too deep": '{"a": ' + "[" * 100_000 + "]" * 100_000 + "}",
    "is not JSON (JSON is malformed": json.dumps({"machine_info": {}, "benchmarks": [row(KEY, [float("nan")])]}),
    "field machine_info.release: expected `str`, got `int`": '{"machine_info": {"release": 3}, "benchmarks": []}',
    "field benchmarks[0].stats.median: number out of range": json.dumps(
        {"machine_info": {}, "benchmarks": [{"stats": {"median": 10**400}}]}
    ),
    "gives the name a twice": '{"a": 1, "a": 2, "machine_info": {}, "benchmarks": []}',
    "expected `object`, got `array`": "[]",
    "missing required field `machine_info`; write it with": "{}",
    "missing required field `benchmarks`": '{"machine_info": {}}',
    "times no verified kernel": '{"machine_info": {}, "benchmarks": []}',
    "benchmark 1: object missing required field `status`": json.dumps(
        {"machine_info": {}, "benchmarks": [row(KEY, [1.0], status=None)]}
    ),
    "benchmark 1: written in schema 1, this version reads schema 2": json.dumps(
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


def test_benchmarks_of_something_else_are_passed_over(pair, capsys):
    """As the comparison with torch's timer writes them: the file of `tox -e bench` was refused for it."""
    before, after, document = pair
    other = {"name": "agreement", "extra_info": {"suite_over_torch": [1.0]}, "stats": {"data": [1.0]}}
    write(after, document | {"benchmarks": [other, *document["benchmarks"]]})
    assert main(["compare", str(before), str(after)]) == 0
    assert "Nothing was found to be slower" in capsys.readouterr().out


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
