"""Problems that no table has: how runs draw them, how a search finds failures, tells them apart and shrinks them."""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
import time
from collections import Counter
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from conformance import Implementation
from conformance.execution.plan import Plan
from conformance.execution.required import DRAWN_PROBLEMS, VerificationDemand
from conformance.execution.trial import Absence, Trial
from conformance.execution.verify import verify
from conformance.fuzzing.command import summary
from conformance.fuzzing.search import COMMON, Search
from conformance.operators import FAMILIES, OPERATORS, takes
from conformance.operators.spatial import RANKS
from conformance.problems import LAYOUTS, PROBLEMS, at_level, typed
from conformance.problems.case import Case, read, sequence
from conformance.problems.drawn import THIN, candidates, drawn
from conformance.problems.parameters import SIMPLEST, Coverage, cost, features, geometry, parameters
from conformance.storage import repeats
from impls.numpy_direct.conv_requantized import conv_requantized
from tests import kernels
from tests.calibration.kernels import sizes
from tests.conftest import Project
from tests.kit import command, source, standard

pytest_plugins = ["pytester"]


@pytest.mark.parametrize(("family", "rank"), [*SIMPLEST])
@settings(max_examples=40, deadline=None)
@given(seed=st.integers(0, 1 << 32))
def test_a_drawn_problem_exists_is_cheap_and_is_its_parameters(family: str, rank: int, seed: int):
    made = drawn(family, random.Random(seed).choice, THIN, rank=rank)
    assert made.rank == rank
    assert geometry(family, parameters(made)) == typed(made.descriptor).geometry == made
    assert all(most >= amount for most, amount in zip(THIN, cost(made), strict=True))


@pytest.mark.parametrize("family", ["conv", "conv_bn"])
@pytest.mark.parametrize("rank", RANKS)
def test_layers_as_reports_have_them_are_drawn(family: str, rank: int):
    """In two minutes a search met one of these shapes, by chance."""
    dice = random.Random(0)
    made = [drawn(family, dice.choice, COMMON, rank=rank) for _ in range(400)]
    # in three dimensions 5x5 is a plane; one pair in eight of multiples of 8 is 8 over of 16 to 200 filters
    rare = ("1x1 of", *(["5x5"] if rank != 2 else []))
    never = [name for name, holds in sizes.SHAPES.items() if not any(map(holds, made))]
    assert [name for name in never if not name.startswith(rare)] == []


def test_an_implementation_of_several_ranks_draws_some_of_each():
    one = Implementation("acme")
    one.implements("conv_forward", dtypes=("fp32",), layouts=("nchw", "ncw", "ncdhw"))(right)
    found = drawn_cases(standard(one, layouts=LAYOUTS))
    ranks = Counter(case.problem.geometry.rank for case in found)
    assert ranks == dict.fromkeys(RANKS, DRAWN_PROBLEMS)


def test_a_search_covers_every_rank_that_a_kernel_has_and_is_of_a_round():
    one = Implementation("acme")
    one.implements("conv_forward", dtypes=("fp32",), layouts=("nwc", "ndhwc"))(right)
    search = Search(one, ("conv_forward",), 0)
    found = [*search.drawn(3)]
    assert {row.geometry.rank for row in found} == {1, 3}
    assert found == [*search.drawn(3)]


@pytest.mark.parametrize(
    ("operator", "rank"),
    [(operator.name, rank) for family, rank in SIMPLEST for operator in FAMILIES[family].operators],
)
def test_what_a_run_draws_is_new_and_the_same_for_a_seed(operator: str, rank: int):
    first, again, other = (list(islice(candidates(operator, seed, rank), 8)) for seed in (0, 0, 1))
    assert first == again
    assert not {p.geometry.descriptor for p, _ in first} & {p.geometry.descriptor for p, _ in other}
    tables = Coverage()
    taken = (p.geometry for p, _ in at_level(PROBLEMS, "standard") if takes(operator, p.geometry))
    known = [geometry for geometry in taken if geometry.rank == rank]
    for one in known:
        tables.add(features(one))
    assert not {p.geometry for p, _ in first} & {*known}
    # of some 190 pairs of values that a problem has, the tables lack some, though they were filled up with such ones
    assert sum(tables.new(features(p.geometry)) for p, _ in first) > 8 * (15 if rank else 2)


def acme(kernel: Any, **declared: Any) -> Implementation:
    one = Implementation("acme")
    one.implements("conv_forward", dtypes=("fp32",), layouts=("nchw",), **declared)(kernel)
    return one


