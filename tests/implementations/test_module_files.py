"""Torch modules in the formats in which they are published: which class is the reference, and what its layer is that
no problem can say."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

torch = pytest.importorskip("torch")

from conformance import check  # noqa: E402
from conformance.engine.check import CheckResult  # noqa: E402
from conformance.implementations.implementation import Adapted, Unsupported  # noqa: E402
from conformance.implementations.modules import ModuleFile, is_module  # noqa: E402
from conformance.implementations.modules.adapter import Adapter  # noqa: E402
from conformance.implementations.modules.kernels import ModuleKernels  # noqa: E402
from conformance.implementations.modules.switches import Switches, Watch  # noqa: E402
from conformance.implementations.registry import _import, load  # noqa: E402
from conformance.operators import parse  # noqa: E402
from tests.kit import command, only  # noqa: E402

CONV = "n2 c4 h9 w9 k6 r3 s3"
HEAD = "import torch\nimport torch.nn as nn\nimport torch.nn.functional as F\n"
TAKES = "in_channels, out_channels, kernel_size, stride=1"
LAYER = "self.conv = nn.Conv2d(in_channels, out_channels, kernel_size, stride, bias=False)"
STRIDELESS = "return F.conv2d(x, self.conv.weight)"


def module(name: str, init: str, forward: str = "return self.conv(x)", takes: str = TAKES) -> str:
    return (
        f"\nclass {name}(nn.Module):\n    def __init__(self, {takes}):\n"
        f"        super({name}, self).__init__()\n        {init}\n\n"
        f"    def forward(self, x):\n        {forward}\n"
    )


def inputs(shape: str, init: str) -> str:
    return f"\ndef get_inputs():\n    return [torch.rand({shape})]\n\ndef get_init_inputs():\n    return {init}\n"


PROBLEM = HEAD + module("Model", LAYER) + inputs("2, 4, 9, 9", "[4, 6, 3, 2]")


def written(folder: Path, text: str) -> Path:
    path = folder / "solution.py"
    path.write_text(text)
    return path


def adapted(path: Path) -> Adapted:
    known = only(path).adapted
    assert known is not None
    return known


def forward(path: Path, problem: str, family: str = "conv") -> CheckResult:
    return check(only(path), problem, operator=f"{family}_forward")


# which class is the reference

HELPED = "self.inner = Inner(in_channels, out_channels, kernel_size, stride)"


MINE = "\nModel = nn.Conv2d\n"
"""The line that says which operator a file is for."""
OWN_SHAPE = inputs("2, 4, 9, 9", "[4, 6, 3, 2]")
INNER = module("Inner", LAYER, STRIDELESS) + module("Model", HELPED, "return self.inner(x)")
TWO_LAYERS = LAYER.replace("= nn.Conv2d(", "= nn.Sequential(nn.Conv2d(").replace(
    "bias=False)", "bias=False), nn.ReLU())"
)
RIGHT, WRONG = (module("Model", LAYER), module("Model", LAYER, STRIDELESS))
OVERRIDES = f"\nclass Model(Model):\n    def forward(self, x):\n        {STRIDELESS}\n"
OF_ITS_OWN = "\nclass Conv2d(nn.Conv2d):\n    pass\n"
DERIVED = """
class Model(nn.Conv2d):
    def __init__(self, in_channels, out_channels, kernel_size, stride=1):
        super().__init__(in_channels, out_channels, kernel_size, stride, bias=False)
