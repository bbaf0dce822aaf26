"""The U-Net table: every cell and absence is shown, what was written can be read back, exit statuses are right."""

from __future__ import annotations

import csv
import io
import os
import re
from collections.abc import Callable
from itertools import chain
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from conformance import Implementation
from conformance.__main__ import main
from conformance.execution.case import Absence, Case
from conformance.execution.status import Verdict
from conformance.exit_codes import ExitCode
from conformance.implementations import registry
from conformance.implementations.devices import DEVICES, Unavailable, processor
from conformance.inputs import expectation
from conformance.problems import Problem
from conformance.resources import IMPLS
from conformance.results.schema import MachineState
from conformance.timing import machine, table, unet, unet_table
from conformance.timing.conditions import Conditions
from conformance.timing.measurement import Accuracy, Measurement, Visit, compared
from conformance.timing.run import Run, TimedKernel
from conformance.timing.timing_demand import TimingDemand
from conformance.timing.unet_table import Direction
from conformance.worker import measuring
from tests.kit import source
from tests.timing.layers import CEILINGS, OTHER, TINY, case_of

AWKWARD = 'first, "second"; a|b <c>\nsecond line'
REASON = f"{'x' * 200} {AWKWARD * 4}\nmore"


def passed(
    name: str, problem: Problem = TINY, seconds: float = 1e-3, device: str = "cpu"
) -> tuple[TimedKernel, Measurement]:
    case = case_of(Implementation(name, device=device), problem)
    case.implementation.implements("conv_forward")(lambda: None)
    visits = tuple(Visit((time,), (time,)) for time in (seconds, seconds, seconds))
    time = Measurement(case, visits, 1234.5, 0.002, 0.003, CEILINGS, Accuracy(1e-5, 2e-6, 10, 288))
    return TimedKernel(case, Verdict("pass")), time


def failed(name: str, reason: str = "", status: str = "fail") -> tuple[TimedKernel, None]:
    return TimedKernel(case_of(Implementation(name)), Verdict(status, reason)), None


def direction(*found: tuple[TimedKernel, Measurement | None], state: str = "stable") -> Direction:
    absent = Absence("gone", "conv_forward", "cuda", "unavailable", AWKWARD, 10)
    times = {place: time for place, (_, time) in enumerate(found) if time is not None}
    known = MachineState(state=state)  # type: ignore[arg-type]
    return Direction("conv_forward", tuple(one for one, _ in found), times, compared(times.values()), known, (absent,))


def test_ratios_are_to_torch_on_the_same_device():
    shown = direction(
        passed("torch-cpu", TINY, 4e-3),
        passed("acme", TINY, 2e-3),
        passed("torch-cuda", TINY, 1e-3, "cuda"),
        passed("warp", TINY, 5e-4, "cuda"),
        passed("torch-cpu", OTHER, 1e-3),
        passed("acme", OTHER, 2e-3),
        passed("warp", OTHER, 5e-4, "cuda"),
        passed("far", OTHER, 5e-4, "trn1"),
    )
    found = [row["x torch"].partition(" ")[0] for row in shown.rows()]
    assert found == ["-", "2.00", "-", "2.00", "-", "0.500", "-", "-"]
    assert "acme 1.00 (2 of 2), warp 2.00 (1 of 2)" in shown.mean
    assert "far" not in shown.mean


def test_without_a_stable_machine_there_is_no_mean():
    found = passed("torch-cpu"), passed("acme", seconds=5e-4)
    assert "acme 2.00 (1 of 1)" in direction(*found).mean
    assert direction(*found, state="noisy").mean == ""


LONG = "an-implementation-with-a-very-long-name@simulator"


def crowded() -> Direction:
    return direction(passed("torch-cpu"), passed(LONG, seconds=12345.678), failed(LONG, REASON))


@pytest.mark.parametrize("width", [60, 80, 100, 160])
def test_lines_fit(width: int):
    shown = [*unet_table.text(crowded(), width), *unet_table.absences([crowded()], width)]
    assert [line for line in shown if len(line) > width] == []


def test_a_row_is_one_line_where_it_fits_and_several_where_not():
    wide, narrow = (list(unet_table.text(direction(passed("torch-cpu")), width)) for width in (160, 80))
    heads = " ".join(chain(*unet_table.UNET_COLUMNS)).split()
    assert wide[1].split() == heads
    assert len(wide) == 3
    half = (len(narrow) - 1) // 2
    assert half > 1
    assert " ".join(narrow[1 : 1 + half]).split() == heads
    assert " ".join(narrow[1 + half :]).split() == wide[2].split()
    assert wide[2].split()[:6] == ["4x4@6", "torch-cpu", "pass", "1.00", "[1.00,", "1.00]"]


