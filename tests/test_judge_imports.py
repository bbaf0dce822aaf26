"""The process that judges imports no framework, whatever it verifies."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
IMPLEMENTATIONS = {"torch-cpu": "torch", "jax-cpu": "jax", "numba-cpu": "numba", "numpy-direct": "sklearn"}
"""Implementation -> a package that it brings, or that its training does."""
SELECTED = "(conv_forward and edge.plain-fp32-nchw-fixed) or (backward_keeps and n4) or numpy-direct-digits"
JUDGE = """
import sys, pytest
status = pytest.main(sys.argv[2:])
print("imported:", *set(sys.modules) & set(sys.argv[1].split()))
sys.exit(status)
"""


def test_cases_checks_and_trainings_leave_frameworks_to_the_kernels_processes():
    for package in IMPLEMENTATIONS.values():
        pytest.importorskip(package)
    chosen = [word for name in IMPLEMENTATIONS for word in ("--impl", name)]
    chosen += ["--dtype=fp32", "--layout=nchw", "-k", SELECTED]
    command = [sys.executable, "-c", JUDGE, " ".join(IMPLEMENTATIONS.values()), *chosen]
    done = subprocess.run(command, capture_output=True, text=True, cwd=ROOT)
    assert done.returncode == 0, done.stdout
    assert done.stdout.splitlines()[-1] == "imported:"
    assert "Saved for backward" in done.stdout
    assert "Networks trained through their convolutions" in done.stdout
