"""Convolution with batch norm as functions that a framework differentiates, in impls/torch_native/fused and in
impls/jax_native: gradients, what they keep for them, errors; and what JAX's poolings refuse."""

from __future__ import annotations

import re
import sys
from collections.abc import Callable, Iterator
from functools import cache, partial
from typing import Any

import pytest

from conformance import Contract, Implementation, jax_arrays
from conformance.execution.verify import verify
from conformance.implementations.registry import load
from conformance.inputs import Expectation, Recipe
from conformance.operators import OPERATORS, POOLINGS, ConvBnGeometry, PoolGeometry
from conformance.resources import IMPLS
from tests.kit import trial_of

torch = pytest.importorskip("torch")
jax = pytest.importorskip("jax")
jnp = pytest.importorskip("jax.numpy")
check_grads = pytest.importorskip("jax.test_util").check_grads

FORWARD = OPERATORS["conv_bn_forward"]
CASES = {
    "plain": "bn n2 c2 h4 w4 k3 r3 s3 p1",
    "groups": "bn n2 c4 h4 w3 k4 r3 s3 p1 g2",
    "depthwise": "bn n2 c2 h4 w3 k4 r3 s3 p1 g2 run0",
    "stride": "bn n2 c2 h7 w6 k3 r3 s3 u2x3 p1",
    "asymmetric everything": "bn n2 c4 h5 w5 k4 r3 s2 u2x1 p1:2x0:1 d1x2 g2",
    "dilation": "bn n2 c2 h5 w5 k2 r3 s3 p2 d2 affine0",
    "outside": "bn n2 c3 h5 w4 k4 r3 s3 p1 eps3 outside1",
    "outside, bare": "bn n2 c3 h4 w5 k3 r3 s3 affine0 run0 eps3 outside1",
    "batch of one": "bn n1 c3 h4 w4 k3 r3 s3 p1",
    "two elements": "bn n2 c3 h3 w3 k4 r3 s3 eps1",
    "two elements, outside": "bn n2 c3 h3 w3 k4 r3 s3 eps1 outside1",
    "momentum": "bn n3 c3 h4 w4 k2 r1 s1 mom30",
}
FEW = ("asymmetric everything", "outside, bare", "two elements, outside")
"""Cases of the forms in jax, whose derivatives are its own: ours is the forward pass, and what it is computed from."""
FUNCTIONS = ("convolution", "batch_norm", "conv_batch_norm")
JAX = ("conv_bn_plain", "conv_bn_checkpointed", "conv_bn_recomputing")
PAIRS = ("conv_batch_norm", *JAX)
"""Functions of x, w, gamma, beta and running statistics."""


@pytest.mark.parametrize("dtype", ["bf16", "fp16"])
@pytest.mark.parametrize("problem", ["bn n1 c64 h24 w24 k64 r3 s3 p1", "bn n4 c3 h33 w33 k5 r1 s1"])
def test_what_torch_declares_of_its_16_bit_gradients_says_something_of_each(problem: str, dtype: str):
    """Declared as sums in 16 bits, dgamma, dw and dx were told from zeros on hardly any problem."""
    torch_cpu = load([IMPLS / "torch_native"]).implementations["torch-cpu"]
    verdict = verify(trial_of(torch_cpu, problem, "conv_bn_backward", dtype=dtype))
    assert (verdict.status, verdict.unverified) == ("pass", ())


def geometry(name: str) -> ConvBnGeometry:
    return ConvBnGeometry.parse(CASES[name])


@cache
def package(name: str, implementation: str) -> Any:
    """A package of `impls`, loaded as the suite loads it."""
    registry = load([IMPLS / name])
    assert registry.broken == {}
    kernel = registry.implementations[implementation].kernels[0].function
    return sys.modules[kernel.__module__.rpartition(".")[0]]


fused = partial(package, "torch_native", "torch-fused-cpu")
native = partial(package, "jax_native", "jax-cpu")


