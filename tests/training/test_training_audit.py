"""Every call of a training is verified: right kernels pass, planted defects are caught at the first step and named."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

torch = pytest.importorskip("torch")

from conformance import Contract  # noqa: E402
from conformance.judge.limits import limits  # noqa: E402
from conformance.operators import OPERATORS, ConvGeometry  # noqa: E402
from conformance.training.audit import Audit, BrokenStepError, audited, expected, judge_call, magnitude  # noqa: E402
from conformance.training.exchange import Call, RefusedError  # noqa: E402
from conformance.training.kernels import Kernels, on_host  # noqa: E402
from conformance.training.layers import Conv2d, replace_convolutions  # noqa: E402
from conformance.training.loop import one_thread  # noqa: E402
from conformance.training.models import UNet  # noqa: E402
from tests.training.planted import DIRECTIONS, on_torch, planted, spoiled  # noqa: E402


@pytest.fixture(autouse=True)
def calm():
    """Small tensors on busy cores: torch's threads would wait for each other most of the time."""
    with one_thread("cpu"):
        yield


def step(implementation: Any, build: Any = lambda: UNet(3, 2, 2)) -> Audit:
    """One audited step of a small UNet on random images."""
    torch.manual_seed(0)
    model = replace_convolutions(build(), implementation)
    with audited(model) as audit:
        audit.when = "step 1"
        answers = model(torch.rand(2, 3, 32, 32))
        torch.nn.functional.cross_entropy(answers, torch.randint(2, (2, 32, 32))).backward()
    return audit


@pytest.mark.parametrize("bilinear", [False, True], ids=["transposed", "bilinear"])
def test_every_call_of_a_right_unet_is_verified_and_passes(bilinear):
    audit = step(planted(), lambda: UNet(3, 2, 2, bilinear))
    convolutions = 19 if bilinear else 23
    assert audit.verified == 3 * convolutions - 1 + 1  # no gradient in the image; outc has dw and dbias
    assert set(audit.worst) == {"forward", "backward-data", "backward-weight"}
    assert 0 < max(audit.worst.values()) < 1


def flipped(dw: np.ndarray) -> np.ndarray:
    return np.ascontiguousarray(dw[:, :, ::-1, ::-1])


def to_bits(bits: int) -> Any:
    """Rounds fp32 to fewer significant bits."""

    def rounded(array: np.ndarray) -> np.ndarray:
        mantissa, exponent = np.frexp(array.astype(np.float64))
        kept: np.ndarray = np.ldexp(np.round(mantissa * 2**bits) / 2**bits, exponent).astype(np.float32)
        return kept

    return rounded


def without_last(axis: int) -> Any:
    def change(array: np.ndarray) -> np.ndarray:
        array = array.copy()
        np.moveaxis(array, axis, 0)[-1] = 0
        return array

    return change


PLANTED = {
    "dw without the last channel": ("conv_backward_weight", {"after": without_last(1)}),
    "dw off by one part in ten thousand": ("conv_backward_weight", {"after": lambda dw: dw * np.float32(1.0001)}),
    "dw of bf16 inputs": ("conv_backward_weight", {"before": to_bits(8)}),
    "dw of tf32 inputs": ("conv_backward_weight", {"before": to_bits(11)}),
    "dx of tf32 inputs": ("conv_backward_data", {"before": to_bits(11)}),
    "dx without the last column": ("conv_backward_data", {"after": without_last(3)}),
    "y of tf32 inputs": ("conv_forward", {"before": to_bits(11)}),
    "y without the last row": ("conv_forward", {"after": without_last(2)}),
    "y not finite": ("conv_forward", {"after": lambda y: y * np.float32(np.inf)}),
}


@pytest.mark.parametrize(("direction", "change"), PLANTED.values(), ids=PLANTED)
def test_planted_defects_are_caught_at_the_first_step(direction, change):
    with pytest.raises(BrokenStepError) as problem:
        step(planted(**{direction: spoiled(direction, **change)}))  # type: ignore[arg-type]
    assert f": {direction} of n2 " in str(problem.value)
    assert str(problem.value).startswith("step 1, layer ")


def only_in(direction: str, spoil: Any, shape: tuple[int, ...]) -> Any:
    """Spoils the results of one shape: those of a single layer."""
    return spoiled(direction, lambda found: spoil(found) if found.shape == shape else found)


