"""The file of records of a run: how it begins and ends, what is never lost, and how a run is resumed."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import psutil
import pytest

from conformance.inputs.manifest import digest
from conformance.results.reading import UnfinishedError, read
from conformance.results.writing import Records, RecordsError
from tests.conftest import CONFTEST, TINY, Project, no_traceback_of_ours
from tests.kill_and_resume import Run
from tests.kit import largest_file, source, timeless
from tests.report_samples import sealed
from tests.test_results import every_kind, header

pytest_plugins = ["pytester"]

PARALLEL = ("-p", "xdist", "-n", "2")
WORKERS = pytest.mark.parametrize("workers", [(), PARALLEL], ids=["serial", "parallel"])
TWO = (f"--problem={TINY}", "--problem=n1 c1 h3 w3 k1 r1 s1")


@WORKERS
def test_a_run_begins_with_a_header_and_ends_with_a_footer(project: Project, workers: tuple[str, ...]):
    project.kernel()
    project.kernel("wrong", body="return y + 1")
    project.pytest(*workers, "--seed=3", "--level=smoke", subprocess=bool(workers))
    first, *verdicts, last = project.lines()
    assert (first["kind"], first["level"], first["seed"], first["golden"]) == ("header", "smoke", 3, digest())
    assert first["selection"]["--problem"] == [TINY]
    assert first["versions"].keys() <= verdicts[0]["versions"].keys()
    assert "--seed=3" in first["command"]
    assert (last["kind"], last["cases"], last["exit_status"]) == ("footer", {"pass": 1, "fail": 1}, 1)
    assert last["interrupted"] is False


def test_a_file_of_records_is_written_over_only_when_asked(project: Project):
    project.kernel()
    first = project.run("--in-process")
    content = (project.folder / "records.jsonl").read_bytes()
    refused = project.run("--in-process", keep=True)
    assert (refused.exit, (project.folder / "records.jsonl").read_bytes()) == (4, content)
    assert "--records records.jsonl: holds records already; give --resume to run only what" in refused.text
    assert no_traceback_of_ours(refused.text)
    assert len(project.run("--overwrite", "--in-process").records) == len(first.records)


@pytest.mark.parametrize("hook", ["runtest_teardown", "runtest_logfinish"])
def test_a_run_that_is_interrupted_twice_is_not_whole(project: Project, hook: str):
    """The second Ctrl-C comes before pytest has noted the first: the footer was that of a run with nothing to do."""
    project.write(
        "conftest.py", f"{CONFTEST}\ndef pytest_{hook}(): raise KeyboardInterrupt\n"
        "def pytest_keyboard_interrupt(): raise KeyboardInterrupt\n",
    )  # fmt: skip
    project.kernel()
    project.pytest(subprocess=True)
    *_, last = project.lines()
    assert (last["kind"], last["exit_status"], last["interrupted"]) == ("footer", 2, True)


def test_a_run_without_a_verdict_touches_nothing(project: Project):
    project.kernel()
    project.run("--in-process")
    file = project.folder / "records.jsonl"
    before = file.read_bytes(), file.stat().st_mtime_ns
    assert project.pytest("--in-process", "--collect-only", keep=True).exit == 0
    for arguments in (("--collect-only",), ("--help",), ("-k", "zzz")):
        for option in ("--overwrite", "--resume"):
            project.pytest(*arguments, option, "--in-process")
            assert (file.read_bytes(), file.stat().st_mtime_ns) == before, (arguments, option)
        project.pytest(*arguments, "--records=new/records.jsonl", "--in-process")
        project.pytest(*arguments, "--report=new", "--in-process")
        assert not (project.folder / "new").exists(), arguments


@pytest.mark.parametrize("option", ["--resume", "--overwrite"])
def test_two_runs_on_one_file(project: Project, option: str):
    project.kernel()
    project.run("--in-process")
    file = project.folder / "records.jsonl"
    other = Records(file, header(), overwrite=True)
    before = file.read_bytes()
    outcome = project.run(option, "--in-process")
    assert (outcome.exit, file.read_bytes()) == (4, before)
    assert (
        "--records records.jsonl: another run is writing to it; wait for its end, or give another file" in outcome.text
    )
    other.close()
    assert project.run(option, "--in-process").exit == 0


def test_two_runs_that_make_one_file(tmp_path: Path):
    first, second = (Records(tmp_path / "records.jsonl", header()) for _ in range(2))
    first.write(every_kind()[0])
    with pytest.raises(RecordsError, match="another run is writing to it"):
        second.write(every_kind()[0])


@pytest.fixture
def mixed(project: Project) -> Project:
    """Every kind of record and of status, some of them twice."""
    project.kernel()
    project.kernel("wrong", body="return y + 1")
    project.kernel("bf16", declares=", dtypes=('bf16',)")
    project.kernel("lacks", head="import not_installed")
    project.write("impls/broken.py", "1 / 0")
    marks = "@pytest.mark.{}\ndef test_{}({}):\n    {}\n"
    again = marks.format('verifies("conv_forward")', "again", "verify, case", "verify(case)")
    behaves = marks.format('behaves("results_are_plain")', "behaves", "check, name, case", "check(name, case)")
    text = (project.folder / "suite" / "test_suite.py").read_text()
    project.write("suite/test_suite.py", f"{text}\n{again}\n{behaves}")
    return project


def test_a_resumed_run_runs_what_has_no_verdict(mixed: Project):
    """From several lengths of the file of one whole run."""
    asked = (*TWO, "--distribution=integer", "--distribution=behaviour", "--in-process")
    complete = mixed.pytest(*asked)
    expected, lines = timeless(mixed.records()), (mixed.folder / "records.jsonl").read_bytes().splitlines(True)
    assert len(lines) > 20
    counted = {line for line in complete.text.splitlines() if re.search(r"\d of \d+ (pass|fail)", line)}
    assert counted
    for workers, whole in (((), 0), ((), 15), (PARALLEL, 7)):
        kept = lines[0] + b"".join(lines[5 : 5 + whole])
        (mixed.folder / "records.jsonl").write_bytes(kept + lines[-2][:100])
        outcome = mixed.pytest(*workers, *asked, "--resume", subprocess=bool(workers))
        content = (mixed.folder / "records.jsonl").read_bytes()
        assert (outcome.exit, timeless(mixed.records()), content.startswith(kept)) == (1, expected, True)
        assert [line["cases"] for line in mixed.lines() if line["kind"] == "footer"] == [dict(complete.statuses)]
        assert f"resumed: {whole} records of records.jsonl" in outcome.text or not whole
        assert counted <= {*outcome.text.splitlines()}
        assert mixed.pytest(*asked, "--resume").exit == 1
        assert (mixed.folder / "records.jsonl").read_bytes() == content, "nothing was left to do"


def test_a_run_that_had_only_its_footer_left(project: Project):
    project.kernel()
    project.run("--in-process")
    file = project.folder / "records.jsonl"
    file.write_bytes(b"".join(file.read_bytes().splitlines(True)[:-1]))
    outcome = project.run("--resume", "--in-process")
    assert (outcome.exit, outcome.statuses, project.lines()[-1]["kind"]) == (0, {"pass": 1}, "footer")
    assert project.run("--records=new.jsonl", "--resume", "--in-process").exit == 0, (
        "where there is nothing to resume, a run begins"
    )


def test_a_run_that_stopped_at_its_first_failure(project: Project):
    for name in ("acme", "later"):
        project.kernel(name, body="return y + 1")
    assert (project.run("-x", "--in-process").statuses, project.lines()[-1]["interrupted"]) == ({"fail": 1}, True)
    outcome = project.run("--resume", "--in-process")
    assert (outcome.exit, outcome.statuses, project.lines()[-1]["interrupted"]) == (1, {"fail": 2}, False)


def untouched(project: Project) -> None: ...


def spoilt(change: Callable[[list[dict[str, Any]]], object]) -> Callable[[Project], None]:
    """Return a function that changes the lines of a file of records, whose digest fits them nevertheless."""

    def spoil(project: Project) -> None:
        change(lines := project.lines())
        (project.folder / "records.jsonl").write_bytes(sealed(lines))

    return spoil


REFUSALS: dict[str, tuple[Callable[[Project], object], tuple[str, ...], str]] = {
    "seed": (untouched, ("--seed=1",), "its run had --seed 0, this one has 1; make them the same, or begin again"),
    "level": (untouched, ("--level=smoke",), "its run had --level standard, this one has smoke"),
    "selection": (untouched, ("--dtype=bf16",), "its run had --dtype fp32, this one has bf16"),
    "more": (untouched, ("-k", "acme"), "its run had -k none, this one has acme"),
    "another kernel": (
        lambda project: project.kernel(tail="# other"),
        (),
        "acme was changed since; begin again with --overwrite",
    ),
    "no kernel": (lambda project: project.write("impls/acme.py", source("other")), (), "acme is not here; begin again"),
    "no header": (spoilt(lambda lines: lines.pop(0)), (), "it, lines 1 to 2: belong to no run"),
    "other goldens": (spoilt(lambda lines: lines[0].update(golden="0" * 64)), (), "its run had goldens 000000"),
    "other versions": (spoilt(lambda lines: lines[0]["versions"].update(numpy="9")), (), "its run had numpy 9"),
    "a broken line": (
        spoilt(lambda lines: lines.insert(1, {"kind": "case"})),
        (),
        "it, line 2 object missing required field",
    ),
    "two runs": (spoilt(lambda lines: lines.extend([*lines])), (), "it holds the records of several runs"),
}
"""What becomes of a project after a run, the words of the next one, and why that does not resume it."""


@pytest.mark.parametrize(("change", "words", "reason"), REFUSALS.values(), ids=REFUSALS)
def test_what_cannot_be_resumed(
    project: Project, change: Callable[[Project], object], words: tuple[str, ...], reason: str
):
    project.kernel()
    project.run("--in-process")
    change(project)
    before = (project.folder / "records.jsonl").read_bytes()
    outcome = project.run("--resume", "--in-process", *words)
    assert (outcome.exit, (project.folder / "records.jsonl").read_bytes()) == (4, before)
    assert f"--records records.jsonl: cannot be resumed: {reason}" in outcome.text
    assert no_traceback_of_ours(outcome.text)


def test_a_run_with_other_values_of_variables_is_not_resumed(project: Project, monkeypatch: pytest.MonkeyPatch):
    """A variable that --pass-env brings is a part of what ran."""
    project.kernel()
    for value, status in (("0", 0), ("0", 0), ("1", 4)):
        monkeypatch.setenv("ACME_BIAS", value)
        resumed = project.run("--resume", "--pass-env=ACME_*")
        assert resumed.exit == status
    assert "cannot be resumed: its run had --pass-env values of digest" in resumed.text


def test_times_are_not_resumed(project: Project):
    project.kernel()
    project.pytest("--in-process")
    timed = '@pytest.mark.benchmarks("conv_forward", problems=())\ndef test_timed(measure_time, case): pass'
    project.write("suite/test_timed.py", f"import pytest\n{timed}")
    assert (
        "times are not in records; time again with --overwrite"
        in project.pytest("--resume", "-p", "benchmark", "--in-process").text
    )


INTRUDERS = {
    "renamed": ("file.exists() and file.rename('moved.jsonl')", "was moved, replaced or deleted during the run"),
    "deleted": ("file.unlink(missing_ok=True)", "was moved, replaced or deleted"),
    "cut": ("file.exists() and file.write_text('')", "was changed during the run by somebody else"),
    "folder deleted": ("shutil.rmtree(file.parent, ignore_errors=True)", "was moved, replaced or deleted"),
    "verdict changed in its place": ("edited(file)", "was changed during the run by somebody else"),
}
"""Part of a kernel, and how its run ends."""
INTRUDES = """
import os, pathlib, shutil
file = pathlib.Path("new/records.jsonl")

