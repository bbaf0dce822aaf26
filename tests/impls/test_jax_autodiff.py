"""The differentiable forms of convolution with batch norm in impls/jax_native: gradients, what they keep, errors; and
what its poolings refuse."""

from __future__ import annotations

import re
import sys
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from conformance import Contract, Implementation, jax_arrays
from conformance.execution.case import Case
from conformance.execution.verify import verify
from conformance.implementations.registry import load
from conformance.inputs import Expectation, Recipe
from conformance.operators import OPERATORS, POOLINGS, ConvBnGeometry, PoolGeometry
from conformance.problems import Variant, typed
from conformance.resources import IMPLS

jax = pytest.importorskip("jax")
jnp = pytest.importorskip("jax.numpy")
check_grads = pytest.importorskip("jax.test_util").check_grads

FORMS = pytest.mark.parametrize("form", ["conv_bn_plain", "conv_bn_checkpointed", "conv_bn_recomputing"])
FRUGAL = pytest.mark.parametrize("form", ["conv_bn_checkpointed", "conv_bn_recomputing"])
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
"""Of the forms whose derivatives are jax's own: what is ours there is the forward pass."""


@pytest.fixture(scope="module")
def native() -> Any:
    """The package, loaded as the suite loads it."""
    registry = load([IMPLS / "jax_native"])
    assert registry.broken == {}
    kernel = registry.implementations["jax-cpu"].kernels[0].function
    return sys.modules[kernel.__module__.rpartition(".")[0]]


@pytest.fixture
def quick_compilation() -> Iterator[None]:
    """Most of these tests' time is XLA's, for programs that run once."""
    jax.config.update("jax_disable_most_optimizations", True)
    yield
    jax.config.update("jax_disable_most_optimizations", False)


def parameters(g: ConvBnGeometry, layout: str = "nchw") -> dict[str, Any]:
    return {**OPERATORS["conv_bn_forward"].parameters(g), "layout": layout}


def inputs(g: ConvBnGeometry) -> list[Any]:
    """fp64 inputs by position, None for those that are absent."""
    operator = OPERATORS["conv_bn_forward"]
    drawn = Expectation(Recipe(operator, g, "fp64", "fixed", 0)).inputs
    return [jnp.asarray(drawn[name]) if name in drawn else None for name in operator.arguments]


def differentiable(native: Any, form: str, g: ConvBnGeometry) -> tuple[Callable[..., Any], list[Any]]:
    """The form as a function of the inputs that are present."""
    given = inputs(g)
    present = [index for index, array in enumerate(given) if array is not None]

    def function(*arrays: Any) -> Any:
        everything = dict(zip(present, arrays, strict=True))
        return getattr(native, form)(*(everything.get(index) for index in range(len(given))), **parameters(g))

    return function, [given[index] for index in present]


@pytest.mark.parametrize(
    ("form", "name"),
    [("conv_bn_recomputing", name) for name in CASES]
    + [(form, name) for form in ("conv_bn_plain", "conv_bn_checkpointed") for name in FEW],
)
def test_gradients(native, quick_compilation, form: str, name: str):
    """Of every output, in every input."""
    check_grads(*differentiable(native, form, ConvBnGeometry.parse(CASES[name])), order=1, modes=["rev"])


@pytest.mark.parametrize("name", ["plain", "asymmetric everything", "outside", "two elements"])
def test_second_derivatives_of_the_recomputing_form(native, quick_compilation, name: str):
    """The other two are jax's own matter."""
    function = differentiable(native, "conv_bn_recomputing", ConvBnGeometry.parse(CASES[name]))
    check_grads(*function, order=2, modes=["rev"])


def test_recomputing_form_refuses_forward_mode(native):
    function, given = differentiable(native, "conv_bn_recomputing", ConvBnGeometry.parse(CASES["plain"]))
    with pytest.raises(TypeError, match="forward-mode autodiff"):
        jax.jvp(function, given, given)


