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


class Pair:
    """Two files of the same code, and the document of the second, which a test changes."""

    def __init__(self, folder: Path) -> None:
        rng, bench = np.random.default_rng(7), Bench()
        self.before, self.after = folder / "a.json", folder / "b.json"
        self.first, self.document = bench.drawn(rng), bench.drawn(rng)
        write(self.before, self.first)
        write(self.after, self.document)

    @property
    def records(self) -> list[dict[str, Any]]:
        """The records of the second run."""
        return [entry["extra_info"] for entry in self.document["benchmarks"]]

    def status(self, *words: str) -> int:
        """The exit status of the command, after the document is written."""
        write(self.after, self.document)
        return main(["compare", str(self.before), str(self.after), *words])

    def comparison(self) -> RunComparison:
        return compared(run_of(self.first), run_of(self.document))

    def slow(self, factor: float, name: str = "") -> None:
        """Let an implementation, or all of them, take longer in the second run."""
        for entry in self.document["benchmarks"]:
            if name in ("", entry["extra_info"]["implementation"]):
                entry["stats"]["data"] = [factor * seconds for seconds in entry["stats"]["data"]]

    def judge(self, state: str, *reasons: str) -> None:
        """Let a benchmark of the second run say how the machine was."""
        self.records[5]["timing"]["machine"] = {"state": state, "reasons": reasons}

    def swap(self) -> None:
        self.first, self.document = self.document, self.first
        write(self.before, self.first)


@pytest.fixture
def pair(tmp_path: Path) -> Pair:
    return Pair(tmp_path)


@pytest.mark.parametrize(
    ("timing", "reason"),
    [
        ({"status": "finding", "finding": "faster than the roofline"}, "in doubt: faster than"),
        ({"clock": "device"}, "clocks unknown and device"),
    ],
)
def test_times_in_doubt_are_not_compared(timing: dict[str, str], reason: str, pair: Pair):
    spoilt = next(record for record in pair.records if record["problem"] == "p3")
    spoilt["timing"] = timing
    comparison = pair.comparison()
    assert sum(reason in note for note in comparison.notes) == 1
    kernel = spoilt["implementation"], f"{spoilt['operator']} p3"
    assert kernel not in [(answer.implementation, answer.name) for answer in comparison.answers]


def test_one_file_is_no_two_runs(pair: Pair, capsys):
    before, after = str(pair.before), str(pair.after)
    assert main(["compare", before, str(pair.before.parent / "." / pair.before.name)]) == 4
    assert "a.json is given as both runs" in capsys.readouterr().err
    assert pair.status("--and", after, after) == 4


def test_a_slow_kernel(pair: Pair, capsys):
    pair.slow(1.2, "acme")
    assert pair.status() == 1
    told = " ".join(capsys.readouterr().out.partition("\n\n")[0].split())
    comparison = pair.comparison()
    assert {(answer.implementation, answer.outcome) for answer in comparison.answers if answer.overall} == {
        ("acme", "slower"),
        ("other", "unchanged"),
    }
    interval = next(answer for answer in comparison.answers if answer.outcome == "slower").relative
    low, middle, high = (math.exp(value) for value in (interval.low, interval.middle, interval.high))
    assert 1.1 < low < 1.2 < high < 1.3
    assert low < middle < high
    assert told.startswith("Slower in B: acme all operators (20 problems): +")
    assert told.count("acme") == 1  # its operators are in the details
    assert "Of 6 implementations and operators: 3 slower, 3 unchanged within 5%." in told
    assert [pair.status(*words) for words in (("--threshold", "30%"), ("--threshold=0.05",))] == [0, 1]


def test_a_verdict_that_got_worse(pair: Pair):
    pair.records[0]["status"] = "fail"
    comparison = pair.comparison()
    assert (pair.status(), [line[-15:] for line in comparison.worse], comparison.better) == (1, ["pass, then fail"], ())
    pair.swap()
    comparison = pair.comparison()
    assert (pair.status(), comparison.worse, [line[-15:] for line in comparison.better]) == (0, (), ["fail, then pass"])