def test_a_failure_says_why_and_how_to_repeat_it():
    shown = " ".join(" ".join(unet_table.text(crowded(), 160)).split())
    assert 'first, "second"; a|b <c>' in shown
    assert "second line" not in shown
    assert "reproduce: --operator conv_forward" in shown  # a plan would say how to run it


@pytest.mark.parametrize(
    ("value", "text"),
    [(None, "-"), (12345.6, "12,346"), (123.4, "123"), (12.34, "12.3"), (0.00123456, "0.00123"), (99.96, "100.")],
)
def test_three_figures(value: float | None, text: str):
    assert table.figures(value) == text


def test_csv_reads_back():
    text = unet_table.as_csv([crowded()])
    passed, slow, failed, absent = csv.DictReader(io.StringIO(text, newline=""))
    assert (passed["implementation"], passed["median_s"], passed["ratio_to_torch"]) == ("torch-cpu", "0.001", "")
    assert float(slow["ratio_to_torch"]) == pytest.approx(1e-3 / 12345.678)
    assert [passed[name] for name in ("copy_in_s", "first_call_s", "rounds", "visits")] == ["0.002", "1234.5", "3", "3"]
    assert [float(passed[name]) for name in ("minimum_s", "low_s", "high_s")] == pytest.approx([1e-3] * 3)
    assert (passed["ratio_low"], passed["machine"]) == ("", "stable")
    assert float(slow["ratio_low"]) == pytest.approx(1e-3 / 12345.678)
    assert (passed["compared"], passed["elements"], passed["max_difference"]) == ("10", "288", "1e-05")
    assert failed["reason"] == REASON
    assert (failed["median_s"], failed["tflop_per_s"], failed["max_difference"]) == ("", "", "")
    assert (absent["verdict"], absent["reason"], absent["device"]) == ("unavailable", AWKWARD, "cuda")


def test_markdown_cells_stay_in_their_columns():
    odd = "a|b<script>\\"
    lines = list(unet_table.markdown(["of a|b\nmachine"], [direction(passed("torch-cpu"), passed(odd))]))
    grids = [line for line in lines if line.startswith("|")]
    assert {len(re.findall(r"(?<!\\)\|", line)) for line in grids if "verdict" not in line} == {4, 15}
    assert "<script>" not in "\n".join(lines)
    assert lines[0] == "- of a\\|b machine"
    assert '- unavailable: gone: first, "second"; a\\|b &lt;c> second line' in lines


def test_a_failure_stands_in_the_overview_of_times():
    lines = list(unet_table.markdown([], [crowded()]))
    assert f"| layer | torch-cpu | {LONG} |" in lines
    assert "| 4x4@6 | 1.00 [1.00, 1.00] ms, 0% | fail |" in lines


@pytest.mark.parametrize(
    ("found", "broken", "expected"),
    [
        (("pass", "unsupported"), False, 0),
        (("pass", "fail"), False, 1),
        (("pass", "error"), False, 1),
        (("pass",), True, 1),
        (("unsupported",), False, 5),
        ((), False, 5),
    ],
)
def test_exit_status(found: tuple[str, ...], broken: bool, expected: int):
    assert unet.exit_status(Run([failed("acme", status=name)[0] for name in found]), broken) == expected