"""
REFERENCES = {
    "the first of two of one name": (PROBLEM + HEAD + WRONG, "solution fail"),
    "the first of two, of a right kernel": (PROBLEM + HEAD + RIGHT, "solution pass"),
    "the first of two, from which the second is derived": (PROBLEM + HEAD + OVERRIDES, "solution fail"),
    "the first of two, and a line": (PROBLEM + HEAD + WRONG + MINE, "solution fail"),
    "the first of two, beside a class inside the second": (PROBLEM + INNER, "solution fail"),
    "a line, beside a class inside the kernel, which alone is right": (
        HEAD + module("Inner", LAYER) + module("Model", HELPED, "return 2 * self.inner(x)") + MINE,
        "solution fail",
    ),
    "none but the kernel": (HEAD + WRONG + OWN_SHAPE, "no reference"),
    "none but the kernel, of which the line is suggested": (HEAD + WRONG + OWN_SHAPE, "`Model = nn.Conv2d`"),
    "a line behind the only class": (HEAD + WRONG + OWN_SHAPE + MINE, "solution fail"),
    "a line behind the only class, which is right": (HEAD + RIGHT + OWN_SHAPE + MINE, "solution pass"),
    "a line before the only class": (HEAD + MINE + HEAD + WRONG + OWN_SHAPE, "solution fail"),
    "a line, beside a reference of several layers": (
        HEAD + module("Model", TWO_LAYERS) + module("First", LAYER) + module("Second", LAYER, STRIDELESS) + MINE,
        "First pass, Second fail",
    ),
    "another name of the kernel": (
        HEAD + module("Mine", LAYER, STRIDELESS) + OWN_SHAPE + "\nModel = Mine\n",
        "no reference",
    ),
    "a reference, and another name of the kernel": (
        PROBLEM + module("Mine", LAYER, STRIDELESS) + "\nModel = Mine\n",
        "fail",
    ),
    "a problem that two solutions repeat": (
        PROBLEM + module("First", LAYER, STRIDELESS) + PROBLEM + module("Second", LAYER),
        "First fail, Second pass",
    ),
    "a class of the file with a name of torch's": (
        HEAD + OF_ITS_OWN + module("Model", LAYER.replace("nn.Conv2d", "Conv2d")) + OWN_SHAPE,
        "is not one layer and nothing else",
    ),
    "a class that is derived from one of torch's": (
        HEAD + DERIVED + module("ModelNew", LAYER, STRIDELESS) + OWN_SHAPE,
        "solution fail",
    ),
}
"""Which class is the reference -> the text, and the verdicts by kernel, or a part of why there is none."""


@pytest.mark.parametrize(("text", "said"), REFERENCES.values(), ids=REFERENCES)
def test_kernels_are_verified_against_their_reference(tmp_path: Path, text: str, said: str):
    """Of a stride: the wrong ones ignore it."""
    verdicts = {
        name: kernel.adapted.unmapped or check(kernel, f"{CONV} u2", operator="conv_forward").status
        for name, kernel in load([written(tmp_path, text)]).implementations.items()
        if kernel.adapted
    }
    assert said in ", ".join(f"{name} {verdict}" for name, verdict in verdicts.items())


# what a file has, whatever its text


@pytest.mark.parametrize(
    "text",
    [
        "import torch.nn as nn\n\nclass Mine(nn.Conv2d):\n    pass\n\nModel = nn.Conv2d\n",
        "from torch.nn import Conv2d\n\nclass Mine(Conv2d):\n    '''Implementation(s).'''\n\nModel = Conv2d\n",
        "import torch.nn as nn\n\nclass Mine(nn.Module, object):\n    def __init__(self, in_channels, out_channels, "
        "kernel_size):\n        super().__init__()\n        self.weight = nn.Parameter(nn.init.normal_(nn.Parameter("
        "nn.Conv2d(in_channels, out_channels, kernel_size).weight)))\n\n    def forward(self, x):\n        "
        "return nn.functional.conv2d(x, self.weight)\n\nModel = nn.Conv2d\n",
    ],
)
def test_class_that_is_derived_from_one_of_torch_is_a_module(tmp_path: Path, text: str):
    assert forward(written(tmp_path, text), CONV)


def test_base_class_may_be_of_another_package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    (tmp_path / "layers_of_acme.py").write_text(
        "import torch.nn as nn\n\nclass Base(nn.Conv2d):\n    pass\nLayer = nn.Conv2d"
    )
    monkeypatch.syspath_prepend(tmp_path)
    text = "import layers_of_acme as acme\n\nclass Mine(acme.Base):\n    pass\n\nModel = acme.Layer\n"
    assert forward(written(tmp_path, text), CONV)


@pytest.mark.parametrize(
    "given",
    [
        "[[4, 6], {'kernel_size': 3, 'stride': 2}]",
        "[[], {'in_channels': 4, 'out_channels': 6, 'kernel_size': 3, 'stride': 2}]",
        "{'in_channels': 4, 'out_channels': 6, 'kernel_size': 3, 'stride': 2}",
    ],
)
def test_init_inputs_may_have_names(tmp_path: Path, given: str):
    text = HEAD + module("Model", LAYER) + module("ModelNew", LAYER, STRIDELESS) + inputs("2, 4, 9, 9", given)
    path = written(tmp_path, text)
    assert adapted(path).problem == f"{CONV} u2"
    assert forward(path, f"{CONV} u2").status == "fail"


@pytest.mark.parametrize(
    ("shape", "problem", "whole"),
    [("64, 4, 32, 32", "n8 c4 h32 w32 k6 r3 s3 u2", "n64 c4 h32 w32 k6 r3 s3 u2"), ("1, 4, 100, 100", "", "")],
)
def test_batch_for_an_interpreter_is_halved_until_it_fits_and_the_line_says_why_there_is_none(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, shape: str, problem: str, whole: str
):
    monkeypatch.setenv("TRITON_INTERPRET", "1")
    text = "# triton\n" + HEAD + module("Model", LAYER) + module("ModelNew", LAYER) + inputs(shape, "[4, 6, 3, 2]")
    known = adapted(written(tmp_path, text))
    assert (known.problem, known.whole) == (problem, whole)
    assert known.unknown == (
        "" if problem else "an image of 40,000 elements: Triton's interpreter is given at most 32,768"
    )


# what a reference has and no problem can say


@pytest.mark.parametrize(
    ("layer", "takes", "init"),
    [
        ("nn.MaxPool2d(size)", "size", "[2]"),
        ("nn.AvgPool2d(size)", "size", "[2]"),
        ("nn.Linear(c, k)", "c, k", "[4, 1]"),
    ],
)
def test_activation_behind_a_layer_is_another_operator(tmp_path: Path, layer: str, takes: str, init: str):
    """A maximum of numbers that are all positive has no negative one: behind a pooling, ReLU was not seen; of drawn
    numbers it was seen in seven runs of eight."""
    shape = "9, 4" if "Linear" in layer else "2, 4, 8, 8"
    model = module("Model", f"self.conv = {layer}", "return F.relu(self.conv(x))", takes)
    text = HEAD + model + model.replace("Model", "ModelNew") + inputs(shape, init)
    path = written(tmp_path, text)
    for seed in range(20):
        torch.manual_seed(seed)
        assert "not one layer and nothing else" in adapted(path).unmapped


def refusal(path: Path, problem: str, direction: str = "forward") -> str:
    """Why a problem is unsupported; empty where it is not."""
    file = ModuleFile(path)
    defined = vars(_import(path, file.tree))
    cls = defined.get("ModelNew") or next(
        c for n, c in defined.items() if is_module(c) and c.__module__ == defined["__name__"]
    )
    maker = Adapter("solution", "cpu")._maker(cls, defined)
    try:
        ModuleKernels(maker, Watch(Switches(), ""), "fp32", None, lambda: None).require(parse(problem), direction)
    except Unsupported as why:
        return str(why)
    return ""


def pair(layer: str, takes: str, shape: str, init: str, **kernel: str) -> str:
    """A problem of a layer, and a kernel that is derived from it."""
    forward = kernel.get("forward", "return self.layer(x)")
    reference = module("Model", f"self.layer = {layer}", "return self.layer(x)", takes)
    new = f"\nclass ModelNew(Model):\n    def forward(self, x):\n        {forward}\n"
    return HEAD + reference + new + inputs(shape, init)


NORM = "bn n2 c4 h5 w6 k4 r1 s1"


def test_module_without_running_statistics_is_asked_for_none(tmp_path: Path):
    norm = "nn.BatchNorm2d(num_features, track_running_stats=False)"
    path = written(tmp_path, pair(norm, "num_features", "2, 4, 5, 6", "[4]"))
    assert adapted(path).problem == f"{NORM} run0"
    assert forward(path, f"{NORM} run0", "conv_bn")
    assert check(only(path), NORM, operator="conv_bn_backward")
    for direction in ("forward", "inference"):
        assert check(only(path), NORM, operator=f"conv_bn_{direction}").status == "unsupported"
        assert refusal(path, NORM, direction) == "the reference keeps no running statistics"
    # the statistics of a reference that has some are asked for
    path = written(
        tmp_path,
        pair(
            "nn.BatchNorm2d(num_features)",
            "num_features",
            "2, 4, 5, 6",
            "[4]",
            forward="return F.batch_norm(x, None, None, self.layer.weight, self.layer.bias, True)",
        ),
    )
    assert forward(path, NORM, "conv_bn").status == "fail"


COUNTS = "self.layer, self.calls = nn.BatchNorm2d(num_features, momentum=momentum), 0"
MOVES = (
    "self.calls += 1\n        n = self.layer\n        return F.batch_norm(x, n.running_mean, n.running_var, n.weight, "
    "n.bias, self.training, {} if n.momentum is None else n.momentum)"
)


@pytest.mark.parametrize(
    "layer", ["BatchNorm2d(num_features, momentum=None)", "BatchNorm2d(num_features, 1e-5, momentum)"]
)
def test_cumulative_average_is_that_of_several_calls(tmp_path: Path, layer: str):
    """A kernel that took None for 0.1 was right at its own shape, and passed 386 of 386: it was asked with numbers."""
    takes = "num_features, momentum=None" if layer.endswith("momentum)") else "num_features"
    path = written(tmp_path, pair(f"nn.{layer}", takes, "2, 4, 5, 6", "[4]"))
    assert adapted(path).problem == f"{NORM} mom50"
    for momentum in ("", " mom20", " mom25", " mom50", " mom100"):
        assert forward(path, NORM + momentum, "conv_bn")
    for direction in ("forward", "inference", "backward"):
        assert check(only(path), f"{NORM} mom50", operator=f"conv_bn_{direction}")
    told = "" if layer.endswith("momentum)") else "momentum=None is a cumulative average, of one to ten calls"
    assert refusal(path, f"{NORM} mom30") == told


@pytest.mark.parametrize(
    ("factor", "wrong"),
    [("1 / self.calls", ()), ("0.1", (50, 100)), ("1.0", (10, 50)), ("1 / max(1, self.calls - 1)", (10, 50))],
)
def test_kernel_of_another_average_is_wrong_at_its_own_shape(tmp_path: Path, factor: str, wrong: Sequence[int]):
    takes = "num_features, momentum=None"
    reference = module(
        "Model", "self.layer = nn.BatchNorm2d(num_features, momentum=momentum)", "return self.layer(x)", takes
    )
    kernel = module("ModelNew", COUNTS, MOVES.format(factor), takes)
    path = written(tmp_path, HEAD + reference + kernel + inputs("2, 4, 5, 6", "[4]"))
    for percent in (10, 50, 100):
        assert forward(path, f"{NORM} mom{percent}", "conv_bn").status == ("fail" if percent in wrong else "pass")
    assert forward(path, f"{NORM} mom30", "conv_bn")


BARE_CONV = (
    f"{LAYER.replace('self.conv', 'conv')}; self.weight, self.stride = conv.weight, stride",
    "return F.conv2d(x, self.weight, None, self.stride)",
)
BARE_NORM = "self.mean = None", "return F.batch_norm(x, None, None, None, None, True)"


@pytest.mark.parametrize(
    ("layer", "kernel", "bare", "full", "lacking"),
    [
        ("Conv2d", BARE_CONV, f"{CONV} u2", f"{CONV} u2 b1", "bias"),
        ("BatchNorm2d", BARE_NORM, f"{NORM} affine0 run0", f"{NORM} affine0", "running statistics"),
        ("BatchNorm2d", BARE_NORM, f"{NORM} affine0 run0", f"{NORM} run0", "gamma and beta"),
    ],
)
def test_what_a_class_beside_a_line_has_not_is_unsupported(
    tmp_path: Path, layer: str, kernel: tuple[str, str], bare: str, full: str, lacking: str
):
    takes = TAKES if layer == "Conv2d" else "num_features"
    path = written(tmp_path, HEAD + module("Mine", *kernel, takes) + f"\nModel = nn.{layer}\n")
    family = "conv" if layer == "Conv2d" else "conv_bn"
    assert forward(path, bare, family)
    assert forward(path, full, family).status == "unsupported"
    assert refusal(path, full) == f"the module has no {lacking}, and __init__ no argument for one"


def test_bias_that_a_class_accepts_beside_a_line_and_ignores_is_a_failure(tmp_path: Path):
    path = written(tmp_path, HEAD + module("Mine", *BARE_CONV, f"{TAKES}, bias=True") + "\nModel = nn.Conv2d\n")
    assert forward(path, f"{CONV} b1").status == "fail"


@pytest.mark.parametrize("ignored", ["return F.conv2d(x, self.layer.weight)", "return self.layer(x)"])
def test_bias_that_a_reference_has_is_asked_of_the_kernel(tmp_path: Path, ignored: str):
    path = written(
        tmp_path, pair("nn.Conv2d(c, k, kernel_size)", "c, k, kernel_size", "2, 4, 9, 9", "[4, 6, 3]", forward=ignored)
    )
    assert forward(path, f"{CONV} b1").passed == ("self.layer(x)" in ignored)


CONV_LAYER, ITSELF = "nn.Conv2d(c, k, kernel_size)", "self.layer(x)"


@pytest.mark.parametrize(
    ("layer", "returned", "said"),
    [
        ("nn.Conv2d(c, k, kernel_size, padding=1, padding_mode='circular')", ITSELF, "Conv2d(padding_mode='circular')"),
        ("nn.Conv2d(c, k, kernel_size, padding=1, padding_mode='reflect')", ITSELF, "Conv2d(padding_mode='reflect')"),
        ("nn.LazyConv2d(k, kernel_size)", ITSELF, "LazyConv2d"),
        ("nn.utils.weight_norm(nn.Conv2d(c, k, kernel_size))", ITSELF, "Conv2d with hooks"),
        ("nn.BatchNorm2d(c, bias=False)", ITSELF, "BatchNorm2d(bias=False)"),
        (CONV_LAYER, "(self.layer(x),)", "its reference returns a tuple, every operator a tensor"),
        (CONV_LAYER, "[self.layer(x), x]", "its reference returns a list, every operator a tensor"),
        (CONV_LAYER, "{'y': self.layer(x)}", "its reference returns a dict, every operator a tensor"),
    ],
)
def test_reference_that_no_operator_has_is_unsupported_with_that_reason(
    tmp_path: Path, layer: str, returned: str, said: str
):
    text = pair(layer, "c, k, kernel_size", "2, 4, 8, 9", "[4, 6, 3]").replace(f"return {ITSELF}", f"return {returned}")
    why = adapted(written(tmp_path, text)).unmapped
    assert said in why
    assert "cannot be called" not in why


@pytest.mark.parametrize("alone", [False, True])
def test_module_that_is_told_the_size_of_its_image_is_told_that_of_the_problem(tmp_path: Path, alone: bool):
    """It was told that of the file, and right code for it failed 322 of 322."""
    takes = "in_channels, out_channels, kernel_size, height, width, batch_size=2"
    layer, init, shape = LAYER.replace(", stride", ""), "[4, 6, 3, 9, 8]", "2, 4, 9, 8"
    if alone:
        takes, layer, init = "c, height, width, batch_size=2", "self.conv = nn.BatchNorm2d(c)", "[4, 9, 8]"
    size = "kernel_size if isinstance(kernel_size, tuple) else (kernel_size, kernel_size)" if not alone else "(1, 1)"
    made = f"{layer}; (r, s), self.size = {size}, (batch_size, height, width)\n        "
    made += "self.out = batch_size, height - r + 1, width - s + 1"
    forward_ = "y = self.conv(x)\n        return y.reshape(self.out[0], -1, *self.out[1:])"
    text = HEAD + module("Model", layer, takes=takes) + module("ModelNew", made, forward_, takes)
    path = written(tmp_path, text + inputs(shape, init))
    problems = (
        (f"{NORM} run0", NORM, "bn n3 c4 h7 w5 k4 r1 s1") if alone else ("n3 c4 h7 w6 k5 r3 s3", "n2 c4 h9 w8 k6 r3 s3")
    )
    family = "conv_bn" if alone else "conv"
    for problem in problems:
        for operator in (f"{family}_forward", "conv_bn_backward" if alone else "conv_backward_data"):
            assert check(only(path), problem, operator=operator)


OWN_CONV = (
    "size = kernel_size if isinstance(kernel_size, tuple) else (kernel_size, kernel_size)\n        "
    "self.filters, self.stride = nn.Parameter(torch.randn(out_channels, in_channels, *size)), stride\n        "
    "self.shift = nn.Parameter(torch.randn(out_channels))",
    "return F.conv2d(x, self.filters, self.shift, self.stride)",
)
OWN_NORM = (
    "a, b = torch.rand(2, num_features); self.a, self.b = nn.Parameter(a), nn.Parameter(b); "
    "self.register_buffer('mu', a.clone()); self.register_buffer('square', b.clone())",
    "return F.batch_norm(x, self.mu, self.square, self.a, self.b, self.training)",
)


@pytest.mark.parametrize("more", ["", " b1"])
def test_bias_of_any_name_is_zero_where_the_problem_has_none(tmp_path: Path, more: str):
    """A right kernel that calls its bias shift was wrong wherever there was none: it kept its random numbers."""
    reference = module("Model", LAYER.replace(", bias=False", ""))
    text = HEAD + reference + module("ModelNew", *OWN_CONV) + inputs("2, 4, 9, 9", "[4, 6, 3]")
    assert forward(written(tmp_path, text), CONV + more)


@pytest.mark.parametrize("direction", ["forward", "inference", "backward"])
@pytest.mark.parametrize("more", ["", " affine0"])
def test_parameters_and_buffers_of_other_names_are_taken_in_order(tmp_path: Path, direction: str, more: str):
    reference = module("Model", "self.norm = nn.BatchNorm2d(num_features)", "return self.norm(x)", "num_features")
    new = module("ModelNew", *OWN_NORM, "num_features")
    path = written(tmp_path, HEAD + reference + new + inputs("2, 4, 5, 6", "[4]"))
    assert check(only(path), NORM + more, operator=f"conv_bn_{direction}")


@pytest.mark.parametrize(
    "returned",
    [
        "{'x': torch.rand(2, 4, 9, 9)}", "[[torch.rand(2, 4, 9, 9)], {'scale': None}]", "torch.rand(2, 4, 9, 9)",
        "(torch.rand(2, 4, 9, 9), None)", "[torch.rand(int(torch.tensor(2.0).item()), 4, 9, 9)]",
    ],
)  # fmt: skip
def test_inputs_may_have_names_and_be_computed(tmp_path: Path, returned: str):
    named = PROBLEM.replace("forward(self, x)", "forward(self, x, scale=None)")
    text = named.replace("[torch.rand(2, 4, 9, 9)]", returned) + "\nclass ModelNew(Model):\n    pass\n"
    path = written(tmp_path, text)
    assert (adapted(path).unknown, adapted(path).problem) == ("", f"{CONV} u2")
    arrays: Any = only(path).arrays
    kernel, reference, given = arrays.own()
    assert torch.equal(*(one(*given) * 0 for one in (kernel, reference)))


@pytest.mark.skipif(torch.cuda.is_available(), reason="the tensors are on the device there")
@pytest.mark.parametrize(
    "asked",
    [
        "torch.rand(2, 4, 9, 9).cuda()", "torch.rand(2, 4, 9, 9).cuda(0, non_blocking=True)",
        "torch.rand(2, 4, 9, 9).to('cuda')", "torch.rand(2, 4, 9, 9).to(device='cuda:0', dtype=torch.float32)",
        "torch.rand(2, 4, 9, 9).half().to(torch.device('cuda'), torch.float32)",
        "torch.rand(2, 4, 9, 9, device='cuda')", "torch.tensor([1.0], device='cuda').expand(2, 4, 9, 9)",
        "torch.empty_like(torch.rand(2, 4, 9, 9, device=torch.device('cuda')), device='cuda').normal_()",
        "torch.rand(2, 4, 9, 9).to(0)", "nn.BatchNorm2d(4).cuda()(torch.rand(2, 4, 9, 9)).detach()",
        "nn.BatchNorm2d(4).to('cuda')(torch.rand(2, 4, 9, 9)).detach()",
    ],
)  # fmt: skip
def test_inputs_on_cuda_are_on_the_cpu_where_there_is_none(tmp_path: Path, asked: str):
    """Their file's own shape was not verified: `Torch not compiled with CUDA enabled`."""
    new = module("ModelNew", LAYER, takes=f"{TAKES}, device='cuda'").replace("bias=False", "bias=False, device=device")
    text = (PROBLEM + new).replace("torch.rand(2, 4, 9, 9)", asked).replace("return [4,", "return [int(four()),")
    four = "def four():\n    torch.cuda.synchronize()\n    return torch.ones(4, device='cuda').sum().cuda()\n"
    path, wait = written(tmp_path, text + four), torch.cuda.synchronize
    assert (adapted(path).unknown, adapted(path).problem) == ("", f"{CONV} u2")
    assert forward(path, f"{CONV} u2")
    arrays: Any = only(path).arrays
    (x,) = arrays.own()[2]
    assert (x.device.type, tuple(x.shape)) == ("cpu", (2, 4, 9, 9))
    assert torch.cuda.synchronize is wait
    with pytest.raises((AssertionError, RuntimeError)):
        torch.ones(1, device="cuda")