def test_wrong_backward_weight_is_named_with_its_layer_and_its_mistake():
    wrong = only_in("conv_backward_weight", flipped, (4, 2, 3, 3))
    with pytest.raises(BrokenStepError) as problem:
        step(planted(conv_backward_weight=wrong))
    first, *_, last = str(problem.value).splitlines()
    assert first.startswith(
        "step 1, layer down1.convs.0, backward-weight: conv_backward_weight of n2 c2 h16 w16 k4 r3 s3 p1 (Conv2d 2->4"
    )
    assert "dw: " in str(problem.value)
    assert last.startswith("likely cause: ")
    assert "flip" in last


def test_transposed_layers_are_verified_under_their_own_roles():
    with pytest.raises(
        BrokenStepError, match=r"step 1, layer up1\.up, forward: conv_backward_data of n2 .*ConvTranspose2d"
    ):
        step(planted(conv_backward_data=only_in("conv_backward_data", lambda dx: dx * 2, (2, 16, 4, 4))))


def test_a_declared_contract_is_what_counts():
    rounding: dict[str, Any] = {name: spoiled(name, before=to_bits(11)) for name in DIRECTIONS}
    implementation = planted(**rounding)
    for number, kernel in enumerate(implementation.kernels):
        implementation.kernels[number] = replace(kernel, contract=Contract(inputs="tf32"))
    assert 0 < max(step(implementation).worst.values()) < 1


def test_a_model_without_kernels_is_not_audited():
    with pytest.raises(ValueError, match="no layer that goes through kernels"), audited(torch.nn.Conv2d(1, 1, 1)):
        pass


def test_observers_leave_with_the_block():
    model = replace_convolutions(
        torch.nn.Conv2d(1, 1, 3), planted(conv_forward=spoiled("conv_forward", lambda y: y + 1))
    )
    with pytest.raises(BrokenStepError, match="layer without a name"), audited(model):
        model(torch.ones(1, 1, 4, 4))
    model(torch.ones(1, 1, 4, 4))


def test_double_precision_has_no_reference_to_be_audited_by():
    model = replace_convolutions(torch.nn.Conv2d(1, 1, 3, dtype=torch.float64), on_torch())
    with pytest.raises(RefusedError, match="an fp64 network cannot be audited"), audited(model):
        model(torch.ones(1, 1, 4, 4, dtype=torch.float64))


def cancelling() -> Call:
    """A gradient whose first half is positive and whose second half takes almost all of it away again."""
    geometry = ConvGeometry(1, 1, (128, 128), 1, (1, 1))
    generator = np.random.default_rng(0)
    dy = (0.5 + generator.random((1, 1, 128, 128), np.float32) / 2).astype(np.float32)
    dy[:, :, 64:] *= -1
    inputs = {"x": torch.ones(1, 1, 128, 128), "dy": torch.from_numpy(dy)}
    kernels = Kernels(planted(conv_backward_weight=in_memory_order))
    return on_host(kernels.call("conv_backward_weight", geometry, inputs, ""))


def in_memory_order(x, dy, *, with_bias):
    """Sequential fp32: the plainest right kernel for one channel and a 1x1 window."""
    return np.add.accumulate((x * dy).reshape(-1), dtype=np.float32)[-1:].reshape(1, 1, 1, 1)


def test_data_that_cancels_needs_the_magnitude_for_data_of_any_kind():
    call = cancelling()
    reference = expected(call)
    (judgement,) = judge_call(call, reference)
    assert judgement.passed
    s2 = OPERATORS[call.direction].magnitude(call.geometry, call.inputs)["dw"]
    of_random_signs = limits(call.contract, "fp32", 128 * 128).bound(reference["dw"], s2)
    assert abs(call.outputs["dw"] - reference["dw"]).item() > of_random_signs.item()


def test_magnitude_is_what_partial_sums_reach_at_most():
    call = cancelling()
    terms = (call.inputs["x"] * call.inputs["dy"]).astype(np.float64)
    most = max(terms[terms > 0].sum(), -terms[terms < 0].sum())
    assert magnitude(call, expected(call))["dw"].item() == pytest.approx(most, rel=1e-12)


def test_a_layer_that_a_user_built_in_is_named_as_well():
    wrong = planted(conv_forward=spoiled("conv_forward", lambda y: y + 1))
    model = torch.nn.Sequential(torch.nn.ReLU(), Conv2d(1, 1, 3, implementation=wrong))
    with pytest.raises(BrokenStepError, match=r"layer 1, forward: conv_forward"), audited(model):
        model(torch.ones(1, 1, 4, 4))
