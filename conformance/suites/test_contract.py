"""The contract of a call: what a kernel must keep to besides being right once."""

from __future__ import annotations

import pytest

from conformance.checks import behaviour

pytestmark = pytest.mark.behaves


def test_output_is_written(kept, case):
    """Every element of a result is computed, none is left as the allocator gave it."""
    kept(case, behaviour.output_is_written)


def test_inputs_are_unchanged(kept, case):
    """A call leaves its inputs as they were."""
    kept(case, behaviour.inputs_are_unchanged)


def test_nothing_outside_inputs_matters(kept, case):
    """Memory around the inputs is neither written nor does it reach a result."""
    kept(case, behaviour.nothing_outside_inputs_matters)


def test_results_follow_the_content(kept, case):
    """Results belong to the content of the inputs: not to their shapes, addresses, first elements or sums."""
    kept(case, behaviour.results_follow_the_content)


def test_results_are_independent(kept, case):
    """Results of several calls stay as they are and share no memory."""
    kept(case, behaviour.results_are_independent)


def test_calls_do_not_depend_on_the_one_before(kept, case):
    """A call on other shapes changes nothing for the next one."""
    kept(case, behaviour.calls_do_not_depend_on_the_one_before)


def test_calls_repeat(kept, case):
    """The same call is right every time; whether to the bit is reported, not judged."""
    kept(case, behaviour.calls_repeat)


def test_strided_inputs_are_right_or_refused(kept, case):
    """Views of every second element are computed right or refused, never silently wrong."""
    kept(case, behaviour.strided_inputs_are_right_or_refused)


def test_transposed_inputs_are_right_or_refused(kept, case):
    """Views of the other layout's memory are computed right or refused, never silently wrong."""
    kept(case, behaviour.transposed_inputs_are_right_or_refused)


def test_work_is_finished(kept, case):
    """A result that is read right after the call is whole and stays so."""
    kept(case, behaviour.work_is_finished)


def test_results_are_plain(kept, case):
    """What is returned is the framework's own array, not one that computes when it is read."""
    kept(case, behaviour.results_are_plain)
