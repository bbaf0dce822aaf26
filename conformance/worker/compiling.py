"""What JAX compiles in the process of a kernel, as it says itself."""

from __future__ import annotations

import sys
from typing import Any

from conformance.worker import wire

COMPILED = "/jax/core/compile/backend_compile_duration"
"""Also told for a program that was kept, with the time that reading it took."""
KEPT = "/jax/compilation_cache/cache_hits"


class Meter:
    """Counts from when JAX is there."""

    def __init__(self) -> None:
        self._listens = False
        self._programs = self._kept = 0
        self._seconds = 0.0

    def compiled(self) -> wire.Compiled:
        """Since the process began. Begins to listen when it is first asked in a process that has imported JAX."""
        if not self._listens:
            monitoring: Any = getattr(sys.modules.get("jax"), "monitoring", None)
            if monitoring is not None:
                monitoring.register_event_listener(self._event)
                monitoring.register_event_duration_secs_listener(self._duration)
                self._listens = True
        return wire.Compiled(self._programs, self._kept, self._seconds)

    def _event(self, name: str, **_: Any) -> None:
        self._kept += name == KEPT

    def _duration(self, name: str, seconds: float, **_: Any) -> None:
        if name == COMPILED:
            self._programs += 1
            self._seconds += seconds
