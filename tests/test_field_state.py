"""Known-bad kernels of state, and of behaviour on single paths, are detected; the right ones beside them pass."""

from __future__ import annotations

import json
import math
import subprocess
import sys
from collections import defaultdict
from pathlib import Path
from time import sleep

import numpy as np
import pytest

from conformance.checks import state
from conformance.checks.sample import BehaviourError, Subject
from conformance.execution.case import Case
from conformance.implementations import registry
from conformance.implementations.bridges import ArrayBridge, jax_arrays, torch_arrays
from conformance.implementations.bridges.numpy import NumpyArrays
from conformance.implementations.implementation import Unsupported
from conformance.layouts import layouts_of
from conformance.operators import OPERATORS
from conformance.problems import Variant, typed
from conformance.resources import IMPLS
from conformance.worker import repeating
from conformance.worker.audit import audited
from tests.field import right

FIELD = Path(__file__).parent / "field"
STATE = "calls_in_a_row or calls_repeat or other_parameters or right_later or forked_child or memory_is_given_back"


@pytest.mark.parametrize(("file", "checks"), [("behaviour", "calls_in_a_row"), ("state", STATE)])
def test_known_bad_kernels_of_the_field_are_detected(tmp_path: Path, file: str, checks: str):
    records = tmp_path / "records.jsonl"
    words = [sys.executable, "-m", "conformance", "run", str(FIELD / f"{file}.py"), "--operator=conv_forward"]
    words += ["--distribution=behaviour", "-k", checks, f"--records={records}", "-q"]
    words += ["--first-failure"]
    run = subprocess.run(words, cwd=FIELD.parents[1], capture_output=True, text=True, check=False)
    found = [line for line in map(json.loads, records.read_text().splitlines()) if "status" in line]
    statuses = defaultdict[str, set[str]](set)
    for line in found:
        statuses[line["implementation"]].add(line["status"])
    assert (run.returncode, len(statuses) > 12) == (1, True), run.stdout[-2000:]
    assert {name for name, seen in statuses.items() if "fail" in seen} == {n for n in statuses if n[:4] == "bad-"}
    assert [line for line in found if line["status"] == "error"] == []


@pytest.mark.parametrize("problem", ["maxpool n2 c4 w5 s3 u1 p1 d3", "maxpool n2 c3 d4 h3 w4 t3 r2 s2"])
def test_parameters_are_told_apart_on_small_problems_in_every_rank(problem: str):
    """A window of 257 x 257 was the first on which strides can differ: a kernel of loops in Python hung."""
    numpy = registry.load([IMPLS / "numpy_direct"]).implementations["numpy-direct"]
    given = typed(problem)
    variant = Variant("fp32", layouts_of(given.geometry.rank)[0], "behaviour")
    case = Case(numpy, OPERATORS["max_pool_backward"], given, variant, 0)
    pairs = list(state._pairs(Subject(case, case.kernel)))
    assert any(what.startswith("another stride") for what, *_ in pairs)
    large = [what for what, first, _ in pairs if math.prod(first.case.problem.geometry.window) > 100]
    assert large == []


def test_interruptions_of_a_call_end(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(repeating, "TRACED", 0.05)
    traces = []

    def kernel():
        traces.append(sys.gettrace())
        sleep(0.1)
        traces.append(sys.gettrace())  # a line that is traced, the last one
        traces.append(sys.gettrace())
        return np.zeros(1)

    repeating.repeated(NumpyArrays(), kernel, [((), {})] * 2, 1, 0.0)
    assert len([trace for trace in traces if trace is None]) == len(traces) - 2 > 0


def test_threads_do_not_install_their_interruptions_at_once():
    """Python raises an error for it, and one kernel in a thousand had it as its own on a busy machine."""
    program = """if True:
        import sys, time
        import numpy as np
        from conformance.implementations.bridges.numpy import NumpyArrays
        from conformance.worker import repeating
        repeating.TRACED = 0.0
        sys.addaudithook(lambda event, _: time.sleep(1e-3) if event == "sys.settrace" else None)
        repeating.repeated(NumpyArrays(), lambda: np.zeros(1), [((), {})] * 4, 6, 0.05)
    """
    subprocess.run([sys.executable, "-c", program], check=True)


@pytest.mark.parametrize("arrays", [torch_arrays("cpu"), jax_arrays("cpu")], ids=lambda arrays: arrays.name)
def test_what_a_framework_says_of_forks_is_not_declared_again(arrays: ArrayBridge, monkeypatch: pytest.MonkeyPatch):
    """The child of a process with torch's threads waits for them: every torch file's smoke took ten seconds longer."""
    monkeypatch.setattr(repeating, "forked", lambda *_: pytest.fail("forked"))
    one = right.implementation("on-a-framework", right.conv_forward, arrays=arrays)
    variant = Variant("fp32", "nchw", "behaviour")
    case = Case(one, OPERATORS["conv_forward"], typed("n1 c1 h3 w3 k1 r1 s1"), variant, 0)
    with pytest.raises(Unsupported, match=f"threads of {arrays.name} do not survive a fork"):
        state.forked_child_computes(Subject(case, case.kernel))


def test_memory_of_a_kernel_that_compiles_per_shape_is_not_measured():
    """Each shape leaves a program: 24 of them for every operator of JAX, and the answer was never one."""
    one = right.implementation("compiles", right.conv_forward)
    one.compiles_per_shape = True
    case = Case(one, OPERATORS["conv_forward"], typed("n1 c1 h3 w3 k1 r1 s1"), Variant("fp32", "nchw", "behaviour"), 0)
    with pytest.raises(Unsupported, match="compiles a program, which stays in memory"):
        state.memory_is_given_back(Subject(case, case.kernel))


def test_memory_is_measured_where_there_is_a_bias():
    """A stranger's kernel kept x wherever it had one, and the path that memory was measured on had none."""
    kept = []

    def leaks(x, w, bias, **parameters):
        if bias is not None:
            kept.append(np.array(x))
        return right.conv_forward(x, w, bias, **parameters)

    one = right.implementation("leaks", leaks)
    case = Case(one, OPERATORS["conv_forward"], typed("n2 c6 h5 w5 k4 r1 s1"), Variant("fp32", "nchw", "behaviour"), 0)
    with pytest.raises(BehaviourError, match="its operands have"):
        state.memory_is_given_back(Subject(case, case.kernel))


def test_a_result_in_the_memory_of_an_input_is_said():
    """No other test failed where this was left out."""
    given = np.ones((1, 2, 3, 4), np.float32)
    for function, found in ((lambda x: x[..., ::-1], ("a result lies in the memory of input x",)), (np.copy, ())):
        assert audited(NumpyArrays(), function, ("x",), [given], {})[1] == found
