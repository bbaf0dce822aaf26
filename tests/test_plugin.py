"""The plugin: every status, exit codes, markers, records, and what a failure says."""

from __future__ import annotations

import json
import shlex
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from _pytest._code.code import ExceptionInfoFormatter
from syrupy.assertion import SnapshotAssertion

from conformance.__main__ import main
from conformance.engine import options
from conformance.implementations.devices import DEVICES, missing, processor
from conformance.results.reading import decode
from tests.conftest import CONFTEST, ROOT, SUITE, TINY, Project
from tests.kit import command, lasting, timeless

pytest_plugins = ["pytester"]

ABSENT = next((device for device in reversed(DEVICES) if missing(device)), "")
WAIVER = 'acme.waive("conv_forward", reason="sums in fp16", url="https://example.org/1")'
ONLY_GRADIENT = '@acme.implements("conv_backward_data")\ndef f(dy, w): pass\nacme.kernels = acme.kernels[1:]'
KEPT = "--workers=20"
"""Every file keeps its process, instead of being loaded again for its cases."""
TWO = (f"--problem={TINY}", "--problem=n1 c1 h3 w3 k1 r1 s1")

KERNELS: dict[str, dict[str, str]] = {
    "pass": {},
    "fail": {"body": "return y + 1"},
    "element": {"body": "y[0, 1, 2, 3] += 64; return y"},
    "error": {"body": "raise ValueError('out of tiles')"},
    "exits": {"body": "raise SystemExit(0)"},
    "skips": {"body": "__import__('pytest').skip('not today')"},
    "dtype": {"declares": ", dtypes=('bf16',)"},
    "layout": {"declares": ", layouts=('nhwc',)"},
    "when": {"declares": ", when=lambda p: p.groups > 1"},
    "raises": {"body": "raise Unsupported('needs c % 4 == 0')"},
    "operator": {"tail": ONLY_GRADIENT},
    "waived": {"body": "return y + 1", "tail": WAIVER},
    "waived-error": {"body": "1 / 0", "tail": WAIVER},
    "outdated": {"tail": WAIVER},
    "import": {"head": "import not_installed"},
    "device": {"construct": f", device='{ABSENT}'"},
    "simulated": {"construct": ", device='simulator'"},
    "broken": {"head": "1 / 0"},
}
"""A name that says what a file does -> the file."""
RUNS = {
    **{name: (name,) for name in ("pass", "fail", "element", "error", "raises", "waived", "import")},
    "required device": ("simulated", "--require=simulator"),
    "no verdict of a required device": ("simulated", "--require=cpu"),
    "absent device": ("pass", "--require", ABSENT),
    "broken file of no marker": ("broken", "-m", "simulator"),
    "too many workers": ("pass", "-p", "xdist", "-n", "10000"),
    "workers that all do the same": ("pass", "-p", "xdist", "-n", "2", "--dist=each"),
}
"""A kernel, and the words of a run of it alone, by pytest if these need it."""


@pytest.mark.parametrize("words", RUNS.values(), ids=RUNS)
def test_a_run_ends_with_its_exit_code(project: Project, snapshot: SnapshotAssertion, words: tuple[str, ...]):
    name, *options = words
    project.kernel(**KERNELS[name])
    outcome = (project.pytest if "xdist" in options else project.run)(*options)
    assert f"exit status {outcome.exit}, {dict(outcome.statuses)}\n{lasting(outcome.text)}" == snapshot


def test_matrix_counts_all_of_them(project: Project, snapshot: SnapshotAssertion):
    for name, changes in KERNELS.items():
        project.kernel(name, **changes)
    outcome = project.pytest("--distribution=integer", "--distribution=impulse", KEPT)
    records = [decode(json.dumps(record)) for record in outcome.records]
    reasons = sorted({f"{record.implementation} {record.status}: {record.headline}" for record in records})
    assert all(record.headline in outcome.text for record in records if record.status in ("fail", "error", "waived"))
    assert outcome.statuses == {
        "pass": 4, "fail": 8, "error": 5, "unsupported": 9, "waived": 4, "unavailable": 4,
    }  # fmt: skip
    # without the rest of the heading, whose width is the terminal's
    matrix = outcome.text.partition(" conformance ")[2].partition("cases that pass")[0].lstrip("=\n")
    # as pytest counts tests, in an order of its own: what is not here is none
    counts = sorted(lasting(outcome.text.splitlines()[-1]).strip("= ").removesuffix(" in 0 s").split(", "))
    assert lasting("\n".join([*reasons, matrix, *counts])) == snapshot


