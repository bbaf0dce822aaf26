"""One case from Python: `conformance.check` verifies a kernel on a problem and hands out the arrays."""

from __future__ import annotations

import atexit
import os
import sys
import traceback
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from typing import Any

from conformance.diagnosis.diagnose import plainest
from conformance.dtypes import DECLARABLE
from conformance.engine.search import explained
from conformance.execution.implementation_names import base_of, load_named, vary
from conformance.execution.process import SECONDS, Limits
from conformance.execution.remote import Exited, Raised
from conformance.execution.selection import SelectionError, require_known
from conformance.execution.status import Verdict
from conformance.execution.trial import Trial, absence_reason
from conformance.execution.verify import Tensors, verify
from conformance.execution.workers import Loader, Workers, printed, share
from conformance.explaining import explaining
from conformance.implementations import modules, registry
from conformance.implementations.bridges.base import ArrayBridge
from conformance.implementations.bridges.numpy import numpy_arrays
from conformance.implementations.errors import kernel_frames
from conformance.implementations.implementation import Implementation
from conformance.inputs import DISTRIBUTIONS
from conformance.judge import Comparison, Contract, Exact, compare
from conformance.judge.expected import METHODS
from conformance.layouts import NAMES, in_rank, rank_of
from conformance.operators import FAMILIES, OPERATORS, Arrays, Geometry, GeometryError, takes
from conformance.problems import LEVELS, PROBLEMS, Problem, Variant, named, typed
from conformance.problems.case import BEHAVIOUR, TRAINING, Case
from conformance.problems.table import usual_distribution
from conformance.resources import IMPLS
from conformance.storage import StorageError, parse, written


@dataclass(frozen=True, slots=True, repr=False, eq=False)
class CheckResult:
    """Result of `check`. Arrays are copies in canonical order (images: NCHW), whatever the kernel's layout.

    Its truth value is that of `passed`, so that `assert check(...)` fails if the kernel does. If nothing was verified
    (`unsupported`, `waived`, `unavailable`), asking for it raises ValueError; ask for `passed` or `status`.
    """

    trial: Trial
    verdict: Verdict
    inputs: Arrays
    """Inputs by name, in the case's dtype; empty if no reference could be computed or no kernel is for the case."""
    outputs: dict[str, Comparison]
    """Outputs by name; empty if `inputs` is."""
    printed: tuple[str, ...] = ()
    """Last lines that the kernel has printed in a process of its own."""

    @property
    def status(self) -> str:
        """`pass`, `fail`, `error`, `unsupported`, `waived` or `unavailable`."""
        return self.verdict.status

    @property
    def passed(self) -> bool:
        return self.verdict.status == "pass"

    @property
    def reason(self) -> str:
        """Reason why the status is not `pass`; empty if it is."""
        return self.verdict.explanation

    @property
    def diagnosis(self) -> tuple[str, ...] | None:
        """Names of the known mistakes that explain a failure equally well; None if none clearly does."""
        return None if self.verdict.diagnosis is None else plainest(self.verdict.diagnosis.names)

    @property
    def contract(self) -> Contract | None:
        """Contract that the limits follow from; None if no kernel is for the case."""
        return self.verdict.contract

    @property
    def seconds(self) -> dict[str, float]:
        """Phase -> seconds: reference, golden, transfer, kernel (the first call with compilation), judge, diagnosis."""
        return self.verdict.seconds

    @property
    def exception(self) -> BaseException | None:
        """Exception that the kernel raised, if that is why the status is `error`."""
        return self.verdict.exception

    @property
    def expected(self) -> Any:
        """Expected values of the first output, to which `actual`, `error`, `limit` and `mismatched` belong too."""
        return self._first("expected")

    @property
    def actual(self) -> Any:
        return self._first("actual")

    @property
    def error(self) -> Any:
        return self._first("error")

    @property
    def limit(self) -> Any:
        return self._first("limit")

    @property
    def mismatched(self) -> Any:
        return self._first("mismatched")

    def __bool__(self) -> bool:
        if self.status in ("unsupported", "waived", "unavailable"):
            raise ValueError(f"{self}: nothing was verified, ask for `passed` or `status` ({self.reason})")
        return self.passed

    def _first(self, field: str) -> Any:
        return next((getattr(output, field) for output in self.outputs.values()), None)

    def explain(self, *, brief: bool = False) -> str:
        """Return what was compared with which limits and, if that failed, the worst element, the error locations and
        the likely cause; for an exception, the part of the traceback that lies in the kernel. If `brief`, leave out a
        count that stands there already and statistics of elements further off than any precision."""
        verdict = self.verdict
        lines = [str(self)]
        if isinstance(verdict.exception, (Raised, Exited)):
            lines += [verdict.exception.traceback, self.reason]
        elif verdict.exception is not None:
            lines += traceback.format_list(kernel_frames(verdict.exception))
            lines += traceback.format_exception_only(verdict.exception)
        elif self.passed:
            lines += [judgement.explain() for judgement in verdict.judgements]
        else:
            lines += [verdict.explained(brief=brief)]
        lines += [f"printed: {line}" for line in self.printed]
        return "\n".join(line.rstrip("\n") for line in lines if line)

    def where(self, level: str = "smoke") -> str:
        """Return what a run of the kernel's operator at a level says of this failure: the cause, or how it shows, and
        the condition under which cases fail. Empty if this case does not fail. Takes as long as the run."""
        require_known("level", [level], LEVELS)
        if self.status not in ("fail", "error"):
            return ""
        with explaining(str(self)):
            return "\n".join(explained(self.trial, "", level))
        return ""

    def __str__(self) -> str:
        trial, variant = self.trial, self.trial.variant
        operator, name = trial.operator.name, trial.implementation.name
        what = f"{operator}{f' of {name}' * (name != operator)} on {trial.problem.geometry.descriptor!r}"
        how = " ".join(filter(None, (variant.dtype, variant.layout, variant.distribution, variant.storage)))
        return f"{self.status}: {what}, {how}, seed {trial.seed}"

    def __repr__(self) -> str:
        return f"<CheckResult {self}>"


