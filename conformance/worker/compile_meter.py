"""What JAX compiles in the process of a kernel, as it says itself."""

from __future__ import annotations

import sys
from typing import Any

from conformance.worker import wire

EVENTS = {"/jax/core/compile/backend_compile_duration": "programs", "/jax/compilation_cache/cache_hits": "kept"}
"""The first one also of a program that was kept, with the time that reading it took."""


class Meter:
    """Counts from when JAX is there."""

    def __init__(self) -> None:
        self._listens, self._counts, self._seconds = False, dict.fromkeys(EVENTS.values(), 0), 0.0

    def compiled(self) -> wire.Compiled:
        """Since the process began. Begins to listen when it is first asked in a process that has imported JAX."""
        monitoring: Any = getattr(sys.modules.get("jax"), "monitoring", None)
        if monitoring is not None and not self._listens:
            monitoring.register_event_listener(self._event)
            monitoring.register_event_duration_secs_listener(self._event)
            self._listens = True
        return wire.Compiled(**self._counts, seconds=self._seconds)

    def _event(self, name: str, seconds: float = 0.0, **_: Any) -> None:
        if name in EVENTS:
            self._counts[EVENTS[name]] += 1
            self._seconds += seconds
