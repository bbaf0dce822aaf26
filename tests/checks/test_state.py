"""Checks of state: what is tried, how often, with what, and what is not."""

from __future__ import annotations

import math
import subprocess
import sys
from pathlib import Path
from time import sleep
from typing import Any

import numpy as np
import pytest

from conformance.__main__ import main
from conformance.checks import state
from conformance.checks.behaviour_demand import UNREACHED
from conformance.checks.sample import Subject
from conformance.diagnosis.traits import of_geometry
from conformance.execution.status import BehaviourError
from conformance.implementations import registry
from conformance.implementations.bridges.base import ArrayBridge
from conformance.implementations.bridges.jax import jax_arrays
from conformance.implementations.bridges.numpy import NumpyArrays
from conformance.implementations.bridges.torch import torch_arrays
from conformance.implementations.implementation import Implementation, Unsupported
from conformance.layouts import layouts_of
from conformance.operators import FAMILIES, OPERATORS
from conformance.problems import typed
from conformance.resources import IMPLS
from conformance.worker import repeating
from conformance.worker.call import audited
from tests import kernels
from tests.kit import trial_of


def subject(kernel: Any, problem: str, operator: str = "conv_forward", **given: Any) -> Subject:
    case = trial_of(kernel, problem, operator, distribution="behaviour", **given)
    return Subject(case, case.kernel)


@pytest.mark.parametrize("problem", ["maxpool n2 c4 w5 s3 u1 p1 d3", "maxpool n2 c3 d4 h3 w4 t3 r2 s2"])
def test_parameters_are_told_apart_on_small_problems_in_every_rank(problem: str):
    """A window of 257 x 257 was the first on which strides can differ: a kernel of loops in Python hung."""
    numpy = registry.load([IMPLS / "numpy_direct"]).implementations["numpy-direct"]
    layout = layouts_of(typed(problem).geometry.rank)[0]
    pairs = list(state._pairs(subject(numpy, problem, "max_pool_backward", layout=layout)))
    assert "stride" in [parameter for parameter, *_ in pairs]
    large = [parameter for parameter, _, first, _ in pairs if math.prod(first.trial.problem.geometry.window) > 100]
    assert large == []


def test_a_parameter_that_is_refused_when_called_is_no_refusal_by_memory():
    """Threads of which every second one is refused were taken for a kernel that refuses what it has computed."""

    acme = Implementation("acme")

    @acme.implements("conv_forward", when=lambda p: p.r == p.s == 1)
    def takes_no_strides(x, w, bias, *, stride, **parameters):
        if stride != (1, 1):
            raise Unsupported("no strides")
        return kernels.conv_forward(x, w, bias, stride=stride, **parameters)

    state.other_parameters_are_told_apart(subject(acme, "n2 c3 h4 w5 k4 r1 s1 p0:1x0:2"))


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
    with pytest.raises(Unsupported, match=f"threads of {arrays.name} do not survive a fork"):
        state.forked_child_computes(subject(kernels.conv_forward, "n1 c1 h3 w3 k1 r1 s1", arrays=arrays))


def test_memory_of_a_kernel_that_compiles_per_shape_is_not_measured():
    """Each shape leaves a program: 24 of them for every operator of JAX, and the answer was never one."""
    one = Implementation("compiles", compiles_per_shape=True)
    one.implements("conv_forward")(kernels.conv_forward)
    with pytest.raises(Unsupported, match="compiles a program, which stays in memory"):
        state.memory_is_given_back(subject(one, "n1 c1 h3 w3 k1 r1 s1"))


def test_memory_is_measured_where_there_is_a_bias():
    """A stranger's kernel kept x wherever it had one, and the path that memory was measured on had none."""
    kept = []

    def leaks(x, w, bias, **parameters):
        if bias is not None:
            kept.append(np.array(x))
        return kernels.conv_forward(x, w, bias, **parameters)

    with pytest.raises(BehaviourError, match="its operands have"):
        state.memory_is_given_back(subject(leaks, "n2 c6 h5 w5 k4 r1 s1"))


KEEPS = """if True:
    import sys
    import torch
    from conformance.checks import state
    from conformance.checks.sample import Subject
    from conformance.execution.status import BehaviourError
    from conformance.implementations.bridges.torch import torch_arrays
    from conformance.worker import repeating
    from tests.kit import trial_of

    repeating.PATIENCE, kept, leaks = 1e9, [], sys.argv[1] == "leaks"  # the machine may be busy

    def conv_backward_weight(x, dy, *, stride, padding, dilation, kernel_size, with_bias, groups):
        sides = [side for pair in reversed(padding) for side in pair]
        images = torch.nn.functional.pad(x, sides).transpose(0, 1)
        dw = torch.conv2d(images, dy.transpose(0, 1), stride=dilation, dilation=stride)
        kept.extend([x.clone(), dy.clone()] * leaks)
        dw = dw[:, :, : kernel_size[0], : kernel_size[1]].transpose(0, 1).contiguous()
        return (dw, dy.sum((0, 2, 3))) if with_bias else dw

    try:
        chosen = dict(operator="conv_backward_weight", distribution="behaviour", arrays=torch_arrays("cpu"))
        trial = trial_of(conv_backward_weight, "n2 c5 h6 w7 k1 r1 s1", **chosen)
        state.memory_is_given_back(Subject(trial, trial.kernel))
    except BehaviourError as error:
        print(error)
    assert torch.backends.mkldnn.enabled
"""