def check(
    kernel: Implementation | Callable[..., Any] | Path | str,
    problem: str | Geometry | Problem,
    *,
    operator: str | None = None,
    dtype: str = "fp32",
    layout: str = "nchw",
    distribution: str | None = None,
    storage: str = "",
    seed: int = 0,
    arrays: ArrayBridge | None = None,
    contract: Contract | None = None,
    method: str = "auto",
    in_process: bool = False,
    timeout: float = SECONDS,
) -> CheckResult:
    """Verify a kernel on one problem, as a run of the suite does. A kernel that is right is called up to ten times, for
    five seconds: some kernels are wrong in one call of a few.

        result = conformance.check("acme.py", "n2 c8 h9 w9 k16 r3 s3 p1", dtype="bf16")
        print(result.explain(), abs(result.error).max())

    - `kernel`: the file or folder that defines an Implementation (`acme.py`, or `acme.py::NAME` where it defines
      several), read anew by every call; the Implementation; the name of a shipped one; a class of torch modules; or a
      plain function that takes and returns what a kernel of `operator` does.
    - `problem`: a descriptor as above, or the name of a problem in the tables (`conformance list problems`).
    - `operator`: such as `conv_forward`; may be left out where only one of the kernels takes the problem.
    - `dtype`, `layout`, `distribution`: the values that a run's options of these names take. `fixed` inputs, the
      default, use every bit; in 8 bits there are none, and the default is the first distribution that there is.
    - `storage`: how operands lie in memory, such as `x:crop,w:page-end`; all contiguous by default.
    - `seed`: of the inputs; that of the goldens by default.
    - `arrays`, `contract`: the bridge and the arithmetic of a plain function; NumPy arrays and `Contract()` by
      default.
    - `method`: `exact` compares with the full reference, `probes` with samples and a projection of it, `auto` chooses
      by cost.
    - `in_process`: run the kernel of a file in this process, where a debugger finds it. A kernel that is given as an
      object runs here anyway.
    - `timeout`: seconds that a call may take in a process of its own.

    Whatever the kernel does becomes a status of the result. Raises ValueError for arguments that make no sense; the
    message names the argument.
    """
    trial, absent = chosen(
        kernel, problem, operator=operator, dtype=dtype, layout=layout, distribution=distribution, storage=storage,
        seed=seed, arrays=arrays, contract=contract, method=method, in_process=in_process, timeout=timeout,
    )  # fmt: skip
    tensors = Tensors()
    reason = absent or absence_reason(trial.implementation)
    verdict = Verdict("unavailable", reason) if reason else verify(trial, tensors, again=True)
    lines = printed(trial.implementation)
    if tensors.expected is None:
        return CheckResult(trial, verdict, {}, {}, lines)
    inputs = {name: array.copy() for name, array in tensors.expected.inputs.items()}
    outputs: dict[str, Comparison] = {}
    with explaining(trial.id):
        outputs = _comparisons(trial, verdict, tensors)
    return CheckResult(trial, verdict, inputs, outputs, lines)


