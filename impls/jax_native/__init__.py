"""jax.lax's convolution, average pooling and their transposes, and convolution with batch norm, jitted."""

from __future__ import annotations

import jax

from conformance import Contract, Implementation, jax_arrays

from .activation import conv_activation, matmul_activation
from .batch_norm import (
    conv_bn_backward,
    conv_bn_checkpointed,
    conv_bn_inference,
    conv_bn_plain,
    conv_bn_recomputing,
)
from .conv import conv_backward_data, conv_backward_weight, conv_forward
from .conv_requantized import conv_requantized
from .conv_transpose import (
    conv_transpose_backward_data,
    conv_transpose_backward_weight,
    conv_transpose_forward,
)
from .layout import LAYOUTS
from .matmul import matmul, matmul_backward_a, matmul_backward_b
from .matmul_grouped import matmul_grouped, matmul_grouped_backward_a, matmul_grouped_backward_b
from .max_pool import max_pool_backward, max_pool_forward
from .pool import avg_pool_backward, avg_pool_forward

jax.config.update("jax_enable_x64", True)

__all__ = [
    "conv_bn_checkpointed",
    "conv_bn_plain",
    "conv_bn_recomputing",
    "jax_cpu",
    "jax_cuda",
    "jax_tpu",
]

EVERY_DTYPE = ("fp32", "bf16", "fp16", "fp64")
KERNELS = {
    "conv_forward": conv_forward,
    "conv_backward_data": conv_backward_data,
    "conv_backward_weight": conv_backward_weight,
    "conv_transpose_forward": conv_transpose_forward,
    "conv_transpose_backward_data": conv_transpose_backward_data,
    "conv_transpose_backward_weight": conv_transpose_backward_weight,
    "avg_pool_forward": avg_pool_forward,
    "avg_pool_backward": avg_pool_backward,
    "max_pool_forward": max_pool_forward,
    "conv_bn_forward": conv_bn_plain,
    "conv_bn_backward": conv_bn_backward,
    "conv_bn_inference": conv_bn_inference,
}
FLOATING = (*EVERY_DTYPE, "fp8_e4m3", "fp8_e5m2")
PRODUCTS = {matmul: (*FLOATING, "int8", "uint8"), matmul_backward_a: FLOATING, matmul_backward_b: FLOATING}
GROUPED_PRODUCTS = {
    matmul_grouped: (*FLOATING, "int8"),
    matmul_grouped_backward_a: FLOATING,
    matmul_grouped_backward_b: FLOATING,
}
WEIGHT_GRADIENTS = ("conv_backward_weight", "conv_bn_backward", "conv_transpose_backward_weight")
DATA_GRADIENTS = ("conv_backward_data", "conv_transpose_forward")
FORMS = ((conv_bn_plain, "plain", 2), (conv_bn_checkpointed, "checkpoint", 1), (conv_bn_recomputing, "custom_vjp", 1))


def few_groups(geometry):
    """Return whether groups are few: XLA's weight gradients, and in fp64 and int8 all its convolutions, multiply every
    group with every other one, which takes 350 GB for 70,001 groups."""
    return geometry.groups <= 4096


def divides(geometry):
    """Return False for a gradient of more than 65,536 channels where each of several groups has one filter: XLA divides
    by zero, which ends the process. A transposed convolution is the gradient of its mirror."""
    one = getattr(geometry, "mirror", geometry)
    return not (1 < one.groups == one.k < one.c and one.c > 65536)


def exchanged(geometry):
    """Return whether XLA ends the process (a check of its algebraic simplifier): in a gradient of an image smaller than
    its window, whose operands it exchanges, if along another axis the gradient has gaps and no padding."""
    one = getattr(geometry, "mirror", geometry)
    axes = [*zip(one.size, one.window, one.stride, one.padding, one.dilation, one.output_size, strict=True)]
    bare = [
        u > 1 and s > 1 and low == d * (s - 1) and size - 1 + low == (q - 1) * u for size, s, u, (low, _), d, q in axes
    ]
    small = [q < s for _, s, *_, q in axes]
    return any(a and b and i != j for i, a in enumerate(bare) for j, b in enumerate(small))


def has_plan(geometry):
    """Return False for grouped fp8 convolutions of few channels: cuDNN has no plan, and XLA's compilation fails."""
    return geometry.groups == 1 or geometry.rank == 3 or min(geometry.c, geometry.k) // geometry.groups >= 16


def gradient_has_plan(geometry):
    """Return whether cuDNN has a plan: with windows of one element, a data gradient is such a convolution."""
    return max(geometry.window) > 1 or has_plan(geometry)


