"""The autograd bridge and the layers: gradients, state, refusals."""

from __future__ import annotations

import copy
from typing import Any

import numpy as np
import pytest

torch = pytest.importorskip("torch")

from conformance.execution.invocation import MalformedError  # noqa: E402
from conformance.training.bridge import TwiceError  # noqa: E402
from conformance.training.exchange import RefusedError  # noqa: E402
from conformance.training.layers import Conv2d, ConvTranspose2d, replace_convolutions  # noqa: E402
from conformance.training.loop import one_thread  # noqa: E402
from conformance.training.models import UNet, digits_network  # noqa: E402
from tests import kernels  # noqa: E402
from tests.training.planted import DIRECTIONS, numpy_direct, on_torch, planted, spoiled  # noqa: E402


@pytest.fixture(autouse=True)
def calm():
    """Small tensors on busy cores: torch's threads would wait for each other most of the time."""
    with one_thread("cpu"):
        yield


IMPLEMENTATIONS = {
    "torch": (on_torch, "nchw"),
    "torch channels last": (on_torch, "nhwc"),
    "numpy": (numpy_direct, "nchw"),
}
FORWARD, TRANSPOSED = (torch.nn.Conv2d, Conv2d), (torch.nn.ConvTranspose2d, ConvTranspose2d)
CONFIGURATIONS: dict[str, tuple[tuple[type, type], tuple[Any, ...], dict[str, Any]]] = {
    "plain": (FORWARD, (2, 3, 3), {}),
    "no bias": (FORWARD, (2, 3, 3), {"bias": False}),
    "1x1": (FORWARD, (3, 2, 1), {}),
    "stride": (FORWARD, (2, 3, 3), {"stride": 2, "padding": 1}),
    "by axis": (FORWARD, (2, 3, (3, 2)), {"stride": (1, 2), "padding": (2, 0), "dilation": (1, 2)}),
    "groups": (FORWARD, (4, 6, 3), {"groups": 2, "padding": 1}),
    "depthwise": (FORWARD, (3, 6, 3), {"groups": 3, "padding": 1}),
    "same": (FORWARD, (2, 2, (2, 4)), {"padding": "same", "dilation": (3, 1)}),
    "transposed": (TRANSPOSED, (3, 2, 3), {}),
    "transposed, twice": (TRANSPOSED, (3, 2, 2), {"stride": 2}),
    "transposed, by axis": (
        TRANSPOSED,
        (3, 2, (3, 2)),
        {"stride": (2, 3), "padding": (1, 0), "output_padding": (1, 2), "dilation": (2, 1)},
    ),
    "transposed, groups": (TRANSPOSED, (4, 6, 3), {"groups": 2, "padding": 1, "bias": False}),
}
"""torch's layer and ours, what they are built from."""


def image(channels: int) -> Any:
    generator = torch.Generator().manual_seed(3)
    return torch.randn(2, channels, 5, 6, generator=generator, dtype=torch.float64, requires_grad=True)


@pytest.mark.parametrize(("implementation", "layout"), IMPLEMENTATIONS.values(), ids=IMPLEMENTATIONS)
@pytest.mark.parametrize(("kinds", "sizes", "options"), CONFIGURATIONS.values(), ids=CONFIGURATIONS)
def test_a_layer_and_its_gradients_are_torch_s(kinds, sizes, options, implementation, layout):
    """In double precision, to a few units of the last place of the largest element; and those of differences."""
    theirs = kinds[0](*sizes, **options, dtype=torch.float64)
    layer = kinds[1](*sizes, **options, dtype=torch.float64, implementation=implementation(), layout=layout)
    layer.load_state_dict(theirs.state_dict())
    x, found = image(sizes[0]), []
    for module in (theirs, layer):
        y = module(x)
        weights = torch.cos(torch.arange(y.numel(), dtype=y.dtype)).reshape(y.shape)
        found.append([y, *torch.autograd.grad((y * weights).sum(), [x, *module.parameters()])])
    for first, second in zip(*found, strict=True):
        assert first.shape == second.shape
        assert (first - second).abs().max().item() <= 512 * 2**-53 * max(1.0, first.abs().max().item())
    assert torch.autograd.gradcheck(layer, image(sizes[0]), fast_mode=True)