@pytest.mark.parametrize("leaks", [False, True])
def test_what_torch_keeps_for_a_shape_is_no_leak_of_a_kernel(leaks: bool):
    """A right module was wrong: oneDNN keeps a plan of each convolution that it meets, here with 0.7 MB.

    In a process of its own: what is kept here may lie where tensors of earlier tests were, and memory does not grow.
    """
    pytest.importorskip("torch")
    command = [sys.executable, "-c", KEEPS, "leaks" if leaks else "right"]
    said = subprocess.run(command, check=True, capture_output=True, text=True).stdout
    assert ("its operands have" in said) is leaks, said


def test_a_kernel_is_called_ten_thousand_times(monkeypatch: pytest.MonkeyPatch):
    """One that counted its calls in 13 bits failed nowhere."""
    monkeypatch.setattr(state, "SECONDS_OF_MANY", 60.0)
    known: dict[Any, np.ndarray] = {}
    calls = 0

    def counts(x, w, bias, **parameters):
        nonlocal calls
        calls += 1
        key = x.shape, w.shape, str(parameters), x.tobytes()
        if key not in known:
            known[key] = kernels.conv_forward(x, w, bias, **parameters)
        return known[key] + (calls > 1 << 13)

    with pytest.raises(BehaviourError, match="one of 10000 calls by turns on two contents"):
        state.calls_are_right_later(subject(counts, "n2 c3 h5 w5 k4 r1 s1"))


def test_calls_by_turns_meet_what_one_in_256_keeps_of_the_one_before(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(state, "SECONDS_OF_MANY", 60.0)
    monkeypatch.setattr(state, "MANY", 300)
    seen: list[np.ndarray] = []

    def mixes_up(x, w, bias, **parameters):
        seen.append(w.copy())
        stale = len(seen) % 256 == 0 and seen[-2].shape == w.shape
        return kernels.conv_forward(x, seen[-2] if stale else w, bias, **parameters)

    with pytest.raises(BehaviourError, match="one of 300 calls by turns on two contents"):
        state.calls_are_right_later(subject(mixes_up, "n2 c3 h5 w5 k4 r1 s1"))


def test_a_result_in_the_memory_of_an_input_is_said():
    """No other test failed where this was left out."""
    given = np.ones((1, 2, 3, 4), np.float32)
    for function, found in ((lambda x: x[..., ::-1], ["a result lies in the memory of input x"]), (np.copy, [])):
        assert [*map(str, audited(NumpyArrays(), function, ("x",), [given], {}).changed)] == found


def test_results_of_two_calls_in_one_buffer_are_said():
    """It was told as a race of threads."""
    buffers: dict[tuple[int, ...], np.ndarray] = {}

    def reuses(x, w, bias, **parameters):
        y = kernels.conv_forward(x, w, bias, **parameters)
        kept = buffers.setdefault(y.shape, np.empty_like(y))
        kept[...] = y
        return kept

    with pytest.raises(BehaviourError, match="a call overwrites what an earlier one returned"):
        state.calls_in_a_row_are_right(subject(reuses, "n2 c3 h5 w5 k4 r1 s1"))


@pytest.mark.parametrize("family", ["conv", "conv_transpose", "avg_pool", "max_pool"])
def test_partial_requests_meet_elements_that_no_window_reaches(family: str):
    """A kernel set them to zero where they were to be left as they are, and passed."""
    given = [problem.geometry for problem in UNREACHED if problem.geometry.family == family]
    assert any("elements in no window along some axis" in of_geometry(geometry).features for geometry in given)


STRIDE_IS_KEPT = """
import numpy as np
from conformance import Implementation
from tests import kernels

acme, kept = Implementation("acme"), {}


@acme.implements("conv_forward", when=lambda p: p.r == p.s == 1)
def conv(x, w, bias, *, stride, groups, **parameters):
    y = kernels.conv_forward(x, w, bias, stride=(1, 1), groups=groups, **parameters)
    sizes = [range(0, size, step) for size, step in zip(y.shape[2:], stride)]
    if groups > 1:
        stride = kept.setdefault((x.shape, w.shape, groups), stride)
    p, q = (np.arange(len(size)) * step % y.shape[2 + n] for n, (size, step) in enumerate(zip(sizes, stride)))
    return y[:, :, p[:, None], q]
"""


def test_where_a_parameter_is_not_told_apart_is_found(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    """A cache whose key lacked the stride was used for groups alone: the pairs that are tried first had one group."""
    (tmp_path / "acme.py").write_text(STRIDE_IS_KEPT)
    problem, check = "n1 c2 h1 w4 k2 r1 s1 g2", "--check=other_parameters_are_told_apart"
    assert main(["check", str(tmp_path / "acme.py"), problem, check, "--where"]) == 1
    printed = capsys.readouterr().out
    assert f"with another stride ({problem} and n1 c2 h1 w4 k2 r1 s1 u1x2 g2)" in printed
    assert "fails where groups > 1: " in printed


@pytest.mark.parametrize("name", OPERATORS)
def test_every_operator_has_problems_that_differ_in_a_parameter(name: str):
    """The results of two problems were compared on numbers of 64 bits, which requantized convolution does not take."""
    for text in FAMILIES[OPERATORS[name].family].equal_shapes:
        assert state._neighbours(name, typed(text).geometry)