def gradient_of(form: Callable[..., Any]) -> Callable[..., Any]:
    """conv_bn_backward as autodiff of a form."""

    def conv_bn_backward(dy: Any, x: Any, w: Any, gamma: Any, **given: Any) -> Any:
        affine = [] if gamma is None else [gamma, jnp.zeros_like(gamma)]

        def y(*arrays: Any) -> Any:
            return form(*arrays, *[None] * (6 - len(arrays)), momentum=0.1, **given)[0]

        return jax.vjp(y, x, w, *affine)[1](dy)

    return conv_bn_backward


@pytest.mark.parametrize(
    ("name", "dtype"),
    [*(("asymmetric everything", dtype) for dtype in ("fp32", "bf16", "fp16", "fp64")), ("outside", "fp32")],
)
@FORMS
def test_forms_keep_the_same_contract(native, form: str, name: str, dtype: str):
    """Forward and backward of each form are what the registered kernels are: judged against the exact reference."""
    acme = Implementation("acme", arrays=jax_arrays("cpu"), contract=Contract(subnormals="flushed"))
    function = getattr(native, form)
    acme.implements("conv_bn_forward", dtypes=(dtype,), layouts=("nhwc",))(function)
    acme.implements("conv_bn_backward", dtypes=(dtype,), layouts=("nhwc",))(gradient_of(function))
    for operator in ("conv_bn_forward", "conv_bn_backward"):
        verdict = verify(Case(acme, OPERATORS[operator], typed(CASES[name]), Variant(dtype, "nhwc", "fixed"), 0))
        assert verdict.status == "pass", verdict.reason


@pytest.mark.parametrize("dtype", ["bfloat16", "float32", "float64"])
@FRUGAL
def test_frugal_forms_keep_their_inputs_only(native, form: str, dtype: str):
    x, w, *vectors = inputs(ConvBnGeometry.parse("bn n2 c4 h9 w8 k6 r3 s3 p1"))
    images = [array.astype(dtype) for array in (x, w)]
    vectors = [array.astype(jnp.promote_types(dtype, "float32")) for array in vectors]
    kept = saved(native, form, [*images, *vectors])
    allowed = [(array.shape, array.dtype) for array in (*images, *vectors)]
    assert [entry for entry in kept if entry not in allowed] == []
    assert sorted(shape for shape, _ in kept if len(shape) == 4) == sorted(array.shape for array in images)


def test_plain_form_keeps_z(native):
    g = ConvBnGeometry.parse("bn n2 c4 h9 w8 k6 r3 s3 p1")
    assert g.y.shape in [shape for shape, _ in saved(native, "conv_bn_plain", inputs(g))]


def saved(native: Any, form: str, given: list[Any]) -> list[tuple[tuple[int, ...], Any]]:
    """Shape and dtype of everything that waits for the backward pass."""
    g = ConvBnGeometry.parse("bn n2 c4 h9 w8 k6 r3 s3 p1")
    _, gradients = jax.vjp(lambda *arrays: getattr(native, form)(*arrays, **parameters(g)), *given)
    return [(leaf.shape, leaf.dtype) for leaf in jax.tree.leaves(gradients)]


@FRUGAL
def test_frugal_forms_compute_z_again_in_one_program(native, form: str):
    """XLA merges equal convolutions of a program unless something keeps them apart."""
    assert convolutions(native, form) > convolutions(native, "conv_bn_plain")


def convolutions(native: Any, form: str) -> int:
    """In the compiled gradient of two pairs in a row."""
    g = ConvBnGeometry.parse("bn n2 c4 h9 w8 k4 r3 s3 p1 run0")
    x, w, *vectors = inputs(g)

    def loss(x: Any, w: Any) -> Any:
        for _ in range(2):
            x = jnp.tanh(getattr(native, form)(x, w, *vectors, **parameters(g))[0])
        return jnp.sum(x)

    program = jax.jit(jax.grad(loss, argnums=(0, 1))).lower(x, w).compile().as_text()
    return len(re.findall(r" convolution\(", program))