def test_missing_and_new_benchmarks(pair: Pair):
    gone = pair.document["benchmarks"].pop(0)["extra_info"]
    name = f"{gone['implementation']} {gone['operator']} {gone['problem']}"
    comparison = pair.comparison()
    assert (pair.status(), pair.status("--subset"), comparison.missing, comparison.new) == (1, 0, (name,), ())
    pair.swap()
    comparison = pair.comparison()
    assert (pair.status(), comparison.missing, comparison.new) == (0, (), (name,))


def test_another_machine_is_refused_unless_forced_and_verdicts_count(pair: Pair):
    pair.document["machine_info"] = {**pair.document["machine_info"], "cpu": {"brand_raw": "Other", "count": 2}}
    comparison = pair.comparison()
    assert (pair.status(), pair.status("--force"), comparison.answers) == (4, 0, ())
    assert comparison.refused.startswith("times are not comparable: CPU Acme CPU and Other")
    pair.records[0]["status"] = "fail"
    assert pair.status() == 1


def test_another_accelerator_is_refused(pair: Pair):
    pair.first = copy.deepcopy(pair.document)
    for document, device in ((pair.first, "H100"), (pair.document, "H200")):
        for entry in document["benchmarks"]:
            entry["extra_info"]["versions"]["device"] = device
    comparison = pair.comparison()
    assert ("device H100 and H200" in comparison.refused, comparison.answers) == (True, ())


def test_another_contract_is_noted(pair: Pair):
    pair.records[0]["contract"] = {"inputs": "tf32"}
    assert any(note.startswith("another contract in 1 benchmarks") for note in pair.comparison().notes)


def test_runs_of_different_sources_are_not_taken_together(pair: Pair):
    changed = copy.deepcopy(pair.document)
    for entry in changed["benchmarks"]:
        entry["extra_info"]["source"] = "c" * 64
    file = write(pair.after.with_name("c.json"), changed)
    statuses = [pair.status("--and", str(first), str(pair.after)) for first in (file, pair.before)]
    assert statuses == [4, 0]


def test_on_an_unusable_machine_nothing_is_told(pair: Pair, capsys):
    pair.slow(1.5)
    pair.judge("unusable", "4 other processes ran")
    comparison = pair.comparison()
    assert (pair.status(), {answer.outcome for answer in comparison.answers}) == (0, {"inconclusive"})
    assert comparison.states == (None, MachineState(state="unusable", reasons=("4 other processes ran",)))
    assert all(answer.relative == answer.measured == compare.UNKNOWN for answer in comparison.answers)
    told = capsys.readouterr().out
    assert "unusable during B (4 other processes ran)" in " ".join(told.split())
    assert not re.search(r"^\s*(acme|other|drift|ratios)|\(\+", told, re.MULTILINE)
    assert pair.status("--strict") == 4


def test_a_noisy_machine_is_told(pair: Pair):
    pair.judge("noisy", "clock", "load")
    comparison = pair.comparison()
    assert (pair.status(), comparison.during("noisy"), comparison.during("unusable")) == (
        0,
        "during B (clock; load)",
        "",
    )
    assert any("noisy during B (clock; load)" in text for text in compare.sentences(comparison))
    pair.judge("stable")
    pair.first = pair.document
    assert "The machine was stable during both." in compare.sentences(pair.comparison())


def test_a_disturbed_run_taken_with_others_is_told(pair: Pair):
    first = run_of(pair.first)
    assert runs.pooled([first, run_of(pair.document)]).state is None
    pair.judge("unusable", "load")
    pair.records[0]["timing"]["status"] = "finding"
    disturbed = run_of(pair.document)
    side = runs.pooled([first, disturbed])
    assert side.state == disturbed.state
    assert [timed.timing.doubt for timed in side.benchmarks.values()].count("doubted") == 1


def test_the_worst_condition_counts_with_all_of_its_reasons():
    stable, noisy = MachineState(state="stable"), MachineState(state="noisy", reasons=("clock",))
    short, long = (MachineState(state="unusable", reasons=reasons) for reasons in (("load",), ("load", "heat")))
    assert runs.worst([stable, short, None, noisy, long]) == long
    assert runs.worst([stable, noisy]) == noisy
    assert runs.worst([None]) is None