@pytest.fixture(scope="module", autouse=True)
def _one_thread() -> Iterator[None]:
    """Tiny tensors: threads would only wait for each other."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@pytest.fixture(scope="module", autouse=True)
def _double_precision() -> None:
    """JAX has fp64 once its kernels are loaded: the first test of a process had fp32 inputs, and failed."""
    native()


@pytest.fixture
def quick_compilation() -> Iterator[None]:
    """Most of the time of JAX's tests is XLA's, for programs that run once."""
    jax.config.update("jax_disable_most_optimizations", True)
    yield
    jax.config.update("jax_disable_most_optimizations", False)


def parameters(g: ConvBnGeometry) -> dict[str, Any]:
    return {**FORWARD.parameters(g), "layout": "nchw"}


def pair(form: str, arrays: Any, given: dict[str, Any]) -> Any:
    """The outputs of convolution and norm together, of either framework."""
    if form in JAX:
        return getattr(native(), form)(*arrays, **given)
    window = fused().Parameters(given["stride"], given["padding"], given["dilation"], given["groups"])
    convention = fused().Convention(given["eps"], given["eps_outside"])
    return fused().conv_batch_norm(*arrays, window=window, convention=convention, momentum=given["momentum"])


def inputs(form: str, g: ConvBnGeometry) -> list[Any]:
    """fp64 inputs by position, None for those that are absent."""
    drawn = Expectation(Recipe(FORWARD.on(g), "fp64", "fixed", 0)).inputs
    made = jnp.asarray if form in JAX else torch.from_numpy
    return [made(drawn[name]) if name in drawn else None for name in FORWARD.arguments]


def of_torch(name: str, g: ConvBnGeometry) -> tuple[Callable[..., Any], list[Any]]:
    """A function of torch's, of the inputs that get a gradient: y of the pair, or of one of the two."""
    given = [array.clone().requires_grad_() for array in inputs(name, g)[:4] if array is not None]
    window = fused().Parameters(g.stride, g.padding, g.dilation, g.groups)
    convention = fused().Convention(g.eps, g.eps_outside)
    if name == "convolution":
        return (lambda x, w: fused().convolution(x, w, window)), given[:2]
    if name == "batch_norm":
        z = torch.randn(g.y.shape, generator=torch.Generator().manual_seed(1), dtype=torch.float64).requires_grad_()
        return (lambda *arrays: fused().batch_norm(*arrays, convention=convention)[0]), [z, *given[2:]]
    return (lambda *arrays: pair(name, arrays, parameters(g))[0]), given


def of_jax(form: str, g: ConvBnGeometry) -> tuple[Callable[..., Any], list[Any]]:
    """The form as a function of the inputs that are present, with all of its outputs."""
    given = inputs(form, g)
    present = [place for place, array in enumerate(given) if array is not None]

    def function(*arrays: Any) -> Any:
        everything = dict(zip(present, arrays, strict=True))
        return pair(form, [everything.get(place) for place in range(len(given))], parameters(g))

    return function, [given[place] for place in present]


@pytest.mark.parametrize("case", CASES)
@pytest.mark.parametrize("name", FUNCTIONS)
def test_gradients_of_torch(name: str, case: str):
    assert torch.autograd.gradcheck(*of_torch(name, geometry(case)))


@pytest.mark.parametrize("case", FEW)
@pytest.mark.parametrize("form", JAX)
def test_gradients_of_jax(quick_compilation, form: str, case: str):
    """Gradients of every output, in every input."""
    check_grads(*of_jax(form, geometry(case)), order=1, modes=["rev"])


