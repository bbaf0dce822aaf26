"""The autograd functions of impls/torch_native/fused: gradients, second derivatives, statistics, errors."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from conformance.implementations.registry import load
from conformance.operators import ConvBnGeometry
from conformance.resources import IMPLS

torch = pytest.importorskip("torch")

CASES = {
    "plain": "bn n2 c2 h4 w4 k3 r3 s3 p1",
    "groups": "bn n2 c4 h4 w3 k4 r3 s3 p1 g2",
    "depthwise": "bn n2 c2 h4 w3 k4 r3 s3 p1 g2",
    "stride": "bn n2 c2 h7 w6 k3 r3 s3 u2x3 p1",
    "asymmetric": "bn n2 c2 h5 w4 k4 r3 s2 p0:1x2:0",
    "asymmetric everything": "bn n2 c4 h5 w5 k4 r3 s2 u2x1 p1:2x0:1 d1x2 g2",
    "dilation": "bn n2 c2 h5 w5 k2 r3 s3 p2 d2",
    "not affine": "bn n2 c3 h4 w4 k3 r3 s3 affine0",
    "outside": "bn n2 c3 h5 w4 k4 r3 s3 p1 eps3 outside1",
    "outside, not affine": "bn n2 c3 h4 w5 k3 r3 s3 affine0 run0 eps3 outside1",
    "batch of one": "bn n1 c3 h4 w4 k3 r3 s3 p1",
    "two elements": "bn n2 c3 h3 w3 k4 r3 s3 eps1",
    "two elements, outside": "bn n2 c3 h3 w3 k4 r3 s3 eps1 outside1",
    "momentum": "bn n3 c3 h4 w4 k2 r1 s1 mom30",
}
GEOMETRIES = pytest.mark.parametrize("g", [ConvBnGeometry.parse(text) for text in CASES.values()], ids=list(CASES))


@pytest.fixture(scope="module", autouse=True)
def _one_thread() -> Iterator[None]:
    """Tiny tensors: threads would only wait for each other."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@pytest.fixture(scope="module")
def fused() -> Any:
    """The package, loaded as the suite loads it."""
    registry = load([IMPLS / "torch_native"])
    assert registry.broken == {}
    kernel = registry.implementations["torch-fused-cpu"].kernels[0].function
    return sys.modules[kernel.__module__.rpartition(".")[0]]


def window(fused: Any, g: ConvBnGeometry) -> Any:
    return fused.Parameters(g.stride, g.padding, g.dilation, g.groups)


def convention(fused: Any, g: ConvBnGeometry) -> Any:
    return fused.Convention(g.eps, g.eps_outside)


def drawn(g: ConvBnGeometry, dtype: str = "float64") -> list[Any]:
    """x, w, and gamma and beta where the problem has them; with gradients."""
    generator = torch.Generator().manual_seed(0)
    shapes = [g.x.shape, g.filter.shape, *([(g.k,)] * 2 if g.affine else [])]
    return [torch.randn(shape, generator=generator, dtype=getattr(torch, dtype)).requires_grad_() for shape in shapes]


def convolution(fused: Any, g: ConvBnGeometry) -> tuple[Callable[..., Any], list[Any]]:
    return (lambda x, w: fused.convolution(x, w, window(fused, g))), drawn(g)[:2]


def batch_norm(fused: Any, g: ConvBnGeometry) -> tuple[Callable[..., Any], list[Any]]:
    z = torch.randn(g.y.shape, generator=torch.Generator().manual_seed(1), dtype=torch.float64).requires_grad_()
    return (lambda *given: fused.batch_norm(*given, convention=convention(fused, g))[0]), [z, *drawn(g)[2:]]


def conv_batch_norm(fused: Any, g: ConvBnGeometry) -> tuple[Callable[..., Any], list[Any]]:
    keywords = {"window": window(fused, g), "convention": convention(fused, g)}
    return (lambda *given: fused.conv_batch_norm(*given, **keywords)[0]), drawn(g)


FUNCTIONS = pytest.mark.parametrize(
    ("name", "prepared"),
    [("Convolution", convolution), ("BatchNorm", batch_norm), ("ConvBatchNorm", conv_batch_norm)],
    ids=["conv", "norm", "pair"],
)


@GEOMETRIES
@FUNCTIONS
def test_gradients(fused, name: str, prepared, g: ConvBnGeometry):
    assert torch.autograd.gradcheck(*prepared(fused, g))


@FUNCTIONS
def test_second_derivative_is_refused(fused, name: str, prepared):
    function, given = prepared(fused, ConvBnGeometry.parse(CASES["plain"]))
    with pytest.raises(NotImplementedError, match=f"{name} has no second derivative.*torch.nn.functional.conv2d"):
        torch.autograd.gradgradcheck(function, given)


