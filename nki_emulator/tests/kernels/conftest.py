"""What the tests of kernels in the emulator share."""

from collections.abc import Iterator

import pytest


@pytest.fixture(scope="session", autouse=True)
def _copies() -> Iterator[None]:
    """Let copies of the suite's own kernels have their names."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("conformance.implementations.registry.OWN_NAMES", {})
        yield
