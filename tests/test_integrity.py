"""What people who had seen neither code nor tests have broken: files, variables and signals around a run."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import platformdirs
import psutil
import pytest

from conformance import check, numpy_arrays
from conformance.__main__ import main
from conformance.cli.choosing import LastRun
from conformance.cli.verify import defects
from conformance.engine.export import export
from conformance.engine.run import Run
from conformance.execution.selection import SelectionError
from conformance.implementations.implementation import Implementation, ImplementationError
from conformance.implementations.registry import Registry
from conformance.implementations.source_files import source_hash
from conformance.inputs import Recipe
from conformance.judge.expected import expect
from conformance.operators import OPERATORS, parse
from conformance.problems.case import CaseError, read
from conformance.reporting.page.merge import load
from conformance.results.claims_file import section
from conformance.results.schema import Attempt
from conformance.streams import uncommanded
from tests import kernels
from tests.conftest import ROOT, Project
from tests.kit import source
from tests.report_samples import as_read, failed, sample, written
from tests.worker.test_isolation_cheats import needs_isolation

pytest_plugins = ["pytester"]

ONE = ("--problem=n1 c2 h3 w3 k2 r1 s1", "--dtype=fp32", "--layout=nchw", "--distribution=integer")


def ended(folder: Path, *words: str, before: Callable[[], object] | None = None, out: Path | None = None) -> str:
    """Output of a command in a folder; its exit status must be 0."""
    with (out or folder / os.devnull).open("w") as file:
        done = subprocess.run(
            [sys.executable, "-m", "conformance", *words], cwd=folder, preexec_fn=before, text=True, timeout=120,
            check=False, stdout=file if out else subprocess.PIPE, stderr=subprocess.STDOUT,
            env=os.environ | {"PYTHONPATH": str(ROOT)},
        )  # fmt: skip
    text = out.read_text() if out else done.stdout
    assert done.returncode == 0, text
    return text


@pytest.mark.parametrize("name", ["PYTHONPATH", "LD_PRELOAD", "LD_AUDIT", "PYTHONWARNINGS"])
def test_a_variant_sets_nothing_that_runs_code_before_its_process_is_isolated(name: str):
    """A sitecustomize.py rewrote the judge, whose later verdict on another kernel was a pass."""
    with pytest.raises(ImplementationError, match=f"environment: {name}: a variant may not set"):
        Implementation("acme").variant("fast", environment={name: "x"})


@needs_isolation
def test_a_file_beside_a_kernel_is_imported_only_once_the_process_is_isolated(tmp_path: Path):
    """A msgspec.py in the folder of `python -m conformance` could write to the suite."""
    (tmp_path / "acme.py").write_text(source("acme"))
    (tmp_path / "msgspec.py").write_text("import os; os.write(2, b'imported'); os._exit(1)")
    assert "imported" not in ended(tmp_path, "run", "acme.py", *ONE)


def test_a_package_that_is_built_anew_during_a_run_is_another_source():
    run = Run.__new__(Run)
    run._sources = {}
    first, second = (as_read(sample(covers={"packages": {"helper-1.0": digest}})) for digest in ("1" * 64, "2" * 64))
    assert [run._of_one_source(record).status for record in (first, first, second)] == ["pass", "pass", "error"]


def test_a_file_that_is_opened_beside_a_descriptor_is_the_one_in_the_record(project: Project):
    """`os.open` with `dir_fd` is reported by the name in that folder: another file's digest was in the record."""
    project.write("impls/data.txt", "0")
    project.write("impls/sub/data.txt", "1")
    head = """
import os
from pathlib import Path
os.chdir(Path(__file__).parent)
folder = os.open("sub", os.O_RDONLY)
os.close(os.open("data.txt", os.O_RDONLY, dir_fd=folder))
"""
    (record,) = project.run(f"--impl={project.kernel(head=head)}", "--distribution=integer", "--dtype=fp32").records
    assert [name for name in record["covers"]["loaded"] if name.endswith(".txt")] == ["sub/data.txt"]


