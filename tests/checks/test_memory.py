"""What autodiff keeps and training holds: the count is right, nothing hides from it, a wrong declaration is found."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import partial, wraps
from types import SimpleNamespace
from typing import Any

import pytest

from conformance import Implementation, numpy_arrays, torch_arrays
from conformance.checks import CHECKS, check_behaviour, memory
from conformance.execution.status import Verdict
from conformance.execution.trial import Trial
from conformance.implementations.bridges.tape import Saved
from conformance.implementations.implementation import AutogradVariant, ImplementationError
from conformance.implementations.registry import load
from conformance.operators import OPERATORS
from conformance.problems import Variant, typed
from conformance.problems.case import BEHAVIOUR
from conformance.resources import IMPLS
from conformance.results.schema import SavedForBackward
from tests.kit import standard

torch = pytest.importorskip("torch")
from conformance.implementations.bridges import torch_memory  # noqa: E402

KERNELS = {"unfused": "torch-cpu", "fused": "torch-fused-cpu"}
PROBLEM = typed("bn n2 c3 h12 w12 k5 r3 s3")
X, Z, W = 2 * 3 * 12 * 12 * 4, 2 * 5 * 10 * 10 * 4, 5 * 3 * 3 * 3 * 4
"""Bytes of the input, of the convolution's output, of the filters, in fp32."""


@pytest.fixture(scope="module")
def torch_kernels() -> dict[str, Any]:
    """Forward kernels of torch's own pair and of the fused one."""
    registry = load([IMPLS / "torch_native"])
    assert registry.broken == {}
    return {label: forward(registry.implementations[name]) for label, name in KERNELS.items()}


def forward(implementation: Implementation) -> Any:
    kernel = implementation.find("conv_bn_forward", PROBLEM.geometry, "fp32", "nchw")
    return kernel.function


def concluded(
    implementation: Implementation, check: Any = memory.backward_keeps_what_is_declared, problem: Any = PROBLEM
) -> Verdict:
    operator = OPERATORS["conv_bn_forward"]
    return check_behaviour(Trial(implementation, operator, problem, Variant("fp32", "nchw", BEHAVIOUR), 0), check)


def offering(kernel: Callable[..., Any], saves: int, form: Callable[..., Any] | None = None) -> Implementation:
    """An implementation with a kernel, and a form that may be another function."""
    acme = Implementation("acme", arrays=torch_arrays("cpu"))
    acme.implements("conv_bn_forward")(kernel)
    acme.differentiates("conv_bn_forward", label="pair", saves=saves)(form or kernel)
    return acme


def row(label: str, buffers: int, activations: int, vectors: int) -> SavedForBackward:
    return SavedForBackward(
        variant=label, buffers=buffers, activation_bytes=activations, parameter_bytes=W, vector_bytes=vectors
    )


@pytest.mark.parametrize(
    ("label", "saves", "expected"),
    [("unfused", 2, row("pair", 2, X + Z, 5 * 5 * 4)), ("fused", 1, row("pair", 1, X, 3 * 5 * 4))],
    ids=["unfused", "fused"],
)
def test_bytes_of_a_pair(torch_kernels, label: str, saves: int, expected: SavedForBackward):
    """The unfused pair keeps x and z, the fused one x; both w, gamma and two statistics, torch two running ones."""
    verdict = concluded(offering(torch_kernels[label], saves))
    assert (verdict.status, verdict.reason, verdict.facts.saved_for_backward) == ("pass", "", (expected,))


@pytest.mark.parametrize(
    "text", ["bn n2 c3 h12 w11 k5 r3 s2 u2x1 p0:1x1:0", "bn n2 c4 h12 w11 k6 r3 s3 p1 d1x2 g2 affine0 eps3 outside1"]
)
def test_fused_pair_keeps_its_input_whatever_the_convolution(torch_kernels, text: str):
    """Padding and the other convention of eps leave no second buffer."""
    problem = typed(text)
    verdict = concluded(offering(torch_kernels["fused"], 1), problem=problem)
    assert (verdict.status, verdict.reason) == ("pass", "")
    assert verdict.facts.saved_for_backward[0].activation_bytes == problem.geometry.x.size * 4


@pytest.mark.parametrize(
    ("label", "saves", "message"),
    [
        ("unfused", 1, f"pair: keeps 2 activations, declared 1: float32[2, 3, 12, 12] {X:,} B, "),
        ("fused", 2, "pair: keeps 1 activations, declared 2: float32[2, 3, 12, 12]"),
        ("fused", 0, "pair: keeps 1 activations, declared 0"),
    ],
)
def test_another_number_than_declared_fails(torch_kernels, label: str, saves: int, message: str):
    verdict = concluded(offering(torch_kernels[label], saves))
    assert verdict.status == "fail"
    assert message in verdict.reason


