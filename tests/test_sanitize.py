"""`conformance sanitize`: the report of compute-sanitizer, as NVIDIA documents it, and verdicts from it."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from conformance.__main__ import main
from conformance.plugin.sanitize import findings
from conformance.results.reading import earlier
from tests.conftest import TINY, Project

pytest_plugins = ["pytester"]

MEMCHECK = """\
========= Invalid __global__ read of size 4 bytes
=========     at tiled(float *, const float *, int)+0x160 in tiled.cu:46
=========     by thread (31,0,0) in block (2,0,0)
=========     Address 0x7f2a4c001000 is out of bounds
=========     and is 1 bytes after the nearest allocation at 0x7f2a4c000000 of size 4096 bytes
"""
REPORT = f"""\
========= COMPUTE-SANITIZER
========= Error: Race reported between Write access at reduce(float *)+0x90 in r.cu:12
=========     and Read access at reduce(float *)+0xd0 in r.cu:14 [32 hazards]
conformance/suites/test_conv_forward.py::test_conv_forward[acme-edge.plain-fp32-nchw-fixed] {MEMCHECK}PASSED
conformance/suites/test_conv_forward.py::test_conv_forward[acme-edge.plain-fp32-nhwc-fixed]
========= Uninitialized __global__ memory read of size 4 bytes
=========     at sum(float *)+0x10 in sum.cu:5
=========     by thread (0,0,0) in block (0,0,0)
{MEMCHECK}PASSED
conformance/suites/test_conv_forward.py::test_conv_forward[acme-edge.plain-fp32-nhwc-special] PASSED
========= ERROR SUMMARY: 3 errors
========= RACECHECK SUMMARY: 1 hazard displayed (1 error, 0 warnings)
"""
TOOL = """#!{python}
import subprocess, sys
assert sys.argv[1].startswith("--tool=") and sys.argv[2].startswith("--target-processes")
run = subprocess.Popen(sys.argv[3:], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
for line in run.stdout:
    print(line, end="", flush=True)
    if "test_conv_forward[" in line and "nhwc" in line and sys.argv[1] == "--tool=memcheck":
        print({report!r}, end="", flush=True)
sys.exit(run.wait())
"""
READ = "Invalid __global__ read of size 4 bytes at tiled(float *, const float *, int)+0x160 in tiled.cu:46"


def test_report_is_about_the_case_that_ran():
    found = {name.partition("-")[2]: texts for name, texts in findings(REPORT.splitlines()).items()}
    assert found == {
        "": ["Error: Race reported between Write access at reduce(float *)+0x90 in r.cu:12"],
        "edge.plain-fp32-nchw-fixed]": [READ],
        "edge.plain-fp32-nhwc-fixed]": [
            "Uninitialized __global__ memory read of size 4 bytes at sum(float *)+0x10 in sum.cu:5",
            READ,
        ],
    }


def test_without_the_tool_it_is_unavailable(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]):
    monkeypatch.setenv("PATH", "")
    assert main(["sanitize", "acme.py"]) == 5
    assert capsys.readouterr().err == (
        "unavailable: compute-sanitizer is not installed; it is part of the CUDA toolkit\n"
    )


def test_finding_becomes_the_verdict_of_its_case(
    project: Project, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
):
    tool = project.write("bin/compute-sanitizer", TOOL.format(python=sys.executable, report=MEMCHECK))
    tool.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tool.parent}:/usr/bin:/bin")
    monkeypatch.setenv("PYTHONPATH", str(Path(__file__).parents[1]))
    file = project.kernel(declares=', layouts=("nchw", "nhwc")', body="return y")
    few = ["--operator=conv_forward", "--problem", TINY, "--dtype=fp32", "--distribution=integer"]
    assert main(["sanitize", "--check=memcheck", "--check=racecheck", "--findings=found", str(file), *few]) == 1
    shown = capsys.readouterr().out
    assert f"ERROR: acme: memcheck: {READ}" in shown
    assert "memcheck: 2 cases, " in shown
    for check, count in {"memcheck": 1, "racecheck": 0}.items():
        records = earlier(Path(f"found.{check}").read_bytes()).records
        told = [(r.status, r.text("layout")) for r in records if r.reason.startswith(f"{check}: Invalid")]
        assert told == [("error", "nhwc")] * count
        assert [r.status for r in records if r.text("layout") == "nchw"] == ["pass"]