@pytest.mark.parametrize("outside", [False, True])
@FORMS
def test_constant_channel_has_gradients(native, form: str, outside: bool):
    """A root of zero divides nothing: dx and dgamma of a constant channel are zero, dbeta is the sum of dy."""
    x, w, one = jnp.full((2, 1, 1, 1), 2.0), jnp.ones((1, 1, 1, 1)), jnp.ones(1)
    given = parameters(ConvBnGeometry.parse("bn n2 c1 h1 w1 k1 r1 s1 eps3")) | {"eps_outside": outside}

    def total(x: Any, gamma: Any, beta: Any) -> Any:
        return jnp.sum(getattr(native, form)(x, w, gamma, beta, None, None, **given)[0])

    dx, dgamma, dbeta = jax.grad(total, argnums=(0, 1, 2))(x, one, one)
    assert not dx.any()
    assert (dgamma.item(), dbeta.item()) == (0.0, 2.0)


X, W, VECTOR = (2, 3, 5, 5), (4, 3, 3, 3), (4,)
WRONG: dict[str, tuple[dict[str, Any], type[Exception], str]] = {
    "one element": ({"x": (1, 3, 3, 3)}, ValueError, "one element a channel: its variance is undefined"),
    "channels": ({"x": (2, 4, 5, 5)}, ValueError, "x has 4 channels: must be 3, w's 3 in each of 1 groups"),
    "groups": ({"w": (4, 1, 3, 3), "groups": 3}, ValueError, "w has 4 output channels, which 3 groups do not divide"),
    "no groups": ({"groups": 0}, ValueError, r"groups=\(0,\): must be at least 1"),
    "window": ({"x": (2, 3, 2, 5)}, ValueError, "spans 3 on the height, more than the padded image's 2"),
    "dilated window": ({"dilation": (1, 3)}, ValueError, "spans 7 on the width, more than the padded image's 5"),
    "axes": ({"x": (3, 5, 5)}, ValueError, r"x has shape \(3, 5, 5\): must have 4 axes"),
    "no images": ({"x": (0, 3, 5, 5)}, ValueError, "one element a channel: its variance is undefined"),
    "no rows": ({"x": (2, 3, 0, 5)}, ValueError, r"4 axes \(nchw\), and none empty but the first"),
    "integers": ({"x": "int32"}, TypeError, "x is int32: must be of a floating-point dtype"),
    "integer filters": ({"w": "int8"}, TypeError, "w is int8: must be of a floating-point dtype"),
    "two dtypes": ({"w": "float16"}, TypeError, "x and w are float32 and float16: must have one dtype"),
    "gamma": ({"gamma": (1,)}, ValueError, r"gamma has shape \(1,\): must be \(4,\)"),
    "running var": ({"running_var": (4, 1)}, ValueError, r"running_var has shape \(4, 1\)"),
    "gamma's dtype": ({"gamma": "bfloat16"}, TypeError, "gamma is bfloat16: must be float32"),
    "only gamma": ({"beta": None}, ValueError, "gamma and beta are given together: only gamma is"),
    "only running var": ({"running_mean": None}, ValueError, "given together: only running_var is"),
    "stride": ({"stride": (0, 1)}, ValueError, r"stride=\(0, 1\): must be at least 1"),
    "padding": ({"padding": ((0, -1), (0, 0))}, ValueError, "padding=.*: must be at least 0"),
    "eps": ({"eps": float("nan")}, ValueError, "eps=nan: must be a number that is not negative"),
    "momentum": ({"momentum": 1.5}, ValueError, "momentum=1.5: must be from 0 to 1"),
}