def test_strict_needs_something_to_compare(pair: Pair):
    for record in pair.records:
        record["problem"] += "other"
    assert (pair.status("--subset"), pair.status("--subset", "--strict"), pair.comparison().answers) == (0, 4, ())


def test_strict_is_about_implementations_and_operators(pair: Pair):
    """Single kernels are inconclusive in nearly every comparison: a gate on them would never open."""
    quiet = tried(Bench(Noise(visit=0.03)), 1)
    assert any(answer.outcome == "inconclusive" for answer in quiet.answers if not answer.overall)
    assert quiet.status(subset=False, strict=True) == 0
    wide = tried(Bench(BUSY, visits=3), 5)
    assert {answer.outcome for answer in wide.answers if not answer.overall} == {"inconclusive"}
    assert (wide.status(subset=False), wide.status(subset=False, strict=True)) == (0, 4)
    single = tried(Bench(BUSY, problems=1), 5)
    assert single.undecided
    assert {answer.overall for answer in single.undecided} == {True}
    pair.records[0]["status"] = "fail"
    assert pair.status("--strict") == 1


@pytest.mark.parametrize("counts", [[3, 3, 3, 3], [21, 0], [22]])
def test_visits_that_are_not_those_of_the_rounds_are_refused(counts: list[int], pair: Pair, capsys):
    pair.records[0]["timing"] = {"visits": counts}
    assert pair.status() == 4
    assert "benchmark 1: has 21 rounds, which are not those of its visits" in capsys.readouterr().err


def test_a_file_without_visits_has_one(pair: Pair):
    key, timed = next(iter(run_of(pair.document).benchmarks.items()))
    assert [len(visit) for visit in timed.runs[0]] == [3] * 7
    for record in pair.records:
        del record["timing"]
    assert run_of(pair.document).benchmarks[key].runs == ((timed.rounds,),)


KEY = Bench().keys()[0]
BAD = {
    "is cut off": "{",
    "is not UTF-8": "\xff",
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
def test_bad_files_are_named_with_their_defect(defect: str, pair: Pair, capsys):
    pair.after.write_bytes(BAD[defect].encode("latin-1"))
    assert main(["compare", str(pair.before), str(pair.after)]) == 4
    told = capsys.readouterr().err
    assert defect in told
    assert str(pair.after) in told
    assert "Traceback" not in told


def test_benchmarks_of_something_else_are_passed_over(pair: Pair):
    """As a project's own tests write them: the file of `tox -e bench` was refused for it."""
    pair.document["benchmarks"].insert(0, {"name": "other", "extra_info": {"note": [1.0]}, "stats": {"data": [1.0]}})
    comparison = pair.comparison()
    assert (pair.status(), comparison.changed, comparison.worse, comparison.missing, comparison.new) == (
        0,
        False,
        (),
        (),
        (),
    )


def test_a_file_that_is_not_there(pair: Pair, capsys):
    assert main(["compare", str(pair.before), str(pair.after.with_name("none.json"))]) == 4
    assert "cannot be read" in capsys.readouterr().err


@pytest.mark.parametrize("text", ["0", "-5%", "5 %", "200%", "nan", "1e-3", "\u0665%", ""])
def test_thresholds_that_cannot_be_meant(text: str, pair: Pair):
    with pytest.raises(SystemExit) as end:
        pair.status(f"--threshold={text}")
    assert end.value.code == 4


def test_names_cannot_act_on_a_terminal(pair: Pair, capsys):
    pair.document["benchmarks"].append(row(KEY._replace(implementation="\x1b[2J<b>"), [1.0]))
    assert pair.status() == 0
    told = capsys.readouterr().out
    assert "\\x1b[2J\\x3cb\\x3e" in told
    assert "\x1b" not in told


def test_lists_are_whole_where_all_is_asked_for(pair: Pair, capsys):
    del pair.document["benchmarks"][:12]
    for words, count in (((), compare.MOST), (("--all",), 12)):
        assert pair.status(*words) == 1
        told = capsys.readouterr().out
        assert len(re.findall(r"^  [\w-]+ conv_forward p\d$", told.partition("missing")[2], re.MULTILINE)) == count
        assert ("--all" in told) == (not words)
