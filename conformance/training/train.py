"""A network trained through an implementation's kernels, every call verified, and the verdict on it."""

from __future__ import annotations

import statistics
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from functools import partial
from typing import Any

import torch
from torch.nn import functional

from conformance.execution.status import KernelFailure, Verdict, conclude
from conformance.implementations.bridges.torch import TorchArrays
from conformance.implementations.implementation import Implementation, Unsupported, Waiver
from conformance.inputs import DISTRIBUTIONS
from conformance.results import build
from conformance.results.schema import SCHEMA, Scores, TrainingRecord, TrainingRun, number
from conformance.training import samples
from conformance.training.audit import Audit, audited
from conformance.training.layers import replace_convolutions
from conformance.training.models import UNet, digits_network
from conformance.training.required import Training
from conformance.training.samples import Samples
from conformance.training.tables import DIRECTIONS, DISTRIBUTION, OPERATOR, TrainingConfiguration


class StalledError(KernelFailure):
    """Every call kept its bound, and yet the loss did not fall as it must."""


@dataclass(slots=True)
class History:
    """What became of a training."""

    losses: list[float] = field(default_factory=list)
    """Loss of every step's batch, before the step."""
    accuracies: list[float] = field(default_factory=list)
    """Accuracy (of pixels, for masks) in every step's batch."""
    scores: dict[str, float] = field(default_factory=dict)
    """First and last loss and the accuracies, for tables and records."""


def run(
    configuration: TrainingConfiguration, implementation: Implementation, layout: str, seed: int, audit: Audit
) -> History:
    """Train, verify every step, test. Raises BrokenStepError, RefusedError, and what a kernel raises.

    The network lives on the kernels' own device if they take torch tensors, else on the host.
    """
    arrays = implementation.arrays
    device = arrays.device if isinstance(arrays, TorchArrays) else "cpu"
    train, test = (half.to(device) for half in data(configuration, seed))
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        if configuration.network == "digits":
            model = digits_network()
        else:
            model = UNet(3, 2, configuration.width, configuration.bilinear)
        model = replace_convolutions(model, implementation, layout).to(device)
    history, generator = History(), torch.Generator().manual_seed(seed)
    steps = configuration.images // configuration.batch
    with audited(model, audit), one_thread(device):
        optimizer = torch.optim.Adam(model.parameters(), lr=configuration.rate)
        for _ in range(configuration.epochs):
            order = torch.randperm(len(train), generator=generator).to(device)
            for chosen in order.split(configuration.batch):
                audit.when = f"step {len(history.losses) + 1} of {configuration.steps}"
                logits = model(train.images[chosen])
                loss = functional.cross_entropy(logits, train.truth[chosen])
                optimizer.zero_grad()
                loss.backward()
                optimizer.step()
                history.losses.append(loss.item())
                history.accuracies.append(_accuracy(logits, train.truth[chosen]))
        audit.when = "test"
        model.eval()
        with torch.no_grad():
            logits = torch.cat([model(images) for images in test.images.split(configuration.batch)])
    history.scores = {
        "first_loss": history.losses[0],
        "last_loss": statistics.fmean(history.losses[-steps:]),
        "accuracy": statistics.fmean(history.accuracies[-steps:]),
        "test_loss": float(functional.cross_entropy(logits, test.truth)),
        "test_accuracy": _accuracy(logits, test.truth),
        "baseline": test.baseline,
    }
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


def data(configuration: TrainingConfiguration, seed: int) -> tuple[Samples, Samples]:
    """Training and test samples."""
    if configuration.network == "digits":
        return samples.digits(configuration.images, configuration.held, seed)
    return samples.shapes(configuration.images, configuration.held, configuration.side, seed)


def _accuracy(logits: Any, truth: Any) -> float:
    return float((logits.argmax(1) == truth).float().mean())


def require_fallen(configuration: TrainingConfiguration, history: History) -> None:
    """Raises StalledError for a loss that did not fall as it must; NaN has not fallen."""
    first, last = history.scores["first_loss"], history.scores["last_loss"]
    if not last <= configuration.falls_to * first:
        raise StalledError(
            f"the loss went from {first:.4g} to {last:.4g} in {configuration.steps} steps; it must fall to "
            f"{configuration.falls_to:.3g} of its first value ({configuration.falls_to * first:.4g})"
        )


def verify_training(training: Training) -> tuple[Verdict, TrainingRecord]:
    """Train, verify every call, and say how it ended; raises KeyboardInterrupt only."""
    implementation, configuration, layout = training.implementation, training.configuration, training.layout
    audit, history, errors = Audit(), History(), list[BaseException]()

    def attempt(_: Verdict) -> None:
        nonlocal history
        try:
            history = run(configuration, implementation, layout, training.seed, audit)
            require_fallen(configuration, history)
        except BaseException as error:
            errors.append(error)
            raise

    def waiver() -> Waiver | None:
        """What excuses the call that training ended at: a kernel waived on a problem's data is waived on any."""
        if audit.asked is None or any(isinstance(error, StalledError) for error in errors):
            return None
        find: Any = partial(implementation.waiver, *audit.asked, "fp32")
        return next(filter(None, map(find, DISTRIBUTIONS)), None)

    verdict = conclude(attempt, waiver)
    if errors and not isinstance(errors[0], (KernelFailure, Unsupported)):
        verdict.reason = f"{audit.place}\n{verdict.reason}".strip()
    verdict.seconds["judge"] = audit.seconds
    # the contract of the first kernel that is for fp32; another one may be for some of the geometries
    contracts = {
        name: next(
            k.contract.as_record()
            for k in implementation.kernels
            if k.operator == name and "fp32" in k.dtypes and layout in k.layouts
        )
        for name in DIRECTIONS
    }
    return verdict, TrainingRecord(
        schema=SCHEMA,
        implementation=implementation.name,
        operator=OPERATOR,
        device=implementation.device,
        cases=1,
        **build.verdict_fields(verdict),
        source=implementation.source,
        contracts=contracts,
        problem=configuration.network,
        dtype="fp32",
        layout=layout,
        distribution=DISTRIBUTION,
        level=training.level,
        seed=training.seed,
        checks={role: {"worst error / bound": (number(worst), 1.0)} for role, worst in audit.worst.items()},
        training=TrainingRun(
            network=configuration.network,
            steps=len(history.losses),
            verified=audit.verified,
            losses=tuple(map(number, history.losses)),
            scores=Scores(**{n: number(score) for n, score in history.scores.items()}) if history.scores else None,
            configuration=asdict(configuration),
        ),
        versions=build.versions() | build.texts(implementation.arrays.describe()),
        command=training.command,
    )
