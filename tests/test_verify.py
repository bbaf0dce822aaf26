"""`conformance verify`: honest records hold together, each way to spoil them is named, and cases are run again."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from itertools import product
from pathlib import Path
from typing import Any

import pytest

from conformance.__main__ import main
from conformance.cli.verify import UNSEEN, _defects
from conformance.execution.trial import Trial
from conformance.execution.verify import verify
from conformance.implementations import registry
from conformance.operators import OPERATORS, Operator, takes
from conformance.problems import PROBLEMS, at_level
from conformance.resources import IMPLS
from conformance.results import build
from tests.conftest import no_traceback_of_ours
from tests.kill_and_resume import KERNEL
from tests.kit import command
from tests.report_samples import sealed

pytest_plugins = ["pytester"]

Lines = list[dict[str, Any]]
Verified = Callable[..., tuple[int, str]]


def ran(folder: Path) -> bytes:
    """The records of a run on one problem, in all that the kernel has."""
    (folder / "acme.py").write_text(KERNEL)
    records = folder / "run.jsonl"
    words = ("--problem=edge.plain", f"--records={records}")
    assert command("run", str(folder / "acme.py"), *words)[0] == 0
    return records.read_bytes()


@pytest.fixture(scope="module")
def acme(tmp_path_factory: pytest.TempPathFactory) -> bytes:
    return ran(tmp_path_factory.mktemp("acme"))


@pytest.fixture
def verified(acme: bytes, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> Verified:
    """A function that spoils acme's records, or takes others, and verifies them: exit status and what is told."""

    def run(spoil: Any = list, *options: str) -> tuple[int, str]:
        if not isinstance(spoil, bytes):
            spoil(found := [json.loads(line) for line in acme.splitlines()])
            spoil = sealed(found)  # as somebody would who makes up the digest too
        (tmp_path / "run.jsonl").write_bytes(spoil)
        status = main(["verify", str(tmp_path / "run.jsonl"), *options])
        told = "".join(capsys.readouterr())
        assert no_traceback_of_ours(told)
        return status, told

    return run


def test_an_honest_file_holds_together(verified: Verified):
    status, told = verified()
    assert re.search(r"^acme conv_forward: \d+ pass, \d+ unsupported$", told, re.MULTILINE)
    assert (status, told.endswith(f"\n{UNSEEN}\n")) == (0, True)


@pytest.mark.parametrize("operator", OPERATORS.values(), ids=OPERATORS)
def test_passes_of_right_kernels_have_no_defect(operator: Operator):
    right = registry.load([IMPLS / "numpy_direct"]).implementations["numpy-direct"]
    taken = (problem for problem, _ in at_level(PROBLEMS, "smoke") if takes(operator.name, problem.geometry))
    problem = next(problem for problem in taken if any(v.layout in ("nchw", "nn") for v in problem.variants))
    passed = 0
    for variant, method in product(problem.variants, ("auto", "probes")):
        case = Trial(right, operator, problem, variant, 0, method)
        if variant.layout in ("nchw", "nn") and variant.suits(operator.name, problem.geometry):
            record = build.record(case, verify(case))
            passed += record.status == "pass"
            assert list(_defects(record)) == []
    assert passed


def plain(lines: Lines, distribution: str = "fixed") -> dict[str, Any]:
    """The record of one case; on the fixed distribution it passes, and its errors are measured."""
    case = {"kind": "case", "dtype": "fp32", "layout": "nchw", "distribution": distribution}
    return next(line for line in lines if case.items() <= {k: str(v) for k, v in line.items()}.items())


def checks(lines: Lines) -> dict[str, Any]:
    found: dict[str, Any] = plain(lines)["checks"]["y"]
    return found


def saying(**fields: Any) -> Callable[[Lines], object]:
    return lambda lines: plain(lines).update(fields)


NAME = "--operator conv_forward"
WINOGRAD = {"contract": {"algorithm": "winograd-f2"}}
DEFECTS: dict[str, Callable[[Lines], object]] = {
    f" {NAME} has a verdict already (": lambda ls: ls.insert(1, plain(ls)),
    "field golden of a header: 0123, in this suite it is": lambda ls: ls[0].update(golden="0123"),
    "acme has another source than in the lines above": lambda ls: ls[-2].update(source="0" * 64),
    "acme has another helper.py than in the lines above": lambda ls: [
        line.update(covers={"later": {"helper.py": digit * 64}}) for line, digit in zip(ls[-3:-1], "01", strict=True)
    ],
    ": belong to no run, for no header": lambda ls: ls.pop(0),
    "field cases: one case counts as 3": saying(cases=3),
    "passes, although y gain z is 9.5, which exceeds 6": lambda ls: checks(ls).update({"gain z": [9.5, 6.0]}),
    "field checks: of no output, not of all that conv_forward has": saying(checks={}),
    "field contract: Contract(algorithm='magic')": saying(contract={"algorithm": "magic"}),
    "field contract: ": saying(contract={"colour": "red"}),
    "passes, although it is not verified: winograd-f2": lambda ls: plain(ls, "special").update(WINOGRAD),
    "field descriptor: ": saying(descriptor="n1 c-1", command=""),
    "are no case of this suite": saying(dtype="fp9", command=""),
}