def edited(file):
    if file.exists():
        before = file.stat()
        with file.open("r+") as records:
            text = records.read()
            records.seek(0)
            records.write(text.replace('"status":"pass"', '"status":"fail"'))
        os.utime(file, ns=(before.st_atime_ns, before.st_mtime_ns))
"""


@pytest.mark.parametrize(("body", "message"), INTRUDERS.values(), ids=INTRUDERS)
def test_a_run_ends_with_the_file_that_it_began_with(project: Project, body: str, message: str):
    project.kernel(head=INTRUDES, body=f"{body}; return y")
    outcome = project.run("--records=new/records.jsonl", *TWO)
    assert outcome.exit == 4
    assert f"--records new/records.jsonl: {message}" in outcome.text
    assert no_traceback_of_ours(outcome.text)


STARTED = "import os, pathlib; pathlib.Path('started').write_text(str(os.getpid())); return y"


def test_no_process_of_a_kernel_is_left_when_the_footer_is_written(project: Project, monkeypatch: pytest.MonkeyPatch):
    """A process of a kernel waited for the footer, and wrote records of its own with a digest that fitted."""
    end, left = Records.end, []

    def look(self: Records, *given: Any) -> None:
        number = int((project.folder / "started").read_text())
        left.append(psutil.pid_exists(number) and psutil.Process(number).status() != psutil.STATUS_ZOMBIE)
        end(self, *given)

    monkeypatch.setattr(Records, "end", look)
    project.kernel(body=STARTED)
    assert (project.run().exit, left) == (0, [False])


THREE = tuple(f"--distribution={name}" for name in ("integer", "fixed", "impulse"))


@pytest.mark.parametrize(("workers", "size"), [((), 100), ((), 1000), (PARALLEL, 2000)])
def test_a_disk_that_becomes_full_leaves_whole_lines(
    project: Project, monkeypatch: pytest.MonkeyPatch, workers: tuple[str, ...], size: int
):
    # Python leaves the compiled files that it writes as short as they come out, and is the worse for it afterwards
    monkeypatch.setenv("PYTHONDONTWRITEBYTECODE", "1")
    monkeypatch.setattr(sys, "dont_write_bytecode", True)
    project.kernel()
    with largest_file(size):
        full = project.pytest(*workers, *THREE, subprocess=True) if workers else project.run(*THREE)
    again = project.pytest if workers else project.run
    assert full.exit == 4
    assert "--records records.jsonl: cannot be written (File too large)" in full.text
    assert no_traceback_of_ours(full.text)
    content = (project.folder / "records.jsonl").read_bytes()
    assert content.count(b"\n") == len(project.lines()) >= (size >= 1000)
    assert content.endswith(b"\n") or not content
    assert (again(*THREE, "--resume").exit, project.lines()[-1]["kind"]) == (0, "footer")


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="no device that is always full")
@pytest.mark.parametrize(("body", "status"), [("return y", 0), ("return y + 1", 1)])
def test_a_terminal_that_cannot_be_written_to(project: Project, body: str, status: int):
    project.kernel(body=body)
    words = [
        sys.executable,
        "-m",
        "conformance",
        "run",
        "impls/acme.py",
        "--records=records.jsonl",
        f"--problem={TINY}",
    ]
    with Path("/dev/full").open("w") as full:
        buffered = {name: value for name, value in os.environ.items() if name != "PYTHONUNBUFFERED"}
        told: Any = {"cwd": project.folder, "stdout": full, "stderr": subprocess.PIPE, "text": True, "env": buffered}
        ended = subprocess.run(words, check=False, **told)
    assert (ended.returncode, ended.stderr) == (status, "")
    assert project.lines()[-1]["exit_status"] == status


BEGUN = "import os; open(f'begun-{os.getpid()}', 'w');"
SLEEPS = f"{BEGUN} import time; time.sleep(60); return y"
HANGS = f"{BEGUN} import ctypes; ctypes.PyDLL(None).sleep(60); return y"
"""In C, with Python's lock held: nothing else runs in that process."""