@pytest.mark.parametrize("outside", [False, True])
@pytest.mark.parametrize("form", PAIRS)
def test_constant_channel_has_gradients(form: str, outside: bool):
    """A root of zero divides nothing: dx and dgamma of a constant channel are zero, dbeta is the sum of dy."""
    ones = jnp.ones if form in JAX else torch.ones
    x, w, one = 2.0 * ones((2, 1, 1, 1)), ones((1, 1, 1, 1)), ones(1)
    given = parameters(ConvBnGeometry.parse("bn n2 c1 h1 w1 k1 r1 s1 eps3")) | {"eps_outside": outside}

    def total(x: Any, gamma: Any, beta: Any) -> Any:
        return pair(form, (x, w, gamma, beta, None, None), given)[0].sum()

    if form in JAX:
        dx, dgamma, dbeta = jax.grad(total, argnums=(0, 1, 2))(x, one, one)
    else:
        leaves = [array.clone().requires_grad_() for array in (x, one, one)]
        dx, dgamma, dbeta = torch.autograd.grad(total(*leaves), leaves)
    assert not dx.any()
    assert (dgamma.item(), dbeta.item()) == (0.0, 2.0)


SHAPES = {"x": (2, 3, 5, 5), "w": (4, 3, 3, 3)}
VECTORS = ("gamma", "beta", "running_mean", "running_var")
WRONG: dict[str, tuple[dict[str, Any], type[Exception], str]] = {
    "one element": ({"x": (1, 3, 3, 3)}, ValueError, "element a channel.*: its variance is undefined"),
    "no images": ({"x": (0, 3, 5, 5)}, ValueError, "element a channel.*: its variance is undefined"),
    "no rows": ({"x": (2, 3, 0, 5)}, ValueError, r"x has shape \(2, 3, 0, 5\)"),
    "axes": ({"x": (3, 5, 5)}, ValueError, r"x has shape \(3, 5, 5\): must have (4|four) axes"),
    "channels": ({"x": (2, 4, 5, 5)}, ValueError, "x has 4 channels"),
    "groups": ({"w": (4, 1, 3, 3), "groups": 3}, ValueError, "groups"),
    "window": ({"x": (2, 3, 2, 5)}, ValueError, "spans 3 on .*, more than the padded image's 2"),
    "dilated window": ({"dilation": (1, 3)}, ValueError, "spans 7 on .*, more than the padded image's 5"),
    "integers": ({"x": "int32"}, TypeError, "x is .*int32: must be of a floating-point dtype"),
    "integer filters": ({"w": "int8"}, TypeError, "w is .*int8: must be of a floating-point dtype"),
    "two dtypes": ({"w": "float16"}, TypeError, "x .*w .*float16"),
    "gamma": ({"gamma": (1,)}, ValueError, r"gamma has shape \(1,\): must be \(4,\)"),
    "running var": ({"running_var": (4, 1)}, ValueError, r"running_var has shape \(4, 1\)"),
    "gamma's dtype": ({"gamma": "bfloat16"}, TypeError, "gamma is .*bfloat16: must be .*float32"),
    "only gamma": ({"beta": None}, ValueError, "gamma and beta are given together"),
    "only running var": ({"running_mean": None}, ValueError, "given together"),
    "stride": ({"stride": (0, 1)}, ValueError, r"stride=\(0, 1\): must be at least 1"),
    "padding": ({"padding": ((0, -1), (0, 0))}, ValueError, "padding="),
    "eps": ({"eps": float("nan")}, ValueError, "eps=nan: must be a number that is not negative"),
    "momentum": ({"momentum": 1.5}, ValueError, "momentum=1.5: must be from 0 to 1"),
}


def called(form: str, change: dict[str, Any]) -> Any:
    """The form on fp32 ones, with something of another shape or dtype, or left out."""
    ones = jnp.ones if form in JAX else torch.ones
    dtypes: Any = jnp if form in JAX else torch

    def made(name: str, usual: tuple[int, ...]) -> Any:
        to = change.get(name, usual)
        shape, dtype = (usual, to) if isinstance(to, str) else (to, "float32")
        return None if to is None else ones(shape, dtype=getattr(dtypes, dtype))

    arrays = [made(name, SHAPES.get(name, (4,))) for name in ("x", "w", *VECTORS)]
    usual = parameters(ConvBnGeometry.parse("bn n2 c3 h5 w5 k4 r3 s3"))
    return pair(form, arrays, {name: change.get(name, value) for name, value in usual.items()})


