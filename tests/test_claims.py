"""Support claims: what is claimed and lost fails, what cannot run is left alone, and what the command writes."""

from __future__ import annotations

import json
from collections.abc import Callable
from importlib.metadata import version
from pathlib import Path
from typing import Any

import pytest
from syrupy.assertion import SnapshotAssertion

from conformance.__main__ import main
from conformance.execution.plan import Plan
from conformance.execution.selection import Selection
from conformance.execution.trial import Claim
from conformance.implementations.devices import DEVICES, missing
from conformance.problems import LAYOUTS, PROBLEMS
from conformance.problems.case import Case
from conformance.training.tables import DIRECTIONS, DISTRIBUTION
from conformance.training.training_demand import TrainingDemand
from tests.conftest import TINY, Project
from tests.kit import lasting
from tests.report_samples import sealed

pytest_plugins = ["pytester"]

ABSENT = next((device for device in reversed(DEVICES) if missing(device)), "")
REMOVED = '@acme.implements("conv_backward_data")\ndef f(dy, w): pass\nacme.kernels = acme.kernels[1:]'
NO_LICENCE = """
from conformance import Unavailable
class Broken(type(acme.arrays)):
    def require(self):
        raise Unavailable("no licence")
acme.arrays = Broken()
"""
SECOND = 'other = Implementation("other")\nother.implements("conv_forward")(conv_forward)'
BEHAVIOUR = """
import pytest

@pytest.mark.behaves("results_are_plain", "output_is_written")
def test_behaviour(check, name, case):
    check(name, case)
"""

BENCHMARK = f"""
import pytest
from conformance.problems.case import Case
from conformance.problems import typed

@pytest.mark.benchmarks("conv_forward", problems=[typed("{TINY}")])
def test_times(measure_time, case):
    measure_time(case)
"""
BENCHMARK_PLUGINS = "conformance.plugin", "pytest_benchmark.plugin"

NOT_CHECKED = {"body": "raise Unsupported('not checked, results are wrong')"}
"""What the reason of a behaviour check is where a failure of the same kernel has been reported already."""

LOST: dict[str, dict[str, str]] = {
    "kernel removed": {"tail": REMOVED},
    "raises": {"body": "raise Unsupported('not today')"},
    "raises what the suite says": NOT_CHECKED,
    "dtype": {"declares": ", dtypes=('bf16',)"},
    "layout": {"declares": ", layouts=('nhwc',)"},
    "when": {"declares": ", when=lambda p: p.groups > 1"},
    "contract": {"construct": ", contract=Contract(inputs='fp16')"},
    "import": {"head": "import not_installed"},
    "bridge": {"tail": NO_LICENCE},
    "device": {"construct": f", device='{ABSENT}'"},
}
"""A later version of a file, of which a claimed case is lost."""


@pytest.fixture
def claim(project: Project) -> Callable[..., Path]:
    """Verify and claim what `--distribution` gives of a right kernel; returns the file of claims."""

    def write(*arguments: str, **changes: str) -> Path:
        file = project.kernel(**changes)
        assert project.pytest("--in-process", *arguments).exit == 0
        assert main(["claims", "write", str(file), str(project.folder / "records.jsonl")]) == 0
        return file.with_name("acme.claims.json")

    return write


def rewritten(file: Path, **changes: Any) -> None:
    """A section of the claims with other fields."""
    document = json.loads(file.read_bytes())
    document["implementations"]["acme"] |= changes
    file.write_text(json.dumps(document))


@pytest.mark.parametrize("name", LOST)
def test_what_is_claimed_and_lost_fails(
    project: Project, claim: Callable[..., Path], snapshot: SnapshotAssertion, name: str
):
    distribution = "--distribution=wide" if name == "contract" else "--distribution=integer"
    claim(distribution)
    project.kernel(**LOST[name])
    outcome = project.pytest(distribution)
    lost = outcome.of("acme")
    assert (outcome.exit, lost["reason"].partition(";")[0] in outcome.text) == (1, True)
    assert lasting(f"{lost['status']} on {lost['device']}: {lost['reason']}") == snapshot


def test_claims_hold_where_the_settings_name_the_file(project: Project, claim: Callable[..., Path]):
    claim()
    project.kernel(body="raise Unsupported('not today')")
    project.pytester.makeini("[pytest]\nimpls = impls/acme.py\ntestpaths = suite\naddopts = -p no:cacheprovider\n")
    assert project.pytest().exit == 1