def cases(plan: Plan, operator: str = "conv_forward") -> list[Trial]:
    return [case for case in plan.required(VerificationDemand(plan.ranked, operator)) if isinstance(case, Trial)]


def drawn_cases(plan: Plan, operator: str = "conv_forward") -> list[Trial]:
    return [case for case in cases(plan, operator) if case.problem.origin == "drawn"]


right = kernels.conv_forward
KNOWN = {(g.x.shape, g.filter.shape, g.stride) for g in (p.geometry for p in PROBLEMS if p.geometry.family == "conv")}


def dictionary(x, w, bias, *, stride, **parameters):
    """Right on the problems of the tables, and on no other."""
    y = right(x, w, bias, stride=stride, **parameters)
    return y if (x.shape, w.shape, stride) in KNOWN else y * 2


def test_a_kernel_that_knows_the_tables_fails_on_what_a_run_draws():
    ends = []
    for kernel in (right, dictionary):
        every = cases(standard(acme(kernel)))
        of_tables = [case for case in every if case.problem.origin != "drawn"]
        assert [verify(case).status for case in of_tables[::50]] == ["pass"] * len(of_tables[::50])
        ends.append([verify(case).status for case in every[len(of_tables) :]])
    assert ends[0] == ["pass"] * DRAWN_PROBLEMS
    assert ends[1].count("fail") > DRAWN_PROBLEMS // 2  # twice what is zero on impulses is zero


def test_an_implementation_draws_what_it_takes_or_is_counted_as_unsupported():
    takes_one = acme(right, when=lambda p: p.r == p.s == 1 and p.groups == 1)
    found = drawn_cases(standard(takes_one))
    assert found
    assert {(case.problem.geometry.r, case.problem.geometry.groups) for case in found} == {(1, 1)}
    plan = standard(acme(right, when=lambda p: p.n == 77))
    *_, absence = plan.required(VerificationDemand(plan.ranked, "conv_forward"))
    assert isinstance(absence, Absence)
    assert absence.reason.startswith("takes none of the ")
    assert (absence.status, absence.cases) == ("unsupported", 1)
    assert not drawn_cases(standard(takes_one), "conv_backward_data")


def test_a_waiver_that_a_drawn_problem_does_not_need_is_no_failure():
    one = acme(right)
    one.waive("conv_forward", reason="a", url="https://example.org/1")
    assert {verify(case).status for case in drawn_cases(standard(one))} == {"pass"}


def interacting(x, w, bias, *, stride, padding, dilation, groups):
    """Two defects, each where parameters meet."""
    if stride[0] > 2 and groups > 1:
        raise IndexError(f"tile {x.shape[1]}")
    y = right(x, w, bias, stride=stride, padding=padding, dilation=dilation, groups=groups)
    if dilation[1] > 1 and padding[1] == (0, 0) and x.shape[1] % 2:
        y[..., -1] *= 1.5
    return y


def searched(one: Implementation, rounds: int = 3, **given: Any) -> Search:
    search = Search(one, tuple(OPERATORS), 0, **given)
    for number in range(rounds):
        list(search.run(number, time.monotonic() + 60))
    return search


def test_a_search_tells_failures_apart_and_shrinks_each_to_the_smallest():
    first, again = (searched(acme(interacting), 1) for _ in range(2))
    found = {(f.kind.text.split(":")[0], f.rows[-1].geometry.descriptor) for f in first.findings}
    assert found == {
        ("raised IndexError", "n1 c2 h1 w1 k2 r1 s1 u3x1 g2"),
        ("wrong y", "n1 c1 h1 w1 k1 r1 s1 d1x2"),
    }
    assert [str(f.rows[-1]) for f in first.findings] == [str(f.rows[-1]) for f in again.findings]
    assert sum(f.cases for f in first.findings) == first.statuses["fail"] + first.statuses["error"] > 2
    assert all(f.rows[-1].geometry.descriptor in f.command for f in first.findings)


def test_a_failure_that_cannot_be_shrunk_is_a_finding(monkeypatch: pytest.MonkeyPatch, caplog: Any):
    def broken(*_: object) -> None:
        raise KeyError("valid")

    monkeypatch.setattr(Search, "_shrunk", broken)
    search = searched(acme(interacting), rounds=1)
    assert search.findings
    assert all(finding.rows == (finding.original,) for finding in search.findings)
    assert "the explanation failed (KeyError at test_search.py:" in caplog.text


def causal(x, w, bias, *, padding, dilation, groups, **parameters):
    """Wrong where a depthwise convolution is padded before the image only, as sequences are."""
    y = right(x, w, bias, padding=padding, dilation=dilation, groups=groups, **parameters)
    all_before = all(sides == (d * (t - 1), 0) for sides, d, t in zip(padding, dilation, w.shape[2:], strict=True))
    return y * 2 if groups == x.shape[1] > 1 and all_before and max(w.shape[2:]) > 1 else y


