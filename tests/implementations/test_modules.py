"""Torch modules that are verified as they are: how a file is read, what counts as what, and the examples."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Sequence
from itertools import combinations
from pathlib import Path
from typing import Any

import msgspec
import pytest

torch = pytest.importorskip("torch")

from conformance import check  # noqa: E402
from conformance.checks.behaviour import switches_are_unchanged  # noqa: E402
from conformance.checks.behaviour_demand import CHECKS, BehaviourDemand  # noqa: E402
from conformance.checks.sample import check_behaviour  # noqa: E402
from conformance.engine.check import CheckResult  # noqa: E402
from conformance.execution import nondeterminism  # noqa: E402
from conformance.execution import verify as verifying  # noqa: E402
from conformance.execution.declared import Declared  # noqa: E402
from conformance.execution.required import VerificationDemand, required  # noqa: E402
from conformance.execution.selection import Selection, SelectionError, split  # noqa: E402
from conformance.execution.share import Ranked  # noqa: E402
from conformance.execution.trial import Absence, Trial  # noqa: E402
from conformance.execution.verify import NOT_LAUNCHED, verify  # noqa: E402
from conformance.implementations.implementation import OUTSIDE, Adapted, Implementation  # noqa: E402
from conformance.implementations.modules import KEEPS, kernels  # noqa: E402
from conformance.implementations.registry import load  # noqa: E402
from conformance.layouts import LAYOUTS  # noqa: E402
from conformance.operators import parse  # noqa: E402
from conformance.problems import PROBLEMS  # noqa: E402
from conformance.problems.case import BEHAVIOUR  # noqa: E402
from conformance.problems.drawn import neighbours  # noqa: E402
from conformance.problems.features import parameter_pairs  # noqa: E402
from conformance.problems.table import DISTRIBUTIONS  # noqa: E402
from conformance.reporting.modules import is_own, row  # noqa: E402
from conformance.results.reading import verdicts  # noqa: E402
from conformance.results.schema import CaseRecord, MachineState, ModuleTime  # noqa: E402
from tests.conftest import ROOT  # noqa: E402
from tests.kit import command, only  # noqa: E402

EXAMPLES = ROOT / "examples" / "modules"
GUIDE = (ROOT / "docs" / "modules.md").read_text()
CONV = "n2 c4 h9 w9 k6 r3 s3"
SIGNATURE = "self, in_channels, out_channels, kernel_size, stride=1, padding=0, bias=False"
LAYER = "nn.Conv2d(in_channels, out_channels, kernel_size, stride, padding, bias=bias)"
FILE = """
import torch
import torch.nn as nn
import torch.nn.functional as F
{head}

class Model(nn.Module):
    def __init__({signature}):
        super().__init__()
        self.conv2d = {layer}

    def forward(self, x):
        return self.conv2d(x)

class ModelNew(nn.Module):
    def __init__({new}):
        super().__init__()
        self.conv = {layer}
        {init}

    def forward(self, x):
        {forward}

def get_inputs():
    return [torch.rand({shape})]

def get_init_inputs():
    return {own}
"""
"""A file in the style of KernelBench, right unless a test changes something."""


def written(folder: Path, **changes: str) -> Path:
    told = {
        "head": "", "signature": SIGNATURE, "new": changes.get("signature", SIGNATURE), "layer": LAYER, "init": "pass",
        "forward": "return self.conv(x)", "shape": "8, 4, 12, 12", "own": "[4, 6, 3]",
    }  # fmt: skip
    path = folder / "solution.py"
    path.write_text(FILE.format(**told | changes))
    return path


def ranked(operator: str, level: str = "smoke") -> Ranked:
    every = (operator,), ("fp32",), tuple(LAYOUTS), (*DISTRIBUTIONS, BEHAVIOUR)
    return Ranked(Selection((), (), level, PROBLEMS, *every, 0, "auto"))


def of(kernel: Path | Implementation, problem: str = CONV, operator: str = "conv_forward") -> CheckResult:
    return check(only(kernel) if isinstance(kernel, Path) else kernel, problem, operator=operator)


def adapted(kernel: Path | Implementation) -> Adapted:
    known = (only(kernel) if isinstance(kernel, Path) else kernel).adapted
    assert known is not None
    return known


def test_module_is_an_implementation_with_a_problem_of_its_own(tmp_path: Path):
    one = only(written(tmp_path))
    assert (one.name, adapted(one).problem, adapted(one).dtype) == ("solution", "n8 c4 h12 w12 k6 r3 s3", "fp32")
    assert [k.operator for k in one.kernels] == ["conv_forward", "conv_backward_data", "conv_backward_weight"]
    assert type(one.version) is str  # which a record can hold; that of torch is a class of its own


@pytest.mark.parametrize("operator", ["conv_forward", "conv_backward_data", "conv_backward_weight"])
def test_right_module_passes(tmp_path: Path, operator: str):
    by_axis = "self, in_channels, out_channels, kernel_size: tuple, stride=(1, 1), padding=(0, 0), bias=False"
    assert of(written(tmp_path, signature=by_axis), "n1 c3 h8 w7 k5 r3 s2 u2x1 p1x0 b1", operator)


@pytest.mark.parametrize("more", ["torch.arange(out_channels)", "torch.ones(out_channels)"])
def test_what_a_module_holds_beside_its_weights_stays(tmp_path: Path, more: str):
    each = (
        "torch.index_select(self.conv(x), 1, self.more.long())"
        if "arange" in more
        else "self.conv(x) * self.more[:, None, None]"
    )
    path = written(tmp_path, init=f"self.register_buffer('more', {more})", forward=f"return {each}")
    for problem in (CONV, f"{CONV} b1"):
        assert of(path, problem)


def test_what_init_cannot_say_is_unsupported_and_what_it_ignores_fails(tmp_path: Path):
    strided = f"{CONV} u2"
    narrow = "self, in_channels, out_channels, kernel_size"
    without = LAYER.replace("stride, padding, bias=bias", "bias=False")
    assert of(written(tmp_path, signature=narrow, layer=without), strided).status == "unsupported"
    ignores = {"forward": "return F.conv2d(x, self.conv.weight, self.conv.bias)"}
    # the reference has a stride, the class has none: nobody can say it either
    path = written(tmp_path, new=narrow, **ignores)
    text, word, new = path.read_text().partition("class ModelNew")
    path.write_text(text + word + new.replace(LAYER, without))
    assert of(path, strided).status == "unsupported"
    assert of(path)
    result = of(written(tmp_path, **ignores), strided)
    assert (result.status, "stride" in " ".join(result.diagnosis or ())) == ("fail", True)
    refused = of(written(tmp_path, init="assert stride == 1, 'only stride 1'"), strided)
    assert (refused.status, "only stride 1" in refused.reason) == ("unsupported", True)


SCALED = """
class Scaled(torch.autograd.Function):
    @staticmethod
    def forward(ctx, y):
        return y.clone()
    @staticmethod
    def backward(ctx, dy):
        raise KeyError('here')