def test_what_holds_passes_and_nobody_else_is_bothered(project: Project, claim: Callable[..., Path]):
    claim()
    project.kernel("plain", body="raise Unsupported('never did')")
    outcome = project.pytest()
    assert (outcome.exit, outcome.statuses) == (0, {"pass": 1, "unsupported": 1})
    assert "acme: 1 cases claimed, 1 verified\n" in outcome.text
    assert "plain: " not in outcome.text.replace("plain: never did", "").replace("plain: 1 x never did", "")


def test_a_wrong_kernel_is_its_own_failure(project: Project, claim: Callable[..., Path]):
    claim()
    project.kernel(body="return y + 1")
    assert project.pytest().of("acme")["reason"].startswith("y: 32 of 32 elements mismatched")


NOT_HERE = [{"device": ABSENT}, {"versions": {"not-installed": "1.0"}}]


@pytest.mark.parametrize("changes", NOT_HERE, ids=["device", "package"])
def test_what_cannot_run_here_is_unavailable(project: Project, claim: Callable[..., Path], changes: Any):
    rewritten(claim(), **changes)
    project.kernel(head="import not_installed")
    assert project.pytest().statuses == {"unavailable": 1}


def test_packages_that_the_file_imports_are_needed_too(project: Project, claim: Callable[..., Path]):
    """Records name only what the kernel's arrays are of."""
    document = json.loads(claim(head="import json\nfrom scipy.stats import norm").read_bytes())
    assert document["implementations"]["acme"]["versions"]["scipy"] == version("scipy")
    assert not {"json", "conformance", "tests"} & document["implementations"]["acme"]["versions"].keys()


@pytest.mark.parametrize("workers", [(), ("-p", "xdist", "-n", "2")], ids=["here", "workers"])
def test_of_a_removed_kernel_the_claimed_cases_fail(project: Project, claim: Callable[..., Path], workers: Any):
    claim("--distribution=integer", "--distribution=fixed")
    project.kernel(tail=REMOVED)
    every = ("--distribution=integer", "--distribution=fixed", "--distribution=wide")
    outcome = project.pytest(*workers, *every, subprocess=bool(workers))
    assert (outcome.exit, outcome.statuses) == (1, {"fail": 2, "unsupported": 1})
    assert "acme: 2 cases claimed, 0 verified" in outcome.text


@pytest.mark.parametrize(
    "selected", ["--distribution=fixed", "--dtype=bf16", "--layout=nhwc", "--problem=n1 c1 h3 w3 k1 r1 s1"]
)
def test_only_what_is_selected_is_compared(project: Project, claim: Callable[..., Path], selected: str):
    claim()
    project.kernel(tail=REMOVED)
    assert "fail" not in project.pytest(selected).statuses
    project.kernel(body="raise Unsupported('not today')")
    assert "fail" not in project.pytest(selected).statuses


def test_part_of_the_cases_by_keyword(project: Project, claim: Callable[..., Path]):
    claim("--distribution=integer", "--distribution=fixed")
    outcome = project.pytest("--distribution=integer", "--distribution=fixed", "-k", "fixed")
    assert "acme: 2 cases claimed, 1 run, 1 verified" in outcome.text


def test_verified_and_not_claimed_is_shown(project: Project, claim: Callable[..., Path]):
    claim()
    outcome = project.pytest("--distribution=integer", "--distribution=fixed")
    command = f"add them with `conformance claims write {project.folder / 'impls/acme.py'} RECORDS`"
    assert f"acme: 1 verified but not claimed: conv_forward fp32 (1); {command}" in outcome.text


@pytest.mark.usefixtures("one_core")
def test_benchmarks_are_not_compared(project: Project, claim: Callable[..., Path]):
    claim("--distribution=fixed")
    project.pytester.makeconftest(f"pytest_plugins = {BENCHMARK_PLUGINS}")
    project.write("suite/test_suite.py", BENCHMARK)
    project.kernel(body="raise Unsupported('not today')")
    assert project.pytest("--benchmark-disable").statuses == {"unsupported": 1}  # verified, nothing is timed
    project.kernel(tail=REMOVED)
    assert project.pytest("--benchmark-disable").statuses == {"unsupported": 1}