STANDARDISED = """
class StdConv2d(nn.Conv2d):
    def forward(self, x):
        mean = self.weight.mean((1, 2, 3), keepdim=True)
        return F.conv2d(x, self.weight - mean, self.bias, self.stride, self.padding)
"""


@pytest.mark.parametrize("base", ["nn.Module", "StdConv2d"])
@pytest.mark.parametrize("plain", [False, True])
def test_no_line_is_suggested_by_which_a_right_kernel_would_fail(tmp_path: Path, base: str, plain: bool):
    """`Model = nn.Conv2d` was, for a reference that standardises its weights: 479 of 482 failed of a right kernel."""
    layer = STANDARDISED.replace(" - mean", "") if plain else STANDARDISED
    reference = module("Model", LAYER.replace("nn.Conv2d", "StdConv2d"))
    if base == "StdConv2d":
        reference = "\nclass Model(StdConv2d):\n    def __init__(self, c, k, kernel_size, stride=1):\n"
        reference += "        super().__init__(c, k, kernel_size, stride)\n"
    new = "\nclass ModelNew(Model):\n    pass\n"
    why = adapted(written(tmp_path, HEAD + layer + reference + new + inputs("2, 4, 9, 9", "[4, 6, 3]"))).unmapped
    if plain:
        assert why == "" if base == "StdConv2d" else "`Model = nn.Conv2d` if that is what it computes" in why
    else:
        name = "Model" if base == "StdConv2d" else "StdConv2d"
        assert why == f"its reference is no nn.Conv2d: {name} is derived from it, and computes something else"