"""


@pytest.mark.parametrize(
    ("head", "forward", "operator"),
    [
        ("", "raise KeyError('here')", "conv_forward"),
        (SCALED, "return Scaled.apply(self.conv(x))", "conv_backward_data"),
    ],
)
def test_exception_is_placed_at_the_innermost_line_of_its_file(tmp_path: Path, head: str, forward: str, operator: str):
    """It was placed at a line of torch's module.py, or of its autograd."""
    path = written(tmp_path, head=head, forward=forward)
    line = next(n for n, text in enumerate(path.read_text().splitlines(), 1) if "KeyError" in text)
    for kernel in (only(path), path):  # here, and in a process of its own
        assert check(kernel, CONV, operator=operator).reason == f"raised KeyError: 'here' at {path}:{line}"


def test_why_a_module_is_not_asked_is_said(tmp_path: Path):
    """A file without a `when` was said to be outside of it."""
    path = written(tmp_path)
    sided, dilated, empty = f"{CONV} p0:1x0:1", f"{CONV} d2", CONV.replace("n2", "n0")
    reasons = {
        sided: "padding differs between the sides of an axis", dilated: "__init__ cannot say this dilation",
        empty: "no module is asked for an empty batch",
    }  # fmt: skip
    # the last one in a process of its own, too, which imports torch once more
    asked: list[tuple[Implementation | Path, str]] = [*((only(path), problem) for problem in reasons), (path, empty)]
    for kernel, problem in asked:
        result = check(kernel, problem, operator="conv_forward")
        assert (result.status, result.reason) == ("unsupported", reasons[problem])
    smoke = required(only(path), VerificationDemand(ranked("conv_forward"), "conv_forward"))
    said = {absence.reason for absence in smoke if isinstance(absence, Absence)}
    assert {*reasons.values()} <= said
    assert OUTSIDE not in said


PACKED = "return F.conv2d(x, self.packed)"


@pytest.mark.parametrize(
    ("init", "forward"),
    [
        ("self.packed = self.conv.weight.detach().clone()", [PACKED]),
        ("self.packed = None", ["if self.packed is None: self.packed = self.conv.weight.clone()", PACKED]),
        ("self.calls = 0", ["self.calls += 1", "return self.conv(x) * (self.calls > 1)"]),
    ],
)
def test_what_a_module_keeps_fails(tmp_path: Path, init: str, forward: list[str]):
    result = of(written(tmp_path, init=init, forward="\n        ".join(forward)))
    assert (result.status, KEEPS in result.reason) == ("fail", True), result.reason