def test_the_digest_of_a_folder_is_of_its_links_and_of_texts_in_pycache(tmp_path: Path):
    folder, beside = tmp_path / "acme", tmp_path / "beside"
    for name in ("__pycache__", "one", "two"):
        (folder / name).mkdir(parents=True)
    beside.mkdir()
    (folder / "__init__.py").write_text("")
    (folder / "current").symlink_to("one")
    (folder / "outside").symlink_to(beside)
    (folder / "other").symlink_to("two")
    changes: list[Callable[[], object]] = [
        lambda: (folder / "__pycache__/w.txt").write_text("1"),
        lambda: (beside / "w.txt").write_text("1"),
        lambda: (folder / "other").replace(folder / "current"),
        lambda: (folder / "value").symlink_to("0.5"),
    ]
    digests = [source_hash(folder)]
    for change in changes:
        change()
        digests.append(source_hash(folder))
    assert len({*digests}) == len(digests)
    (folder / "__pycache__/w.cpython-311.pyc").write_text("made of a source")
    assert source_hash(folder) == digests[-1]


def test_output_that_goes_to_the_folder_of_a_kernel_is_none_of_its_sources(tmp_path: Path):
    (tmp_path / "acme").mkdir()
    (tmp_path / "acme/__init__.py").write_text(source("acme"))
    assert "1 of 1 pass" in ended(tmp_path / "acme", "run", ".", *ONE, out=tmp_path / "acme/log")


def test_what_a_run_left_in_the_folder_of_a_kernel_is_none_of_its_sources(tmp_path: Path):
    (tmp_path / "acme").mkdir()
    (tmp_path / "acme/__init__.py").write_text(source("acme"))
    words = ("run", "acme", *ONE, "--records=acme/records.jsonl")
    (tmp_path / "acme/first.log").write_text(ended(tmp_path, *words))
    assert "resumed: 3 records" in ended(tmp_path, *words, "--resume")
    (tmp_path / "acme/weights.txt").write_text("1")
    with pytest.raises(AssertionError, match="acme was changed since"):
        ended(tmp_path, *words, "--resume")


def test_a_child_can_be_waited_for_where_a_supervisor_ignores_children(tmp_path: Path):
    (tmp_path / "acme.py").write_text(source("acme"))
    words = ("check", "acme.py", "n1 c2 h3 w3 k2 r1 s1", "--check=forked_child_computes")
    assert ended(tmp_path, *words, before=lambda: signal.signal(signal.SIGCHLD, signal.SIG_IGN)).startswith("pass")


def test_time_in_which_everything_stands_still_does_not_count(tmp_path: Path):
    """A container that was paused made a right kernel one that hangs."""
    (tmp_path / "acme.py").write_text(source("acme", "open('called', 'w'); import time; time.sleep(1); return y"))
    words = ("check", "acme.py", "n1 c2 h3 w3 k2 r1 s1", "--timeout=3")
    judge = subprocess.Popen(
        [sys.executable, "-m", "conformance", *words], cwd=tmp_path, stdout=subprocess.PIPE, text=True,
        env=os.environ | {"PYTHONPATH": str(ROOT)},
    )  # fmt: skip
    while not (tmp_path / "called").exists() and judge.poll() is None:
        time.sleep(0.02)
    every = [psutil.Process(judge.pid), *psutil.Process(judge.pid).children(recursive=True)]
    for process in every:
        process.suspend()
    time.sleep(5)
    for process in every:
        process.resume()
    text, _ = judge.communicate(timeout=60)
    assert text.startswith("pass"), text


def test_the_version_in_a_record_is_no_kernel_s(project: Project):
    file = project.kernel(head="import numpy\nnumpy.__version__ = '99'")
    (record,) = project.run(f"--impl={file}", "--distribution=integer", "--dtype=fp32").records
    assert record["versions"]["numpy"] != "99"