@pytest.mark.parametrize("reason", DEFECTS)
def test_what_cannot_be_true_is_named(reason: str, verified: Verified):
    status, told = verified(DEFECTS[reason])
    assert (status, told.endswith(f"\n{UNSEEN}\n")) == (1, True)
    assert re.search(f"^WRONG: .*{re.escape(reason)}", told, re.MULTILINE)


def test_what_was_changed_is_named(acme: bytes, verified: Verified):
    spoilt = acme.replace(b'"status":"unsupported"', b'"status":"pass"', 1)
    status, told = verified(spoilt)
    assert status == 1
    assert re.search(
        r"^WRONG: .*run.jsonl, lines 1 to \d+: are not what the run of 20.* wrote, whose footer", told, re.M
    )


UNUSABLE: dict[str, tuple[Any, ...]] = {
    "run.jsonl, line 1: is not JSON": (b"nonsense\n",),
    "run.jsonl, line 2: field cases: expected": (lambda ls: ls[1].update(cases="many"),),
    "run.jsonl, line 2: written in schema 1": (lambda ls: ls[1].update(schema=1),),
    "was cut off or interrupted; give its command --resume": (lambda ls: ls.pop(),),
    "--seed 1.5: must be a whole number": (list, "--seed=1.5"),
    "--impl nowhere.py: no such file": (list, "--impl=nowhere.py"),
}


@pytest.mark.parametrize("reason", UNUSABLE)
def test_what_cannot_be_used_is_named(reason: str, verified: Verified):
    status, told = verified(*UNUSABLE[reason])
    assert (status, reason in told) == (4, True)


def test_no_file_and_nothing_verified(verified: Verified, tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    assert main(["verify", str(tmp_path)]) == 4
    assert f"{tmp_path}: cannot be read (Is a directory)" in capsys.readouterr().err
    assert verified(lambda ls: ls.__delitem__(slice(1, -1)))[0] == 5


def test_cases_are_run_again(tmp_path: Path, verified: Verified, monkeypatch: pytest.MonkeyPatch):
    (kernel := tmp_path / "acme.py").write_text(KERNEL)
    own, every = ("--rerun=4", "--seed=5", f"--impl={kernel}"), ("--rerun=99", f"--impl={kernel}")
    status, told = verified(list, *own)
    assert (status, told.count("  the same: acme 'n")) == (0, 4)
    assert verified(list, *own) == (0, told)
    assert f"{NAME}: pass, under another contract" in verified(saying(contract={"variance": "raw"}), *every)[1]
    kernel.write_text(KERNEL + "\n")

    def forge(lines: Lines) -> None:
        saying(status="fail", reason="wrong")(lines)
        lines[-1]["cases"].update({"pass": lines[-1]["cases"]["pass"] - 1, "fail": 1})

    status, told = verified(forge, *every)
    other = " (other sources than those of the records)\n"
    assert (status, f" {NAME}: fail, here pass{other}" in told) == (1, True)
    monkeypatch.setattr("conformance.cli.verify.discover", lambda folder: [])
    status, told = verified(list, "--rerun=1")
    assert (status, ": not here, give --impl=PATH" in told) == (5, True)


def units_of(acme: bytes, folder: Path, **changes: Any) -> list[str]:
    """Two units that have run a problem each to explain a failure; of the second one something is changed."""
    header, *records, footer = (json.loads(line) for line in acme.splitlines())
    extra = next(record for record in records if record["status"] == "pass") | {"origin": "where"}
    files = []
    for number, own in enumerate((records, []), 1):
        begun = header | {"unit": {"number": number, "count": 2}, "plan": changes.get(f"plan {number}", "")}
        changed = {"seconds": {"total": 0.5}} | changes.get("record", {}) if number == 2 else {}
        files.append(folder / f"{number}.jsonl")
        files[-1].write_bytes(sealed([begun, *own, extra | changed, footer]))
    return [*map(str, files)]


def test_what_units_have_run_to_explain_a_failure_is_one_verdict(
    acme: bytes, tmp_path: Path, capsys: pytest.CaptureFixture[str]
):
    """Each looks for the cause itself, and an honest run of two units was WRONG."""

    def told(*files: str) -> tuple[int, str]:
        return main(["verify", *files]), capsys.readouterr().out

    files = units_of(acme, tmp_path)
    (joined := tmp_path / "joined.jsonl").write_bytes(b"".join(Path(file).read_bytes() for file in files))
    status, text = told(files[0])
    (line,) = (line for line in text.splitlines() if line.startswith("acme conv_forward: "))
    assert (status, "1 of 2 units are missing, whose cases were not verified: 2\n" in text) == (0, True)
    for names in ([str(joined)], files):
        status, text = told(*names)
        assert (status, line in text, "missing" in text) == (0, True, False), text
    # the one of the two that differs is still none of the same run
    status, text = told(*units_of(acme, tmp_path, record={"source": "b" * 64}))
    assert (status, "has a verdict already" in text) == (1, True), text
    status, text = told(*units_of(acme, tmp_path, **{"plan 1": "a", "plan 2": "b"}))
    assert (status, "WRONG: units are of different plans" in text) == (1, True), text