def begun(project: Project, body: str, *arguments: str) -> subprocess.Popen[str]:
    """A run whose second kernel is running."""
    project.kernel()
    project.kernel("slow", body=body)
    words = [sys.executable, "-m", "pytest", *arguments, "--records=records.jsonl", f"--problem={TINY}"]
    words += ["--dtype=fp32", "--layout=nchw", "--distribution=integer"]
    process = subprocess.Popen(
        words, cwd=project.folder, text=True, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, start_new_session=True
    )
    while not (list(project.folder.glob("begun-*")) and project.records()) and process.poll() is None:
        time.sleep(0.05)
    return process


@pytest.mark.parametrize(("workers", "name"), [((), "SIGINT"), ((), "SIGHUP"), (PARALLEL, "SIGTERM")])
def test_a_signal_ends_a_run_as_ctrl_c_does(project: Project, workers: tuple[str, ...], name: str):
    if signal.getsignal(getattr(signal, name)) is signal.SIG_IGN:
        pytest.skip(f"{name} is ignored here, as behind nohup")
    process = begun(project, SLEEPS, *workers)
    process.send_signal(getattr(signal, name))
    output, _ = process.communicate(timeout=60)
    assert (process.returncode, [r["implementation"] for r in project.records()]) == (2, ["acme"])
    footer = project.lines()[-1]
    assert (footer["kind"], footer["exit_status"], footer["interrupted"]) == ("footer", 2, True)
    with pytest.raises(UnfinishedError):  # and not changed
        read(project.folder / "records.jsonl")[0].require_whole()
    assert "Traceback" not in output
    assert not left(process.pid)


