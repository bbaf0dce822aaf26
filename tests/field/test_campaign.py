"""The campaign over kernels that others wrote: each goes through a run of the suite until it fails."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from contextlib import suppress
from itertools import product
from pathlib import Path
from typing import Any

import pytest

from conformance.__main__ import main
from conformance.checks import CHECKS, check_behaviour
from conformance.checks.sample import Check
from conformance.execution.trial import Trial
from conformance.execution.verify import verify
from conformance.implementations import registry
from conformance.implementations.implementation import BEHAVIOUR, Implementation, Unsupported
from conformance.operators import OPERATORS, takes
from conformance.problems import PROBLEMS, Variant
from tests.calibration import field, mutation

KERNELS = """
import numpy as np

from conformance import Implementation

{head}

def offer(name, factor):
    one = Implementation(name)

    @one.implements("conv_forward", when=lambda p: p.r == p.s == 1 and p.groups == 1)
    def conv_forward(x, w, bias, *, stride, padding):
        x = np.pad(x, ((0, 0), (0, 0), *padding))[:, :, :: stride[0], :: stride[1]]
        y = np.einsum("kc,nchw->nkhw", w[:, :, 0, 0], x) * np.float32(factor)
        return y if bias is None else y + bias[:, None, None]

    return one

good = offer("good-plain", {good})
bad = offer("state-01-scaled", {bad})
"""


@pytest.fixture
def examined(tmp_path):
    def run(head="", good=1, bad=1.01):
        (tmp_path / "state.py").write_text(KERNELS.format(head=head, good=good, bad=bad))
        for name in ("_shared", "test_state"):
            (tmp_path / f"{name}.py").write_text("raise SystemExit('not a file of kernels')")
        assert field.files(["sizes"], tmp_path) == []
        return {one.kernel: one for one in field.examine(field.files(folder=tmp_path), "smoke", 2)}

    return run


def test_a_known_bad_kernel_is_run_until_it_fails_and_a_known_good_one_to_its_end(examined):
    found = examined()
    good, bad = found["good-plain"], found["state-01-scaled"]
    assert good.as_expected
    assert good.verdicts > 1
    assert not good.detected
    assert bad.as_expected
    assert bad.family == "state"
    assert bad.verdicts < good.verdicts
    assert bad.where.startswith("conv_forward ")
    assert "mismatched" in bad.reason
    text = list(mutation.lines([], list(found.values())))
    assert "others' known-bad kernels 1/1 detected; 0 of 1 known-good ones failed" in text
    assert any(line.split() == ["state", "1", "of", "others,", "1", "detected"] for line in text)


def test_a_survivor_and_a_false_alarm_are_not_as_expected(examined):
    found = examined(good=1.01, bad=1)
    assert not any(one.as_expected for one in found.values())
    assert "NOT AS EXPECTED: state-01-scaled (state)" in mutation.lines([], list(found.values()))


@pytest.mark.parametrize("thorough", [False, True])
def test_the_cases_of_a_level_are_for_kernels_that_the_small_ones_do_not_detect(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, thorough: bool
):
    asked = []

    def run(paths, level, records, only=()):
        asked.append(([path.name for path in paths], level, list(only)))
        where = {"state-01": level, "sizes-01": "" if level == "smoke" else level}
        names = only or ("good-a", "state-01", "sizes-01")
        return {n: field.Examined(n, n.split("-")[0], 1, where.get(n, "")) for n in names}

    monkeypatch.setattr(field, "run", run)
    paths = [tmp_path / f"{name}.py" for name in ("good", "sizes", "state")]
    found = field.examine(paths, "standard", 1, thorough)
    left = ["good"] * thorough + ["sizes"]
    assert asked[1:] == [([f"{n}.py" for n in left], "standard", ["good-a"] * thorough + ["sizes-01"])]
    assert {one.kernel: one.where for one in found} == {"good-a": "", "state-01": "smoke", "sizes-01": "standard"}


def test_a_file_that_cannot_be_used_ends_the_campaign(examined):
    with pytest.raises(RuntimeError, match="numpi"):
        examined(head="from numpi import pad")


def test_kernels_that_know_the_tables_know_those_of_today(capsys: pytest.CaptureFixture[str]):
    """Kept by: conformance list problems."""
    assert main(["list", "problems"]) == 0
    listed = capsys.readouterr().out
    assert (field.FOLDER / "_problems.txt").read_text() == listed


def test_every_file_can_be_loaded_and_no_name_is_used_twice():
    loaded = registry.load(field.files())
    assert (loaded.broken, loaded.unavailable) == ({}, {})
    good = [name for name in loaded.implementations if name.startswith(field.GOOD)]
    assert len(loaded.implementations) - len(good) >= 420
    assert len(good) >= 50


@pytest.mark.parametrize(
    ("name", "when"),
    [
        ("values-49-infinity-times-one", lambda g: g.c == g.k == g.y.size == 1),
        ("storage-30-fp16-sums", lambda g: g.k < 4 and math.prod(g.output_size) > 1 << 16),
    ],
)
def test_the_tables_have_what_a_reported_kernel_needs(name: str, when: Callable[[Any], bool]):
    """Both were right on every case of the tables."""
    one = registry.load(field.files([name.partition("-")[0]])).implementations[name]
    (kernel,) = one.kernels
    operator = OPERATORS[kernel.operator]
    problems = [p for p in PROBLEMS if p.level == "standard" and takes(operator.name, p.geometry) and when(p.geometry)]
    cases = [Trial(one, operator, p, v, 1) for p in problems for v in p.variants if v.suits(operator.name, p.geometry)]
    mine = [case for case in cases if case.variant.dtype in kernel.dtypes and case.variant.layout in kernel.layouts]
    assert "fail" in {verify(case).status for case in mine}


LATER = {
    "behaviour": "03-unpadded-cache 09-shares 12-shares 36-reads 37-reads 39-reads "
    "01-1x1 02-depth 08-1x1 10-disjoint 10-shares-result-fp16 11-global 13-large 14-strided",
    "state": "13-nondet 14-key 32-grows 33-counter",
    "storage": "13-mixed 14-mixed 22-one 25-depthwise 26-int16 30-fp16 09-expanded 23-one",
}
"""Class -> beginnings of the names that level smoke may leave to standard: its paths are large, or it reads what lies
beside operands, where there may be nothing that shows. On which path it looks for shared buffers depends on the
ranking: of other days it met 10-shares and 03-unpadded."""


@pytest.mark.parametrize("family", LATER)
def test_known_bad_kernels_are_detected_at_smoke_and_known_good_ones_are_not(family: str, tmp_path: Path):
    """Those that may be left are left out: nothing ends them, and they took half of the time. State is what checks
    detect: their part of the level is run first, and all of it on what they have not detected."""
    paths, later = field.files([family]), tuple(LATER[family].split())
    names = [n for n in registry.load(paths).implementations if not n.partition("-")[2].startswith(later)]
    bad = [name for name in names if family == "state" and not name.startswith(field.GOOD)]
    found = field.run(paths, "smoke", tmp_path / "records", bad, ["--distribution=behaviour"]) if bad else {}
    left = [name for name in names if name not in found or not found[name].detected]
    found |= {one.kernel: one for one in field.examine(paths, "smoke", 1, only=left)}
    assert found.keys() == {*names}
    assert [name for name, one in found.items() if not one.as_expected] == []


ALONE = ("outputs_asked_for_alone", "gradients_asked_for_alone", "results_are_added_to_arrays")


def test_what_is_asked_for_alone_and_what_is_added_to_an_array():
    """The checks that there are for these kernels: none fails on a right one, and one on each of the others."""
    implementations = registry.load(field.files(["requests"])).implementations
    assert len(implementations) == 29
    for name, implementation in implementations.items():
        verdicts = (check_behaviour(trial, check) for check, trial in asked_for_alone(implementation))
        statuses = {verdict.status for verdict in verdicts}
        assert statuses <= {"pass", "unsupported"} if name.startswith(field.GOOD) else statuses & {"fail", "error"}, (
            name
        )


def asked_for_alone(implementation: Implementation) -> Iterator[tuple[Check, Trial]]:
    """Yield the checks that apply to an implementation, with what they are made on at level standard."""
    for required in map(CHECKS.__getitem__, ALONE):
        for operator, problem, dtype in product(required.operators, required.problems, required.dtypes):
            if takes(operator, problem.geometry) and implementation.supports(operator, problem.geometry, dtype, "nchw"):
                with suppress(Unsupported):
                    required.require(implementation, operator)
                    variant = Variant(dtype, "nchw", BEHAVIOUR)
                    yield required.check, Trial(implementation, OPERATORS[operator], problem, variant, 0)