@pytest.mark.parametrize(("change", "error", "message"), WRONG.values(), ids=WRONG)
@pytest.mark.parametrize("form", PAIRS)
def test_errors_are_named(form: str, change: dict[str, Any], error: type[Exception], message: str):
    with pytest.raises(error, match=message):
        called(form, change)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"stride": 2}, r"stride=2: must be \(rows, columns\), whole numbers"),
        ({"padding": (1, 1)}, r"must be \(\(top, bottom\), \(left, right\)\)"),
        ({"padding": ((0.5, 0), (0, 0))}, "whole numbers"),
    ],
)
def test_parameters_of_another_form_are_refused(change: dict[str, Any], message: str):
    with pytest.raises(TypeError, match=message):
        called("conv_batch_norm", change)


@pytest.mark.parametrize(("shape", "message"), [((1, 4, 1, 1), "variance is undefined"), ((4, 3), "four axes")])
def test_norm_alone_refuses_too(shape: tuple[int, ...], message: str):
    with pytest.raises(ValueError, match=message):
        fused().batch_norm(torch.ones(shape))


@pytest.mark.parametrize("name", FUNCTIONS)
def test_a_gradient_may_be_kept_in_a_graph_and_not_be_differentiated(name: str):
    function, given = of_torch(name, geometry("plain"))
    plain = torch.autograd.grad(function(*given).square().sum(), given)
    kept = torch.autograd.grad(function(*given).square().sum(), given, create_graph=True)
    assert all(map(torch.equal, plain, kept))
    with pytest.raises(NotImplementedError, match=r"has no second derivative.*torch\.nn\.functional\.conv2d"):
        torch.autograd.gradgradcheck(function, given)


@pytest.mark.parametrize("case", CASES)
def test_the_pair_equals_both_in_a_row(case: str):
    """In fp64, where nothing is rounded in between: to the bit."""
    given = inputs("conv_batch_norm", geometry(case))
    chained, x = of_torch("convolution", geometry(case))
    norm, _ = of_torch("batch_norm", geometry(case))
    both, _ = of_torch("conv_batch_norm", geometry(case))
    arrays = [array for array in given[:4] if array is not None]
    assert torch.equal(norm(chained(*x), *arrays[2:]), both(*arrays))


def test_statistics_are_new_tensors_and_carry_no_gradient():
    g = geometry("plain")
    given = inputs("conv_batch_norm", g)
    before = [tensor.clone() for tensor in given]
    _, *statistics = pair("conv_batch_norm", [*(t.requires_grad_() for t in given[:4]), *given[4:]], parameters(g))
    assert all(map(torch.equal, before, given))
    assert not any(statistic.requires_grad for statistic in statistics)
    assert not any(map(torch.equal, statistics[-2:], given[4:]))
    assert not any(s.requires_grad for s in fused().batch_norm(torch.zeros(g.y.shape, requires_grad=True))[1:])


@pytest.mark.parametrize("frozen", [(0,), (1,), (0, 1), (2, 3), (0, 2, 3)], ids=str)
def test_frozen_inputs_leave_the_other_gradients(frozen: tuple[int, ...]):
    function, given = of_torch("conv_batch_norm", geometry("plain"))
    everything = torch.autograd.grad(function(*given).square().sum(), given)
    asked = [index for index in range(4) if index not in frozen]
    leaves = [tensor.detach().requires_grad_(index in asked) for index, tensor in enumerate(given)]
    found = torch.autograd.grad(function(*leaves).square().sum(), [leaves[index] for index in asked])
    assert all(map(torch.equal, found, [everything[index] for index in asked]))


