"""One course: a network trained through an implementation's kernels, every call judged."""

from __future__ import annotations

import statistics
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import torch
from torch.nn import functional

from conformance.execution.status import KernelFailure
from conformance.implementations.bridges.torch import TorchArrays
from conformance.implementations.implementation import Implementation
from conformance.training import samples
from conformance.training.audit import Audit, audited
from conformance.training.layers import replace_convolutions
from conformance.training.models import UNet, digits_network
from conformance.training.samples import Samples
from conformance.training.tables import Course


class StalledError(KernelFailure):
    """Every call kept its bound, and yet the loss did not fall as it must."""


@dataclass(slots=True)
class History:
    """What became of a training."""

    losses: list[float] = field(default_factory=list)
    """Loss of every step's batch, before the step."""
    accuracies: list[float] = field(default_factory=list)
    """Share of right answers (pixels, for masks) in every step's batch."""
    scores: dict[str, float] = field(default_factory=dict)
    """First and last loss and the accuracies, for tables and records."""


def run(course: Course, implementation: Implementation, layout: str, seed: int, audit: Audit) -> History:
    """Train, judge every step, test. Raises BrokenStepError, RefusedError, and what a kernel raises."""
    device = torch_device(implementation)
    train, test = (half.to(device) for half in data(course, seed))
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        model = replace_convolutions(network(course), implementation, layout).to(device)
    history = History()
    with audited(model, audit), one_thread(device):
        optimizer = torch.optim.Adam(model.parameters(), lr=course.rate)
        for number, batch in enumerate(_batches(train, course, seed), start=1):
            audit.when = f"step {number} of {course.steps}"
            _step(model, optimizer, batch, history)
        audit.when = "test"
        tested = _tested(model, test, course.batch)
    _conclude(course, history, test, tested)
    return history


@contextmanager
def one_thread(device: str) -> Iterator[None]:
    """On a CPU: torch's waiting threads spin, and take from the kernels and the reference the cores that they share."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1 if device == "cpu" else threads)
    try:
        yield
    finally:
        torch.set_num_threads(threads)


def torch_device(implementation: Implementation) -> str:
    """Where the network lives: on the kernels' own device if they take torch tensors, else on the host."""
    arrays = implementation.arrays
    return arrays.device if isinstance(arrays, TorchArrays) else "cpu"


def network(course: Course) -> Any:
    """The untrained network of a course."""
    return digits_network() if course.network == "digits" else UNet(3, 2, course.width, course.bilinear)


def data(course: Course, seed: int) -> tuple[Samples, Samples]:
    """Training and test samples of a course."""
    if course.network == "digits":
        return samples.digits(course.images, course.held, seed)
    return samples.shapes(course.images, course.held, course.side, seed)


def _batches(train: Samples, course: Course, seed: int) -> Iterator[Samples]:
    """Every epoch in an order of its own."""
    generator = torch.Generator().manual_seed(seed)
    for _ in range(course.epochs):
        order = torch.randperm(len(train), generator=generator).to(train.truth.device)
        for chosen in order.split(course.batch):
            yield Samples(train.images[chosen], train.truth[chosen])


def _step(model: Any, optimizer: Any, batch: Samples, history: History) -> None:
    answers = model(batch.images)
    loss = functional.cross_entropy(answers, batch.truth)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    history.losses.append(loss.item())
    history.accuracies.append(_accuracy(answers, batch))


def _tested(model: Any, test: Samples, batch: int) -> tuple[float, float]:
    """Loss and accuracy on samples that were not trained on."""
    model.eval()
    with torch.no_grad():
        answers = torch.cat([model(images) for images in test.images.split(batch)])
    return float(functional.cross_entropy(answers, test.truth)), _accuracy(answers, test)


def _accuracy(answers: Any, batch: Samples) -> float:
    return float((answers.argmax(1) == batch.truth).float().mean())


def _conclude(course: Course, history: History, test: Samples, tested: tuple[float, float]) -> None:
    last = slice(-(course.steps // course.epochs), None)
    history.scores = {
        "first_loss": history.losses[0],
        "last_loss": statistics.fmean(history.losses[last]),
        "accuracy": statistics.fmean(history.accuracies[last]),
        "test_loss": tested[0],
        "test_accuracy": tested[1],
        "baseline": test.commonest,
    }


def require_fallen(course: Course, history: History) -> None:
    """Raises StalledError for a loss that did not fall as it must; NaN has not fallen."""
    first, last = history.scores["first_loss"], history.scores["last_loss"]
    if not last <= course.falls_to * first:
        raise StalledError(
            f"the loss went from {first:.4g} to {last:.4g} in {course.steps} steps; it must fall to "
            f"{course.falls_to:.3g} of its first value ({course.falls_to * first:.4g})"
        )