def test_a_row_of_a_table_is_no_behaviour_check(tmp_path: Path):
    """It ended in a KeyError, which a right kernel was blamed for."""
    table = tmp_path / "table.txt"
    table.write_text("'n1 c2 h3 w4 k2 r1 s1' --operator conv_forward --check calls_in_a_row_are_right\n")
    with pytest.raises(CaseError, match="line 1: must be cases that are verified"):
        [*read(table)]


@pytest.mark.parametrize(
    "line", ["x ##vso[task.setvariable]y", "##teamcity[buildStatus]", "a ##[add-mask]b", " ::error::c"]
)
def test_no_runner_finds_a_command_in_a_line(line: str):
    assert not any(sign in uncommanded(line) for sign in ("##vso[", "##teamcity[", "##[", "::error"))


def test_an_export_replaces_nothing_but_an_earlier_export(tmp_path: Path):
    acme = Implementation("acme", arrays=numpy_arrays())
    acme.implements("conv_forward")(kernels.conv_forward)
    result = check(acme, "n1 c2 h3 w3 k2 r1 s1")
    (tmp_path / "replay.py").write_text("a kernel")
    with pytest.raises(SelectionError, match=r"replay.py: exists, and is of no earlier export"):
        export(result, tmp_path)
    assert (tmp_path / "replay.py").read_text() == "a kernel"
    for _ in range(2):
        export(result, tmp_path / "new")


def test_probes_are_for_problems_with_channels():
    recipe = Recipe(OPERATORS["conv_forward"].on(parse("n1 c0 h3 w3 k2 r1 s1")), "fp32", "integer", 0)
    assert expect(recipe, "probes").method == "exact"


def test_a_folder_without_kernels_is_no_green_run(project: Project, capsys: pytest.CaptureFixture[str]):
    project.write("suite/test_own.py", "def test_of_my_own(): pass")
    project.write("suite/test_conformance.py", "from conformance.suites.test_operators import test_conv_forward")
    outcome = project.pytest()
    assert (outcome.exit, "NOTHING WAS VERIFIED" in outcome.text) == (5, True)


