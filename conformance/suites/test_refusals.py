"""What no kernel can compute should be refused."""

from __future__ import annotations

import pytest

from conformance.checks.invalid_arguments import impossible_requests

pytestmark = pytest.mark.behaves


def test_impossible_requests(kept, case):
    """Channels that do not match, a window larger than the image, no variance: answers are reported, not judged."""
    kept(case, impossible_requests)