def hoarding(fused: Callable[..., Any], keep: Callable[[Any, Any], None]) -> Callable[..., Any]:
    """The fused pair with a function behind it that keeps its input in a way of its own."""

    class Hoard(torch.autograd.Function):  # type: ignore[name-defined]
        @staticmethod
        def forward(ctx, y):
            keep(ctx, y.clone())
            return y.clone()

        @staticmethod
        def backward(ctx, dy):
            return dy

    @wraps(fused)
    def pair(*given, **parameters):
        y, *statistics = fused(*given, **parameters)
        return Hoard.apply(y), *statistics

    return pair


WAYS: dict[str, Callable[[Any, Any], None]] = {
    "as an attribute": lambda ctx, y: setattr(ctx, "stash", y),
    "in a dictionary": lambda ctx, y: setattr(ctx, "stash", {"deep": [(y,)]}),
    "in an object": lambda ctx, y: setattr(ctx, "stash", SimpleNamespace(deep={y})),
    "in a closure": lambda ctx, y: setattr(ctx, "stash", lambda: y),
    "in a partial function": lambda ctx, y: setattr(ctx, "stash", partial(torch.neg, input=y)),
    "by the framework": lambda ctx, y: ctx.save_for_backward(y),
    "as a part of it": lambda ctx, y: ctx.save_for_backward(y.reshape(-1)[:3]),
    "cut in two": lambda ctx, y: ctx.save_for_backward(*y.reshape(-1).split(y.numel() // 2)),
}


@pytest.mark.parametrize("keep", WAYS.values(), ids=list(WAYS))
def test_nothing_is_kept_in_hiding(torch_kernels, keep: Callable[[Any, Any], None]):
    verdict = concluded(offering(torch_kernels["fused"], 1, hoarding(torch_kernels["fused"], keep)))
    assert verdict.status == "fail"
    assert "pair: keeps 2 activations, declared 1" in verdict.reason


def test_two_activations_in_one_buffer_are_too_large():
    """One buffer that holds the input and the output counts once, but not for one."""
    form = AutogradVariant(lambda: None, "conv_bn_forward", "pair", 1, ())
    kept = memory.Kept.of([Saved(((X + Z) // 4,), "float32", X + Z, 4)], PROBLEM.geometry)
    assert next(kept.defects(form, PROBLEM.geometry)).startswith(f"pair: activations take {X + Z:,} B, at most {X:,} B")


def test_wrong_gradient_fails(torch_kernels):
    """Keeping little is no merit where the gradient is another one: here, statistics taken for constants."""
    fused = torch_kernels["fused"]

    @wraps(fused)
    def constant(x, w, gamma, beta, *running, **parameters):
        _, mean, var, *moved = fused(x, w, gamma, beta, *running, **parameters)
        z = torch.nn.functional.conv2d(x, w)
        y = torch.nn.functional.batch_norm(z, mean, var, gamma, beta, False, 0.0, parameters["eps"])
        return y, mean, var, *moved

    verdict = concluded(offering(fused, 2, constant))
    assert verdict.status == "fail"
    assert verdict.reason.startswith("wrong result (backward of the autograd variant pair)\ndx: ")


CHANGED: dict[str, tuple[Callable[..., Any], str, str]] = {
    "another result": (lambda y, *rest: (2 * y, *rest), "fail", "wrong result (autograd variant pair)\ny: "),
    "no graph": (lambda *results: tuple(result.detach() for result in results), "error", "without a graph"),
}


@pytest.mark.parametrize(("change", "status", "reason"), CHANGED.values(), ids=CHANGED)
def test_a_form_with_other_results_than_its_kernel_is_not_measured(torch_kernels, change, status: str, reason: str):
    fused = torch_kernels["fused"]
    form = wraps(fused)(lambda *given, **parameters: change(*fused(*given, **parameters)))
    verdict = concluded(offering(fused, 1, form))
    assert (verdict.status, reason in verdict.reason) == (status, True)


def test_framework_without_autodiff_is_unsupported():
    acme = Implementation("acme", arrays=numpy_arrays())
    acme.implements("conv_bn_forward")(lambda *given, **parameters: None)
    assert concluded(acme).reason.startswith("offers no conv_bn_forward that can be differentiated")
    acme.differentiates("conv_bn_forward", label="pair", saves=1)(lambda *given, **parameters: None)
    verdict = concluded(acme)
    assert (verdict.status, verdict.reason) == ("unsupported", "not measurable with numpy (differentiate)")


DECLARATIONS: dict[str, tuple[dict[str, Any], str]] = {
    "operator": ({"operator": "conv"}, "operator: 'conv' is not one of conv_forward"),
    "no label": ({"label": " "}, "label=' ': each autograd variant of conv_bn_forward needs its own name"),
    "label twice": ({"label": "first"}, "label='first': each autograd variant"),
    "less than nothing": ({"saves": -1}, "saves=-1: must be a number of buffers"),
    "half a buffer": ({"saves": 0.5}, "saves=0.5: must be a number of buffers"),
}


@pytest.mark.parametrize(("change", "message"), DECLARATIONS.values(), ids=list(DECLARATIONS))
def test_declaration_that_cannot_be_meant(change: dict[str, Any], message: str):
    acme = Implementation("acme")
    acme.differentiates("conv_bn_forward", label="first", saves=1)(lambda *given, **parameters: None)
    with pytest.raises(ImplementationError) as raised:
        acme.differentiates(**{"operator": "conv_bn_forward", "label": "second", "saves": 1, **change})
    assert str(raised.value).startswith(message)


def test_parameter_that_nobody_passes_is_refused():
    acme = Implementation("acme")
    with pytest.raises(ImplementationError, match="keyword parameter 'epsilon'"):

        @acme.differentiates("conv_bn_forward", label="pair", saves=1)
        def pair(x, w, *, epsilon): ...


@pytest.mark.parametrize(
    ("elements", "kind"),
    [
        (5, "vectors"),
        (8 * 5, "vectors"),
        (8 * 5 + 1, "activations"),
        (5 * 3 * 3 * 3, "parameters"),
        (864, "activations"),
    ],
)
def test_kinds_of_buffers(elements: int, kind: str):
    found = memory.Kept.of([Saved((elements,), "float32", elements * 4, 4)], PROBLEM.geometry)
    assert len(getattr(found, kind)) == 1


def test_declared_form_may_be_smaller_than_fp32():
    """Hold an input of 16 bits to its own size, not to that of fp32."""
    form = AutogradVariant(lambda: None, "conv_bn_forward", "pair", 1, ())
    size = PROBLEM.geometry.x.size
    fits = memory.Kept.of([Saved(PROBLEM.geometry.x.shape, "bfloat16", size * 2, 2)], PROBLEM.geometry)
    larger = memory.Kept.of([Saved(PROBLEM.geometry.x.shape, "bfloat16", size * 2 + 2, 2)], PROBLEM.geometry)
    assert list(fits.defects(form, PROBLEM.geometry)) == []
    assert "at most" in next(larger.defects(form, PROBLEM.geometry))


def test_jax_residuals():
    """The arrays in what jax.vjp returns, each buffer once."""
    jax = pytest.importorskip("jax")
    from conformance import jax_arrays

    def taped(function: Callable[..., Any], *inputs: Any) -> Any:
        return jax_arrays("cpu").differentiate(function, [*inputs], [0, 1], {})

    x, w = (jax.numpy.ones(shape, "float32") for shape in ((40, 30), (30, 20)))
    tape = taped(jax.checkpoint(lambda x, w: (jax.numpy.sin(x @ w), x.sum())), x, w)
    assert sorted(saved.shape for saved in tape.saved) == [(30, 20), (40, 30)]
    assert sum(saved.nbytes for saved in tape.saved) == x.nbytes + w.nbytes
    dx, dw = tape.pull(jax.numpy.ones((40, 20), "float32"))
    assert (dx.shape, dw.shape, tape.result[0].shape) == (x.shape, w.shape, (40, 20))
    for other, buffers in ((x, 1), (jax.numpy.ones_like(x), 2)):
        assert len(taped(lambda x, other: x * other, x, other).saved) == buffers
    assert (40, 20) in {saved.shape for saved in taped(lambda x, w: jax.numpy.sin(x @ w), x, w).saved}


def test_live_bytes_follow_tensors():
    """Views count once, what is freed counts no more, the peak stays."""
    with torch_memory.LiveBytes() as meter:
        given = torch.zeros(1000)
        view = given[:10].reshape(5, 2)
        assert meter.live == 4000
        more = given + 1
        assert meter.live == 8000
        del more
        assert (meter.live, meter.peak) == (4000, 8000)
        more = given.add_(1)
        assert meter.live == 4000
        del given, more
        assert meter.live == 4000
        del view
        assert (meter.live, meter.peak) == (0, 8000)


def test_cuda_bytes_ask_the_allocator(monkeypatch: pytest.MonkeyPatch):
    allocated, calls = iter([100, 700]), []
    monkeypatch.setattr(torch.cuda, "memory_allocated", lambda: next(allocated))
    monkeypatch.setattr(torch.cuda, "max_memory_allocated", lambda: 2100)
    monkeypatch.setattr(torch.cuda, "synchronize", lambda: calls.append("synchronize"))
    monkeypatch.setattr(torch.cuda, "reset_peak_memory_stats", lambda: calls.append("reset"))
    with torch_memory.CudaBytes() as meter:
        meter.count([torch.zeros(3)])
        assert (meter.live, meter.peak) == (600, 2000)
    assert calls == ["synchronize", "reset", "synchronize"]


def test_network_takes_less_with_the_fused_pair(torch_kernels):
    """Forward ends with the convolutions' inputs alive, and without the fused pair with their outputs too, and with the
    ones that torch's batch_norm, which knows no other way to have none, gets and keeps as gamma."""
    problem = typed("bn n4 c32 h26 w26 k64 r3 s3 affine0 run0 eps3")
    rows = {}
    for label, saves in (("unfused", 2), ("fused", 1)):
        acme = offering(torch_kernels[label], saves)
        verdict = concluded(acme, memory.training_holds_what_autograd_shows, problem)
        assert (verdict.status, verdict.reason) == ("pass", "")
        rows[label] = verdict.facts.training_steps[0]
    outputs, gammas = 4 * (32 * 26 * 26 + 64 * 24 * 24), 32 + 64
    assert rows["unfused"].forward_bytes - rows["fused"].forward_bytes == (outputs + gammas) * 4
    assert rows["fused"].peak_bytes < rows["unfused"].peak_bytes


def test_peak_is_that_of_a_step_that_nobody_watches(torch_kernels):
    """Seeing what the graph keeps does not keep it."""
    pair, batch = tutorial_pair(torch_kernels["fused"]), 3
    images, target, parameters = torch_memory._drawn(batch, "cpu")
    with torch_memory.LiveBytes() as meter:
        meter.count([images, target, *parameters])
        torch_memory._loss(pair, images, target, parameters).backward()
    assert torch_memory.footprint(pair, batch, "cpu").peak == meter.peak


def tutorial_pair(kernel: Any) -> Any:
    keywords: dict[str, Any] = {"groups": 1, "eps": 1e-3, "eps_outside": False, "momentum": 0.1}
    keywords |= {"stride": (1, 1), "padding": ((0, 0), (0, 0)), "dilation": (1, 1), "layout": "nchw"}
    return lambda x, w: kernel(x, w, None, None, None, None, **keywords)[0]


def test_memory_that_outlives_forward_unseen_fails(torch_kernels):
    held: list[Any] = []
    pair = hoarding(torch_kernels["fused"], lambda ctx, y: held.append(y))
    problem = typed("bn n2 c32 h26 w26 k64 r3 s3 affine0 run0 eps3")
    verdict = concluded(offering(pair, 1), memory.training_holds_what_autograd_shows, problem)
    assert verdict.status == "fail"
    assert f"pair: {2 * (32 * 26 * 26 + 64 * 24 * 24) * 4:,} B live after forward" in verdict.reason


def test_cuda_is_allowed_scratch_memory_and_warmed_up(torch_kernels, monkeypatch: pytest.MonkeyPatch):
    """CUDA's two steps, taken on the CPU: the first is not measured, the second may count less than an activation."""
    steps = []
    real = torch_memory._step

    def step(pair, batch, device, meter):
        steps.append(type(meter).__name__)
        return replace(real(pair, batch, "cpu", torch_memory.LiveBytes()), scratch=batch * torch_memory.SMALLEST)

    for name, value in (("memory_allocated", lambda: 0), ("max_memory_allocated", lambda: 0)):
        monkeypatch.setattr(torch.cuda, name, value)
    monkeypatch.setattr(torch_memory, "_step", step)
    found = torch_memory.footprint(tutorial_pair(torch_kernels["fused"]), 2, "cuda")
    assert steps == ["CudaBytes", "CudaBytes"]
    assert (found.hidden, found.scratch) == (0, 2 * 32 * 26 * 26 * 4)


@pytest.mark.parametrize(
    "option",
    [
        {},
        {"operators": ("conv_forward",)},
        {"distributions": ("fixed",)},
        {"layouts": ("nhwc",)},
        {"dtypes": ("fp64",)},
    ],
    ids=str,
)
def test_what_is_not_asked_for_is_not_measured(torch_kernels, option: dict[str, tuple[str, ...]]):
    plan = standard(offering(torch_kernels["fused"], 1), **{"distributions": (BEHAVIOUR,)} | option)
    (demand,) = CHECKS["backward_keeps_what_is_declared"].demands(plan.ranked)
    assert bool(plan.required(demand)) == (not option)