AGAIN = """
import os, signal
import xdist.workermanage

xdist.workermanage.NodeManager.EXIT_TIMEOUT = 600

def pytest_terminal_summary():
    os.kill(os.getpid(), signal.SIGTERM)
"""
"""Of a project: a signal that comes before the summary is written, and a run that waits for busy workers."""


@pytest.mark.parametrize("workers", [(), PARALLEL], ids=["alone", "workers"])
def test_a_run_that_is_terminated_twice_has_its_summary(project: Project, workers: tuple[str, ...]):
    """`timeout` sends SIGTERM to a process and then to its group, and whoever sends it kills soon after: of 22 failures
    nothing was said."""
    project.write("conftest.py", CONFTEST + AGAIN)
    process = begun(project, SLEEPS, *workers)
    os.killpg(process.pid, signal.SIGTERM)
    output, _ = process.communicate(timeout=60)
    assert (process.returncode, [r["implementation"] for r in project.records()]) == (2, ["acme"])
    assert project.lines()[-1]["interrupted"]
    assert "INCOMPLETE: 1 of 2 tests have a verdict\nacme conv_forward fp32: 1 of 1 pass\n" in output
    assert not left(process.pid)


def test_a_run_that_has_ended_when_it_is_terminated_ends_as_it_would(project: Project):
    project.write("conftest.py", CONFTEST + AGAIN)
    project.kernel(body="return y + 1")
    outcome = project.pytest(subprocess=True)
    assert outcome.exit == 1
    assert "acme conv_forward fp32: 1 of 1 fail" in outcome.text