@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
def test_nothing_is_rounded_between(dtype: str):
    """The pair on 16-bit tensors is the pair on the same values in fp32, rounded once."""
    g = geometry("plain")
    x, w, *vectors = (tensor.float() for tensor in inputs("conv_batch_norm", g))
    halves = [tensor.to(getattr(torch, dtype)) for tensor in (x, w)]
    y, *statistics = pair("conv_batch_norm", [*halves, *vectors], parameters(g))
    wide, *others = pair("conv_batch_norm", [*(tensor.float() for tensor in halves), *vectors], parameters(g))
    assert torch.equal(y, wide.to(y.dtype))
    assert all(map(torch.equal, statistics, others))


@pytest.mark.parametrize("case", FEW[:2])
def test_second_derivatives_of_the_recomputing_form(quick_compilation, case: str):
    """The other two are jax's own matter."""
    check_grads(*of_jax("conv_bn_recomputing", geometry(case)), order=2, modes=["rev"])


def gradient_of(form: Callable[..., Any]) -> Callable[..., Any]:
    """conv_bn_backward as autodiff of a form."""

    def conv_bn_backward(dy: Any, x: Any, w: Any, gamma: Any, **given: Any) -> Any:
        affine = [] if gamma is None else [gamma, jnp.zeros_like(gamma)]

        def y(*arrays: Any) -> Any:
            return form(*arrays, *[None] * (6 - len(arrays)), momentum=0.1, **given)[0]

        return jax.vjp(y, x, w, *affine)[1](dy)

    return conv_bn_backward


@pytest.mark.parametrize(
    ("case", "dtype"),
    [*(("asymmetric everything", dtype) for dtype in ("fp32", "bf16", "fp16", "fp64")), ("outside", "fp32")],
)
@pytest.mark.parametrize("form", JAX)
def test_forms_keep_the_same_contract(form: str, case: str, dtype: str):
    """Forward and backward of each form are what the registered kernels are: judged against the exact reference."""
    acme = Implementation("acme", arrays=jax_arrays("cpu"), contract=Contract(subnormals="flushed"))
    function = getattr(native(), form)
    for operator, kernel in (("conv_bn_forward", function), ("conv_bn_backward", gradient_of(function))):
        acme.implements(operator, dtypes=(dtype,), layouts=("nhwc",))(kernel)
        verdict = verify(trial_of(acme, CASES[case], operator, dtype=dtype, layout="nhwc"))
        assert verdict.status == "pass", verdict.reason


KEPT = ConvBnGeometry.parse("bn n2 c4 h9 w8 k6 r3 s3 p1")


def saved(form: str, given: list[Any]) -> list[tuple[tuple[int, ...], Any]]:
    """Shape and dtype of everything that waits for the backward pass."""
    _, gradients = jax.vjp(lambda *arrays: pair(form, arrays, parameters(KEPT)), *given)
    return [(leaf.shape, leaf.dtype) for leaf in jax.tree.leaves(gradients)]


@pytest.mark.parametrize("dtype", ["bfloat16", "float32", "float64"])
@pytest.mark.parametrize("form", JAX[1:])
def test_frugal_forms_keep_their_inputs_only(form: str, dtype: str):
    x, w, *vectors = inputs(form, KEPT)
    images = [array.astype(dtype) for array in (x, w)]
    vectors = [array.astype(jnp.promote_types(dtype, "float32")) for array in vectors]
    kept = saved(form, [*images, *vectors])
    allowed = [(array.shape, array.dtype) for array in (*images, *vectors)]
    assert [entry for entry in kept if entry not in allowed] == []
    assert sorted(shape for shape, _ in kept if len(shape) == 4) == sorted(array.shape for array in images)
    assert KEPT.y.shape in [shape for shape, _ in saved(JAX[0], inputs(form, KEPT))]


@pytest.mark.parametrize("form", JAX[1:])
def test_frugal_forms_compute_z_again_in_one_program(form: str):
    """XLA merges equal convolutions of a program unless something keeps them apart."""
    assert convolutions(form) > convolutions(JAX[0])