@FUNCTIONS
def test_gradient_may_be_kept_in_a_graph(fused, name: str, prepared):
    """Asking for a graph changes no gradient, as long as nobody differentiates it."""
    function, given = prepared(fused, ConvBnGeometry.parse(CASES["plain"]))
    plain = torch.autograd.grad(function(*given).square().sum(), given)
    kept = torch.autograd.grad(function(*given).square().sum(), given, create_graph=True)
    assert all(map(torch.equal, plain, kept))


@GEOMETRIES
def test_norm_equals_the_pair_of_both(fused, g: ConvBnGeometry):
    """The fused function is the two others in a row, in fp64 where nothing is rounded in between: to the bit."""
    given = drawn(g)
    chained = fused.batch_norm(
        fused.convolution(*given[:2], window(fused, g)), *given[2:], convention=convention(fused, g)
    )
    pair = fused.conv_batch_norm(*given, window=window(fused, g), convention=convention(fused, g))
    assert all(map(torch.equal, chained, pair))


def test_running_statistics_are_new_tensors(fused):
    g = ConvBnGeometry.parse(CASES["plain"])
    given = [*drawn(g), torch.zeros(g.k, dtype=torch.float64), torch.ones(g.k, dtype=torch.float64)]
    before = [tensor.clone() for tensor in given]
    *_, mean, var = fused.conv_batch_norm(*given, window=window(fused, g))
    assert all(map(torch.equal, before, given))
    assert not torch.equal(mean, given[4])
    assert not torch.equal(var, given[5])


def test_statistics_carry_no_gradient(fused):
    g = ConvBnGeometry.parse(CASES["plain"])
    _, *of_pair = fused.conv_batch_norm(*drawn(g), window=window(fused, g))
    _, *of_norm = fused.batch_norm(torch.zeros(g.y.shape, requires_grad=True))
    assert not any(statistic.requires_grad for statistic in (*of_pair, *of_norm))


@pytest.mark.parametrize("frozen", [(0,), (1,), (0, 1), (2, 3), (0, 2, 3)], ids=str)
def test_frozen_inputs_leave_the_other_gradients(fused, frozen: tuple[int, ...]):
    g = ConvBnGeometry.parse(CASES["plain"])
    function, given = conv_batch_norm(fused, g)
    everything = torch.autograd.grad(function(*given).square().sum(), given)
    asked = [index for index in range(4) if index not in frozen]
    leaves = [tensor.detach().requires_grad_(index in asked) for index, tensor in enumerate(given)]
    found = torch.autograd.grad(function(*leaves).square().sum(), [leaves[index] for index in asked])
    assert all(map(torch.equal, found, [everything[index] for index in asked]))


@pytest.mark.parametrize("outside", [False, True])
def test_constant_channel_has_gradients(fused, outside: bool):
    """A root of zero divides nothing: dx and dgamma of a constant channel are zero, dbeta is the sum of dy."""
    x = torch.full((2, 1, 3, 3), 2.0, dtype=torch.float64, requires_grad=True)
    gamma, beta = (torch.ones(1, dtype=torch.float64, requires_grad=True) for _ in range(2))
    w = torch.ones((1, 1, 1, 1), dtype=torch.float64)
    y = fused.conv_batch_norm(x, w, gamma, beta, convention=fused.Convention(1e-3, outside))[0]
    dx, dgamma, dbeta = torch.autograd.grad(y.sum(), (x, gamma, beta))
    assert torch.equal(y.detach(), torch.ones_like(y))
    assert torch.equal(dx, torch.zeros_like(x))
    assert (dgamma.item(), dbeta.item()) == (0.0, 18.0)