PLANNED = {"conv_forward": has_plan, "conv_requantized": has_plan, "conv_backward_data": gradient_has_plan}


def both(*conditions):
    return lambda geometry: all(condition(geometry) for condition in conditions)


def kept(geometry):
    return not exchanged(geometry)


CAPABLE = (
    dict.fromkeys(WEIGHT_GRADIENTS, few_groups)
    | dict.fromkeys(DATA_GRADIENTS, both(divides, kept))
    | {"conv_bn_backward": both(few_groups, kept)}
)
CAPABLE_IN_FP64 = {name: few_groups for name in KERNELS if name.startswith("conv")} | dict.fromkeys(
    (*DATA_GRADIENTS, "conv_bn_backward"), both(few_groups, kept)
)


def _register(name: str, device: str, platform: str, contract: Contract) -> Implementation:
    implementation = Implementation(
        name, device=device, arrays=jax_arrays(platform), contract=contract, version=jax.__version__
    )
    if device == "cuda":  # cuDNN's Winograd, as in torch_native/contracts.py
        implementation.implements(
            "conv_backward_weight", dtypes=("fp32",), layouts=("nchw",), contract=Contract(algorithm="winograd-f4"),
            when=lambda p: p.groups == 1 and min(p.c, p.k) >= 64,
        )(conv_backward_weight)  # fmt: skip
        # some of cuDNN's kernels flush subnormal numbers, see torch_native/contracts.py
        implementation.implements(
            "conv_backward_data", dtypes=("fp32",), layouts=("ncdhw",), when=both(divides, kept),
            contract=Contract(subnormals="flushed"),
        )(conv_backward_data)  # fmt: skip
    for operator, kernel in KERNELS.items():
        when, in_fp64 = CAPABLE.get(operator), CAPABLE_IN_FP64.get(operator)
        implementation.implements(operator, dtypes=EVERY_DTYPE[:3], layouts=LAYOUTS, when=when)(kernel)
        implementation.implements(operator, dtypes=EVERY_DTYPE[3:], layouts=LAYOUTS, when=in_fp64)(kernel)
    for kernel in (conv_forward, conv_backward_data, conv_backward_weight, conv_requantized):
        operator = kernel.__name__
        when = CAPABLE.get(operator, lambda geometry: True)
        planned = PLANNED.get(operator, when) if device == "cuda" else when
        implementation.implements(operator, dtypes=("fp8_e5m2",), layouts=LAYOUTS, when=when)(kernel)
        implementation.implements(operator, dtypes=("fp8_e4m3",), layouts=LAYOUTS, when=both(when, planned))(kernel)
    for kernel, dtypes in PRODUCTS.items():
        # XLA's CPU has no product of bf16 into fp32 whose operands are both exchanged, as the gradients' are for tt
        layouts = ("nn", "nt", "tn", "tt")
        whole = tuple(dtype for dtype in dtypes if dtype != "bf16")
        implementation.implements(kernel.__name__, dtypes=whole, layouts=layouts)(kernel)
        taken = layouts if kernel is matmul or device != "cpu" else layouts[:3]
        implementation.implements(kernel.__name__, dtypes=("bf16",), layouts=taken)(kernel)
    for dtypes, when in ((EVERY_DTYPE[:3], None), (EVERY_DTYPE[3:], few_groups)):
        implementation.implements("conv_activation", dtypes=dtypes, layouts=LAYOUTS, when=when)(conv_activation)
        implementation.implements("matmul_activation", dtypes=dtypes, layouts=layouts)(matmul_activation)
    for kernel, dtypes in GROUPED_PRODUCTS.items():
        whole = tuple(dtype for dtype in dtypes if dtype != "bf16")
        implementation.implements(kernel.__name__, dtypes=whole, layouts=layouts)(kernel)
        taken = layouts if kernel is not matmul_grouped_backward_a or device != "cpu" else layouts[:2]
        implementation.implements(kernel.__name__, dtypes=("bf16",), layouts=taken)(kernel)
    implementation.differentiates("matmul")(matmul)
    implementation.differentiates("matmul_grouped")(matmul_grouped)
    for kernel in (conv_forward, conv_requantized):
        implementation.implements(kernel.__name__, dtypes=("int8", "uint8"), layouts=LAYOUTS, when=few_groups)(kernel)
    # XLA's select_and_scatter has no dilated windows; on CUDA it adds in fp32 by atom.add.f32, which flushes subnormal
    # numbers (PTX ISA, atom)
    atomic = Contract(subnormals="flushed") if device == "cuda" else contract
    for dtypes, summed in ((("fp32", "bf16"), atomic), (("fp16", "fp64"), contract)):
        implementation.implements(
            "max_pool_backward", dtypes=dtypes, layouts=LAYOUTS, when=lambda p: set(p.dilation) == {1}, contract=summed
        )(max_pool_backward)
    for form, label, saves in FORMS:
        implementation.differentiates("conv_bn_forward", label=label, saves=saves)(form)
    for kernel in (conv_forward, avg_pool_forward, max_pool_forward, conv_transpose_forward, conv_bn_inference):
        implementation.differentiates(kernel.__name__)(kernel)
    return implementation


