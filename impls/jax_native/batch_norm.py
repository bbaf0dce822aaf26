"""Convolution and batch norm as one operator: z stays in the accumulator's precision between them.

Three differentiable forms share one definition and differ in the tensors kept for backward: `conv_bn_plain` keeps all
that autodiff asks for, z among them; `conv_bn_checkpointed` and `conv_bn_recomputing` only their inputs.
"""

from __future__ import annotations

from functools import partial

import jax
import jax.numpy as jnp
from jax import lax

from . import checks
from . import layout as axes
from .conv import STATIC, convolved

NORM_STATIC = (*STATIC, "eps", "eps_outside")
TRAIN_STATIC = (*NORM_STATIC, "momentum")


def _convolved(x, w, layout, *, stride, padding, dilation, groups):
    """Return z in the accumulator's precision; widened before, since jax cannot transpose a widening convolution."""
    checks.floating(x=x, w=w)
    checks.convolution(x, w, stride, padding, dilation, groups, layout)
    wide = axes.wide(x.dtype)
    return convolved(x.astype(wide), w.astype(wide), stride, padding, dilation, groups, layout)


def _root(var):
    """Return sqrt, with slope 0 at 0: a constant channel otherwise makes 0 * inf of its gradient."""
    zero = var == 0
    return jnp.where(zero, 0, jnp.sqrt(jnp.where(zero, 1, var)))


def _normalised(centred, var, gamma, beta, eps, eps_outside, layout):
    inverse = 1 / (_root(var) + eps if eps_outside else jnp.sqrt(var + eps))
    if gamma is None:
        return centred * axes.along_channels(inverse, layout)
    return centred * axes.along_channels(inverse * gamma, layout) + axes.along_channels(beta, layout)


def _blended(running, batch, momentum):
    return (1 - momentum) * running + momentum * batch


@partial(jax.jit, static_argnames=TRAIN_STATIC)
def conv_bn_plain(x, w, gamma, beta, running_mean, running_var, *, eps, eps_outside, momentum, layout, **convolution):
    """Return y, mean, var and, where they are given, new running_mean, running_var.

    `convolution` is stride, padding, dilation and groups. The variance is that of centred values: E[z^2] - E[z]^2
    cancels. Raises ValueError for one element a channel and for shapes that do not match, TypeError for integers and
    mixed dtypes.
    """
    checks.normalisation(eps, momentum)
    z = _convolved(x, w, layout, **convolution)
    checks.variance_defined(z, layout)
    checks.per_channel(len(w), z.dtype, gamma=gamma, beta=beta)
    checks.per_channel(len(w), z.dtype, running_mean=running_mean, running_var=running_var)
    over, elements = axes.BUT_CHANNELS[layout], z.size // len(w)
    mean = jnp.mean(z, over)
    centred = z - axes.along_channels(mean, layout)
    squares = jnp.sum(centred * centred, over)
    var = squares / (elements - 1 if eps_outside else elements)
    y = _normalised(centred, var, gamma, beta, eps, eps_outside, layout).astype(x.dtype)
    if running_mean is None:
        return y, mean, var
    unbiased = squares / (elements - 1)
    return y, mean, var, _blended(running_mean, mean, momentum), _blended(running_var, unbiased, momentum)


@partial(jax.jit, static_argnames=TRAIN_STATIC)
def conv_bn_checkpointed(x, w, gamma, beta, running_mean, running_var, **parameters):
    """Call conv_bn_plain under jax.checkpoint."""
    return jax.checkpoint(partial(conv_bn_plain, **parameters))(x, w, gamma, beta, running_mean, running_var)


@partial(jax.jit, static_argnames=TRAIN_STATIC)
def conv_bn_recomputing(x, w, gamma, beta, running_mean, running_var, **parameters):
    """Call conv_bn_plain with a gradient of its own, which keeps the inputs and computes z again.

    The gradient is differentiable itself: second derivatives in reverse mode are right. jax refuses forward mode.
    """
    plain = partial(conv_bn_plain, **parameters)
    pair = jax.custom_vjp(plain)
    pair.defvjp(lambda *inputs: (plain(*inputs), inputs), partial(_recomputed, plain))
    return pair(x, w, gamma, beta, running_mean, running_var)


def _recomputed(plain, inputs, cotangents):
    """Compute the gradient behind a barrier: else XLA finds the same z in a program's forward pass, and keeps that."""
    return jax.vjp(plain, *lax.optimization_barrier(inputs))[1](cotangents)


@partial(jax.jit, static_argnames=NORM_STATIC)
def conv_bn_backward(dy, x, w, gamma, **parameters):
    """Return dx, dw and, with gamma, dgamma, dbeta: the gradient of sum(dy * y) through the statistics of the batch.

    Raises as conv_bn_plain does, and if dy does not have y's shape and dtype.
    """

    def forward(x, w, gamma=None, beta=None):
        return conv_bn_recomputing(x, w, gamma, beta, None, None, momentum=0.0, **parameters)[0]

    affine = () if gamma is None else (gamma, jnp.zeros_like(gamma))
    y, gradients = jax.vjp(forward, x, w, *affine)
    checks.floating(dy=dy, x=x)
    checks.shape("dy", dy, y.shape)
    return gradients(dy)


@partial(jax.jit, static_argnames=NORM_STATIC)
def conv_bn_inference(x, w, gamma, beta, running_mean, running_var, *, eps, eps_outside, layout, **convolution):
    """Return y by the running statistics. Raises as conv_bn_plain does; one element a channel is enough."""
    checks.normalisation(eps)
    z = _convolved(x, w, layout, **convolution)
    checks.per_channel(len(w), z.dtype, gamma=gamma, beta=beta)
    checks.per_channel(len(w), z.dtype, running_mean=running_mean, running_var=running_var)
    checks.given(running_mean=running_mean, running_var=running_var)
    centred = z - axes.along_channels(running_mean, layout)
    return _normalised(centred, running_var, gamma, beta, eps, eps_outside, layout).astype(x.dtype)
