"""The campaign of steps: a step is told or not, and listed or not; each contract has one."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from pathlib import Path

import pytest

from conformance.accumulator import UNITS
from conformance.contract import Contract
from conformance.inputs import Recipe
from conformance.operators import OPERATORS, parse
from tests.calibration import worse
from tests.calibration.kernels.emulated import Emulated
from tests.calibration.kernels.kernel import DEFAULT
from tests.calibration.known_kernels import KNOWN_GOOD
from tests.calibration.steps import HIDDEN, STEPS, Hidden, Step
from tests.calibration.worse import kernels, outcomes, report

CHOICES = {
    "inputs": ("exact", "bf16x9", "bf16x6", "tf32x3", "bf16x3", "tf32", "fp16", "bf16"),
    "rounding": ("nearest", "zero"),
    "algorithm": ("direct", "winograd-f2", "winograd-f4", "fft"),
    "partials": ("fp32", "fp16", "bf16"),
    "between": ("accumulator", "storage"),
    "variance": ("centred", "raw"),
    "ties": ("even", "away", "up"),
    "overflow": ("saturates", "nonfinite"),
}
"""Field of a contract -> what it may be; flushed subnormals have none below them, and are no step's contract."""
SPLIT = Contract(splits=4)
TOLD = Step(DEFAULT, "a bit less", Emulated(DEFAULT, shorter=1), ("fp16",))
NOT_TOLD = Step(SPLIT, "twice the splits", Emulated(Contract(splits=8)), ("fp16",))


def case() -> Recipe:
    return Recipe(OPERATORS["conv_forward"].on(parse("n1 c14 h4 w4 k26 r3 s3")), "fp16", "absorbed", 0)


def lines(steps: Sequence[Step], hidden: Sequence[Hidden] = ()) -> list[str]:
    counted = worse.judged(kernels(steps), [case()])
    return list(report(outcomes(steps, [counted], hidden)))


def test_a_step_that_is_told_and_one_that_is_not():
    honest, shorter, split, twice, *summary = lines([TOLD, NOT_TOLD])
    assert honest.endswith("| honest |    0 of    1 | passes")
    assert shorter.endswith("| a bit less |    1 of    1 | told")
    assert split.endswith("| honest |    0 of    1 | passes")
    assert twice.endswith("| twice the splits |    0 of    1 | NOT TOLD")
    assert summary == [
        "2 honest kernels; 2 a step worse: 1 told, 0 listed",
        "NOT AS EXPECTED: conv_forward | fp16 | contract=Contract(splits=4) | twice the splits",
    ]


def test_a_list_of_what_is_not_told_does_not_rot():
    listed = [
        Hidden("they lose nothing", (SPLIT,), ("twice the splits",), ("fp16",)),
        Hidden("no longer", (DEFAULT,), ("a bit less",), ("fp16",)),
    ]
    _, shorter, _, twice, *summary = lines([TOLD, NOT_TOLD], listed)
    assert shorter.endswith("TOLD, BUT LISTED")
    assert twice.endswith("not told: they lose nothing")
    assert summary[1:] == ["NOT AS EXPECTED: conv_forward | fp16 | contract=Contract() | a bit less"]


def test_an_honest_kernel_that_fails_is_a_false_alarm():
    dishonest = {row: kernel for row, kernel in kernels([TOLD]).items() if row.step}
    failed, run = worse.judged(dishonest, [case()])
    (row,) = failed
    assert worse.Outcome(failed[row], run[row]).verdict(row._replace(step="")) == "FALSE ALARM"
    assert not worse.Outcome(failed[row], run[row]).as_expected(row._replace(step=""))


def test_what_is_done_is_not_done_again(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys):
    monkeypatch.setattr(worse, "STEPS", (TOLD,))
    monkeypatch.setattr(worse, "HIDDEN", ())
    monkeypatch.setattr(worse, "cases", lambda operator, dtype: [case()])
    kept = tmp_path / "done.jsonl"
    assert worse.campaign(["conv_forward"], 1, kept) == 0
    first = capsys.readouterr().out
    monkeypatch.setattr(worse, "cases", lambda operator, dtype: pytest.fail("computed again"))
    assert worse.campaign(["conv_forward"], 1, kept) == 0
    assert capsys.readouterr().out == first
    assert "1 honest kernels; 1 a step worse: 1 told, 0 listed" in first


def test_every_unit_choice_and_known_good_contract_has_a_step():
    contracts = {step.contract for step in STEPS}
    assert UNITS.keys() <= {contract.accumulate for contract in contracts}
    for field, choices in CHOICES.items():
        assert set(choices) == {value for value in (getattr(c, field) for c in contracts) if isinstance(value, str)}
    declared = {kernel.contract for kernel in KNOWN_GOOD if kernel.family in ("conv", "avg_pool", "conv_requantized")}
    assert declared <= contracts


def test_what_is_listed_exists_once():
    listed = Counter(row for entry in HIDDEN for row in entry.rows())
    assert listed.keys() <= kernels(STEPS).keys()
    assert listed.most_common(1)[0][1] == 1