def chosen(
    kernel: Implementation | Callable[..., Any] | Path | str,
    problem: str | Geometry | Problem,
    *,
    operator: str | None,
    dtype: str,
    layout: str,
    distribution: str | None,
    storage: str,
    seed: int,
    method: str,
    in_process: bool,
    timeout: float,
    arrays: ArrayBridge | None = None,
    contract: Contract | None = None,
    behaviour: str = "",
) -> tuple[Trial, str]:
    """Return the trial for arguments of `check`, or of a `behaviour` check, and why its kernel is not available (empty
    if it is). Raises ValueError."""
    resolved = _problem(problem)
    if behaviour and not any(problem.geometry == resolved.geometry for problem in PROBLEMS):
        resolved = replace(resolved, origin="drawn")  # a check of pairs of problems then begins with it
    family = FAMILIES[resolved.geometry.family]
    require_known("dtype", [dtype], OPERATORS[operator].dtypes if operator in OPERATORS else DECLARABLE)
    try:
        storage = written(parse(storage))
    except StorageError as error:
        raise SelectionError(f"storage {error}") from None
    if distribution is None:
        distribution = usual_distribution(resolved.geometry.family, dtype, storage)
    if distribution == BEHAVIOUR and not behaviour:
        raise SelectionError("distribution behaviour: is of checks, see `conformance check --check`")
    if distribution == TRAINING:
        raise SelectionError("distribution training: is verified by `conformance run` only")
    require_known("distribution", [distribution], (*DISTRIBUTIONS, BEHAVIOUR))
    require_known("method", [method], METHODS)
    if not isinstance(seed, int) or not 0 <= seed < 10**18:
        raise SelectionError(f"seed {seed!r}: must be a whole number from 0 to 10^18 - 1")
    if not 0 < timeout <= 1e6:
        raise SelectionError(f"timeout {timeout!r}: must be a number of seconds above 0")
    possible = [candidate.name for candidate in family.operators if takes(candidate.name, resolved.geometry)]
    if operator is not None:
        require_known("operator", [operator], OPERATORS)
        if operator not in possible:
            raise SelectionError(
                f"operator {operator}: does not take the problem {resolved.geometry.descriptor!r}. "
                f"Choices: {', '.join(possible)}"
            )

    if layout in NAMES and rank_of(layout) == 2:  # the default; in other dimensions the one of the same kind
        layout = in_rank(layout, resolved.geometry.rank)
    absent = ""
    is_module = modules.is_module(kernel)
    states = isinstance(kernel, (Implementation, Path, str)) or is_module
    if states and not (arrays is None and contract is None):
        raise SelectionError("arrays, contract: only with a plain function; an implementation states its own")
    if isinstance(kernel, (Implementation, Path, str)):
        implementation, absent = loaded(kernel, operator, in_process, timeout)
    elif is_module:
        implementation = modules.adapted(kernel)
    elif not callable(kernel):
        raise SelectionError(f"kernel {kernel!r}: must be an Implementation, a function, a path or a name")
    elif operator is None:
        raise SelectionError(f"operator: needed with a plain function. Choices: {', '.join(possible)}")
    else:
        require_known("layout", [layout], NAMES)
        name = getattr(kernel, "__name__", type(kernel).__name__)
        bridge = numpy_arrays() if arrays is None else arrays
        implementation = Implementation(name, arrays=bridge, contract=contract or Contract())
        implementation.implements(operator, dtypes=(dtype,), layouts=(layout,))(kernel)
    require_known("layout", [layout], (*NAMES, *implementation.layouts))
    if operator is None:
        operator = possible[0] if absent else _only_operator(implementation, possible, resolved.geometry)
    variant = Variant(dtype, layout, distribution, storage)
    Case.of(operator, resolved.geometry, variant, seed, behaviour).require_one_result()
    return Trial(implementation, OPERATORS[operator], resolved, variant, seed, method), absent


def loaded(
    kernel: Implementation | Path | str, operator: str | None, in_process: bool, timeout: float
) -> tuple[Implementation, str]:
    """Return the implementation that is given, or that a path or name leads to, and why it is not available (empty if
    it is). Raises ValueError."""
    if isinstance(kernel, Implementation):
        return kernel, ""
    loader: Loader = registry if in_process or sys.platform == "win32" else _workers(timeout)
    return _load(kernel, operator, loader)