def test_what_a_run_did_again_is_no_second_verdict(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    """`verify` said so of an honest file, and claims had cases that had failed."""
    again = sample(origin="where")
    records = [one for one in map(as_read, (failed(), again)) if isinstance(one, Attempt)]
    assert section(records, {}).cases == {}
    said = [*defects([], [(f"line {number}", record) for number, record in enumerate(records)])]
    assert not [line for line in said if "has a verdict already" in line]


def test_what_an_earlier_run_did_again_is_no_verdict_on_a_later_kernel(tmp_path: Path):
    """A badge of a file and of a later one, in which all passes, counted it for good."""
    earlier = [failed(), failed(origin="where", problem="drawn")]
    files = [written(tmp_path / f"{name}.jsonl", records) for name, records in (("a", earlier), ("b", [sample()]))]
    assert [verdict.record.status for verdict in load(files).verdicts] == ["pass"]


@pytest.mark.parametrize(
    "words", [("run", "acme.py", *ONE, "--junitxml=acme.py"), ("report", "r.jsonl", "--badge=acme.py")]
)
def test_an_output_replaces_no_file_of_another_kind(tmp_path: Path, capsys: pytest.CaptureFixture[str], words: Any):
    """A badge, or the XML of JUnit, was written over the kernel that it was about."""
    (tmp_path / "acme.py").write_text(source("acme"))
    written(tmp_path / "r.jsonl", [sample()])
    with contextlib.chdir(tmp_path):
        assert main([*words]) == 4
    assert "It exists, and is no" in "".join(capsys.readouterr())
    assert (tmp_path / "acme.py").read_text() == source("acme")
    (tmp_path / "b.svg").write_text("<svg>")
    assert main(["report", str(tmp_path / "r.jsonl"), f"--badge={tmp_path / 'b.svg'}"]) == 0


def test_a_list_of_failures_that_nests_too_deep_is_none(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """A kernel of another folder had written it, and every later run here ended in a RecursionError."""
    monkeypatch.setattr(platformdirs, "user_cache_path", lambda *_, **__: tmp_path)
    file = LastRun()._file
    file.parent.mkdir(parents=True)
    file.write_text("[" * 200_000)
    assert LastRun().failed == frozenset()


def test_a_newline_in_the_name_of_a_file_is_refused():
    registry, path = Registry(), Path("z\nother conv_forward fp32: 120 of 120 pass.py")
    assert [*registry.nameable([path, Path("a.py")])] == [Path("a.py")]
    assert "rename it" in str(registry.broken["z\\nother conv_forward fp32: 120 of 120 pass.py"])


@pytest.mark.parametrize("name", ['quoted".py', "back\\slash.py", 'os").getcwd; kernel = print #.py'])
def test_the_name_of_a_file_is_no_code_in_its_replay(tmp_path: Path, name: str):
    (tmp_path / name).write_text(source("acme", "return y * 2"))
    export(check(tmp_path / name, "n1 c2 h3 w3 k2 r1 s1", operator="conv_forward"), tmp_path / "out")
    compile((tmp_path / "out/replay.py").read_text(), "replay.py", "exec")
    done = subprocess.run([sys.executable, "out/replay.py"], cwd=tmp_path, text=True, capture_output=True, check=False)
    assert done.returncode == 1, done.stdout + done.stderr
    assert ": 0 of " not in done.stdout


REFUSING = """
import os
import numpy as np
from conformance import Implementation, Unsupported
from tests import kernels

acme = Implementation("acme")
try:
    os.open({once!r}, os.O_CREAT | os.O_EXCL)
    first = True
except FileExistsError:
    first = False


@acme.implements("conv_forward")
def conv_forward(x, w, bias, **parameters):
    if not (first and np.isfinite(x).all()):
        raise Unsupported("no")
    return kernels.conv_forward(x, w, bias, **parameters)
"""


def test_a_kernel_that_refuses_in_every_process_but_the_first_is_found(tmp_path: Path):
    """It was wrong on NaN, refused these values, and in the process that is asked again refused all."""
    (tmp_path / "acme.py").write_text(REFUSING.format(once=str(tmp_path / "once")))
    words = ("run", "acme.py", "--level=smoke", "--dtype=fp32", "--distribution=integer", "--distribution=nonfinite")
    with pytest.raises(AssertionError, match="in a new process even the first one that it had computed"):
        ended(tmp_path, *words)


@pytest.mark.parametrize("lost", ['dtypes=("fp64",)', "when=lambda p: not p.bias"])
def test_support_that_is_lost_fails_at_smoke_too(tmp_path: Path, lost: str):
    """Other cases of the ranking took the place of those that were claimed."""
    (tmp_path / "acme.py").write_text(source("acme"))
    words = ("run", "acme.py", "--level=smoke", "--distribution=integer")
    ended(tmp_path, *words, "--records=r.jsonl")
    ended(tmp_path, "claims", "write", "acme.py", "r.jsonl")
    ended(tmp_path, *words)
    text = source("acme")
    (tmp_path / "acme.py").write_text(text.replace('("conv_forward"', f'("conv_forward", {lost}', 1))
    with pytest.raises(AssertionError, match=r"claimed in acme\.claims\.json, but"):
        ended(tmp_path, *words)


def test_a_folder_is_reproduced_as_a_path(tmp_path: Path):
    (tmp_path / "acme").mkdir()
    (tmp_path / "acme/__init__.py").write_text(source("acme", "return y * 2"))
    with pytest.raises(AssertionError, match=r"reproduce: conformance check \./acme "):
        ended(tmp_path, "run", "acme", *ONE)


def test_a_kernel_beside_a_file_named_as_a_framework_of_tests_is_not_accused(tmp_path: Path):
    (tmp_path / "pytest.py").write_text("")
    (tmp_path / "acme.py").write_text(source("acme"))
    assert ended(tmp_path, "check", "acme.py", "n1 c2 h3 w3 k2 r1 s1").startswith("pass")
