"""The verdict on a network that is trained through an implementation's kernels, every call verified."""

from __future__ import annotations

import statistics
from contextlib import suppress
from dataclasses import asdict
from functools import partial
from typing import Any

import numpy as np
from msgspec.structs import replace

from conformance.execution.process import Crash, Process
from conformance.execution.remote import operate
from conformance.execution.status import Verdict, conclude
from conformance.failure import Failure
from conformance.implementations.errors import KernelFailure
from conformance.implementations.implementation import Implementation, Unsupported, Waiver
from conformance.inputs import DISTRIBUTIONS
from conformance.operators import OPERATORS, GeometryError
from conformance.results import build
from conformance.results.schema import SCHEMA, Scores, TrainingRecord, TrainingRun, number
from conformance.training import exchange
from conformance.training.audit import Audit
from conformance.training.exchange import Call, CallTensors, History, Place
from conformance.training.tables import DIRECTIONS, DISTRIBUTION, OPERATOR, TrainingConfiguration
from conformance.training.training_demand import Training


class StalledError(KernelFailure):
    """The loss did not fall as it must, although every call kept its bound."""

    kind = "training"


class IncompleteError(KernelFailure):
    """A process reported a training that differs from the calls that were seen."""

    kind = "training"


def run(
    configuration: TrainingConfiguration, implementation: Implementation, layout: str, seed: int, audit: Audit
) -> History:
    """Train in the process that the kernels run in, and verify every call here. Raises BrokenStepError,
    IncompleteError, Crash, Unsupported, and errors of a kernel."""
    home = getattr(implementation.arrays, "home", None)
    if home is None:
        from conformance.training import loop  # torch is needed from here on

        history = loop.run(configuration, implementation, layout, seed, audit)
    else:
        process = home.process()
        try:
            message = _asked(process, "perform", exchange.train, implementation.name, configuration, layout, seed)
            while not isinstance(message, History):
                if isinstance(message, Place):
                    audit.begins(message)
                elif audit.place is None:
                    raise IncompleteError("reports the results of a call that it did not announce")
                else:
                    audit.returned(audit.place, _called(implementation, layout, audit.place, message))
                message = _asked(process, "proceed")
        except BaseException:
            with suppress(Crash):
                process.ask("stop")
            raise
        history = message
    _require_whole(configuration, history, audit)
    return history


def _asked(process: Process, name: str, *arguments: Any) -> Place | CallTensors | History:
    union: Any = Place | CallTensors | History
    answer: Place | CallTensors | History = operate(process, union, name, *arguments)
    return answer


def _called(implementation: Implementation, layout: str, place: Place, call_tensors: CallTensors) -> Call:
    """Return a call with its tensors. Raises Unsupported where no kernel is declared for the call, and IncompleteError
    for tensors that do not have the shapes and dtypes of the call that began."""
    try:
        workload = OPERATORS[place.direction].on(geometry := place.geometry)
    except GeometryError as error:
        raise IncompleteError(f"reports a call of {place.descriptor!r}: {error}") from None
    contract = implementation.find(place.direction, geometry, "fp32", layout).contract.on(geometry, "fp32")
    for arrays, tensors in (
        (call_tensors.inputs, workload.inputs),
        (call_tensors.outputs, workload.outputs),
    ):
        expected = {name: (tensor.shape, np.dtype(np.float32)) for name, tensor in tensors.items()}
        if {name: (array.shape, array.dtype) for name, array in arrays.items()} != expected:
            failure = Failure(kind="training", message=place.alike)
            raise IncompleteError(f"{place}\nreports other tensors than those of the call", failure)
    return Call(place.direction, geometry, "fp32", contract, call_tensors.inputs, call_tensors.outputs)