def test_what_is_declared_not_to_be_done_is_no_test(project: Project):
    """Nor is it counted where tests are chosen by name. That workers count it once, a parallel run shows below."""
    project.kernel(declares=", when=lambda p: p.groups > 1")
    project.kernel("right")
    outcome = project.run("--in-process")
    assert outcome.statuses == {"unsupported": 1, "pass": 1}
    (absence,) = (record for record in outcome.records if record["status"] == "unsupported")
    assert "distribution" not in absence, "it is no behaviour check"
    assert project.run("-k", "right", "--in-process").statuses == {"pass": 1}


def test_workers_without_a_test_say_what_is_declared_not_to_be_done(project: Project):
    """They come to their ends: a hook that raised there left kernels' processes to the system, and nobody saw it."""
    project.kernel(declares=", when=lambda p: p.groups > 1")
    ended = "def pytest_unconfigure(config):\n    open(f'ended.{os.getpid()}', 'w').close()\n"
    project.write("conftest.py", f"import os\n{CONFTEST}\n{ended}")
    outcome = project.pytest("-p", "xdist", "-n", "2")
    assert (outcome.exit, outcome.statuses) == (5, {"unsupported": 1})
    assert "NOTHING WAS VERIFIED" in outcome.text
    assert len([*project.folder.glob("ended.*")]) == 3


@pytest.mark.parametrize(
    ("expression", "planned"),
    [
        ("cpu", {"acme"}),
        ("not cpu", {"simulated"}),
        ("cpu or simulator", {"acme", "simulated"}),
        ("verifies and not (cpu or cuda)", {"simulated"}),
        ("behaves or cpu", {"acme", "simulated"}),
        ("not (behaves and cpu)", {"acme", "simulated"}),
        ("cuda", set()),
        ("", {"acme", "simulated"}),
    ],
)
def test_cases_that_a_marker_deselects_are_not_planned(expression: str, planned: set[str]):
    """Four fifths of what `-m emulator` collected were other devices' cases. A marker of others decides nothing."""
    devices = {"acme": "cpu", "simulated": "simulator"}
    assert {name for name, device in devices.items() if device in options.devices_selected(expression)} == planned


def test_marker_selects_by_device(project: Project):
    project.kernel()
    project.kernel("simulated", construct=", device='simulator'")
    with (project.folder / "conftest.py").open("a") as conftest:
        conftest.write(
            "\n\ndef pytest_itemcollected(item):\n"
            "    print('planned', item.callspec.params['case'].implementation.name)\n",
        )
    outcome = project.pytest("-m", "cpu", "-s", "--in-process")
    assert [r["implementation"] for r in outcome.records] == ["acme"]
    assert "planned acme" in outcome.text
    assert "planned simulated" not in outcome.text


STOPS = {
    "interrupt": "raise KeyboardInterrupt",
    "kill": "import os, signal; os.kill(os.getpid(), signal.SIGKILL)",
}


@pytest.mark.parametrize("stop", STOPS.values(), ids=STOPS)
def test_records_are_on_disk_before_the_next_verdict(project: Project, stop: str):
    project.kernel()
    project.kernel("later", body=stop)
    outcome = project.pytest("--in-process", subprocess=True)
    assert outcome.exit not in (0, 5)
    assert [r["implementation"] for r in outcome.records] == ["acme"]


TRACE = "import os; open(f'{acme.name}-{y.size}-{os.getppid()}-seen', 'w'); return y"