def test_an_image_without_a_batch_and_one_not_contiguous():
    layer = Conv2d(2, 3, 3, dtype=torch.float64, implementation=on_torch())
    x = image(2).detach()
    assert torch.equal(layer(x[0]), layer(x)[0])
    assert torch.equal(layer(x.to(memory_format=torch.channels_last)), layer(x))


def test_every_direction_is_the_kernels():
    seen: list[str] = []

    def noted(direction: str) -> Any:
        def note(array: np.ndarray) -> np.ndarray:
            seen.append(direction)
            return array

        return spoiled(direction, note)

    implementation = planted(**{name: noted(name) for name in DIRECTIONS})
    x = torch.ones(1, 2, 4, 4, requires_grad=True)
    Conv2d(2, 2, 3, implementation=implementation)(x).sum().backward()
    assert seen == list(DIRECTIONS)
    seen.clear()
    ConvTranspose2d(2, 2, 2, implementation=implementation)(x).sum().backward()
    assert seen == ["conv_backward_data", "conv_forward", "conv_backward_weight"]


def test_only_the_gradients_that_are_wanted_are_computed():
    implementation = planted(conv_backward_data=None)
    layer = Conv2d(2, 2, 3, implementation=implementation)
    layer(torch.ones(1, 2, 4, 4)).sum().backward()
    assert layer.weight.grad is not None
    with pytest.raises(
        RefusedError, match="acme has no conv_backward_data for it: conv_backward_data is not implemented"
    ):
        layer(torch.ones(1, 2, 4, 4, requires_grad=True))


FROZEN = {
    "weight and bias": (("weight", "bias"), []),
    "bias": (("bias",), [False]),
    "weight": (("weight",), [True]),
}
"""What takes no gradient -> `with_bias` of every backward-weight."""


@pytest.mark.parametrize(("names", "asked"), FROZEN.values(), ids=FROZEN)
def test_frozen_parameters_cost_nothing(names, asked):
    seen: list[bool] = []

    def noted(x, dy, *, kernel_size, with_bias, stride, padding, dilation, groups):
        seen.append(with_bias)
        more = {"stride": stride, "padding": padding, "dilation": dilation, "groups": groups}
        return kernels.conv_backward_weight(x, dy, kernel_size=kernel_size, with_bias=with_bias, **more)

    layer = Conv2d(2, 2, 3, implementation=planted(conv_backward_weight=noted))
    for name in names:
        getattr(layer, name).requires_grad_(False)
    layer(torch.ones(1, 2, 4, 4, requires_grad=True)).sum().backward()
    assert seen == asked
    assert all((getattr(layer, name).grad is None) == (name in names) for name in ("weight", "bias"))


NETWORKS = {"digits": (digits_network, (2, 1, 28, 28)), "unet": (lambda: UNet(3, 2, 2), (2, 3, 16, 16))}


@pytest.mark.parametrize(("build", "shape"), NETWORKS.values(), ids=NETWORKS)
def test_replacing_keeps_state_parameters_and_outputs(build, shape):
    torch.manual_seed(0)
    model = build().double()
    twin, x = copy.deepcopy(model), torch.rand(shape, dtype=torch.float64)
    parameters = dict(model.named_parameters())
    assert replace_convolutions(model, on_torch()) is model
    assert not any(type(part) in (torch.nn.Conv2d, torch.nn.ConvTranspose2d) for part in model.modules())
    assert all(after is parameters[name] for name, after in model.named_parameters())
    assert model.state_dict().keys() == twin.state_dict().keys()
    twin.load_state_dict(model.state_dict())
    assert (model(x) - twin(x)).abs().max().item() <= 2**-40
    copied = copy.deepcopy(model)
    assert torch.equal(copied(x), model(x))


def three_only(geometry: Any) -> bool:
    return geometry.r == geometry.s == 3 and geometry.stride == (1, 1) and not geometry.bias


REFUSED = {
    "window": ({"kernel_size": 5, "bias": False}, "outside the declared capability"),
    "bias": ({"kernel_size": 3}, "outside the declared capability"),
    "stride": ({"kernel_size": 3, "stride": 2, "bias": False}, "outside the declared capability"),
    "dtype": ({"kernel_size": 3, "bias": False, "dtype": torch.float64}, "dtype fp64 is not declared"),
    "layout": ({"kernel_size": 3, "bias": False, "layout": "nhwc"}, "layout nhwc is not declared"),
    "padding": ({"kernel_size": 3, "bias": False, "padding_mode": "reflect"}, "padding_mode='reflect'"),
}