# XLA sets flush-to-zero in the CPU's threads; the `wide` distribution shows it in every direction.
jax_cpu = _register("jax-cpu", "cpu", "cpu", Contract(subnormals="flushed"))
jax_cuda = _register("jax-cuda", "cuda", "gpu", Contract())
jax_tpu = _register("jax-tpu", "tpu", "tpu", Contract(subnormals="flushed"))

GROUPS = (
    "https://github.com/openxla/xla/blob/16569562fc04a1d1eadcd6a79f2269c1ccf4c421"
    "/xla/service/convolution_group_converter.cc"
)
"""XLA slides a grouped convolution over its groups with zeros in between; in weight gradients these meet dy's NaN."""


def slid_over_groups(p):
    """Return whether XLA slides over groups: not in three dimensions, nor in one over two groups with unit steps."""
    stepped = p.rank == 2 or p.groups > 2 or max(*p.stride, *p.dilation) > 1
    return p.rank < 3 and p.groups > 1 and not p.c == p.k == p.groups and stepped


def slid_over_larger_images(p):
    return slid_over_groups(p) and (p.rank == 1 or set(p.size) != {1})


for operator, when in (
    ("conv_backward_weight", slid_over_larger_images),
    ("conv_bn_backward", slid_over_groups),
    ("conv_transpose_backward_weight", slid_over_groups),
):
    jax_cpu.waive(
        operator,
        reason="a NaN in one group reaches the weight gradients of all groups, because XLA multiplies it with zeros",
        url=GROUPS,
        when=when,
        dtypes=("fp32", "bf16", "fp16", "fp8_e4m3", "fp8_e5m2"),
        distributions=("special",) if operator == "conv_bn_backward" else ("special", "nonfinite", "mixed"),
    )
jax_cpu.waive(
    "conv_bn_backward",
    reason="a NaN in one group reaches the gradients of all groups, because XLA multiplies it with zeros",
    url=GROUPS,
    when=lambda p: slid_over_groups(p) and min(p.stride) > 1,
    dtypes=("fp32", "bf16", "fp16"),
    distributions=("nonfinite",),
)
for operator, when in (
    ("conv_forward", lambda p: p.c == p.groups > 1),
    ("conv_backward_data", lambda p: p.c == p.k == p.groups > 1),
):
    jax_cpu.waive(
        operator,
        reason="an infinity in one channel of a depthwise fp64 convolution makes NaN in the others, because XLA "
        "multiplies it with zeros",
        url=GROUPS,
        when=when,
        dtypes=("fp64",),
        distributions=("nonfinite", "mixed"),
    )
for operator in ("matmul_grouped", "matmul_grouped_backward_a"):
    jax_cpu.waive(
        operator,
        reason="a NaN in the b of one group reaches the rows of all groups, because they are multiplied with zeros",
        url="https://github.com/jax-ml/jax/pull/20940",
        distributions=("nonfinite", "mixed"),
    )
for implementation in (jax_cpu, jax_cuda):
    implementation.waive(
        "max_pool_backward",
        reason="the gradient of a window with NaN goes to another element, because elements are compared by >=",
        url="https://github.com/jax-ml/jax/blob/jax-v0.10.2/jax/_src/lax/windowed_reductions.py",
        distributions=("nonfinite", "mixed"),
    )

DILATION = (
    "https://github.com/openxla/xla/blob/717d5469b851bd588e733b53ff8b675b01adf7a4"
    "/xla/service/gpu/transforms/conv_padding_legalization.cc"
)
"""On CUDA XLA fills a dilated window with zeros, and cuDNN multiplies them."""
for operator, ranks in (
    ("conv_transpose_forward", (1, 3)),
    ("conv_transpose_backward_data", (3,)),
    ("conv_transpose_backward_weight", (3,)),
):
    jax_cuda.waive(
        operator,
        reason="an infinity becomes NaN, because XLA multiplies it with the zeros that it fills a dilated window with",
        url=DILATION,
        when=lambda p, ranks=ranks: p.rank in ranks and max(p.dilation) > 1,
        dtypes=("fp32",),
        distributions=("nonfinite",),
    )