@pytest.mark.parametrize("changes", [{"tail": REMOVED}, {"body": "raise Unsupported('not today')"}])
def test_behaviour_checks_are_claimed_by_name(project: Project, claim: Callable[..., Path], changes: Any):
    project.write("suite/test_suite.py", BEHAVIOUR)
    file = claim("--distribution=behaviour", "--problem=n2 c3 h5 w5 k4 r3 s3 p1")
    (group,) = json.loads(file.read_bytes())["implementations"]["acme"]["cases"]["conv_forward"]
    assert len(group["variants"]) == 2
    project.kernel(**changes)
    outcome = project.pytest("--distribution=behaviour", "--problem=n2 c3 h5 w5 k4 r3 s3 p1", "--operator=conv_forward")
    assert (outcome.exit, outcome.statuses) == (1, {"fail": 2})


def test_behaviour_of_a_kernel_that_has_failed_is_no_second_failure(project: Project, claim: Callable[..., Path]):
    project.write("suite/test_suite.py", BEHAVIOUR)
    claim("--distribution=behaviour", "--operator=conv_forward")
    project.kernel(body="return y + 1")
    outcome = project.pytest("--distribution=behaviour", "--operator=conv_forward")
    assert outcome.statuses == {"fail": 1, "unsupported": 1}
    project.kernel(**NOT_CHECKED)  # its own words do not excuse a kernel
    outcome = project.pytest("--distribution=behaviour", "--operator=conv_forward")
    assert (outcome.exit, outcome.statuses) == (1, {"fail": 2})


def test_an_implementation_that_is_gone_is_an_error(project: Project, claim: Callable[..., Path]):
    file = claim(tail=SECOND)
    source = project.kernel()
    outcome = project.pytest()
    assert (outcome.exit, outcome.statuses) == (1, {"pass": 1, "error": 1})
    assert "acme.claims.json claims other, which acme.py does not define; define it, or remove" in outcome.text
    source.unlink()
    project.kernel("plain")
    outcome = project.pytest()
    assert outcome.statuses == {"pass": 1, "error": 1}
    words = "acme.claims.json claims acme, other, which acme.py does not define; define it, or remove"
    assert f"{words} {file}" in " ".join(outcome.text.split())


def test_a_problem_that_is_in_no_table_is_a_warning(project: Project, claim: Callable[..., Path]):
    file = claim()
    document = json.loads(file.read_bytes())["implementations"]["acme"]
    document["problems"]["edge.old"] = "n9 c9 h9 w9 k9 r9 s9"
    document["cases"]["conv_forward"][0]["problems"].append("edge.old")
    document["problems"]["drawn.n1_c1_h9_w9_k1_r9_s9"] = "n1 c1 h9 w9 k1 r9 s9"  # and never was
    rewritten(file, **document)
    outcome = project.pytest()
    assert outcome.exit == 0
    assert "acme: problems that are claimed and in no table any more: edge.old" in outcome.text
    assert "drawn.n1" not in outcome.text
    assert "claimed, 1 run, 1 verified" in outcome.text


GARBLED: dict[str, Any] = {
    "cut": b"{",
    "schema": b'{"schema": 2}',
    "empty": b"{}",
    "nobody": b'{"schema": 1, "implementations": {}}',
    "encoding": b"\xff",
    "operator": {"cases": {"conv_backward": []}},
    "type": {"seed": "7"},
    "device": {"device": "abacus"},
    "problem": {"problems": {}},
    "variant": {"cases": {"conv_forward": [{"variants": ["fp32"], "problems": []}]}},
}
"""Content of a file of claims, or other fields of its section."""


@pytest.mark.parametrize("name", GARBLED)
def test_garbled_claims_end_the_run_before_it_begins(
    project: Project, claim: Callable[..., Path], snapshot: SnapshotAssertion, name: str
):
    file, content = claim(), GARBLED[name]
    if isinstance(content, dict):
        rewritten(file, **content)
    else:
        file.write_bytes(content)
    (project.folder / "records.jsonl").unlink()
    outcome = project.pytest()
    assert (outcome.exit, outcome.records) == (4, [])
    assert lasting(outcome.text) == snapshot


