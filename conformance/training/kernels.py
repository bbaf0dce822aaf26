"""Calling an implementation's convolution kernels, of any framework, on torch tensors."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

import torch

from conformance.execution.invocation import Invocation, MalformedError
from conformance.implementations.bridges.torch import TorchArrays, torch_arrays
from conformance.implementations.implementation import Implementation, Kernel, Unsupported
from conformance.layouts import Arrangement, arranged
from conformance.operators.conv.geometry import ConvGeometry
from conformance.operators.conv.signatures import SIGNATURES
from conformance.training.exchange import Call, RefusedError

DTYPES = {torch.float32: "fp32", torch.bfloat16: "bf16", torch.float16: "fp16", torch.float64: "fp64"}


@dataclass(frozen=True, slots=True, eq=False)
class Kernels:
    """The convolution kernels of one implementation, called in one layout."""

    implementation: Implementation
    layout: str = "nchw"

    def find(self, direction: str, geometry: Any, dtype: Any, what: str) -> Kernel:
        """Return the kernel for a case. Raises RefusedError, which names the layer `what`."""
        name = DTYPES.get(dtype, str(dtype))
        try:
            return self.implementation.find(direction, geometry, name, self.layout)
        except Unsupported as refusal:
            raise RefusedError(f"{what}: {self.implementation.name} has no {direction} for it: {refusal}") from None

    def call(self, direction: str, geometry: ConvGeometry, operands: Mapping[str, Any], what: str) -> Call:
        """Run a kernel on tensors of one dtype and device; its results come back to that device.

        Raises RefusedError if there is no kernel, and MalformedError for results of another shape, dtype or kind. An
        exception of the kernel gets a note that names the layer.
        """
        workload, like = SIGNATURES[direction].on(geometry), next(iter(operands.values()))
        kernel, bridge = self.find(direction, geometry, like.dtype, what), self.implementation.arrays
        invocation = Invocation(kernel, bridge, workload, DTYPES[like.dtype], self.layout)
        inputs = {name: tensor.detach() for name, tensor in operands.items() if tensor is not None}
        places = {name: arranged(tensor, self.layout, geometry) for name, tensor in workload.inputs.items()}
        names = workload.operator.arguments
        native = [self._given(inputs[name], places[name]) if name in inputs else None for name in names]
        place = f"{what}: {direction} of {self.implementation.name}"
        try:
            results = invocation.call(native)
        except Unsupported as refusal:
            raise RefusedError(f"{place}: {refusal}") from None
        except Exception as error:
            error.add_note(f"in {place}")
            raise
        outputs = {
            name: self._received(invocation, array, name, arranged(tensor, self.layout, geometry), like)
            for (name, tensor), array in zip(workload.outputs.items(), results, strict=True)
        }
        dtype = DTYPES[like.dtype]
        return Call(direction, geometry, dtype, kernel.contract.on(geometry, dtype), inputs, outputs)

    def _is_native(self, tensor: Any) -> bool:
        """Return whether the kernels take this tensor itself, without a conversion."""
        arrays = self.implementation.arrays
        return isinstance(arrays, TorchArrays) and arrays.device == tensor.device.type

    def _given(self, tensor: Any, place: Arrangement) -> Any:
        """Return a tensor as the kernels take it: in the layout, contiguous."""
        stored = tensor.reshape(place.split).permute(place.order).contiguous()
        if self._is_native(tensor):
            return stored
        return self.implementation.arrays.from_host(host(stored))

    def _received(self, invocation: Invocation, array: Any, name: str, place: Arrangement, like: Any) -> Any:
        """Return a result as a tensor in canonical order on the device of `like`. Raises MalformedError for another
        shape or dtype."""
        if not self._is_native(like) or type(array) is not torch.Tensor or array.device != like.device:
            result = torch_arrays(like.device.type).from_host(invocation.fetch([array])[0]).to(like.device)
        else:
            result = array.detach()
        if tuple(result.shape) != place.stored or result.dtype != like.dtype:
            expected = f"{DTYPES[like.dtype]} {place.stored} ({self.layout})"
            raise MalformedError(f"{name} is {DTYPES.get(result.dtype)} {tuple(result.shape)}; expected {expected}")
        return result.permute(place.back).reshape(place.shape).contiguous() if len(place.shape) > 1 else result


def on_host(call: Call) -> Call:
    """Return the call with NumPy arrays, for observers."""
    inputs, outputs = (
        {name: host(tensor) for name, tensor in tensors.items()} for tensors in (call.inputs, call.outputs)
    )
    return replace(call, inputs=inputs, outputs=outputs)


def host(tensor: Any) -> Any:
    """Return a torch tensor of any storage dtype as a NumPy array, without a copy where it lies on the CPU."""
    return torch_arrays(tensor.device.type).to_host(tensor.detach())
