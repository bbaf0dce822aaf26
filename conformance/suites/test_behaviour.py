"""Requirements on a kernel besides the right result of one call, and the arguments that it should refuse."""

from __future__ import annotations

import pytest

from conformance.checks.behaviour import BEHAVIOUR_CHECKS
from conformance.checks.state import STATE


@pytest.mark.behaves(*(behaviour.__name__ for behaviour in BEHAVIOUR_CHECKS))
def test_behaviour(check, name, case):
    """Run each check of `conformance.checks.behaviour`: results are complete, independent and plain, ..."""
    check(name, case)


@pytest.mark.behaves("calls_in_a_row_are_right", *(state.__name__ for state in STATE))
def test_state(check, name, case):
    """Run each check of `conformance.checks.state`: calls leave nothing behind, from one thread or more, in a fork."""
    check(name, case)


@pytest.mark.behaves("directions_are_adjoint")
def test_adjoint(check, name, case):
    """Check <dy, conv(x, w)> = <backward_data(dy, w), x> = <backward_weight(x, dy), w>."""
    check(name, case)


@pytest.mark.behaves("invalid_arguments")
def test_invalid_arguments(check, name, case):
    """Call with channels that do not match, a window larger than the image, no variance; report accepted arguments."""
    check(name, case)


@pytest.mark.behaves("outputs_asked_for_alone", "gradients_asked_for_alone", "results_are_added_to_arrays")
def test_partial_requests(check, name, case):
    """Check requests for some outputs, for gradients of some operands, and for results added to an array."""
    check(name, case)


@pytest.mark.behaves("backward_keeps_what_is_declared", "training_holds_what_autograd_shows")
def test_memory(check, name, case):
    """Check the tensors that an operator keeps for its backward, and the memory of a training step with two of them."""
    check(name, case)


@pytest.mark.behaves("switches_are_unchanged")
def test_switches(check, name, case):
    """Check that a torch module leaves the switches of the whole process as they are, such as cudnn.benchmark."""
    check(name, case)


@pytest.mark.behaves("worked_example_is_exact")
def test_worked_example(check, name, case):
    """Check a public tutorial's averages of 0, 1, 2, ... over 2x6x6 in windows of 2, exactly, and nothing else."""
    check(name, case)


@pytest.mark.behaves("arithmetic_is_as_declared")
def test_arithmetic(check, name, case):
    """Read the arithmetic off a kernel that declares a matrix unit; report what the declaration does not allow."""
    check(name, case)


@pytest.mark.behaves("images_do_not_depend_on_the_batch")
def test_batch(check, name, case):
    """Check that the bits of an image do not depend on its batch where that is declared; report whether they do."""
    check(name, case)