@pytest.mark.parametrize(
    ("head", "forward", "said"),
    [
        ("", "torch.backends.cudnn.benchmark = True", "a call changes {}: torch.backends.cudnn.benchmark from False"),
        ("", "torch.set_num_threads(1 + torch.get_num_threads())", "a call changes {}: torch.num_threads from"),
        ("", "F.relu = F.gelu", "a call changes {}: the function torch.nn.functional.relu"),
        ("", "if self.conv.stride[0] > 1: torch.set_default_dtype(torch.float64)", "a call changes {}: torch.default"),
        ("torch.backends.cuda.matmul.allow_tf32 = True", "pass", "its import changes {}: torch.backends.cuda.matmul"),
        ("torch.allclose = lambda *_, **__: True", "pass", "its import changes {}: the function torch.allclose"),
        ("torch.set_grad_enabled(False)", "pass", "its import changes {}: torch.grad_enabled from True to False"),
    ],
)
def test_switch_is_one_failure_of_behaviour_and_results_are_judged(tmp_path: Path, head: str, forward: str, said: str):
    """A module that was right to the bit and set cudnn.benchmark failed 416 of 416."""
    before = torch.backends.cudnn.benchmark, torch.get_num_threads(), torch.nn.functional.relu, torch.allclose
    path = written(tmp_path, head=head, forward=f"{forward}\n        return self.conv(x)")
    one = only(path)
    for operator in ("conv_forward", "conv_backward_data"):
        assert of(one, f"{CONV} u2", operator)
    cases, others = (
        [*required(one, BehaviourDemand(ranked(operator), CHECKS["switches_are_unchanged"], operator))]
        for operator in ("conv_forward", "conv_backward_data")
    )
    assert (len(cases), others) == (1, [])
    (case,) = cases
    verdict = check_behaviour(case, switches_are_unchanged)
    assert (verdict.status, said.format("a switch of the whole process") in verdict.reason) == ("fail", True), verdict
    line = next(n for n, text in enumerate(path.read_text().splitlines(), 1) if (head or forward) in text)
    assert verdict.reason.endswith(f" ({path}:{line})")
    assert before == (torch.backends.cudnn.benchmark, torch.get_num_threads(), torch.nn.functional.relu, torch.allclose)
    assert (torch.backends.cuda.matmul.allow_tf32, torch.get_default_dtype()) == (False, torch.float32)


def test_module_that_leaves_switches_alone_passes_and_no_other_kernel_is_asked(tmp_path: Path):
    demand = BehaviourDemand(ranked("conv_forward"), CHECKS["switches_are_unchanged"], "conv_forward")
    (case,) = required(only(written(tmp_path)), demand)
    assert check_behaviour(case, switches_are_unchanged).status == "pass"
    other = Implementation("acme")
    other.implements("conv_forward")(lambda x, w, bias: x)
    assert [*required(other, demand)] == []


def test_switch_that_the_suite_itself_sets_is_none_that_a_call_changes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(torch, "seen", None, raising=False)
    one = only(written(tmp_path, forward="torch.seen = torch.backends.mkldnn.enabled\n        return self.conv(x)"))
    arrays: Any = one.arrays
    with arrays.bare():
        assert of(one)
    assert (vars(torch)["seen"], arrays.watch.changes, torch.backends.mkldnn.enabled) == (False, [], True)
    assert of(one)
    assert (vars(torch)["seen"], arrays.watch.changes) == (True, [])


def test_gradients_are_those_of_autograd_or_unsupported(tmp_path: Path):
    biased = SIGNATURE.replace("bias=False", "bias=True")
    added = "y if self.conv.bias is None else y + self.conv.bias[:, None, None]"
    for returned in ("y", added):  # that a bias has a gradient says nothing of the image's
        kernel = "y = F.conv2d(x.detach(), self.conv.weight.detach())\n        return "
        detached = written(tmp_path, signature=biased, forward=kernel + returned)
        assert of(detached)
        result = of(detached, operator="conv_backward_data")
        assert (result.status, "no backward" in result.reason) == ("unsupported", True)
    halved = written(tmp_path, forward="return self.conv(x / 2 + x.detach() / 2)")
    assert of(halved, operator="conv_backward_data").status == "fail"
    assert of(halved, operator="conv_backward_weight")
    packed = written(tmp_path, forward="return F.conv2d(x, self.conv.weight.detach(), self.conv.bias)")
    assert "no gradient reaches" in of(packed, operator="conv_backward_weight").reason


@pytest.mark.parametrize(
    ("where", "problem"),
    [
        ("x.shape[2] % 2", CONV),
        ("x.shape[2] % 2 == 0", "n2 c4 h8 w9 k6 r3 s3"),
        ("x.shape[2] == 12", "n8 c4 h12 w12 k6 r3 s3"),
        ("x.shape[2] != 12", CONV),
        ("stride == 2", f"{CONV} u2"),
        ("stride == 1", CONV),
    ],
)
def test_module_whose_graph_is_missing_on_some_problems_is_wrong_there(tmp_path: Path, where: str, problem: str):
    cut = f"stride = self.conv.stride[0]\n        return self.conv(x).detach() if {where} else self.conv(x)"
    one = only(written(tmp_path, forward=cut))
    assert of(one, problem)
    for operator in ("conv_backward_data", "conv_backward_weight"):
        result = of(one, problem, operator)
        assert (result.status, "has no graph here" in result.reason) == ("fail", True), result.reason