@pytest.mark.parametrize(
    ("layer", "own", "more"),
    [
        ("nn.Conv2d(c, k, kernel_size, padding='same')", "[4, 6, 3]", "p1 b1"),
        ("nn.Conv2d(c, k, kernel_size, padding='valid')", "[4, 6, 3]", "b1"),
        ("nn.Conv2d(c, k, kernel_size, padding='same', dilation=2)", "[4, 6, 3]", "p2 d2 b1"),
        ("nn.Conv2d(c, k, kernel_size, padding='same')", "[4, 6, 4]", "p1:2 b1"),
        ("nn.Conv2d(c, k, kernel_size, bias=None)", "[4, 6, 3]", ""),
        ("nn.Conv2d(c, k, kernel_size, padding=padding)", "[4, 6, 4, 'same']", "p1:2 b1"),
    ],
)
def test_words_for_padding_are_what_they_stand_for(tmp_path: Path, layer: str, own: str, more: str):
    takes = "c, k, kernel_size, padding=0" if "padding=padding" in layer else "c, k, kernel_size"
    path = written(tmp_path, pair(layer, takes, "2, 4, 8, 9", own))
    window = own[7]
    problem = f"n2 c4 h8 w9 k6 r{window} s{window} {more}".strip()
    assert adapted(path).problem == problem
    assert forward(path, problem)
    assert refusal(path, "n2 c4 h8 w9 k6 r3 s3 p1:0 b1") in (
        "padding differs between the sides of an axis", "__init__ cannot say this padding",
    )  # fmt: skip


