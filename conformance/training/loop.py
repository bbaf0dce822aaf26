"""The training loop, in the process that kernels run in."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch.nn import functional

from conformance.implementations.bridges.torch import TorchArrays
from conformance.implementations.implementation import Implementation
from conformance.training import samples
from conformance.training.bridge import observed
from conformance.training.exchange import History, Observer
from conformance.training.layers import replace_convolutions
from conformance.training.models import UNet, digits_network
from conformance.training.samples import Samples
from conformance.training.tables import TrainingConfiguration


def run(
    configuration: TrainingConfiguration, implementation: Implementation, layout: str, seed: int, observer: Observer
) -> History:
    """Train, show every call to the observer, test. Raises RefusedError, and errors of the observer or a kernel.

    The network is on the kernels' own device if they take torch tensors, else on the host.
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
    losses, accuracies = list[float](), list[float]()
    generator = torch.Generator().manual_seed(seed)
    with observed(model, observer), one_thread(device):
        optimizer = torch.optim.Adam(model.parameters(), lr=configuration.rate)
        for _ in range(configuration.epochs):
            order = torch.randperm(len(train), generator=generator).to(device)
            for chosen in order.split(configuration.batch):
                observer.when = f"step {len(losses) + 1} of {configuration.steps}"
                logits = model(train.images[chosen])
                loss = functional.cross_entropy(logits, train.truth[chosen])
                optimizer.zero_grad()
                loss.backward()
                optimizer.step()
                losses.append(loss.item())
                accuracies.append(_accuracy(logits, train.truth[chosen]))
        observer.when = "test"
        model.eval()
        with torch.no_grad():
            logits = torch.cat([model(images) for images in test.images.split(configuration.batch)])
    loss = functional.cross_entropy(logits, test.truth)
    return History(tuple(losses), tuple(accuracies), float(loss), _accuracy(logits, test.truth), test.baseline)


@contextmanager
def one_thread(device: str) -> Iterator[None]:
    """Give torch one thread on a CPU: its waiting threads spin, on cores that the kernels and the reference need."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1 if device == "cpu" else threads)
    try:
        yield
    finally:
        torch.set_num_threads(threads)


def data(configuration: TrainingConfiguration, seed: int) -> tuple[Samples, Samples]:
    """Return training and test samples."""
    if configuration.network == "digits":
        return samples.digits(configuration.images, configuration.held, seed)
    return samples.shapes(configuration.images, configuration.held, configuration.side, seed)


def _accuracy(logits: Any, truth: Any) -> float:
    return float((logits.argmax(1) == truth).float().mean())
