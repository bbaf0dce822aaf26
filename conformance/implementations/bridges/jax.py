"""jax arrays on any platform."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from importlib import import_module
from typing import Any, ClassVar

import numpy as np

from conformance.implementations.bridges.base import ArrayBridge, refuse
from conformance.implementations.bridges.tape import Saved, Tape, first, of_some
from conformance.implementations.devices import Unavailable


@dataclass(frozen=True, slots=True)
class JaxArrays(ArrayBridge):
    """Arrays on the first device of `platform` (jax's name: cpu, gpu, tpu). They have no views, never change, and know
    when they are ready, wherever they are computed."""

    platform: str
    name: str = "jax"
    unsafe: ClassVar[tuple[str, ...]] = ("fork",)
    compiles_per_shape: ClassVar[bool] = True

    def require(self) -> None:
        try:
            jax = import_module("jax")
        except (ImportError, OSError) as problem:
            raise Unavailable(f"jax cannot be imported: {problem}") from None
        try:
            jax.devices(self.platform)
        except RuntimeError:
            raise Unavailable(f"jax {jax.__version__} reports no {self.platform} device") from None

    def from_host(self, array: np.ndarray) -> Any:
        """Return a copy: on the CPU jax may otherwise alias the host's memory."""
        jax = import_module("jax")
        return jax.device_put(array.copy(), jax.devices(self.platform)[0])

    def to_host(self, array: Any) -> np.ndarray:
        """Wait for the value, and return a copy; refuse tracers and foreign types."""
        jax = import_module("jax")
        if not isinstance(array, jax.Array) or isinstance(array, jax.core.Tracer):
            raise refuse(array, "jax.Array")
        return np.array(array)

    def synchronize(self, result: Any) -> None:
        """Wait for the results themselves: jax has no device-wide barrier."""
        import_module("jax").block_until_ready(result)

    def differentiate(
        self, function: Callable[..., Any], arguments: Sequence[Any], places: Sequence[int], parameters: dict[str, Any]
    ) -> Tape:
        """Record function(*arguments, **parameters) by jax.vjp in those at `places`; what it keeps are the arrays
        in the function that jax.vjp returns, each buffer once."""
        jax = import_module("jax")
        call = of_some(function, arguments, places, parameters)

        def with_all(*arrays: Any) -> tuple[Any, Any]:
            result = call(*arrays)
            return first(result), result

        _, pull, result = jax.vjp(with_all, *(arguments[index] for index in places), has_aux=True)
        leaves = (leaf for leaf in jax.tree_util.tree_leaves(pull) if isinstance(leaf, jax.Array))
        buffers = {id(leaf): leaf for leaf in leaves if leaf.size}
        saved = (Saved(a.shape, str(a.dtype), a.nbytes, a.dtype.itemsize) for a in buffers.values())
        return Tape(result, tuple(saved), pull)

    def describe(self) -> dict[str, str]:
        jax = import_module("jax")
        return {"jax": jax.__version__, "device": jax.devices(self.platform)[0].device_kind}


def jax_arrays(platform: str = "cpu") -> JaxArrays:
    """Return the bridge for kernels that take and return jax arrays."""
    return JaxArrays(platform)