@pytest.mark.parametrize(("options", "reason"), REFUSED.values(), ids=REFUSED)
def test_what_no_kernel_is_for_is_refused_at_construction(options, reason):
    size = "x".join([str(options["kernel_size"])] * 2)
    with pytest.raises(RefusedError) as refusal:
        Conv2d(3, 4, implementation=planted(when=three_only), **options)
    assert reason in str(refusal.value)
    assert f"Conv2d 3->4 {size}" in str(refusal.value)
    if not reason.startswith("padding"):
        assert "acme has no conv_forward" in str(refusal.value)


def test_what_only_an_input_tells_is_refused_at_the_first_call():
    layer = Conv2d(3, 4, 3, implementation=planted(when=lambda p: p.h % 2 == 0))
    layer(torch.ones(1, 3, 4, 5))
    with pytest.raises(
        RefusedError, match=r"Conv2d 3->4 3x3, .* \(n1 c3 h5 w5 k4 r3 s3 b1\): acme has no conv_forward"
    ):
        layer(torch.ones(1, 3, 5, 5))


def test_other_dtypes_of_input_are_refused():
    layer = Conv2d(3, 4, 3, implementation=planted())
    with pytest.raises(RefusedError, match=r"the input is torch\.float64 on cpu, the weight torch\.float32"):
        layer(torch.ones(1, 3, 5, 5, dtype=torch.float64))
    with pytest.raises(ValueError, match=r"the input has shape \(1, 2, 5, 5\); expected \[N, 3, H, W\]"):
        layer(torch.ones(1, 2, 5, 5))


class OwnConv2d(torch.nn.Conv2d):  # type: ignore[name-defined]
    """A user's subclass, whose forward may be anything."""


UNREPLACEABLE = {
    "subclass": OwnConv2d(2, 2, 3),
    "three axes": torch.nn.Conv3d(2, 2, 3),
    "transposed on one axis": torch.nn.ConvTranspose1d(2, 2, 3),
    "reflecting": torch.nn.Conv2d(2, 2, 3, padding_mode="circular"),
}


@pytest.mark.parametrize("layer", UNREPLACEABLE.values(), ids=UNREPLACEABLE)
def test_a_model_is_replaced_whole_or_not_at_all(layer):
    model = torch.nn.Sequential(torch.nn.Conv2d(2, 2, 3), torch.nn.Sequential(layer))
    with pytest.raises(RefusedError, match=r"^1\.0: "):
        replace_convolutions(model, planted())
    assert type(model[0]) is torch.nn.Conv2d


def test_the_gradient_of_a_gradient_is_refused():
    layer = Conv2d(1, 1, 3, implementation=planted())
    x = torch.ones(1, 1, 4, 4, requires_grad=True)
    (dx,) = torch.autograd.grad(layer(x).square().sum(), x, create_graph=True)
    with pytest.raises(TwiceError, match=r"Conv2d 1->1 3x3.*the gradient of a gradient is not available"):
        dx.sum().backward()


def test_a_result_of_another_dtype_is_named():
    layer = Conv2d(
        3, 4, 3, implementation=planted(conv_forward=spoiled("conv_forward", lambda y: y.astype(np.float64)))
    )
    with pytest.raises(MalformedError, match=r"y is fp64 \(1, 4, 3, 3\); expected fp32"):
        layer(torch.ones(1, 3, 5, 5))


def test_what_a_kernel_raises_keeps_its_type_and_names_the_layer():
    def exhausted(dy, w):
        raise MemoryError("out of tiles")

    model = torch.nn.Sequential(torch.nn.Conv2d(1, 1, 3), torch.nn.Conv2d(1, 1, 3))
    replace_convolutions(model, planted(conv_backward_data=exhausted))
    with pytest.raises(MemoryError) as problem:
        model(torch.ones(1, 1, 8, 8)).sum().backward()
    assert problem.value.__notes__[0].startswith("in 1: Conv2d 1->1 3x3")