def cropped(x, w, bias, *, padding, **parameters):
    """Wrong on views that are not padded."""
    y = right(x, w, bias, padding=padding, **parameters)
    view = not np.any(padding) and not x.flags.c_contiguous
    return y * 2 if view else y


@pytest.mark.parametrize(("kernel", "told"), [(causal, " g"), (cropped, " x:")])
def test_a_search_meets_what_is_padded_alike_on_every_axis_and_views(kernel: Any, told: str):
    """In a minute it met neither: each axis was padded by itself, and operands were contiguous."""
    search = searched(acme(kernel), 2)
    assert search.findings
    assert all(told in str(finding.rows[-1]) for finding in search.findings)


def test_a_search_of_a_right_kernel_finds_nothing_and_covers_pairs():
    search = searched(acme(right), 2)
    assert (search.findings, set(search.statuses)) == ([], {"pass"})
    (values, _), (pairs, most), (triples, _) = (search.coverage["conv_forward"].share(size) for size in (1, 2, 3))
    assert values < pairs < triples
    assert 0.25 < pairs / most < 1


def test_calls_that_a_failure_needs_are_found_and_shrunk():
    kept: dict[Any, Any] = {}

    def remembers(x, w, bias, *, stride, padding, **parameters):
        """Keeps the padding by the shapes."""
        pad = kept.setdefault((x.shape, w.shape, stride), padding)
        return right(x, w, bias, stride=stride, padding=pad, **parameters)

    search = searched(acme(remembers), 1, restart=kept.clear)
    finding = search.findings[0]
    assert len(finding.rows) == 2
    kept.clear()
    assert [search.verify(row).status for row in finding.rows] == ["pass", "fail"]
    before, after = (parameters(row.geometry) for row in finding.rows)
    assert {name for name in before if before[name] != after[name]} <= {"p0", "p1", "p2", "p3"}
    goal = SIMPLEST["conv", 2]
    assert sum(abs(after[name] - goal[name]) for name in goal) < 8


def padding_without_zero_point(x, w, bias, scale, *, dilation, groups, x_zero_point, layout, **parameters):
    zero_point = 0 if groups > 1 and dilation[0] > 1 else x_zero_point
    return conv_requantized(x, w, bias, scale, dilation=dilation, groups=groups, x_zero_point=zero_point, **parameters)


def test_kernels_of_8_bits_are_searched_in_what_they_declare():
    one = Implementation("acme")
    declared = one.implements("conv_requantized", dtypes=("int8", "fp8_e4m3"), layouts=("ncw",))
    declared(padding_without_zero_point)
    search = searched(one, 1)
    found = {Case.parse(str(finding.rows[-1]).replace("zx-1", "zx1")) for finding in search.findings}
    assert found == {Case("conv_requantized", "q n1 c2 w1 k2 s1 d2 g2 zx1", "int8", "ncw", "scales")}
    assert {row.variant.dtype for row in search.drawn(0)} == {"int8", "fp8_e4m3"}


def test_what_no_kernel_can_do_is_not_drawn():
    """A batch without images has no statistics; a sum of one subnormal number many times is not exact."""
    one = Implementation("acme")
    one.implements("conv_bn_forward")(lambda x, w, gamma, beta, running_mean, running_var, **_: x)
    none, two = (Case("conv_bn_forward", f"bn n{n} c1 h1 w1 k1 r1 s1", "fp32", "nchw", "fixed") for n in (0, 2))
    search = Search(one, ("conv_bn_forward",), 0)
    assert [search._takes(row) for row in (none, two)] == [False, True]
    search = Search(acme(right), ("conv_forward",), 0)
    repeated = [row for row in search.drawn(0) if repeats(row.variant.storage)]
    assert repeated
    assert {row.variant.distribution for row in repeated} == {"integer"}


def test_a_run_takes_the_rows_of_a_table(project: Project):
    project.kernel(body="return y + (stride[0] == 3)")
    project.write("found.txt", "# acme\n'n1 c1 h1 w1 k1 r1 s1 u3x1' --operator conv_forward --seed 5\n")
    outcome = project.run("--problems=found.txt")
    assert (outcome.exit, outcome.statuses) == (1, {"pass": 1, "fail": 1})
    (failed,) = (record for record in outcome.records if record["status"] == "fail")
    assert (failed["descriptor"], failed["seed"]) == ("n1 c1 h1 w1 k1 r1 s1 u3x1", 5)
    assert " 'n1 c1 h1 w1 k1 r1 s1 u3x1'" in failed["command"]