def test_what_is_written(project: Project, claim: Callable[..., Path]):
    section = json.loads(claim("--distribution=integer", "--distribution=fixed").read_bytes())
    versions = section["implementations"]["acme"].pop("versions")
    assert {"numpy", "ml_dtypes"} <= versions.keys()
    assert not {"python", "machine", "processor", "kernel-conformance", "device"} & versions.keys()
    name = TINY.replace(" ", "_")
    assert section == {
        "schema": 1,
        "implementations": {
            "acme": {
                "suite": "0.1.0",
                "level": "standard",
                "seed": 0,
                "device": "cpu",
                "problems": {name: TINY},
                "cases": {"conv_forward": [{"variants": ["fp32 nchw fixed", "fp32 nchw integer"], "problems": [name]}]},
            }
        },
    }


def test_writing_replaces_one_section_and_says_what_changed(
    project: Project, claim: Callable[..., Path], capsys: pytest.CaptureFixture[str], snapshot: SnapshotAssertion
):
    file = claim(tail=SECOND)
    source, records = str(project.kernel(tail=SECOND)), str(project.folder / "records.jsonl")
    other = json.loads(file.read_bytes())["implementations"]["other"]
    project.pytest("--impl=acme", "--distribution=fixed", "--distribution=wide")
    capsys.readouterr()
    assert main(["claims", "write", source, records]) == 0
    assert lasting(capsys.readouterr().out) == snapshot
    assert json.loads(file.read_bytes())["implementations"]["other"] == other


def test_a_folder_keeps_its_claims_inside_and_its_source_hash(project: Project):
    file = project.kernel()
    (folder := project.folder / "impls" / "folder").mkdir()
    file.rename(folder / "__init__.py")
    before = project.pytest().of("acme")["source"]
    assert main(["claims", "write", str(folder), str(project.folder / "records.jsonl")]) == 0
    assert (folder / "claims.json").is_file()
    outcome = project.pytest()
    assert outcome.of("acme")["source"] == before
    assert "acme: 1 cases claimed, 1 verified" in outcome.text


def test_bad_command_lines(project: Project, capsys: pytest.CaptureFixture[str], snapshot: SnapshotAssertion):
    file, records = str(project.kernel()), project.folder / "records.jsonl"
    said: list[str] = []

    def refuse(*words: str) -> None:
        assert main(["claims", "write", *words]) == 4
        said.append(lasting(capsys.readouterr().err).replace(f"{project.folder}/", ""))

    refuse("absent.py", str(records))
    refuse(file)
    refuse(file, str(records))
    records.write_text("{}\n")
    refuse(file, str(records))
    records.unlink()
    project.pytest()
    first = records.read_bytes()
    project.pytest("--seed=1")
    records.write_bytes(records.read_bytes() + first)
    refuse(file, str(records))
    lines = map(json.loads, first.replace(b"conv_forward", b"conv_backward").splitlines())
    records.write_bytes(sealed(lines))
    refuse(file, str(records))
    refuse(str(project.kernel(body="return y + 0")), str(records))
    assert "".join(said) == snapshot


def test_nothing_verified_leaves_claims_as_they_are(project: Project, claim: Callable[..., Path]):
    before = (file := claim()).read_bytes()
    source = project.kernel(body="return y + 1")
    project.pytest()
    assert main(["claims", "write", str(source), str(project.folder / "records.jsonl")]) == 5
    assert file.read_bytes() == before


def test_a_claimed_training_is_lost_with_its_kernels(tmp_path: Path):
    file = tmp_path / "acme.py"
    file.write_text("from conformance import Implementation\nacme = Implementation('acme')\n")
    selection = Selection((), (file,), "standard", PROBLEMS, DIRECTIONS, ("fp32",), LAYOUTS, (DISTRIBUTION,), 7, "auto")
    key = Case("training", "digits", "fp32", "nchw", DISTRIBUTION)
    claim = Claim("acme", file, tmp_path / "acme.claims.json", "cpu", (), {}, frozenset({key}))
    plan = Plan(selection, tmp_path, {"acme": claim})
    assert [getattr(absence, "status", "") for absence in plan.required(TrainingDemand(selection, "digits"))] == [
        "fail"
    ]
    assert [getattr(absence, "status", "") for absence in plan.required(TrainingDemand(selection, "unet"))] == [
        "unsupported"
    ]