def convolutions(form: str) -> int:
    """In the compiled gradient of two pairs in a row."""
    g = ConvBnGeometry.parse("bn n2 c4 h9 w8 k4 r3 s3 p1 run0")
    x, w, *vectors = inputs(form, g)

    def loss(x: Any, w: Any) -> Any:
        for _ in range(2):
            x = jnp.tanh(pair(form, (x, w, *vectors), parameters(g))[0])
        return jnp.sum(x)

    program = jax.jit(jax.grad(loss, argnums=(0, 1))).lower(x, w).compile().as_text()
    return len(re.findall(r" convolution\(", program))


def test_what_other_kernels_of_the_pair_lack_is_named():
    arrays = [jnp.ones(shape, "float32") for shape in (*SHAPES.values(), (4,))]
    given = parameters(ConvBnGeometry.parse("bn n2 c3 h5 w5 k4 r3 s3"))
    del given["momentum"]
    with pytest.raises(ValueError, match=r"dy has shape \(2, 4, 3, 2\): must be \(2, 4, 3, 3\)"):
        native().conv_bn_backward(jnp.ones((2, 4, 3, 2), "float32"), *arrays, **given)
    with pytest.raises(TypeError, match="running_mean is None: must be an array"):
        native().conv_bn_inference(*arrays[:2], None, None, None, None, **given)


POOLED: dict[str, tuple[dict[str, Any], type[Exception], str]] = {
    "window": ({"kernel_size": (6, 2)}, ValueError, "spans 6 on the height, more than the padded image's 5"),
    "empty window": ({"kernel_size": (0, 2)}, ValueError, r"kernel_size=\(0, 2\): must be at least 1"),
    "stride": ({"stride": (1, 0)}, ValueError, r"stride=\(1, 0\): must be at least 1"),
    "padding": ({"padding": ((0, 0), (2, 0))}, ValueError, r"padding \(2, 0\) fills a window of 2: must be smaller"),
    "negative padding": ({"padding": ((0, -1), (0, 0))}, ValueError, "padding=.*: must be at least 0"),
    "divisor": ({"divisor_override": 0}, ValueError, r"divisor_override=\(0,\): must be at least 1"),
    "axes": ({"shape": (5, 5)}, ValueError, r"has shape \(5, 5\): must have 4 axes"),
    "integers": ({"dtype": "int32"}, TypeError, "is int32: must be of a floating-point dtype"),
}


def pooled(operator: str, change: dict[str, Any]) -> Any:
    g = PoolGeometry.parse("pool n1 c2 h5 w5 r2 s2 u1")
    array = jnp.ones(change.get("shape", (1, 2, 5, 5)), change.get("dtype", "float32"))
    usual = {**OPERATORS[operator].parameters(g), "layout": "nchw"}
    return getattr(native(), operator)(array, **{name: change.get(name, value) for name, value in usual.items()})


@pytest.mark.parametrize(("change", "error", "message"), POOLED.values(), ids=POOLED)
@pytest.mark.parametrize("operator", POOLINGS)
def test_poolings_refuse_by_name(operator: str, change: dict[str, Any], error: type[Exception], message: str):
    with pytest.raises(error, match=message):
        pooled(operator, change)


def test_a_pooling_refuses_a_gradient_of_another_shape():
    assert pooled("avg_pool_forward", {}).shape == (1, 2, 4, 4)
    with pytest.raises(ValueError, match=r"dy has shape \(1, 2, 5, 5\): must be \(1, 2, 4, 4\)"):
        pooled("avg_pool_backward", {})


def test_a_window_that_begins_behind_the_image_is_dropped():
    """It took the padding after an image of one column for a window more, and refused it."""
    one = load([IMPLS / "jax_native"]).implementations["jax-cpu"]
    verdict = verify(trial_of(one, "maxpool n2 c3 w1 s1 u2 p0:2 d2 ceil1", "max_pool_forward", layout="ncw"))
    assert verdict.status == "pass", verdict.reason