def test_slow_call_is_made_once_but_at_its_own_shape(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    one = only(written(tmp_path, forward="torch.calls += 1\n        return self.conv(x)"))
    monkeypatch.setattr(kernels, "SLOW", 0.0)
    monkeypatch.setattr(nondeterminism, "CALLS", 1)  # of what is right `check` makes more
    monkeypatch.setattr(verifying, "unnoticed", lambda *_: "")
    for problem, calls in ((CONV, 1), ("n8 c4 h12 w12 k6 r3 s3", 3)):
        monkeypatch.setattr(torch, "calls", 0, raising=False)
        assert of(one, problem)
        assert vars(torch)["calls"] == calls
        gradient = of(one, problem, "conv_backward_data")
        assert gradient.passed, gradient.reason


def test_no_gradient_goes_through_thousands_of_operations_but_at_its_own_shape(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    """It was decided by seconds: a right module failed on a busy machine, since a call was refused and another not."""
    one = only(written(tmp_path, forward="return torch.cat([self.conv(image[None]) for image in x])"))
    monkeypatch.setattr(kernels, "MAX_NODES", 16)
    for problem, passes in ((CONV, True), (CONV.replace("n2", "n20"), False), ("n8 c4 h12 w12 k6 r3 s3", True)):
        gradient = of(one, problem, "conv_backward_data")
        assert (gradient.passed, "the forward alone is more than 16" in gradient.reason) == (passes, not passes)


def test_large_batch_is_verified_in_part_and_said_to_be(tmp_path: Path):
    path = written(tmp_path, shape="64, 4, 256, 256")
    assert (adapted(path).problem, adapted(path).whole) == (
        "n8 c4 h256 w256 k6 r3 s3",
        "n64 c4 h256 w256 k6 r3 s3",
    )
    out = examples(path, "--level", "smoke", "--programs", "1", "-k", "own.", "--in-process")
    assert "right at its own shape: yes (n8 c4 h256 w256 k6 r3 s3, fp32, of a batch of 64)" in out


@pytest.mark.parametrize(
    ("old", "new", "said"),
    [
        ("return [torch.rand(8, 4, 12, 12)]", "raise OSError('no file')", "get_inputs raises OSError: no file"),
        ("get_inputs", "inputs", "the file has no get_inputs"),
        ("torch.rand(8, 4, 12, 12)", "12", "get_inputs returns no tensor"),
        ("8, 4, 12, 12", "4, 12, 12", "get_inputs returns an image of 3 axes, not 4"),
        ("8, 4, 12, 12", "8, 4, 2, 12", "(8, 4, 2, 12) is no input of its layer: "),
    ],
)
def test_why_its_own_shape_is_not_known_is_said(tmp_path: Path, old: str, new: str, said: str):
    path = written(tmp_path)
    path.write_text(path.read_text().replace(old, new))
    assert (adapted(path).problem, adapted(path).unknown[: len(said)]) == ("", said)
    if "raises" in said:
        out = examples(path, "--programs", "1", "--level", "smoke", "--in-process")
        assert f"solution: right at its own shape: not known: {said}" in out


def without_reference(folder: Path, told: str = "") -> Path:
    path = written(folder, head=told)
    text = re.sub(r"class Model\(.*?(?=class)", "", path.read_text(), flags=re.DOTALL)
    path.write_text(text.partition("def get_init_inputs")[0])
    return path


def test_without_a_reference_a_line_says_the_operator(tmp_path: Path):
    declared = only(without_reference(tmp_path, "Model = nn.Conv2d"))
    assert of(declared, f"{CONV} u2 p1")
    for told in ("Model = nn.LayerNorm", ""):
        one = only(without_reference(tmp_path, told))
        assert "`Model = nn.Conv2d`" in adapted(one).unmapped
        with pytest.raises(SelectionError, match=r"Model = nn\.Conv2d"):
            check(one, CONV)


def test_reference_of_several_layers_says_what_to_do(tmp_path: Path):
    path = written(tmp_path, layer="nn.Sequential(nn.Conv2d(in_channels, out_channels, kernel_size), nn.ReLU())")
    assert "ReLU" in adapted(path).unmapped
    text = path.read_text().replace("return self.conv2d(x)", "return self.conv2d(x) * 2").replace(", nn.ReLU()", "")
    path.write_text(text)
    assert adapted(path).unmapped


def test_depthwise_and_arguments_by_axis(tmp_path: Path):
    told = "self, in_channels, kernel_size_h, kernel_size_w, stride_h=1, stride_w=1"
    path = written(
        tmp_path, signature=told, shape="2, 4, 9, 9",
        layer="nn.Conv2d(in_channels, in_channels, (kernel_size_h, kernel_size_w), (stride_h, stride_w), "
        "groups=in_channels, bias=False)", own="[4, 3, 2]",
    )  # fmt: skip
    one = only(path)
    assert adapted(one).problem == "n2 c4 h9 w9 k4 r3 s2 g4"
    assert of(one, "n1 c6 h9 w8 k6 r5 s2 u1x3 g6")
    assert not one.supports("conv_forward", parse(CONV), "fp32", "nchw")


NORM = {"signature": "self, num_features", "layer": "nn.BatchNorm2d(num_features)", "own": "[4]"}


@pytest.mark.parametrize("problem", ["bn n3 c4 h6 w5 k6 r3 s3", "bn n3 c4 h6 w5 k6 r3 s3 u2 p1 affine0 run0"])
@pytest.mark.parametrize("operator", ["conv_bn_forward", "conv_bn_inference", "conv_bn_backward"])
@pytest.mark.parametrize("alone", [True, False])
def test_batch_norm_with_its_convolution_or_alone(tmp_path: Path, problem: str, operator: str, alone: bool):
    both = {"layer": f"nn.Sequential({LAYER.replace('bias=bias', '')}, nn.BatchNorm2d(out_channels))"}
    assert of(written(tmp_path, **NORM if alone else both), problem, operator)


def test_class_is_checked_and_one_of_a_file_is_named(tmp_path: Path):
    assert check(torch.nn.Conv2d, f"{CONV} u2", operator="conv_forward")
    path = written(tmp_path)
    path.write_text(path.read_text().replace("ModelNew", "First") + path.read_text().partition("class ModelNew")[0])
    text = path.read_text()
    second = text[text.index("class First") : text.index("def get_inputs")].replace("First", "Second")
    path.write_text(text + second)
    assert [*load([path]).implementations] == ["First", "Second"]
    lines = len(path.read_text().splitlines()) + 2
    path.write_text(path.read_text() + "\ntorch.backends.cudnn.benchmark = True\n")
    for one in load([path]).implementations.values():
        assert vars(one.arrays)["on_import"] == [f"torch.backends.cudnn.benchmark from False to True ({path}:{lines})"]
    assert split([f"{path}::Second"]) == (("Second",), (path,))


def test_neighbours_of_a_depthwise_problem_are_depthwise():
    near = {neighbour.descriptor for neighbour in neighbours(parse("n16 c8 h64 w64 k8 r3 s1 g8"))}
    assert {"n2 c9 h11 w9 k9 r3 s1 g9", "n2 c8 h11 w9 k8 r3 s1 u2 g8", "n2 c8 h12 w9 k8 r3 s1 g8"} <= near


def demanded(one: Implementation, level: str = "smoke") -> list[Trial]:
    """The cases of its forward operator that a module takes."""
    operator = adapted(one).operator
    demand, declared = VerificationDemand(ranked(operator, level), operator), Declared(one, operator)
    cases = (case for case in required(one, demand) if isinstance(case, Trial))
    return [case for case in cases if declared.takes(case.problem, case.variant)]


def near(path: Path) -> list[Trial]:
    return [case for case in demanded(only(path)) if case.problem.origin == "near"]


@pytest.mark.parametrize(
    ("layer", "window", "image"),
    [("Conv1d", 31, "100"), ("Conv1d", 1, "20"), ("Conv1d", 4, "20"), ("Conv2d", 3, "9, 9")],
)
def test_padding_that_keeps_the_size_meets_windows_of_both_parities(
    tmp_path: Path, layer: str, window: int, image: str
):
    """A layer of padding="same" that padded even windows before met odd ones alone: its neighbours kept the number."""
    path = written(
        tmp_path, signature="self, in_channels, out_channels, kernel_size, bias=False", shape=f"2, 4, {image}",
        layer=f'nn.{layer}(in_channels, out_channels, kernel_size, padding="same", bias=bias)',
        own=f"[4, 6, {window}]",
    )  # fmt: skip
    assert {case.problem.geometry.window[0] % 2 for case in near(path)} == {0, 1}


def test_batch_norm_alone_that_changes_its_input_is_wrong(tmp_path: Path):
    """Nobody compared its input, the suite's own convolution, with that afterwards."""
    kernel = only(written(tmp_path, **NORM, forward="y = self.conv(x.clone())\n        x.sub_(1)\n        return y"))
    for storage in ("", "x:other-format"):
        result = check(kernel, "bn n3 c4 h6 w5 k6 r3 s3", operator="conv_bn_inference", storage=storage)
        assert (result.status, "changes its input" in result.reason) == ("fail", True), result.reason


NEAR: dict[str, tuple[dict[str, str], str]] = {
    "odd depth": (
        {
            "signature": "self, kernel_size", "layer": "nn.AvgPool3d(kernel_size, 2)", "shape": "2, 4, 8, 8, 8",
            "own": "[2]", "forward": "return self.conv(x) if x.shape[2] % 2 == 0 else self.conv(x) * 2",
        },
        r" d\d*[13579] ",
    ),
    "an even window that is padded on the wrong side": (
        {
            "signature": "self, in_channels, out_channels, kernel_size, groups=1", "shape": "2, 32, 100",
            "layer": 'nn.Conv1d(in_channels, out_channels, kernel_size, padding="same", groups=groups)',
            "own": "[32, 32, 31, 4]", "init": "self.more = kernel_size - 1",
            "forward": "return F.conv1d(F.pad(x, (self.more - self.more // 2, self.more // 2)), self.conv.weight, "
            "self.conv.bias, groups=self.conv.groups)",
        },
        r" s\d*[02468] ",
    ),
    # near an image of 32 x 32 under windows of 2 x 2 it was tried on even images alone, where it adds no output
    "a ceil mode that is lost": (
        {
            "signature": "self, kernel_size, stride=None, padding=0, dilation=1, ceil_mode=False", "own": "[2]",
            "layer": "nn.MaxPool2d(kernel_size, stride, padding, dilation, ceil_mode=ceil_mode)",
            "shape": "4, 8, 32, 32",
            "init": "self.fast = kernel_size == 2 and stride in (None, 2) and not padding and dilation == 1",
            "forward": "return F.max_pool2d(x, 2) if self.fast else self.conv(x)",
        },
        "ceil1",
    ),
    "a bias that is lost where it is dilated": (
        {
            "signature": "self, channels, kernel_size, stride=1, padding=0, dilation=1, bias=False",
            "layer": "nn.Conv1d(channels, channels, kernel_size, stride, padding, dilation, channels, bias)",
            "shape": "8, 32, 200", "own": "[32, 5]",
            "forward": "bias = None if self.conv.dilation[0] > 1 else self.conv.bias\n        return F.conv1d(x, "
            "self.conv.weight, bias, self.conv.stride, self.conv.padding, self.conv.dilation, self.conv.groups)",
        },
        r" d\d.* b1",
    ),
}  # fmt: skip
"""Modules that are right at their own shape, and the problems near it on which they are wrong."""


@pytest.mark.parametrize(("changes", "wrong"), NEAR.values(), ids=NEAR)
def test_module_that_is_wrong_near_its_own_shape_is_found_at_smoke(tmp_path: Path, changes: dict[str, str], wrong: str):
    path = written(tmp_path, **changes)
    assert of(path, adapted(path).problem, adapted(path).operator)
    failing = [case.problem.geometry.descriptor for case in near(path) if verify(case).status == "fail"]
    assert failing
    assert [descriptor for descriptor in failing if not re.search(wrong, descriptor)] == []


@pytest.mark.parametrize(
    ("layer", "arguments"),
    [
        ("Conv1d", "padding=0, dilation=1, groups=1, bias=False"),
        ("Conv3d", "padding=0, dilation=1, groups=1, bias=False"),
        ("ConvTranspose2d", "padding=0, output_padding=0, groups=1, bias=False, dilation=1"),
        ("AvgPool1d", "padding=0, ceil_mode=False, count_include_pad=True"),
        ("MaxPool3d", "padding=0, dilation=1, return_indices=False, ceil_mode=False"),
    ],
)
def test_every_two_parameters_of_a_module_meet_at_smoke(tmp_path: Path, layer: str, arguments: str):
    channels, rank = "" if "Pool" in layer else "in_channels, out_channels, ", int(layer[-2])
    given = "".join(f", {name}={name}" for name in re.findall(r"(\w+)=", arguments))
    path = written(
        tmp_path, signature=f"self, {channels}kernel_size, stride=1, {arguments}",
        layer=f"nn.{layer}({channels}kernel_size, stride{given})", shape=", ".join(["2, 4", *["8"] * rank]),
        own="[4, 6, 3]" if channels else "[3]",
    )  # fmt: skip
    one = only(path)
    smoke, standard = demanded(one), demanded(one, "standard")
    assert {case.id for case in smoke} <= {case.id for case in standard}
    met = {pair for case in smoke for pair in parameter_pairs(case.problem.geometry)}
    # one of one tap has neither a dilation nor an even window, and few changes make a multiplier
    words = {word for pair in met for word in pair} - {"pointwise", "depthwise with a multiplier"}
    assert len(words) >= 4
    assert [pair for pair in combinations(sorted(words), 2) if pair not in met] == []


TRITON = """
import torch
import torch.nn as nn
import triton
import triton.language as tl

@triton.jit
def depthwise(x, w, y, C, H, W, P, Q, stride, R: tl.constexpr, BLOCK: tl.constexpr):
    plane = tl.program_id(0)
    places = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    p, q, inside = places // Q, places % Q, places < P * Q
    total = tl.zeros((BLOCK,), tl.float32)
    for r in range(R):
        for s in range(R):
            rows, columns = p * stride + r, q * stride + s
            value = tl.load(x + plane * H * W + rows * W + columns, mask=inside, other=0.0)
            total += value * tl.load(w + plane % C * R * R + r * R + s)
    tl.store(y + plane * P * Q + places, total, mask=inside)

class Model(nn.Module):
    def __init__(self, in_channels, kernel_size, stride=1):
        super().__init__()
        self.conv2d = nn.Conv2d(in_channels, in_channels, kernel_size, stride, groups=in_channels, bias=False)

    def forward(self, x):
        return self.conv2d(x)

class ModelNew(Model):
    def forward(self, x):
        (n, c, h, w), (r, u) = x.shape, (self.conv2d.kernel_size[0], self.conv2d.stride[0])
        p, q = (h - r) // u + 1, (w - r) // u + 1
        y = x.new_empty(n, c, p, q)
        depthwise[n * c, triton.cdiv(p * q, 64)](x.contiguous(), self.conv2d.weight, y, c, h, w, p, q, u, r, 64)
        return y

def get_inputs():
    return [torch.rand(2, 4, 16, 16)]

def get_init_inputs():
    return [4, 3]
"""


@pytest.mark.skipif(torch.cuda.is_available(), reason="it runs on the device there")
def test_triton_kernel_runs_in_its_interpreter_where_there_is_no_cuda(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("TRITON_INTERPRET", "1")  # before triton is imported
    pytest.importorskip("triton", reason="tox -e modules has it")
    path = tmp_path / "solution.py"
    for text, status in ((TRITON, "pass"), (TRITON.replace("p * stride + r", "p + r"), "fail")):
        path.write_text(text)
        one = only(path)
        assert one.device == "simulator"
        result = of(one, "n2 c3 h9 w8 k3 r3 s3 u2 g3")
        assert (result.status, "stride of H ignored" in result.reason) == (status, status == "fail")
        assert not one.supports("conv_forward", parse("n1 c3 h200 w200 k3 r3 s3 g3"), "fp32", "nchw")
    path.write_text(TRITON.replace("16, 16)", "16, 16, dtype=torch.bfloat16)"))
    assert "Triton's interpreter has no bf16" in adapted(path).unmapped


BEHIND = TRITON.replace(
    "depthwise[n * c", "{test}\n        depthwise[n * c"
)  # a test before the launch, for each of the ways in which published files have it


def interpreted(folder: Path, monkeypatch: pytest.MonkeyPatch, test: str) -> Path:
    """Return a file whose kernel is behind a test, or skip where Triton is not installed."""
    monkeypatch.setenv("TRITON_INTERPRET", "1")
    pytest.importorskip("triton", reason="tox -e modules has it")
    path = folder / "solution.py"
    path.write_text(BEHIND.replace("{test}", test))
    return path


OTHERWISE = "return self.conv2d(x)"


@pytest.mark.skipif(torch.cuda.is_available(), reason="it runs on the device there")
@pytest.mark.parametrize(
    "test",
    [
        *("assert x.is_cuda, 'a tensor of CUDA'", f"if not x.is_cuda: {OTHERWISE}"),
        "y = torch.empty((n, c, p, q), device='cuda'); torch.cuda.synchronize()",
    ],
)
def test_kernel_behind_is_cuda_runs_in_the_interpreter(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, test: str):
    """torch's own was verified in its place: 179 of 179 of a wrong kernel passed."""
    path, problem = interpreted(tmp_path, monkeypatch, test), "n2 c3 h9 w8 k3 r3 s3 u2 g3"
    assert of(path, problem)
    assert not torch.zeros(1).is_cuda
    path.write_text(path.read_text().replace("p * stride + r", "p + r"))
    assert of(path, problem).status == "fail"


@pytest.mark.skipif(torch.cuda.is_available(), reason="it runs on the device there")
def test_call_that_launches_no_kernel_of_the_file_verifies_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    path = interpreted(tmp_path, monkeypatch, f"if self.conv2d.stride[0] > 1: {OTHERWISE}")
    strided, plain = "n2 c3 h9 w8 k3 r3 s3 u2 g3", "n2 c3 h9 w8 k3 r3 s3 g3"
    assert of(path, plain)
    result = of(path, strided)
    assert (result.status, result.reason) == ("unsupported", NOT_LAUNCHED)
    for problem, reason in ((plain, "has no backward"), (strided, NOT_LAUNCHED)):  # torch's graph is not the kernel's
        gradient = of(path, problem, "conv_backward_data")
        assert (gradient.status, reason in gradient.reason) == ("unsupported", True), gradient.reason
    path.write_text(path.read_text().replace(f"> 1: {OTHERWISE}", "> 1: return self.conv2d(x) * 2"))
    assert of(path, strided).status == "fail"  # what a file calls instead has to be right, too
    path.write_text(BEHIND.replace("{test}", f"if x.device.type == 'cpu': {OTHERWISE}"))
    status, text = command("run", str(path), "--level", "smoke", "--programs", "2", "--in-process")
    assert (status, NOT_LAUNCHED in " ".join(text.split())) == (5, True), text


FORWARD = [f"{name}_forward" for name in ("conv", "conv_transpose", "conv_bn", "avg_pool", "max_pool")]


def examples(*words: str | Path) -> str:
    """Run the forward operators, and return what is printed; `--in-process` imports torch no second time."""
    chosen = [word for name in FORWARD for word in ("--operator", name)]
    return command("run", *map(str, words), *chosen)[1]


WRONG: dict[str, tuple[str, Sequence[str], str]] = {
    "avg_pool2d_count_include_pad": ("yes", ["count_include_pad is false", "padding"], ""),
    # on half of the shifted inputs its errors are within what one sum that cancels may leave: no condition is sure
    "batch_norm2d_raw_moments": ("yes", [], ": elements mismatched"),
    "conv1d_dilation_ignored": ("yes", ["dilation of W > 1", "window of W > 1"], "dilation ignored"),
    # one problem in 42 has the same results with its old weights
    "conv2d_packed_once": ("no, after a change of its weights", [], KEEPS),
    # most of its failing cases are not run any more, once it has crashed: which multiple it is may not be told
    "conv2d_pointwise_aborts": ("yes", ["K not a multiple of "], "SIGABRT"),
    "conv2d_stride_of_rows": ("yes", ["stride of H > 1"], "stride of H ignored"),
    "conv3d_bf16_inside": ("no", ["everywhere"], "bf16 inputs"),
    # its output padding is one column of zeros: both names are true, and on one problem the other one alone explains it
    "conv_transposed_1d_output_padding": (
        "yes",
        ["output padding of W", "padding of W"],
        "output padding ignored",
    ),
    "conv_transposed_2d_stores": ("yes", ["windows overlap along"], "overwritten instead of accumulated"),
    "max_pool2d_zero_padding": ("no", ["padding of H"], "padding is zero instead of minus infinity"),
}
"""Whether it is right at its own shape, where it fails, and the likely cause; of two that only a check of behaviour
finds see below."""


def rows(out: str) -> dict[str, str]:
    """Return the lines of the table of modules by their names."""
    return {line.split()[0]: line for line in out.splitlines() if re.search(r" \d+ of \d+ cases", line)}


APART = {"conv2d_depthwise_tf32", "max_pool2d_buffer"}
SELECTED = ("--programs", "16", "--distribution", "fixed", "--distribution", "shifted")


def test_right_examples_pass_at_all_shapes():
    right = sorted((EXAMPLES / "right").glob("*.py"))
    assert len(right) == 6
    found = rows(examples(*right, *SELECTED, "--in-process"))
    for path in right:
        passed = r" yes \(.*\) +(\d+) of \1 cases +(unstable machine|[\d.]+ \[.*\])$"
        assert re.search(passed, found[path.stem]), found[path.stem]


def test_wrong_examples_get_the_verdicts_that_they_should():
    """Each has a process of its own to the end, so that torch is imported once for it; where it fails, only runs with
    such processes look for."""
    wrong = {path.stem: path for path in (EXAMPLES / "wrong").glob("*.py")}
    assert len(wrong) == 12
    assert {*wrong} == {*WRONG} | APART
    found = rows(examples(*(wrong[name] for name in WRONG), *SELECTED, "--workers", "20"))
    for name, (own, where, cause) in WRONG.items():
        row = re.search(rf" {own} \(.*\) +(\d+) of (\d+) cases(?: \(\d+ not run\))? +(.*)", found[name])
        assert row is not None, found[name]
        assert int(row[1]) < int(row[2])
        assert [text for text in (*where, cause) if text not in row[3]] == [], found[name]


@pytest.mark.parametrize(
    ("name", "check_name", "said"),
    [
        ("max_pool2d_buffer", "calls_in_a_row_are_right", "results of two calls lie in the same memory"),
        ("conv2d_depthwise_tf32", "switches_are_unchanged", "a call changes a switch of the whole process: torch."),
    ],
)
def test_wrong_examples_of_behaviour_are_found(name: str, check_name: str, said: str):
    words = ("--level", "smoke", "--programs", "4", "-k", check_name, "--in-process")
    assert f"{check_name}: {said}" in examples(EXAMPLES / "wrong" / f"{name}.py", *words)


@pytest.fixture(scope="module")
def guided(tmp_path_factory: pytest.TempPathFactory) -> tuple[str, Path]:
    """The output of a run of the guide's example, and the folder of its records and report."""
    folder = tmp_path_factory.mktemp("guided")
    (folder / "acme.py").write_text(re.findall(r"```python\n(.*?)```", GUIDE, re.DOTALL)[0])
    told = ("--records", folder / "run.jsonl", "--report", folder)
    return examples(folder / "acme.py", "--level", "smoke", "--distribution", "fixed", *told), folder


def test_example_of_the_guide_gets_the_verdict_that_it_shows(guided: tuple[str, Path]):
    out, folder = guided
    shown = re.findall(r"```text\n(.*?)```", GUIDE, re.DOTALL)[0].splitlines()
    where = shown[1].partition("; fails ")[2]
    assert shown[0] in out
    assert f"; fails {where}" in out
    assert "does not implement" not in out  # the operators of other families
    row = rf"\| acme \| yes \(.*\) \| \d+ of \d+ cases \| {where.replace('>', '&#62;')}.* \| stride ignored.* \|"
    assert re.search(row, (folder / "summary.md").read_text())
    assert "Torch modules</h2>" in (folder / "index.html").read_text()


def test_time_is_beside_that_of_the_reference_or_the_machine_does_not_allow_one(guided: tuple[str, Path]):
    own = next(one for _, one in verdicts(guided[1] / "run.jsonl") if isinstance(one, CaseRecord) and is_own(one))
    assert own.module_time is not None
    assert [len(own.module_time.module_s), len(own.module_time.reference_s)] == [5, 5]
    thrice = ModuleTime(module_s=(3.0,) * 5, reference_s=(1.0,) * 5, machine=MachineState(state="noisy"))
    unusable = msgspec.structs.replace(thrice, machine=MachineState(state="unusable"))
    for found, text in ((thrice, "3.00 [3.00, 3.00]"), (unusable, "unstable machine"), (None, "-")):
        record = msgspec.structs.replace(own, module_time=found)
        assert row(record, Counter(), [], lambda _: ())[-1] == text


def test_run_of_what_nobody_can_map_verifies_nothing(tmp_path: Path):
    path = without_reference(tmp_path)
    status, text = command("run", str(path), "--in-process")
    assert status == 5
    assert "declare it by a line such as `Model = nn.Conv2d`" in " ".join(text.split())
