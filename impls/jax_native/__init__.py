"""jax.lax's convolution, average pooling and their transposes, and convolution with batch norm, jitted."""

from __future__ import annotations

import jax

from conformance import Contract, Implementation, jax_arrays

from .batch_norm import (
    conv_bn_backward,
    conv_bn_checkpointed,
    conv_bn_inference,
    conv_bn_plain,
    conv_bn_recomputing,
)
from .conv import conv_backward_data, conv_backward_weight, conv_forward
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
BOTH_LAYOUTS = ("nchw", "nhwc")
KERNELS = {
    "conv_forward": conv_forward,
    "conv_backward_data": conv_backward_data,
    "conv_backward_weight": conv_backward_weight,
    "avg_pool_forward": avg_pool_forward,
    "avg_pool_backward": avg_pool_backward,
    "max_pool_forward": max_pool_forward,
    "conv_bn_forward": conv_bn_plain,
    "conv_bn_backward": conv_bn_backward,
    "conv_bn_inference": conv_bn_inference,
}
WEIGHT_GRADIENTS = ("conv_backward_weight", "conv_bn_backward")
FORMS = ((conv_bn_plain, "plain", 2), (conv_bn_checkpointed, "checkpoint", 1), (conv_bn_recomputing, "custom_vjp", 1))


def few_groups(geometry):
    """XLA's weight gradients multiply every group with every other one: of 70,001 groups that takes 350 GB. So do all
    its convolutions in fp64."""
    return geometry.groups <= 4096


def divides(geometry):
    """XLA divides by zero, which ends the process, in a gradient of more than 65,536 channels where each of several
    groups has one filter."""
    return not (1 < geometry.groups == geometry.k < geometry.c and geometry.c > 65536)


def _register(name: str, device: str, platform: str, contract: Contract) -> Implementation:
    implementation = Implementation(
        name, device=device, arrays=jax_arrays(platform), contract=contract, version=jax.__version__, unsafe=("fork",)
    )
    for operator, kernel in KERNELS.items():
        when = few_groups if operator in WEIGHT_GRADIENTS else divides if operator == "conv_backward_data" else None
        in_fp64 = few_groups if operator.startswith("conv") else None
        implementation.implements(operator, dtypes=EVERY_DTYPE[:3], layouts=BOTH_LAYOUTS, when=when)(kernel)
        implementation.implements(operator, dtypes=EVERY_DTYPE[3:], layouts=BOTH_LAYOUTS, when=in_fp64)(kernel)
    # XLA's select_and_scatter has no dilated windows
    implementation.implements(
        "max_pool_backward", dtypes=EVERY_DTYPE, layouts=BOTH_LAYOUTS, when=lambda p: p.dilation == (1, 1)
    )(max_pool_backward)
    for form, label, saves in FORMS:
        implementation.differentiates("conv_bn_forward", label=label, saves=saves)(form)
    for kernel in (conv_forward, avg_pool_forward, max_pool_forward):
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
    return p.groups > 1 and not p.c == p.k == p.groups


def slid_over_larger_images(p):
    return slid_over_groups(p) and (p.h, p.w) != (1, 1)


for operator, when in (("conv_backward_weight", slid_over_larger_images), ("conv_bn_backward", slid_over_groups)):
    jax_cpu.waive(
        operator,
        reason="a NaN in one group reaches the weight gradients of all groups, because XLA multiplies it with zeros",
        url=GROUPS,
        when=when,
        dtypes=("fp32", "bf16", "fp16"),
        distributions=("special", "nonfinite", "mixed") if operator == "conv_backward_weight" else ("special",),
    )
for operator in ("conv_forward", "conv_backward_data"):
    jax_cpu.waive(
        operator,
        reason="an infinity in one channel of a depthwise fp64 convolution makes NaN in the others, because XLA "
        "multiplies it with zeros",
        url=GROUPS,
        when=lambda p: p.c == p.k == p.groups > 1,
        dtypes=("fp64",),
        distributions=("nonfinite", "mixed"),
    )
jax_cpu.waive(
    "max_pool_backward",
    reason="the gradient of a window with NaN goes to another element, because elements are compared by >=",
    url="https://github.com/jax-ml/jax/blob/jax-v0.10.2/jax/_src/lax/windowed_reductions.py",
    distributions=("nonfinite", "mixed"),
)