X, W, VECTOR = (2, 3, 5, 5), (4, 3, 3, 3), (4,)
WRONG: dict[str, tuple[dict[str, Any], type[Exception], str]] = {
    "one element": ({"x": (1, 3, 3, 3)}, ValueError, "1 element a channel in .* its variance is undefined"),
    "channels": ({"x": (2, 4, 5, 5)}, ValueError, r"x has 4 channels and w is \(4, 3, 3, 3\) with groups=1"),
    "groups": ({"window": {"groups": 3}}, ValueError, "with groups=3"),
    "groups and K": ({"w": (4, 1, 3, 3), "window": {"groups": 3}}, ValueError, "groups must divide K"),
    "window": ({"x": (2, 3, 2, 5)}, ValueError, "spans 3 on axis H, more than the padded image's 2"),
    "dilated window": ({"window": {"dilation": (1, 3)}}, ValueError, "spans 7 on axis W"),
    "axes": ({"x": (3, 5, 5)}, ValueError, r"x has shape \(3, 5, 5\): must have four axes"),
    "empty": ({"x": (0, 3, 5, 5)}, ValueError, "there is 0 element a channel"),
    "no channels": ({"x": (2, 0, 5, 5)}, ValueError, "has no elements"),
    "integers": ({"x": torch.int32}, TypeError, "x is torch.int32: must be of a floating-point dtype"),
    "integer filters": ({"w": torch.int64}, TypeError, "w is torch.int64"),
    "two dtypes": ({"w": torch.float64}, TypeError, "x is torch.float32 and w is torch.float64"),
    "gamma": ({"gamma": (3,)}, ValueError, r"gamma has shape \(3,\): must be \(4,\)"),
    "beta": ({"beta": (4, 1)}, ValueError, r"beta has shape \(4, 1\)"),
    "running mean": ({"running_mean": (1,)}, ValueError, "running_mean has shape"),
    "running var": ({"running_var": (5,)}, ValueError, "running_var has shape"),
    "gamma's dtype": ({"gamma": torch.bfloat16}, TypeError, "gamma is torch.bfloat16: must be torch.float32"),
    "only gamma": ({"beta": None}, ValueError, "gamma and beta are given together"),
    "only running mean": ({"running_var": None}, ValueError, "running_mean and running_var are given together"),
    "stride": ({"window": {"stride": (0, 1)}}, ValueError, r"stride=\(0, 1\): must be at least 1"),
    "stride's form": ({"window": {"stride": 2}}, TypeError, r"stride=2: must be \(rows, columns\), whole numbers"),
    "padding": ({"window": {"padding": ((0, -1), (0, 0))}}, ValueError, "padding=.*: must not be negative"),
    "padding's form": ({"window": {"padding": (1, 1)}}, TypeError, r"must be \(\(top, bottom\), \(left, right\)\)"),
    "half a pixel": ({"window": {"padding": ((0.5, 0), (0, 0))}}, TypeError, "whole numbers"),
    "eps": ({"eps": -1.0}, ValueError, "eps=-1.0: must be a number that is not negative"),
    "no eps": ({"eps": float("nan")}, ValueError, "eps=nan"),
    "momentum": ({"momentum": 1.5}, ValueError, "momentum=1.5: must be from 0 to 1"),
}


@pytest.mark.parametrize(("change", "error", "message"), WRONG.values(), ids=list(WRONG))
def test_errors_come_before_anything_is_computed(
    fused, change: dict[str, Any], error: type[Exception], message: str, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(torch.autograd.Function, "apply", None)
    with pytest.raises(error, match=message):
        call_with(fused, change)


def test_without_changes_it_computes(fused):
    """The call that the errors above change in one place."""
    assert call_with(fused, {})[0].shape == (2, 4, 3, 3)


def call_with(fused: Any, change: dict[str, Any]) -> Any:
    vectors = dict.fromkeys(("gamma", "beta", "running_mean", "running_var"), VECTOR)
    shapes = {"x": X, "w": W, **vectors}
    given = {name: changed(shape, change.get(name, shape)) for name, shape in shapes.items()}
    return fused.conv_batch_norm(
        **given,
        window=fused.Parameters(**change.get("window", {})),
        convention=fused.Convention(change.get("eps", 1e-5)),
        momentum=change.get("momentum", 0.1),
    )


def changed(shape: tuple[int, ...], to: Any) -> Any:
    """Ones; of another shape or dtype; or nothing."""
    if to is None:
        return None
    return torch.ones(shape, dtype=to) if isinstance(to, torch.dtype) else torch.ones(to)


@pytest.mark.parametrize(("shape", "message"), [((1, 4, 1, 1), "variance is undefined"), ((4, 3), "four axes")])
def test_norm_alone_refuses_too(fused, shape: tuple[int, ...], message: str):
    with pytest.raises(ValueError, match=message):
        fused.batch_norm(torch.ones(shape))


@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
def test_nothing_is_rounded_between(fused, dtype: str):
    """The pair on 16-bit tensors is the pair on the same values in fp32, rounded once."""
    g = ConvBnGeometry.parse(CASES["plain"])
    x, w, *affine = (tensor.detach() for tensor in drawn(g, "float32"))
    halves = [tensor.to(getattr(torch, dtype)) for tensor in (x, w)]
    keywords = {"window": window(fused, g), "convention": convention(fused, g)}
    y, *statistics = fused.conv_batch_norm(*halves, *affine, **keywords)
    wide, *others = fused.conv_batch_norm(*(tensor.float() for tensor in halves), *affine, **keywords)
    assert torch.equal(y, wide.to(y.dtype))
    assert all(map(torch.equal, statistics, others))
