"""The vendor's private convolution, by a fake of it: how it is called, the three directions that are made of it, and
which layers take which direction."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cache
from importlib import import_module
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from conformance.execution.status import Verdict
from conformance.execution.trial import Trial
from conformance.execution.verify import verify
from conformance.implementations import registry
from conformance.implementations.bridges.neuron_stacks import VENDOR
from conformance.implementations.bridges.torch import torch_arrays
from conformance.implementations.implementation import Implementation
from conformance.judge import Contract
from conformance.operators import OPERATORS
from conformance.problems import Variant, typed
from nki_emulator.tests.kernels.neuron_fakes import PRIVATE, PrivateConvolution, absence, install, module

pytest.importorskip("torch")

FOLDER = Path(__file__).parents[3] / "impls" / "neuronx_conv"
FORWARD, DATA, WEIGHT = DIRECTIONS = ("conv_forward", "conv_backward_data", "conv_backward_weight")


@dataclass
class Subject:
    """A freshly loaded implementation and the fake that it calls."""

    implementation: Implementation
    fake: PrivateConvolution

    @property
    def bridge(self) -> ModuleType:
        """The module of its bridge."""
        return import_module(type(self.implementation.arrays).__module__)

    def tried(self, operator: str, problem: str, distribution: str = "fixed") -> Verdict:
        """The verdict on its kernel, run on tensors of the CPU."""
        (kernel,) = (k for k in self.implementation.kernels if k.operator == operator and "fp32" in k.dtypes)
        subject = Implementation("neuronx-conv", arrays=torch_arrays())
        subject.implements(operator)(kernel.function)
        return verify(
            Trial(subject, OPERATORS[operator], typed(problem), Variant("fp32", "nchw", distribution), seed=5)
        )


@pytest.fixture
def subject(monkeypatch: pytest.MonkeyPatch) -> Iterator[Subject]:
    """The implementation on a fake that computes what is right."""
    fake = PrivateConvolution()
    fake.install(monkeypatch)
    loaded = registry.load([FOLDER])
    assert (loaded.broken, loaded.unavailable) == ({}, {})
    implementation = loaded.implementations["neuronx-conv"]
    found = Subject(implementation, fake)
    package = found.bridge.__package__
    yield found
    found.bridge._fault.cache_clear()
    sys.modules.pop(f"{package}.kernel", None)


PROBLEMS = ("n2 c3 h5 w6 k4 r3 s3 p1", "n1 c1 h3 w3 k1 r3 s3 p1", "n3 c5 h4 w7 k2 r3 s3 p1", "n1 c4 h1 w5 k3 r3 s3 p1")


@pytest.mark.parametrize("problem", PROBLEMS)
@pytest.mark.parametrize("operator", DIRECTIONS)
@pytest.mark.parametrize("distribution", ["fixed", "integer", "impulse"])
def test_every_direction_is_right(subject: Subject, operator: str, problem: str, distribution: str):
    verdict = subject.tried(operator, problem, distribution)
    assert (verdict.status, verdict.reason) == ("pass", "")


SHAPES = {
    FORWARD: ((2, 3, 5, 6), (4, 3, 3, 3), (2, 4, 5, 6)),
    DATA: ((2, 4, 5, 6), (3, 4, 3, 3), (2, 3, 5, 6)),
    WEIGHT: ((3, 2, 5, 6), (4, 2, 5, 6), (3, 4, 3, 3)),
}


@pytest.mark.parametrize("operator", SHAPES)
def test_kernel_is_called_as_documented(subject: Subject, operator: str):
    subject.tried(operator, PROBLEMS[0])
    call = subject.fake.calls[-1]
    assert tuple(tuple(call[name]) for name in ("input", "filter", "output")) == SHAPES[operator]
    rest = {name: value for name, value in call.items() if name not in ("input", "filter", "output")}
    perms = {name: [0, 1, 2, 3] for name in ("in_perm", "kern_perm", "out_perm")}
    assert rest == {**perms, "stride": (1, 1), "padding": ((1, 1), (1, 1))}


SIZES = {
    "both small": ("c127 k127", {FORWARD, DATA, WEIGHT}),
    "at the limit": ("c128 k128", {FORWARD, DATA, WEIGHT}),
    "many output channels": ("c128 k129", {FORWARD, WEIGHT}),
    "many input channels": ("c129 k128", {DATA, WEIGHT}),
    "both large": ("c129 k129", {WEIGHT}),
    "both much larger": ("c1024 k512", {WEIGHT}),
}


@pytest.mark.parametrize("size", SIZES)
def test_direction_by_size(subject: Subject, size: str):
    channels, taken = SIZES[size]
    assert takes(subject.implementation, f"n1 h8 w8 r3 s3 p1 {channels}") == taken


@pytest.mark.parametrize(("images", "taken"), [(127, True), (128, True), (129, False)])
def test_weight_gradient_by_images(subject: Subject, images: int, taken: bool):
    assert (WEIGHT in takes(subject.implementation, f"n{images} c4 h8 w8 k4 r3 s3 p1")) == taken


REFUSED = ("r3 s3 p1 u2", "r3 s3 p0", "r3 s3 p2", "r5 s5 p1", "r1 s1 p1", "r3 s3 p1 d2", "r3 s3 p1 g2", "r3 s3 p1 b1")


@pytest.mark.parametrize("words", REFUSED)
def test_what_the_sample_does_not_run_is_refused(subject: Subject, words: str):
    assert takes(subject.implementation, f"n1 c4 h8 w8 k4 {words}") == set()


def takes(implementation: Implementation, text: str) -> set[str]:
    """Operators that are declared for a problem in fp32 and in bf16; they must be the same."""
    geometry = typed(text).geometry
    found = [
        {name for name in DIRECTIONS if implementation.supports(name, geometry, dtype, "nchw")}
        for dtype in ("fp32", "bf16")
    ]
    assert found[0] == found[1]
    return found[0]


def test_sums_are_declared_in_the_format_of_the_tensors(subject: Subject):
    declared = {(kernel.dtypes, kernel.contract) for kernel in subject.implementation.kernels}
    assert declared == {((dtype,), Contract(accumulate=dtype)) for dtype in ("fp32", "bf16")}


def half_turned(result: Any) -> Any:
    return result.flip((2, 3))


MISTAKES: dict[str, Callable[[Any], Any]] = {
    "zeros": lambda result: result * 0,
    "turned": half_turned,
    "doubled": lambda result: result * 2,
    "shifted": lambda result: result.roll(1, 3),
}


@pytest.mark.parametrize("mistake", MISTAKES)
@pytest.mark.parametrize("operator", DIRECTIONS)
def test_a_kernel_that_is_wrong_fails(subject: Subject, operator: str, mistake: str):
    subject.fake.spoil = MISTAKES[mistake]
    assert subject.tried(operator, PROBLEMS[0]).status == "fail"


CANARIES = {
    "": lambda result: result,
    "the canary convolution returned zeros: this toolchain does not compute": lambda result: result * 0,
    "the canary convolution returned wrong values": lambda result: result * 2,
    "the canary convolution failed (ZeroDivisionError: division by zero)": lambda result: 1 / 0,
}


@pytest.mark.parametrize("reason", CANARIES)
def test_canary(subject: Subject, reason: str):
    subject.fake.spoil = CANARIES[reason]
    assert (subject.bridge._fault("cpu") or "") == reason


@cache
def _neuron() -> ModuleType:
    return module("torch_neuronx", __version__="2.8-fake")


def torch_neuron(monkeypatch: pytest.MonkeyPatch) -> None:
    runtime = module("torch_xla.runtime", device_type=lambda: "NEURON")
    install(monkeypatch, _neuron(), module("torch_xla", __version__="2.8"), runtime)


def test_the_release_of_the_kernel_is_used(subject: Subject, monkeypatch: pytest.MonkeyPatch):
    torch_neuron(monkeypatch)
    monkeypatch.setattr(subject.bridge, "_fault", cache(lambda device: None))  # torch has no `xla` here
    assert absence(subject.bridge.PrivateKernelArrays("xla").require) == ""


def test_a_release_without_the_kernel_is_unavailable(subject: Subject, monkeypatch: pytest.MonkeyPatch):
    torch_neuron(monkeypatch)
    bridge = subject.bridge.PrivateKernelArrays("xla")
    PrivateConvolution().install(monkeypatch, name="conv2d_by_another_name")
    assert absence(bridge.require) == (
        f"neuronx-cc 2.21.33363.0+fake has no neuronxcc.nki._private_kernels.conv.{PRIVATE}; {VENDOR.way('trn1')}"
    )
    monkeypatch.delitem(sys.modules, "neuronxcc.nki._private_kernels.conv")
    assert "neuronxcc.nki._private_kernels.conv cannot be imported" in absence(bridge.require)


@pytest.mark.parametrize(
    "version", ["2.22.12471.0", "2.24.5133.0+58f8de22", "2.27.5334.0", "2.2", "2.210.1", "unknown"]
)
def test_other_releases_are_refused(subject: Subject, monkeypatch: pytest.MonkeyPatch, version: str):
    """Also where they have a function of that name: it may take other arguments."""
    torch_neuron(monkeypatch)
    PrivateConvolution(version=version).install(monkeypatch)
    reason = absence(subject.bridge.PrivateKernelArrays("xla").require)
    assert reason.startswith(
        f"neuronx-cc {version} is here, and this calls the kernel of 2.21: later releases moved it"
    )
    assert reason.endswith(VENDOR.way("trn1"))