@pytest.mark.parametrize(("change", "error", "message"), WRONG.values(), ids=list(WRONG))
@FORMS
def test_errors_are_named(native, form: str, change: dict[str, Any], error: type[Exception], message: str):
    with pytest.raises(error, match=message):
        call_with(native, form, change)


@FORMS
def test_without_changes_it_computes(native, form: str):
    """The call that the errors above change in one place."""
    assert call_with(native, form, {})[0].shape == (2, 4, 3, 3)


def call_with(native: Any, form: str, change: dict[str, Any]) -> Any:
    vectors = dict.fromkeys(("gamma", "beta", "running_mean", "running_var"), VECTOR)
    arrays = [changed(shape, change.get(name, shape)) for name, shape in {"x": X, "w": W, **vectors}.items()]
    usual = parameters(ConvBnGeometry.parse("bn n2 c3 h5 w5 k4 r3 s3"))
    return getattr(native, form)(*arrays, **{name: change.get(name, value) for name, value in usual.items()})


def changed(shape: tuple[int, ...], to: Any) -> Any:
    """fp32 ones; of another shape or dtype; or nothing."""
    if to is None:
        return None
    return jnp.ones(shape, to) if isinstance(to, str) else jnp.ones(to, "float32")


def test_gradient_of_another_shape_is_refused(native):
    x, w, gamma = (jnp.ones(shape, "float32") for shape in (X, W, VECTOR))
    given = parameters(ConvBnGeometry.parse("bn n2 c3 h5 w5 k4 r3 s3"))
    del given["momentum"]
    with pytest.raises(ValueError, match=r"dy has shape \(2, 4, 3, 2\): must be \(2, 4, 3, 3\)"):
        native.conv_bn_backward(jnp.ones((2, 4, 3, 2), "float32"), x, w, gamma, **given)


def test_inference_needs_running_statistics(native):
    x, w = (jnp.ones(shape, "float32") for shape in (X, W))
    given = parameters(ConvBnGeometry.parse("bn n2 c3 h5 w5 k4 r3 s3"))
    del given["momentum"]
    with pytest.raises(TypeError, match="running_mean is None: must be an array"):
        native.conv_bn_inference(x, w, None, None, None, None, **given)


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


@pytest.mark.parametrize(("change", "error", "message"), POOLED.values(), ids=POOLED)
@pytest.mark.parametrize("operator", POOLINGS)
def test_poolings_refuse_by_name(operator: str, change: dict[str, Any], error: type[Exception], message: str):
    with pytest.raises(error, match=message):
        pooled(operator, change)


def test_a_pooling_refuses_a_gradient_of_another_shape():
    assert pooled("avg_pool_forward", {}).shape == (1, 2, 4, 4)
    with pytest.raises(ValueError, match=r"dy has shape \(1, 2, 5, 5\): must be \(1, 2, 4, 4\)"):
        pooled("avg_pool_backward", {})


def pooled(operator: str, change: dict[str, Any]) -> Any:
    g = PoolGeometry.parse("pool n1 c2 h5 w5 r2 s2 u1")
    kernel = load([IMPLS / "jax_native"]).implementations["jax-cpu"].find(operator, g, "fp32", "nchw")
    array = jnp.ones(change.get("shape", (1, 2, 5, 5)), change.get("dtype", "float32"))
    usual = {**OPERATORS[operator].parameters(g), "layout": "nchw"}
    return kernel.function(array, **{name: change.get(name, value) for name, value in usual.items()})


def test_a_window_that_begins_behind_the_image_is_dropped():
    """It took the padding after an image of one column for a window more, and refused it."""
    one, problem = (
        load([IMPLS / "jax_native"]).implementations["jax-cpu"],
        typed("maxpool n2 c3 w1 s1 u2 p0:2 d2 ceil1"),
    )
    verdict = verify(Case(one, OPERATORS["max_pool_forward"], problem, Variant("fp32", "ncw", "fixed"), 0))
    assert verdict.status == "pass", verdict.reason