def test_values_are_verified_where_indices_are_returned_beside_them(tmp_path: Path):
    layer = "nn.MaxPool2d(kernel_size, stride, return_indices=True)"
    told = layer, "kernel_size, stride=2", "2, 4, 8, 9", "[3]"
    problem = "maxpool n2 c4 h8 w9 r3 s3 u2"
    path = written(tmp_path, pair(*told))
    assert (adapted(path).problem, adapted(path).unverified) == (
        problem,
        "the indices that it returns are not verified",
    )
    for operator in ("max_pool_forward", "max_pool_backward"):
        assert check(only(path), problem, operator=operator)
    _, out = command("run", str(path), "--programs", "1", "-k", "own.", "--in-process")
    assert "solution: right at its own shape: yes (maxpool n2 c4 h8 w9 r3 s3 u2, fp32)" in out
    assert "solution: the indices that it returns are not verified" in out
    wrong = forward(
        written(tmp_path, pair(*told, forward="y, i = self.layer(x)\n        return y * 2, i")), problem, "max_pool"
    )
    assert wrong.status == "fail"
    alone = forward(written(tmp_path, pair(*told, forward="return self.layer(x)[0]")), problem, "max_pool")
    assert (alone.status, "no pair of values and indices" in alone.reason) == ("fail", True)


