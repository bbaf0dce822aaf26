"""What a kernel must do besides being right once, and the arguments that it should refuse."""

from __future__ import annotations

import pytest

from conformance.checks.behaviour import BEHAVIOUR_CHECKS
from conformance.checks.state import STATE


@pytest.mark.behaves(*(behaviour.__name__ for behaviour in BEHAVIOUR_CHECKS))
def test_behaviour(check, name, case):
    """Each of `conformance.checks.behaviour`: inputs stay, results are independent, nothing is left unwritten, ..."""
    check(name, case)


@pytest.mark.behaves("calls_in_a_row_are_right", *(state.__name__ for state in STATE))
def test_state(check, name, case):
    """Each of `conformance.checks.state`: calls leave nothing behind, from one thread or several, in a fork."""
    check(name, case)


@pytest.mark.behaves("directions_are_adjoint")
def test_adjoint(check, name, case):
    """<dy, conv(x, w)> = <backward_data(dy, w), x> = <backward_weight(x, dy), w>."""
    check(name, case)


@pytest.mark.behaves("invalid_arguments")
def test_invalid_arguments(check, name, case):
    """Channels that do not match, a window larger than the image, no variance: what is accepted is reported."""
    check(name, case)


@pytest.mark.behaves("outputs_asked_for_alone", "gradients_asked_for_alone", "results_are_added_to_arrays")
def test_partial_requests(check, name, case):
    """Some of the outputs, gradients of some of the operands, results that are added to an array."""
    check(name, case)


@pytest.mark.behaves("backward_keeps_what_is_declared", "training_holds_what_autograd_shows")
def test_memory(check, name, case):
    """What an operator keeps for its backward, and what a training step of two of them in a network takes."""
    check(name, case)


@pytest.mark.behaves("switches_are_unchanged")
def test_switches(check, name, case):
    """A torch module leaves the switches of the whole process as they are, such as cudnn.benchmark."""
    check(name, case)


@pytest.mark.behaves("worked_example_is_exact")
def test_worked_example(check, name, case):
    """Averages of 0, 1, 2, ... over 2x6x6 in windows of 2, as a public tutorial has it: exact; all that it checks."""
    check(name, case)