def _only_operator(implementation: Implementation, possible: Sequence[str], geometry: Geometry) -> str:
    """Return the one operator of an implementation among those that take a problem. Raises SelectionError."""
    if implementation.adapted is not None and implementation.adapted.unmapped:
        raise SelectionError(f"kernel {implementation.name}: {implementation.adapted.unmapped}")
    offered = {kernel.operator for kernel in implementation.kernels if kernel.operator in possible}
    if len(offered) != 1:
        has = f"implements {len(offered)} operators that take" if offered else "implements no operator that takes"
        choices = ", ".join(sorted(offered) or possible)
        raise SelectionError(f"operator: {implementation.name} {has} {geometry.descriptor!r}. Choices: {choices}")
    return offered.pop()


def _comparisons(trial: Trial, verdict: Verdict, tensors: Tensors) -> dict[str, Comparison]:
    expected = tensors.expected
    assert verdict.contract is not None
    contract = verdict.contract.on(trial.problem.geometry, trial.variant.dtype)  # as it is judged
    copies = {name: array.copy() for name, array in tensors.outputs.items()}
    if not isinstance(expected, Exact):
        return {name: Comparison(None, None, copies.get(name), None, None) for name in trial.workload.outputs}
    judged = bool(verdict.judgements)  # otherwise there are the limits, and outputs that cannot be compared with them
    compared = expected.outputs(tensors.outputs if judged else expected.tensors.reference)
    comparisons = {output.name: compare(output, trial.variant.distribution, contract) for output in compared}
    if judged:
        return comparisons
    return {
        n: replace(comparison, actual=copies.get(n), error=None, mismatched=None)
        for n, comparison in comparisons.items()
    }


def _problem(problem: str | Geometry | Problem) -> Problem:
    if isinstance(problem, Problem):
        return problem
    if not isinstance(problem, str):
        if not isinstance(problem, tuple(family.geometry for family in FAMILIES.values())):
            raise SelectionError(f"problem {problem!r}: must be a descriptor, the name of a problem, or a geometry")
        return typed(problem.descriptor)
    try:
        return named(problem)
    except GeometryError as error:
        raise SelectionError(f"problem {problem!r}: {error}") from None


@cache
def _workers(seconds: float) -> Workers:
    """Return the workers of this process, which end with it."""
    workers = Workers(Limits(seconds, share(1)), ahead=True)
    atexit.register(workers.close)
    return workers


def _load(kernel: Path | str, operator: str | None, loader: Loader) -> tuple[Implementation, str]:
    """Return the implementation that a path or name leads to, and why it is not available (empty if it is).

    A file is read anew: it may have been corrected.
    """
    # a file may have such a name itself
    text, _, name = (str(kernel), "", "") if Path(kernel).exists() else str(kernel).partition("::")
    by_path = isinstance(kernel, Path) or text.endswith(".py") or "/" in text or os.sep in text
    if not by_path:
        catalogue = registry.Registry()
        load_named(loader, [base_of(text)], registry.discover(IMPLS), catalogue)
        vary(catalogue, loader, [text], "kernel")
        require_known("kernel", [text], catalogue.implementations.keys() | catalogue.unavailable.keys())
        if text in catalogue.unavailable:
            return Implementation(text), catalogue.unavailable[text]
        return catalogue.implementations[text], ""

    path = Path(text).absolute()  # a kernel's process is where this one was when it began
    if not path.exists():
        raise SelectionError(f"kernel {text}: no such file")
    if path.is_dir() and not (path / "__init__.py").exists():
        raise SelectionError(f"kernel {text}: a folder without __init__.py; name a file in it")
    if isinstance(loader, Workers):
        loader.forget(path)
    catalogue = loader.load([path])
    for broken in catalogue.broken.values():
        raise SelectionError(f"kernel {text}: {broken}")
    for why in catalogue.unavailable.values():
        return Implementation(name or path.stem), why
    if name:
        vary(catalogue, loader, [name], f"kernel {text}::")
        require_known(f"kernel {text}::", [name], catalogue.implementations)
        return catalogue.implementations[name], ""
    implementations = list(catalogue.implementations.values())
    able = [
        implementation
        for implementation in implementations
        if operator is None or any(operator == k.operator for k in implementation.kernels)
    ] or implementations
    if len(able) > 1:
        choices = ", ".join(f"{text}::{implementation.name}" for implementation in able)
        raise SelectionError(f"kernel {text}: defines several implementations. Choices: {choices}")
    return able[0], ""
