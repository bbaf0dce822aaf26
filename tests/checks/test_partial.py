"""Requests for a part of the results: gradients through frozen statistics."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from conformance import Contract, Implementation, torch_arrays
from conformance.checks import check_behaviour
from conformance.checks.partial import gradients_asked_for_alone
from conformance.execution.status import Verdict
from conformance.implementations.implementation import ImplementationError
from conformance.operators import OPERATORS
from tests import kit

torch = pytest.importorskip("torch")
FROZEN = (
    "bn n3 c5 h7 w9 k7 r3 s3 p1",
    "bn n3 c11 h5 w5 k7 r1 s1 affine0 run0",
    "bn n2 c4 h6 w5 k6 r3 s2 u2 g2 outside1",
)


def convolved(x: Any, w: Any, *, stride: Any, padding: Any, dilation: Any, groups: int, layout: str) -> Any:
    sides = [side for along in reversed(padding) for side in along]
    padded = torch.nn.functional.pad(x, sides)
    return torch.nn.functional.conv2d(padded, w, None, stride, 0, dilation, groups)


def along_channels(vector: Any) -> Any:
    return vector.reshape(1, -1, 1, 1)


def inverse(var: Any, eps: float, eps_outside: bool) -> Any:
    return 1 / (var.sqrt() + eps) if eps_outside else (var + eps).rsqrt()


def centred(x, w, gamma, beta, running_mean, running_var, *, eps, eps_outside, **window):
    """Distances from the mean, scaled."""
    y = convolved(x.float(), w.float(), **window) - along_channels(running_mean)
    y = y * along_channels(inverse(running_var, eps, eps_outside))
    return (y if gamma is None else y * along_channels(gamma) + along_channels(beta)).to(x.dtype)


def folded(x, w, gamma, beta, running_mean, running_var, *, eps, eps_outside, **window):
    """The factor is multiplied into the filters."""
    scale = inverse(running_var, eps, eps_outside) * (1 if gamma is None else gamma)
    shift = (0 if beta is None else beta) - running_mean * scale
    return (convolved(x.float(), w.float() * scale.reshape(-1, 1, 1, 1), **window) + along_channels(shift)).to(x.dtype)


def rounded_between(x, w, gamma, beta, running_mean, running_var, *, eps, eps_outside, **window):
    """Store what lies between convolution and normalisation. Sums are of fp32: where a processor has no bf16, torch
    adds gradients up in it."""
    z = convolved(x.float(), w.float(), **window).to(x.dtype).float() - along_channels(running_mean)
    y = z * along_channels(inverse(running_var, eps, eps_outside))
    return (y if gamma is None else y * along_channels(gamma) + along_channels(beta)).to(x.dtype)


def with_gradient(change: Callable[[Any, Any], Any]) -> Callable[..., Any]:
    """`centred`, where `change` makes dz of the right dz and of z."""

    class Changed(torch.autograd.Function):  # type: ignore[name-defined]
        @staticmethod
        def forward(ctx, z):
            ctx.save_for_backward(z)
            return z.clone()

        @staticmethod
        def backward(ctx, dz):
            return change(dz, *ctx.saved_tensors)

    def form(x, w, gamma, beta, running_mean, running_var, *, eps, eps_outside, **window):
        z = Changed.apply(convolved(x.float(), w.float(), **window))
        y = (z - along_channels(running_mean)) * along_channels(inverse(running_var, eps, eps_outside))
        return (y if gamma is None else y * along_channels(gamma) + along_channels(beta)).to(x.dtype)

    return form


def of_batch(dz: Any, z: Any) -> Any:
    """Let mean and variance depend on the image, as in training."""
    over = (0, 2, 3)
    distances = z - z.mean(over, keepdim=True)
    slope = (dz * distances).mean(over, keepdim=True) / (distances**2).mean(over, keepdim=True)
    return dz - dz.mean(over, keepdim=True) - distances * slope


def offset(name: str) -> Callable[..., Any]:
    """`centred`, where every gradient in one operand is a little too large."""

    def form(x, w, gamma, beta, running_mean, running_var, **parameters):
        operand = {"gamma": gamma, "beta": beta, "w": w}[name]
        return centred(x, w, gamma, beta, running_mean, running_var, **parameters) + (operand - operand.detach()).sum()

    return form


def differentiated(form: Callable[..., Any], problem: str, dtype: str, contract: Contract | None = None) -> Verdict:
    acme = Implementation("acme", arrays=torch_arrays("cpu"))
    acme.implements("conv_bn_inference", dtypes=(dtype,), contract=contract)(form)
    acme.differentiates("conv_bn_inference")(form)
    return check_behaviour(kit.trial_of(acme, problem, "conv_bn_inference", dtype=dtype), gradients_asked_for_alone)


@pytest.mark.parametrize("dtype", ["fp32", "bf16"])
@pytest.mark.parametrize("problem", FROZEN)
@pytest.mark.parametrize("form", [centred, folded])
def test_gradients_through_frozen_statistics(form: Callable[..., Any], problem: str, dtype: str):
    verdict = differentiated(form, problem, dtype)
    assert (verdict.status, verdict.reason) == ("pass", "")


def test_frozen_gradients_of_what_is_stored_between():
    verdict = differentiated(rounded_between, FROZEN[0], "bf16", Contract(between="storage"))
    assert (verdict.status, verdict.reason) == ("pass", "")


@pytest.mark.parametrize("dtype", ["fp32", "bf16"])
@pytest.mark.parametrize(
    ("form", "wrong"),
    [
        (with_gradient(of_batch), "dx"),
        (with_gradient(lambda dz, z: dz * 1.01), "dx"),
        (with_gradient(lambda dz, z: dz * (z < z.max())), "dx"),
        (offset("gamma"), "dgamma"),
        (offset("beta"), "dbeta"),
        (offset("w"), "dw"),
    ],
)
def test_wrong_gradients_through_frozen_statistics(form: Callable[..., Any], wrong: str, dtype: str):
    verdict = differentiated(form, FROZEN[0], dtype)
    assert verdict.status == "fail"
    assert verdict.reason.startswith(f"wrong result (autograd variant autograd, contiguous dy)\n{wrong}: ")


def test_what_no_check_differentiates_is_an_error_of_the_file():
    acme = Implementation("acme", arrays=torch_arrays("cpu"))
    for operator in ("conv_backward_data", "conv_requantized"):
        with pytest.raises(ImplementationError) as error:
            acme.differentiates(operator)
        assert str(error.value) == (
            f"operator: no check verifies the gradients of {operator!r}; differentiates(...) takes "
            + ", ".join(name for name, known in OPERATORS.items() if known.gradients)
        )
