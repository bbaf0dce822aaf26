"""The process that judges imports no framework, whatever it verifies, trains and times."""

from __future__ import annotations

import json
import os
import subprocess
import sys

import pytest

from tests.conftest import ROOT

IMPLEMENTATIONS = {"torch-cpu": "torch", "jax-cpu": "jax", "numba-cpu": "numba", "numpy-direct": "sklearn"}
"""Implementation -> a package that it brings, or that its training does."""
SELECTED = "(conv_forward and edge.plain-fp32-nchw-fixed) or (backward_keeps and n4) or numpy-direct-digits"
OPERATORS = ("conv_forward", "conv_backward_data", "conv_backward_weight", "conv_bn_forward")
SUITES = [f"conformance/suites/test_{name}.py" for name in ("operators", "behaviour", "training")]
VERIFIED = [*SUITES, *(f"--impl={name}" for name in IMPLEMENTATIONS), "--dtype=fp32", "--layout=nchw", "-k", SELECTED]
VERIFIED += [f"--operator={name}" for name in OPERATORS]
TIMED = ["conformance/benchmarks/test_layers.py", "--benchmark-only", "--impl=torch-cpu", "--visits=1", "--dtype=fp32"]
TIMED += ["--layout=nchw", "--operator=conv_forward", "--problem=n1 c2 h4 w4 k2 r3 s3 p1"]
JUDGE = """
import json, sys
from dataclasses import replace
import pytest

from tests.conftest import ROOT
from conformance.training.tables import CPU

CPU["digits", "standard"] = replace(CPU["digits", "standard"], images=4, epochs=1, held=4, falls_to=9.0)
runs, packages = map(json.loads, sys.argv[1:])
print("exits:", *(int(pytest.main(words)) for words in runs))
print("imported:", *packages.keys() & sys.modules.keys())
"""
"""Runs one after the other, with a training of one step."""


def test_frameworks_are_left_to_the_kernels_processes():
    for package in IMPLEMENTATIONS.values():
        pytest.importorskip(package)
    given = json.dumps([VERIFIED, TIMED]), json.dumps(dict.fromkeys(IMPLEMENTATIONS.values()))
    # beside a variable of xdist's, pytest-benchmark takes no times
    own = {name: value for name, value in os.environ.items() if not name.startswith("PYTEST_XDIST")}
    done = subprocess.run([sys.executable, "-c", JUDGE, *given], capture_output=True, text=True, cwd=ROOT, env=own)
    *shown, exits, imported = done.stdout.splitlines()
    assert exits in ("exits: 0 0", "exits: 0 3"), done.stdout + done.stderr  # times are as good as the machine
    assert imported == "imported:"
    told = "\n".join(shown)
    assert "Saved for backward" in told
    assert "Networks trained through their convolutions" in told
    assert "torch, 512 x 512" in told  # the ceilings