@pytest.mark.parametrize("more", ["eps=2e-5", "eps=0.0", "eps=1.0", "momentum=0.123"])
def test_own_shape_that_no_problem_can_say_has_its_reason(tmp_path: Path, more: str):
    known = adapted(written(tmp_path, pair(f"nn.BatchNorm2d(n, {more})", "n", "2, 4, 5, 6", "[4]")))
    assert known.problem == ""
    assert known.unknown.startswith(f"its {more.replace('=', ' is ').replace('2e-5', '2e-05')}; problems have ")


def test_stride_that_nobody_gives_is_the_window(tmp_path: Path):
    """A kernel that takes None for 1 passed: every stride was given as a number."""
    takes = "kernel_size, stride=None, padding=0"
    reference = module("Model", "self.pool = nn.MaxPool1d(kernel_size, stride, padding)", "return self.pool(x)", takes)
    kernel = module(
        "ModelNew", "self.given = kernel_size, 1 if stride is None else stride, padding",
        "return F.max_pool1d(x, *self.given)", takes,
    )  # fmt: skip
    path = written(tmp_path, HEAD + reference + kernel + inputs("2, 3, 12", "[3, 2, 1]"))
    assert forward(path, "maxpool n2 c3 w12 s3 u2 p1", "max_pool")
    assert forward(path, "maxpool n2 c3 w12 s3", "max_pool").status == "fail"


@pytest.mark.skipif(torch.cuda.is_available(), reason="with CUDA the kernel is built")
def test_cuda_kernel_that_is_not_built_here_is_not_verified_by_what_stands_in_for_it(tmp_path: Path):
    """312 of 312 passed, all of torch's own: `if torch.cuda.is_available()` stood around the build."""
    source = "SOURCE = '''__global__ void conv(const float* x) {}'''\nkernel = None\n"
    text = PROBLEM + source + module("ModelNew", LAYER)
    assert "CUDA kernels cannot run here" in str(adapted(written(tmp_path, text)).unmapped)