def _require_whole(configuration: TrainingConfiguration, history: History, audit: Audit) -> None:
    """Raise IncompleteError unless every step was seen, with as many calls as the first."""
    calls = [audit.calls[f"step {step} of {configuration.steps}"] for step in range(1, configuration.steps + 1)]
    complete = sum(count == calls[0] > 0 for count in calls)
    if not len(history.losses) == len(history.accuracies) == configuration.steps == complete:
        failure = Failure(kind="training", message="reports another number of steps than were seen complete")
        raise IncompleteError(
            f"reports a training of {len(history.losses)} steps; {complete} were seen complete", failure
        )
    if not all(0 <= share <= 1 for share in (*history.accuracies, history.test_accuracy, history.baseline)):
        raise IncompleteError("reports accuracies that are no shares of 1")


def scores(configuration: TrainingConfiguration, history: History) -> dict[str, float]:
    """Return first and last loss and the accuracies, for tables and records; last is the mean over the last epoch."""
    epoch = configuration.images // configuration.batch
    return {
        "first_loss": history.losses[0],
        "last_loss": statistics.fmean(history.losses[-epoch:]),
        "accuracy": statistics.fmean(history.accuracies[-epoch:]),
        "test_loss": history.test_loss,
        "test_accuracy": history.test_accuracy,
        "baseline": history.baseline,
    }


def require_fallen(configuration: TrainingConfiguration, history: History) -> None:
    """Raise StalledError for a loss that did not fall as it must; NaN has not fallen."""
    figures = scores(configuration, history)
    first, last = figures["first_loss"], figures["last_loss"]
    if not last <= configuration.falls_to * first:
        raise StalledError(
            f"the loss went from {first:.4g} to {last:.4g} in {configuration.steps} steps; it must fall to "
            f"{configuration.falls_to:.3g} of its first value ({configuration.falls_to * first:.4g})",
            Failure(kind="training", message="the loss did not fall as it must"),
        )


def verify_training(training: Training) -> tuple[Verdict, TrainingRecord]:
    """Train, verify every call, and return the verdict and its record; raises KeyboardInterrupt only."""
    implementation, configuration, layout = training.implementation, training.configuration, training.layout
    audit, history, errors = Audit(), list[History](), list[BaseException]()

    def attempt(_: Verdict) -> None:
        try:
            history.append(run(configuration, implementation, layout, training.seed, audit))
            require_fallen(configuration, history[0])
            implementation.require_same_source()
        except BaseException as error:
            errors.append(error)
            raise

    def waiver(raised: BaseException | None) -> Waiver | None:
        """Return the waiver of the call that training ended at: a kernel waived on a problem's data is waived on
        any."""
        if audit.place is None or isinstance(raised, (StalledError, IncompleteError)):
            return None
        find: Any = partial(implementation.waiver, audit.place.direction, audit.place.geometry, "fp32")
        return next(filter(None, map(find, DISTRIBUTIONS)), None)

    verdict = conclude(attempt, waiver)
    if errors and audit.place is not None and not isinstance(errors[0], (KernelFailure, Unsupported)):
        verdict.reason = f"{audit.place}\n{verdict.reason}"
        if verdict.failure is not None:
            verdict.failure = replace(verdict.failure, kind="training", message=audit.place.alike)
    verdict.seconds["judge"] = audit.seconds
    # the contract of the first kernel for fp32, although another kernel may compute some of the geometries
    contracts = {
        name: next(
            k.contract.as_record()
            for k in implementation.kernels
            if k.operator == name and "fp32" in k.dtypes and layout in k.layouts
        )
        for name in DIRECTIONS
    }
    losses = history[0].losses if history else ()
    return verdict, TrainingRecord(
        schema=SCHEMA,
        implementation=implementation.name,
        operator=OPERATOR,
        device=implementation.device,
        cases=1,
        **build.verdict_fields(verdict, implementation.device),
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
            steps=len(losses),
            verified=audit.verified,
            losses=tuple(map(number, losses)),
            scores=Scores(**{n: number(x) for n, x in scores(configuration, history[0]).items()}) if history else None,
            configuration=asdict(configuration),
        ),
        versions=build.versions() | build.texts(implementation.arrays.describe()),
        command=training.command,
    )