def test_the_calls_of_a_row_come_in_order():
    calls = []

    def kernel(x, w, bias):
        calls.append(x.shape[2])
        return w[:, :, 0, 0] * x

    line = "; ".join(f"'n1 c1 h{h} w1 k1 r1 s1' --operator conv_forward" for h in (3, 1, 2))
    plan = standard(acme(kernel), regressions=(sequence(line),), level="smoke", problems=())
    (case,) = cases(plan)
    assert verify(case).status == "pass"
    assert calls == [3, 1, 2]


def test_the_command_finds_and_saves_what_its_table_does_not_hold(tmp_path: Path):
    good, bad, table = tmp_path / "good.py", tmp_path / "bad.py", tmp_path / "found.txt"
    declares = ', dtypes=("fp32",), layouts=("nchw",)'
    good.write_text(source(declares=declares))
    aborts = "if stride[1] > 3 and groups > 1: os.abort()\n    return y"
    bad.write_text(source(body=aborts, head="import os", declares=declares))
    code, text = command("fuzz", str(good), "--minutes=0.02")
    assert (code, "nothing found" in text) == (0, True), text
    code, text = command("fuzz", str(bad), "--minutes=0.15", f"--save={table}")
    assert code == 1, text
    assert "ended by SIGABRT" in text
    (line,) = (str(found[0]) for found in read(table))
    assert line == "'n1 c2 h1 w1 k2 r1 s1 u1x4 g2' --operator conv_forward --distribution integer"
    assert f"reproduce: conformance check {bad} 'n1 c2 h1 w1 k2 r1 s1 u1x4 g2' --distribution integer" in text
    assert command("fuzz", str(bad), "--replay", line)[0] == 1
    code, text = command("fuzz", str(bad), "--minutes=0.02", f"--save={table}")
    assert (code, len([*read(table)])) == (1, 1), text  # known, and not found again


def test_a_search_that_is_terminated_twice_has_its_summary(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    (tmp_path / "acme.py").write_text(source())
    as_it_was = signal.getsignal(signal.SIGTERM)

    def interrupted(*_: object):
        raise KeyboardInterrupt

    def terminated(*arguments: Any):
        os.kill(os.getpid(), signal.SIGTERM)
        yield from summary(*arguments)

    monkeypatch.setattr(Search, "run", interrupted)
    monkeypatch.setattr("conformance.fuzzing.command.summary", terminated)
    code, text = command("fuzz", str(tmp_path / "acme.py"), "--minutes=0.01")
    assert (code, "nothing found" in text) == (2, True)
    assert signal.getsignal(signal.SIGTERM) is as_it_was


@pytest.mark.parametrize("verb", ["fuzz", "check"])
def test_a_signal_ends_a_command_as_ctrl_c_does(verb: str, project: Project):
    """It ended without a word of what a search had found."""
    body = "Path('begun').touch(); time.sleep(600)"
    project.kernel(head="import time\nfrom pathlib import Path", body=body)
    words = [
        sys.executable,
        "-m",
        "conformance",
        verb,
        "impls/acme.py",
        *["n1 c1 h1 w1 k1 r1 s1"] * (verb == "check"),
    ]
    process = subprocess.Popen(
        [*words, "--timeout=60"], cwd=project.folder, text=True, stdout=subprocess.PIPE, stderr=subprocess.STDOUT
    )
    while not (project.folder / "begun").exists() and process.poll() is None:
        time.sleep(0.05)
    process.send_signal(signal.SIGTERM)
    output, _ = process.communicate(timeout=30)
    assert (process.returncode, "Traceback" in output) == (2, False), output
    assert ("interrupted\n" in output, "nothing found\n" in output) == (True, verb == "fuzz")


def test_units_of_a_search_have_its_rounds(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    (tmp_path / "acme.py").write_text(source())
    rounds: list[int] = []

    def run(self: Search, number: int, deadline: float) -> Any:
        rounds.append(number)
        if len(rounds) % 3 == 0:
            raise KeyboardInterrupt
        yield from ()

    monkeypatch.setattr(Search, "run", run)
    for unit in ("1/2", "2/2"):
        assert command("fuzz", str(tmp_path / "acme.py"), f"--unit={unit}")[0] == 2
    assert rounds == [0, 2, 4, 1, 3, 5]
    status, text = command("fuzz", str(tmp_path / "acme.py"), "--unit=3/2")
    assert (status, "--unit 3/2: give the unit's number" in text) == (4, True)
