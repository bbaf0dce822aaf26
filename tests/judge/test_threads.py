"""The judge leaves the cores to kernels, but for what takes long."""

import numpy  # noqa: F401 - whose BLAS it is
from threadpoolctl import threadpool_info, threadpool_limits

from conformance.judge.threads import LONG, enough, spared


def _threads():
    return {library["num_threads"] for library in threadpool_info() if library["user_api"] == "blas"}


def test_one_thread_computes_what_is_short_and_all_what_is_long():
    with threadpool_limits(3, "blas"):
        with spared():
            assert _threads() == {1}
            with enough(LONG - 1):
                assert _threads() == {1}
            with enough(LONG):
                assert _threads() == {3}
            assert _threads() == {1}
        assert _threads() == {3}
        with enough(LONG):
            assert _threads() == {3}