def left(group: int) -> bool:
    """Return whether a process of the group is left when all have had time to end."""
    for _ in range(100):
        try:
            os.killpg(group, 0)
        except ProcessLookupError:
            return False
        time.sleep(0.05)
    return True


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux ends children with their parent")
def test_workers_end_with_a_run_that_is_killed(project: Project):
    process = begun(project, HANGS, *PARALLEL)
    process.kill()
    process.communicate(timeout=60)
    assert not left(process.pid)


@pytest.mark.skipif(not Path("/proc/self/environ").exists(), reason="no way to find processes")
def test_a_run_that_is_killed_and_resumed_has_the_records_of_a_whole_one(tmp_path: Path):
    """With workers: without them one is resumed from every length above."""
    run = Run(tmp_path, ("-n", "2"))
    expected, seconds = run.whole(tmp_path / "whole.jsonl")
    assert run.killed(tmp_path / "records.jsonl", seconds / 2)[1] == []
    assert run.whole(tmp_path / "records.jsonl", "--resume")[0] == expected


def test_a_crash_names_the_case(project: Project):
    project.kernel()
    project.kernel("deadly", body="import os; os.abort()")
    parallel = (*PARALLEL, "--in-process")  # where a kernel can still end it
    outcome = project.pytest(*parallel, subprocess=True)
    crash, right = outcome.of("deadly"), outcome.of("acme")
    own = ("implementation", "status", "reason", "source", "checks", "seconds", "contract", "command", "profile")
    assert {name: crash.get(name) for name in right if name not in own} == {
        name: right.get(name) for name in right if name not in own
    }
    assert (crash["status"], "crashed while running" in crash["reason"]) == ("error", True)
    assert "deadly" in crash["command"]
    resumed = project.pytest("--in-process", "--resume", subprocess=True)  # one process: it has nothing to run
    assert resumed.records == outcome.records


def test_the_records_beside_a_report_are_replaced_where_they_are_whole(project: Project):
    project.kernel()
    records = project.folder / "out" / "records.jsonl"

    def reported(*arguments: str) -> int:
        return int(project.pytester.runpytest_inprocess("--report=out", f"--problem={TINY}", *arguments).ret)

    assert (reported(), reported("--seed=1")) == (0, 0)
    first, *verdicts, _ = records.read_bytes().splitlines(True)
    assert b'"seed":1' in first
    records.write_bytes(first + verdicts[0])
    assert (reported("--seed=1"), records.read_bytes()) == (4, first + verdicts[0])
    assert (reported("--seed=1", "--resume"), reported()) == (0, 0)