@pytest.fixture
def frameworks(monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    """What is loaded, for all that the machine's description knows: a test must not change threads of others."""
    loaded: dict[str, Any] = {}
    monkeypatch.setattr(measuring, "sys", SimpleNamespace(modules=loaded))
    return loaded


@pytest.fixture
def run(
    frameworks: dict[str, Any],
    ceilings: Any,
    tmp_path: Any,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> Callable[..., Any]:
    """`conformance unet` on two tiny layers and a file of its own, visited once, in this process unless in `processes`:
    each of those takes a second to start."""
    monkeypatch.setattr(unet, "UNET", (TINY, OTHER))
    (tmp_path / "shipped").mkdir()  # nothing, where a name would be looked for for seconds
    monkeypatch.setattr(unet, "IMPLS", tmp_path / "shipped")
    monkeypatch.setenv(unet.ALLOCATION, "false")
    monkeypatch.setenv("COLUMNS", "160")

    def called(*words: str, change: str = "", head: str = "", processes: bool = False) -> Any:
        file = tmp_path / "acme.py"
        file.write_text(source(body=f"return y{change}", head=head))
        given = [word.format(file=file, folder=tmp_path) for word in words]
        given += [] if processes else ["--in-process"]
        try:
            code = main(["unet", "--visits", "1", *given])
        except SystemExit as stop:
            code = int(str(stop.code))
        shown = capsys.readouterr()
        return SimpleNamespace(code=code, out=shown.out, err=shown.err, folder=tmp_path)

    return called


def test_a_run_prints_and_writes_every_cell(run: Callable[..., Any]):
    files = "--csv", "{folder}/a.csv", "--markdown", "{folder}/a.md"
    outcome = run("--impl", "{file}", "--visits", "2", *files, processes=True)
    assert (outcome.code, outcome.err) == (0, "")
    rows = list(csv.DictReader((outcome.folder / "a.csv").open(newline="")))
    assert [(row["operator"], row["problem"], row["verdict"]) for row in rows] == [
        ("conv_forward", "unet.4x4@6", "pass"),
        ("conv_forward", "unet.4x8@6", "pass"),
        ("conv_backward_data", "", "unsupported"),
        ("conv_backward_weight", "", "unsupported"),
    ]
    assert len(re.findall(r"^4x[48]@6 +acme +pass", outcome.out, re.MULTILINE)) == 2
    assert "unsupported: acme: conv_backward_data is not implemented" in outcome.out
    assert "| layer | acme |" in (outcome.folder / "a.md").read_text()


def test_the_header_names_what_numbers_depend_on(run: Callable[..., Any]):
    shown = run("--impl", "{file}", "--direction", "forward").out
    assert "2 of 2 layers at full size, fp32, NCHW; TF32 " in shown
    assert processor() in shown
    assert f"numpy {np.__version__}" in shown
    assert f"threads: {machine.cores()} cores" in shown
    assert f"ceilings of cpu: {CEILINGS}" in shown


def test_versions_are_those_of_frameworks_and_kernels():
    found = machine.versions([Implementation("acme", version="7.1"), Implementation("plain")])
    assert (found["numpy"], found["acme"]) == (np.__version__, "7.1")
    assert "plain" not in found
    assert "cpu" not in found


def test_layers_and_direction_select(run: Callable[..., Any]):
    shown = run("--impl", "{file}", "--direction", "forward", "--layers", "4x8@6").out
    assert "1 of 2 layers" in shown
    assert "4x4@6" not in shown
    assert "conv_backward_data" not in shown


def test_tensors_of_a_layer_are_freed_before_the_next(run: Callable[..., Any], monkeypatch: pytest.MonkeyPatch):
    held: list[int] = []
    expectation.cache_clear()
    visit = TimedKernel.visit

    def visited(subject: TimedKernel, conditions: Conditions) -> None:
        held.append(expectation.cache_info().currsize)
        visit(subject, conditions)

    monkeypatch.setattr(TimedKernel, "visit", visited)
    assert run("--impl", "{file}", "--direction", "forward", "--visits", "2").code == 0
    assert [*held, expectation.cache_info().currsize] == [0] * 5


def test_on_an_unusable_machine_nothing_is_compared(run: Callable[..., Any], monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr("conformance.timing.conditions.Conditions.values", lambda _: {"others": 1.4})
    outcome = run("--impl", "{file}", "--direction", "forward", "--csv", "{folder}/a.csv")
    assert outcome.code == 3
    assert "machine: unusable. Nothing is compared" in outcome.out
    assert {row["machine"] for row in csv.DictReader((outcome.folder / "a.csv").open(newline=""))} == {"unusable"}


def test_a_wrong_kernel_fails_the_run_and_the_rest_is_shown(run: Callable[..., Any]):
    outcome = run("--impl", "{file}", "--direction", "forward", change=" + (len(w) == 4)")
    assert outcome.code == 1
    assert re.search(r"^4x4@6 +acme +fail +- +- +- +- ", outcome.out, re.MULTILINE)
    assert re.search(r"^4x8@6 +acme +pass +\d", outcome.out, re.MULTILINE)


def test_kernels_can_run_in_this_process(run: Callable[..., Any], monkeypatch: pytest.MonkeyPatch):
    monkeypatch.delenv("CALLED", raising=False)
    change = " + len(__import__('os').environ.setdefault('CALLED', ''))"
    for called in False, True:
        assert run("--impl", "{file}", "--layers", "4x4@6", change=change, processes=not called).code == 0
        assert ("CALLED" in os.environ) is called
    monkeypatch.delenv("CALLED")


def test_a_broken_file_is_named(run: Callable[..., Any]):
    outcome = run("--impl", "{file}", "--direction", "forward", change=")")
    assert outcome.code == 1
    assert "acme.py: SyntaxError" in outcome.out


REFUSED = {
    "name": (("--impl", "torch-cpuu"), "--impl torch-cpuu: unknown"),
    "path": (("--impl", "{folder}/none.py"), "none.py: no such file"),
    "csv": (
        ("--impl", "{file}", "--csv", "{folder}/none/a.csv"),
        "a.csv: cannot be written (No such file or directory)",
    ),
    "markdown": (("--impl", "{file}", "--markdown", "{folder}"), "cannot be written (Is a directory)"),
}


@pytest.mark.parametrize(("words", "says"), REFUSED.values(), ids=REFUSED)
def test_a_command_line_that_cannot_be_meant(run: Callable[..., Any], words: tuple[str, ...], says: str):
    outcome = run(*words)
    assert (outcome.code, outcome.out) == (4, "")
    assert says in outcome.err
    assert outcome.err.count("\n") == 1


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="no device that is always full")
@pytest.mark.parametrize("option", ["--csv", "--markdown"])
def test_a_full_disk_is_named(run: Callable[..., Any], option: str):
    outcome = run("--impl", "{file}", "--direction", "forward", "--layers", "4x4@6", option, "/dev/full")
    assert outcome.code == 4
    assert outcome.err == f"{option} /dev/full: cannot be written (No space left on device)\n"


@pytest.mark.parametrize("words", [("--layers", "5x5"), ("--visits", "0"), ("--direction", "up")])
def test_values_have_choices(run: Callable[..., Any], words: tuple[str, ...]):
    outcome = run(*words)
    assert outcome.code == 4
    assert words[0] in outcome.err


def test_absent_devices_are_named_and_nothing_verified_is_no_success(
    run: Callable[..., Any], monkeypatch: pytest.MonkeyPatch
):
    def absent() -> None:
        raise Unavailable("no such device")

    monkeypatch.setitem(DEVICES, "cpu", absent)
    outcome = run("--impl", "{file}")
    assert outcome.code == ExitCode.NOTHING
    assert outcome.out.count("unavailable: acme: no such device") == 1
    assert outcome.out.endswith("NOTHING WAS VERIFIED\n")
    assert "layer  implementation" not in outcome.out


def test_frameworks_have_the_same_threads(frameworks: dict[str, Any], monkeypatch: pytest.MonkeyPatch):
    given: list[int] = []
    monkeypatch.setattr(machine, "cores", lambda: 3)
    fakes = SimpleNamespace(set_num_threads=given.append, get_num_threads=lambda: given[-1])
    frameworks |= {"torch": fakes, "numba": fakes, "jax": None}
    shared = machine.share_threads([Implementation("acme")])
    assert machine.threads_text(shared) == "jax 3, numba 3, torch 3"
    assert given == [3, 3]


def test_fewer_threads_for_one_are_refused(run: Callable[..., Any], frameworks: dict[str, Any]):
    def refuse(count: int) -> None:
        raise ValueError("more than 1")

    frameworks["numba"] = SimpleNamespace(set_num_threads=refuse, get_num_threads=lambda: machine.cores() + 1)
    outcome = run("--impl", "{file}")
    assert outcome.code == 4
    assert f"numba has {machine.cores() + 1} threads" in outcome.err
    assert "NUMBA_NUM_THREADS" in outcome.err


def test_tf32_follows_the_flags(frameworks: dict[str, Any]):
    on, off = SimpleNamespace(allow_tf32=True), SimpleNamespace(allow_tf32=False)
    backends = SimpleNamespace(cuda=SimpleNamespace(matmul=off), cudnn=on)
    frameworks["torch"] = SimpleNamespace(backends=backends)
    assert machine.tf32([Implementation("acme")]) == "on in torch (cudnn)"
    backends.cudnn = off
    assert machine.tf32([Implementation("acme")]) == "off"


@pytest.fixture
def shipped(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Implementations in place of those of the suite, which take long to load."""
    monkeypatch.setattr(unet, "IMPLS", tmp_path)
    for name in ("first", "second", "third"):
        (tmp_path / f"{name}.py").write_text(source(name))


@pytest.mark.usefixtures("shipped")
def test_the_default_implementations_come_in_order(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(unet, "DEFAULT", ("third", "not-here", "first"))
    plan = unet.planned((), ("conv_forward",), "probes")
    assert list(plan.registry.implementations) == ["third", "first"]
    cases = plan.required(TimingDemand(plan.selection, "conv_forward", unet.UNET, by_hand=True))
    assert {case.method for case in cases if isinstance(case, Case)} == {"probes"}


@pytest.mark.usefixtures("shipped")
def test_names_come_in_the_order_given():
    plan = unet.planned(("third", "second", "third"), ("conv_forward",), "probes")
    assert list(plan.registry.implementations) == ["third", "second"]


def test_the_default_implementations_are_shipped():
    folders = "torch_native", "numba_cpu", "jax_native", "numba_cuda"
    found = registry.load([path for path in registry.discover(IMPLS) if path.stem in folders])
    assert found.unavailable or set(unet.DEFAULT) <= found.implementations.keys()