def test_parallel_run_writes_the_same_records(project: Project, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("PYTEST_XDIST_AUTO_NUM_WORKERS", "2")
    for name in ("fail", "error", "import", "operator", "when"):
        project.kernel(name, **KERNELS[name])
    for name in ("pass", "right"):
        project.kernel(name, body=TRACE)
    project.kernel("deadly", body=STOPS["kill"])
    project.write("impls/broken.py", "1 / 0")
    selection = (*TWO, "--distribution=integer", "--distribution=fixed", "--level=smoke", KEPT)
    serial = project.pytest(*selection)
    for file in project.folder.glob("*-seen"):
        file.unlink()
    parallel = project.pytest("-p", "xdist", "-n", "auto", *selection, subprocess=True)
    assert (parallel.exit, parallel.statuses) == (1, serial.statuses)
    others = [[r for r in run.records if r["implementation"] != "deadly"] for run in (parallel, serial)]
    assert timeless(others[0]) == timeless(others[1])
    assert {record["run_level"] for record in serial.records} == {"smoke"}
    assert {record["versions"]["processor"] for record in serial.records} == {processor()}
    deadly = [record["reason"] for record in parallel.records if record["implementation"] == "deadly"]
    assert (len(deadly), "SIGKILL" in deadly[0]) == (4, True)
    assert all("SIGKILL" in reason or reason.startswith("not run") for reason in deadly)
    assert "INCOMPLETE" not in parallel.text
    judges = [*project.folder.glob("*-seen")]
    assert len(judges) == 2 * len(TWO), "a kernel's cases of one problem are verified by one worker"


def test_a_verdict_is_not_asked_for_until_it_passes(project: Project):
    """pytest-rerunfailures does what its marker says; of three attempts there were three verdicts."""
    project.write(
        "conftest.py", f"{CONFTEST}\ndef pytest_addoption(parser): parser.addoption('--reruns')\n"
        "def pytest_collection_finish(session):\n"
        "    open('seen', 'w').write(str([m.kwargs for i in session.items for m in i.iter_markers('flaky')]))\n",
    )  # fmt: skip
    project.kernel()
    project.pytest("--reruns=2", "--in-process")
    assert (project.folder / "seen").read_text() == "[{'reruns': 0}]"


def test_a_checkout_from_another_folder_is_its_suites(tmp_path: Path):
    words = ["--collect-only", "-q", f"--problem={TINY}", "--operator=conv_forward", "--impl=numpy-direct"]
    run = [sys.executable, "-m", "pytest", str(ROOT), *words]
    out = subprocess.run(run, cwd=tmp_path, text=True, capture_output=True, timeout=60, check=False).stdout
    files = {line.partition("::")[0] for line in out.splitlines() if "::" in line}
    assert "conformance/suites/test_operators.py" in files
    assert {str(Path(file).parent) for file in files} == {"conformance/suites"}


COMMANDS = {
    "named": ("impls", ()),
    "outside": ("../outside", ("--impl=../outside/acme.py",)),
    "both": ("elsewhere", ("--impl=elsewhere/acme.py", "--impl=right")),
}


@pytest.mark.parametrize(("folder", "arguments"), COMMANDS.values(), ids=COMMANDS)
def test_command_reproduces_one_case(
    project: Project, capsys: pytest.CaptureFixture[str], folder: str, arguments: tuple[str, ...]
):
    project.kernel("right")
    second = 'second = Implementation("second")\nsecond.implements("conv_forward")(kernels.conv_forward)'
    project.kernel(folder=folder, body="return y * 1.5", tail=second)
    outcome = project.pytest(*arguments, "--distribution=integer", "--distribution=fixed", "--seed=5")
    first = next(r for r in outcome.records if r["implementation"] == "acme")
    assert (first["seed"], first["command"] in outcome.text) == (5, True)
    program, *words = shlex.split(first["command"])
    capsys.readouterr()
    assert (program, main(words)) == ("conformance", 1)
    said = capsys.readouterr().out
    assert said.startswith(f"fail: conv_forward of acme on {first['descriptor']!r}, ")
    assert first["reason"].splitlines()[1] in said.splitlines()


GIVEN = {
    "a name and a file without its import": (("--impl=right", "--impl=lacking/lacks.py"), {"right", "lacks"}, 5),
    "a file that is found as well": (("--impl={folder}/impls/right.py", "--impl=acme"), {"right", "acme"}, 0),
    "a file twice and what it defines": (("--impl=impls/right.py",) * 2 + ("--impl=right",), {"right"}, 0),
    "a name without its import": (("--impl=absent",), {"absent"}, 5),
    "a file that is broken": (("--impl=acme", "--impl=broken/broken.py"), {"acme", "broken/broken.py"}, 1),
}


@pytest.mark.parametrize(("arguments", "due", "status"), GIVEN.values(), ids=GIVEN)
def test_given_implementations_are_all_accounted_for(
    project: Project, arguments: tuple[str, ...], due: set[str], status: int
):
    for name in ("acme", "right"):
        project.kernel(name)
    project.kernel("absent", head="import not_installed")
    project.kernel("lacks", folder="lacking", head="import not_installed")
    project.kernel("broken", folder="broken", head="1 / 0")
    project.write("impls/unasked.py", "1 / 0")
    outcome = project.pytest(*(argument.format(folder=project.folder) for argument in arguments))
    assert sorted(record["implementation"] for record in outcome.records) == sorted(due)
    assert outcome.exit == status


def test_fresh_seed_draws_other_data_for_the_same_verdicts(project: Project):
    project.kernel(body="open('seen', 'ab').write(x.tobytes()); return y")
    outcomes = [project.run(f"--seed={seed}") for seed in (0, 0, 7)]
    assert all(outcome.statuses == {"pass": 1} for outcome in outcomes)
    seen = (project.folder / "seen").read_bytes()
    first, second, other = (seen[start : start + 128] for start in range(0, len(seen), 128))
    assert first == second != other


@pytest.mark.parametrize(("given", "said"), [("--timeout=300", ["--timeout=300"]), ("--timeout=60", [])])
def test_what_was_given_longer_is_given_as_long_again(project: Project, given: str, said: list[str]):
    """A kernel that needs minutes for a wrong result was called a hang by the line that was to reproduce it."""
    project.write("suite/test_suite.py", BEHAVES)
    project.kernel(body="w *= 2; return y + 1")
    outcome = project.run(given, "--distribution=fixed", "--distribution=behaviour")
    failed = [record for record in outcome.records if record["status"] == "fail"]
    assert {record["kind"] for record in failed} == {"case", "check"}
    for record in failed:
        assert [word for word in shlex.split(record["command"]) if "timeout" in word] == said


BEHAVES = (
    SUITE
    + """
@pytest.mark.behaves("results_are_plain")
def test_behaviour(check, name, case):
    check(name, case)
"""
)


def test_only_what_a_kernel_called_is_written_down_of_a_traceback(project: Project, monkeypatch: pytest.MonkeyPatch):
    """Calls above the kernel took 24 of 32 seconds of 103 cases that raised."""
    written: list[str] = []
    entry = ExceptionInfoFormatter.repr_traceback_entry

    def counted(self: ExceptionInfoFormatter, one: Any, *given: Any) -> Any:
        written.append(Path(one.path).name)
        return entry(self, one, *given)

    monkeypatch.setattr(ExceptionInfoFormatter, "repr_traceback_entry", counted)
    project.kernel(body="raise ValueError('no')")
    assert project.pytest("--in-process").statuses == {"error": 1}
    assert set(written) == {"acme.py"}


@pytest.mark.parametrize("layout", ["nchw", "nhwc"])
def test_kernel_that_spoils_its_inputs_spoils_nobody_elses(project: Project, layout: str):
    spoil = "x[...] = 0; w[...] = 0; return y"
    project.kernel("acme", declares=f", layouts=('{layout}',)", body=spoil)
    project.kernel("right")
    outcome = project.run(
        "--problem=n1 c1 h4 w4 k1 r3 s3 p1", f"--layout={layout}", "--layout=nchw", "--distribution=fixed"
    )
    verdicts = {(r["implementation"], r["layout"]): r["status"] for r in outcome.records if "layout" in r}
    assert verdicts["right", "nchw"] == "pass"


def test_other_peoples_parameter_may_be_called_case(project: Project):
    project.write(
        "suite/test_other.py",
        "import pytest\n@pytest.mark.parametrize('case', [1, 2])\ndef test_other(case):\n    assert case",
    )
    project.kernel()
    assert "test_other[1]" in project.pytest("-v", "--in-process").text


@pytest.mark.parametrize("words", [(), ("-p", "xdist", "-n", "auto")], ids=["serial", "parallel"])
def test_a_run_of_so_many_minutes_stops_and_is_a_sample(project: Project, words: tuple[str, ...]):
    """It has verified the beginning of the list."""
    project.kernel(body="import time; time.sleep(0.05); return y")
    problems = [f"--problem=n1 c2 h4 w{w} k2 r3 s3 p1" for w in (4, 5, 6)]
    distributions = "--distribution=fixed", "--distribution=integer"
    outcome = project.pytest(*problems, *distributions, "--minutes=0.001", *words)
    assert outcome.exit == 2
    assert "stopped after 0.001 minutes (--minutes)" in outcome.text
    assert f"INCOMPLETE: {len(outcome.records)} of 6 tests have a verdict" in outcome.text
    assert 0 < len(outcome.records) <= 6 - (not words)  # two processes have all of these in hand
    assert project.lines()[-1]["interrupted"]


def test_checks_follow_results_and_last_is_the_one_that_waits_a_second(project: Project):
    marks = '@pytest.mark.behaves("calls_are_right_later", "results_are_plain")\ndef test_behaviour(check, name, case):'
    project.write("suite/test_a.py", f"import pytest\n\n{marks}\n    check(name, case)\n")
    project.kernel()
    asked = "--distribution=integer", "--distribution=behaviour", "--collect-only", "-q"
    listed = [line.split("::")[1] for line in project.pytest(*asked).text.splitlines() if "::" in line]
    starts = "test_conv_forward[acme", "test_behaviour[results_are_plain", "test_behaviour[calls_are_right_later"
    assert [line.startswith(start) for line, start in zip(listed, starts, strict=True)] == [True] * 3


def test_what_failed_in_the_last_run_alone_and_first(project: Project, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """`--lf` and `--ff` of pytest, also where there are no settings of a project: the order is the ranking's else."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.chdir(tmp_path)
    shutil.copy(project.kernel(body="return y + (w.shape[-1] == 1)"), tmp_path / "acme.py")
    problems = [f"--problem=n1 c2 h4 w4 k2 r1 s{s}" for s in (3, 2, 1)]
    given = [*problems, "--dtype=fp32", "--layout=nchw", "--distribution=integer", "--records=run.jsonl", "--overwrite"]

    def ran(*words: str) -> tuple[dict[str, list[str]], list[str]]:
        command("run", "acme.py", *given, *words, "--in-process")
        header, *lines = map(json.loads, (tmp_path / "run.jsonl").read_text().splitlines())
        return header["selection"], [line["descriptor"][-2:] for line in lines if line["kind"] == "case"]

    assert ran()[1] == ["s3", "s2", "s1"]
    assert ran("--ff")[1] == ["s1", "s3", "s2"]
    selection, failing = ran("--lf")
    assert (selection["--lf"], failing) == (["True"], ["s1"])


@pytest.mark.parametrize("body", ["return y + 1", "raise ValueError"])
def test_of_an_implementation_that_has_failed_nothing_more_is_run(project: Project, body: str):
    project.kernel(body=body)
    project.kernel("right")
    outcome = project.run("--distribution=integer", "--distribution=fixed", "--first-failure", "--in-process")
    assert [r["implementation"] for r in outcome.records if r["status"] != "pass"] == ["acme"]
    assert outcome.statuses["pass"] == 2


def test_a_name_is_looked_for_in_files_that_are_called_alike_before_others(project: Project):
    project.kernel("acme")
    loaded = project.folder / "loaded"
    file = project.kernel("zeta", head=f"import pathlib\npathlib.Path({str(loaded)!r}).touch()")
    assert project.pytest("--impl=acme").statuses == {"pass": 1}
    assert not loaded.exists()
    file.rename(file.with_name("other.py"))
    assert project.pytest("--impl=zeta").statuses == {"pass": 1}
    assert loaded.exists()


ACTING = "\x1b[31m\x07\x9b\u202e\u2066\u200f"
"""Colour, bell, the start of a command in eight bits, and what turns the direction of reading."""
SAYS = {
    "raises": {"body": "raise ValueError(N)"},
    "names": {"body": "raise type('E' + N, (Exception,), {})"},
    "exits": {"body": "raise SystemExit(N)"},
    "crashes": {"body": "os.write(2, N.encode()); os._exit(3)"},
    "refuses": {"body": "raise Unsupported(N)"},
    "returns": {"body": "return type('T' + N, (), {})()"},
    "traces": {"body": "exec(compile('1/0', 'f' + N, 'exec'))"},
    "waives": {"body": "return y + 1", "tail": "acme.waive('conv_forward', reason='r' + N, url='u' + N)"},
    "asks": {"declares": ", when=lambda p: int(N)"},
    "imports": {"tail": "raise ValueError(N)"},
    f"file{ACTING}": {},
}


def test_nothing_that_a_kernel_says_acts_where_it_is_read(project: Project):
    """Terminal, JUnit, records, page and summary."""
    for name, changes in SAYS.items():
        project.kernel(name if name.isprintable() else "file", **{"head": f"import os; N = {ACTING!r}"} | changes)
    (project.folder / "impls/file.py").rename(project.folder / f"impls/file{ACTING}.py")
    words = "-v", "--show=unsupported", "--show=waived", "--junitxml=junit.xml", "--report=report", "--workers=20"
    outcome = project.run(*words)
    assert outcome.statuses == {"error": 8, "fail": 1, "waived": 1, "unsupported": 1}
    files = (project.folder / "junit.xml", *(project.folder / "report").iterdir(), project.folder / "records.jsonl")
    read = {"terminal": outcome.text} | {file.name: file.read_text() for file in files}
    found = {(name, c) for name, text in read.items() for c in {*text} if not c.isprintable() and c not in "\n\t"}
    assert not found
