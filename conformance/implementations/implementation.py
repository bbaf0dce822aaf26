"""The `Implementation` that a vendor writes, and the functions that it offers."""

from __future__ import annotations

import inspect
import re
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import product
from typing import TYPE_CHECKING, Any, Literal, Never

from conformance import layouts as memory
from conformance import storage
from conformance.contract import Contract
from conformance.dtypes import DECLARABLE
from conformance.failure import Failure, Undeclared
from conformance.implementations.bridges.base import ArrayBridge
from conformance.implementations.bridges.numpy import numpy_arrays
from conformance.implementations.devices import DEVICES, Unavailable, elsewhere, require
from conformance.implementations.errors import described
from conformance.implementations.vocabulary import vocabulary
from conformance.meant import hint

if TYPE_CHECKING:
    from conformance.implementations.source_files import SourceFiles

Predicate = Callable[[Any], bool]
"""Takes a problem's geometry, and returns whether a declaration applies to the problem."""
OUTSIDE = "outside the declared capability (when=...)"
"""Reason why a problem is unsupported, where a kernel's predicate leaves it out."""
NOT_IMPLEMENTED = "{} is not implemented"
"""Reason why an operator is unsupported on every problem."""
LOADING = ("LD_", "DYLD_", "GLIBC_", "PYTHON")
"""Beginnings of variables that are read, and may run code, before a process can isolate itself."""
BEHAVIOUR = "behaviour"
"""Name of the behaviour checks, which choose their inputs themselves, in records, `--distribution` and waivers."""


class ImplementationError(ValueError):
    """Raised for an invalid declaration; the message names the field and the choices, and `failure` says it as data."""

    def __init__(self, message: str, failure: Failure | None = None) -> None:
        super().__init__(message)
        self.failure = failure or Failure(kind="declaration", message=message.partition("\n")[0])


class Unsupported(Exception):
    """Raised by a kernel for a configuration that it declares not to support; the message is the reason."""

    undeclared: Undeclared | None = None


class NotDeclared(Unsupported):
    """Raised where an implementation has no kernel for an operator, or none in a dtype or layout."""

    def __init__(self, message: str, undeclared: Undeclared) -> None:
        super().__init__(message)
        self.undeclared = undeclared


@dataclass(slots=True)
class KernelMemory:
    """A kernel's history in a run, as far as the verdicts on later cases depend on it; kept by the judge alone."""

    first_called: float | None = None
    """Time of the first call, by the monotonic clock."""
    still_computes: Callable[[], bool | None] | None = None
    """Repeats the first call that has given results, and returns whether it still gives results: False if it is
    refused, None if it ends otherwise."""
    refused: dict[tuple[Any, ...], tuple[str, str] | None] = field(default_factory=dict)
    """A refused call without its values -> the contradiction of its refusal, if there is one: in words, and the
    values."""
    refusals: int = 0
    """Number of calls that were refused with all values that were tried."""
    repeated_alike: int = 0
    """Number of wrong results that a second call reproduced."""
    unexplained: int = 0
    """Number of wrong cases in a row that no known mistake explains."""
    diagnosed: int = 0
    """Work of the wrong cases on which known mistakes were tried, see `conformance.execution.verify.WORK`."""
    ended_by: set[str] = field(default_factory=set)
    """Storages of one operand, as `x:crop`, that have ended a process: in every other case they would do so again."""
    weaknesses: dict[tuple[str, str, int], str | None] = field(default_factory=dict)
    """Operator, dtype and number of dimensions -> why the contract is too weak for them, if it is."""
    reported_by: dict[tuple[Any, ...], Callable[..., Any] | None] = field(default_factory=dict)
    """A case -> the behaviour check that reports its wrong results; None where the results are right."""


@dataclass(frozen=True, slots=True)
class Kernel:
    """One function of an implementation and the cases it is for."""

    function: Callable[..., Any]
    operator: str
    dtypes: tuple[str, ...]
    layouts: tuple[str, ...]
    when: Predicate | None
    contract: Contract
    keywords: tuple[str, ...]
    """Keyword-only parameters of the function; where it takes any (`**kwargs`), all of the operator's, and those of the
    operator's capabilities that the function names."""
    memory: KernelMemory = field(default_factory=KernelMemory, init=False, repr=False, compare=False)


@dataclass(frozen=True, slots=True)
class AutogradVariant:
    """A function with a kernel's signature that the framework's autodiff goes through."""

    function: Callable[..., Any]
    operator: str
    label: str
    saves: int | None
    """Number of activations (buffers of the size of an image) that the function keeps for its backward; None if
    undeclared."""
    keywords: tuple[str, ...]
    memory: KernelMemory = field(default_factory=KernelMemory, init=False, repr=False, compare=False)


@dataclass(frozen=True, slots=True)
class Setting:
    """A way in which a library can be run: a variant of its implementation, in a process of its own."""

    label: str
    environment: Mapping[str, str]
    """Variables that are set in the process before anything is imported."""
    prepare: Callable[[], object] | None
    """Called once, when the file is loaded."""
    wrap: Callable[[Callable[..., Any]], Callable[..., Any]] | None
    """Takes a kernel's function, and returns the function that is called instead."""
    compiles_per_shape: bool = False

    def __post_init__(self) -> None:
        label = self.label
        if not isinstance(label, str) or not re.fullmatch(r"[^\s\[\]]{1,40}", label) or not label.isprintable():
            raise ImplementationError(f"label={label!r}: must be 1 to 40 printable characters, no spaces or brackets")
        for name, value in self.environment.items():
            texts = isinstance(name, str) and isinstance(value, str)
            if not texts or not name or "=" in name or "\0" in name + value:
                raise ImplementationError(f"environment: {name!r}: {value!r}: must be a variable's name and a text")
            if name.startswith(LOADING):  # which would run before the process is isolated
                raise ImplementationError(
                    f"environment: {name}: a variant may not set what the loader or Python reads when a process starts "
                    f"({', '.join(f'{beginning}*' for beginning in LOADING)})"
                )


@dataclass(frozen=True, slots=True)
class Adapted:
    """What is known of a torch module that was made an implementation (`conformance.implementations.modules`).

    problem   descriptor of the file's own problem, with the shape of its inputs; empty where it is not known
    whole     descriptor of the file's own problem, where that is too large and `problem` has a part of it; else empty
    unknown   why the file's own problem is not known
    operator  operator of that problem, in `dtype`
    unmapped  why the module has no kernels, with the line that would give it some; empty where it has kernels
    unverified  note on results that the module returns and no operator has
    """

    problem: str = ""
    whole: str = ""
    unknown: str = ""
    operator: str = ""
    dtype: str = "fp32"
    unmapped: str = ""
    unverified: str = ""


@dataclass(slots=True)
class Waiver:
    """An expected failure, with the reason and where it is tracked."""

    operator: str
    reason: str
    url: str
    when: Predicate | None
    dtypes: tuple[str, ...]
    distributions: tuple[str, ...]
    storages: tuple[str, ...] = ()
    layouts: tuple[str, ...] = ()
    place: str = ""
    """File and line of the declaration."""

    def covers(self, storage: str, layout: str) -> bool:
        """Return whether the waiver applies to this storage and layout; empty `storages` or `layouts` apply to all."""
        stored = not self.storages or any(part in storage.split(",") for part in self.storages)
        return stored and (not self.layouts or layout in self.layouts)


@dataclass(slots=True)
class Implementation:
    """A named set of kernels on one device.

    `arrays` turns host tensors into what the kernels take (default: NumPy); `contract` is what they promise about their
    arithmetic unless a kernel declares its own. `version` is free text for the records. `deterministic` promises the
    same bits for the same inputs in every call; `unsafe` names what callers must not do: call from several `threads` at
    once, or in a `fork` of a process that has called before. `compiles_per_shape` says that a first call on a shape
    takes a compiler's time, as with JAX, whose bridge says so by itself: such an implementation gets fewer programs.
    `batch_invariant` promises an image the same bits in every batch, at every place of it and beside any others, of
    operators that compute each image by itself.
    """

    name: str
    device: str = "cpu"
    arrays: ArrayBridge = field(default_factory=numpy_arrays)
    contract: Contract = field(default_factory=Contract)
    version: str = ""
    deterministic: bool = False
    unsafe: tuple[str, ...] = ()
    compiles_per_shape: bool | None = None
    batch_invariant: bool = False
    kernels: list[Kernel] = field(default_factory=list, init=False)
    waivers: list[Waiver] = field(default_factory=list, init=False)
    autograd_variants: list[AutogradVariant] = field(default_factory=list, init=False)
    settings: list[Setting] = field(default_factory=list, init=False)
    source: str = field(default="", init=False)
    files: SourceFiles | None = field(default=None, init=False)
    """The files that `source` is the hash of."""
    adapted: Adapted | None = field(default=None, init=False)
    """What is known of the torch module that this implementation was made from, if it was."""
    layouts: dict[str, str] = field(default_factory=dict, init=False)
    """Layouts that the implementation declares itself: name -> letters."""
    wrong_alone: dict[tuple[Any, ...], tuple[str, Failure, Any] | None] = field(
        default_factory=dict, init=False, repr=False
    )
    """Case of a wrong call -> message, failure and diagnosis, if the call is also wrong in a new process, where no call
    comes before it."""
    usual_paths: dict[str, Any] = field(default_factory=dict, init=False, repr=False)
    """Operator -> its `conformance.execution.declared.usual_paths`, which two checks of each kernel ask for."""

    def __post_init__(self) -> None:
        if not isinstance(self.name, str) or not re.fullmatch(r"\S{1,80}", self.name) or not self.name.isprintable():
            raise ImplementationError(f"name={self.name!r}: must be 1 to 80 printable characters without a space")
        # `--impl ../x` is a path to whoever reads the command; `acme[fast]` is a variant of `acme`
        if self.name[0] in "-." or re.search(r"[/\\\[\]]", re.sub(r"\[[^\[\]]+\]\Z", "", self.name)):
            raise ImplementationError(f"name={self.name!r}: must not begin with '-' or '.', nor hold / \\ [ or ]")
        if self.device not in DEVICES:
            raise ImplementationError(f"device={self.device!r}: must be one of {', '.join(DEVICES)}")
        if not isinstance(self.arrays, ArrayBridge):
            raise ImplementationError(f"arrays={self.arrays!r}: must be a bridge, such as torch_arrays('cuda')")
        if not isinstance(self.contract, Contract):
            raise ImplementationError(f"contract={self.contract!r}: must be a Contract(...)")
        _known("unsafe", self.unsafe, ("threads", "fork"))
        for promise in ("deterministic", "batch_invariant"):
            if not isinstance(value := getattr(self, promise), bool):
                raise ImplementationError(f"{promise}={value!r}: must be True or False")
        if self.compiles_per_shape is None:
            self.compiles_per_shape = bool(self.arrays.compiles_per_shape)

    def require_effect(self) -> None:
        """Raise ImplementationError for a contract with a field that changes nothing of the operators declared under
        it."""
        for contract in dict.fromkeys(kernel.contract for kernel in self.kernels):
            operators = dict.fromkeys(kernel.operator for kernel in self.kernels if kernel.contract == contract)
            if fields := contract.without_effect(operators):
                what = f"{', '.join(fields)} has no effect on {', '.join(operators)}; leave it out"
                raise ImplementationError(f"{contract.declaration}: {what}")

    def require_same_source(self) -> None:
        """Raise ImplementationError where `source` is not what ran; called before a pass is given."""
        if self.files is not None:
            self.files.require_unchanged()

    def implements(
        self,
        operator: str = "",
        *,
        dtypes: Sequence[str] = ("fp32",),
        layouts: Sequence[str] | Mapping[str, str] = (),
        when: Predicate | None = None,
        contract: Contract | None = None,
        **unknown: Never,
    ) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
        """Offer a function as the kernel of `operator` for these dtypes and layouts, where `when(geometry)` holds.
        Without `layouts`, it takes `nchw`, and a matrix product `nn`.

        The function takes the operator's inputs by position and asks for parameters by naming them keyword-only
        (`*, stride, padding`). Stack the decorator to declare another contract for some of the dtypes. A mapping of
        `layouts` names orders of axes of one's own: `{"mine": "chwn"}`, with groups `{"ours": "ghwcn"}`.
        """
        for word in unknown:
            options = ("operator", "dtypes", "layouts", "when", "contract")
            raise ImplementationError(f"implements takes no {word}, but {', '.join(options)}{hint(word, options)}")
        if callable(operator) or not operator:
            raise ImplementationError('implements needs the operator: @acme.implements("conv_forward")')
        if when is not None and not callable(when):
            raise ImplementationError(f"when={when!r}: must be a function of a problem, as in when=lambda p: p.n == 1")
        _known("operator", [operator], vocabulary().operators)
        _known("dtypes", dtypes, DECLARABLE)
        names = vocabulary().operators[operator]
        _known(f"dtypes of {operator}", dtypes, names.dtypes)
        layouts = layouts or names.layouts[:1]
        self._name_layouts(layouts)
        _known("layouts", tuple(layouts) if isinstance(layouts, Mapping) else layouts, self._all_layouts())
        _known(f"layouts of {operator}", [name for name in layouts if name not in self.layouts], names.layouts)
        if contract is not None and not isinstance(contract, Contract):
            raise ImplementationError(f"contract={contract!r}: must be a Contract(...)")

        def register(function: Callable[..., Any]) -> Callable[..., Any]:
            kernel = Kernel(
                function=function,
                operator=operator,
                dtypes=tuple(dtypes),
                layouts=tuple(layouts),
                when=when,
                contract=contract or self.contract,
                keywords=_keywords(function, operator),
            )
            self._require_reachable(kernel)
            self.kernels.append(kernel)
            return function

        return register

    def _require_reachable(self, kernel: Kernel) -> None:
        """Raise ImplementationError where earlier kernels take every dtype and layout of this one, on all of its
        problems: `find` returns the first that fits, and this kernel would be ignored in silence."""
        before = [other for other in self.kernels if other.operator == kernel.operator]
        before = [other for other in before if other.when is None or other.when is kernel.when]
        remaining = {*product(kernel.dtypes, kernel.layouts)}
        taking = list[Kernel]()
        for other in before:
            if taken := remaining & {*product(other.dtypes, other.layouts)}:
                remaining -= taken
                taking.append(other)
        if taking and not remaining:
            first, take = ", ".join(_place(other.function) for other in taking), "take" + "s" * (len(taking) == 1)
            raise ImplementationError(
                f"{kernel.operator}: {_place(kernel.function)} is never called: {first} {take} all that it is declared "
                "for; remove one, give it other dtypes, layouts or when=, or declare the one for fewer cases first "
                "(of stacked decorators the lowest)"
            )

    def _all_layouts(self) -> tuple[str, ...]:
        return (*vocabulary().layouts, *self.layouts)

    def _name_layouts(self, layouts: Sequence[str] | Mapping[str, str]) -> None:
        """Add the layouts of a mapping to those that the implementation declares itself. Raises ImplementationError."""
        if not isinstance(layouts, Mapping):
            return
        try:
            for name, text in layouts.items():
                letters = memory.read(name, text)
                if self.layouts.get(name, letters) != letters:
                    raise memory.LayoutError(f"{name!r} is {self.layouts[name]} already; choose another name")
                memory.declare(name, text, self.name)
                if name not in vocabulary().layouts:
                    self.layouts[name] = letters
        except memory.LayoutError as error:
            raise ImplementationError(f"layouts: {error}") from None

    def differentiates(
        self, operator: str, *, label: str = "autograd", saves: int | None = None
    ) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
        """Offer a function that takes and returns what a kernel of `operator` does and that can be differentiated.

        `saves` is how many activations, buffers of the size of an image, it keeps for its backward, where that is to be
        counted (conv_bn_forward); `label` names the way it does that. A function may be a kernel as well, and an
        implementation may offer several. Raises ImplementationError for an operator whose gradients no check verifies.
        """
        _known("operator", [operator], vocabulary().operators)
        if operator not in (differentiable := vocabulary().differentiable):
            raise ImplementationError(
                f"operator: no check verifies the gradients of {operator!r}; differentiates(...) takes "
                + ", ".join(differentiable)
            )
        if (
            any((variant.label, variant.operator) == (label, operator) for variant in self.autograd_variants)
            or not label.strip()
        ):
            raise ImplementationError(f"label={label!r}: each autograd variant of {operator} needs its own name")
        if saves is not None and (not isinstance(saves, int) or saves < 0):
            raise ImplementationError(f"saves={saves!r}: must be a number of buffers")

        def register(function: Callable[..., Any]) -> Callable[..., Any]:
            self.autograd_variants.append(
                AutogradVariant(function, operator, label, saves, _keywords(function, operator))
            )
            return function

        return register

    def variant(
        self,
        label: str,
        *,
        environment: Mapping[str, str] | None = None,
        prepare: Callable[[], object] | None = None,
        wrap: Callable[[Callable[..., Any]], Callable[..., Any]] | None = None,
        compiles_per_shape: bool = False,
    ) -> None:
        """Declare another way to run the library, as `NAME[label]`: a row of its own, in a process of its own.

        `environment` is added to that process's before anything is imported; `prepare` is called when the file has been
        loaded, to switch something in the library; `wrap` makes of each kernel's function the one that is called, such
        as `torch.compile`, which also `compiles_per_shape`. A variant runs only on request: `--impl 'NAME[label]'`, or
        `--variants` for all.
        """
        if any(setting.label == label for setting in self.settings):
            raise ImplementationError(f"label={label!r}: each variant of {self.name} needs its own")
        if environment is None and prepare is None and wrap is None:
            raise ImplementationError(f"variant {label!r}: changes nothing; give environment=, prepare= or wrap=")
        self.settings.append(Setting(label, dict(environment or {}), prepare, wrap, compiles_per_shape))

    def become(self, label: str) -> None:
        """Turn this implementation into one of its variants, for as long as this process lasts."""
        (setting,) = [setting for setting in self.settings if setting.label == label]
        if setting.prepare is not None:
            setting.prepare()
        if setting.wrap is not None:
            self.kernels = [replace(kernel, function=setting.wrap(kernel.function)) for kernel in self.kernels]
        self.compiles_per_shape = self.compiles_per_shape or setting.compiles_per_shape
        self.name, self.settings = variant_name(self.name, label), []

    def waive(
        self,
        operator: str,
        *,
        reason: str,
        url: str,
        when: Predicate | None = None,
        dtypes: Sequence[str] = DECLARABLE,
        distributions: Sequence[str] | None = None,
        storages: Sequence[str] = (),
        layouts: Sequence[str] = (),
    ) -> None:
        """Declare an expected failure, on all input distributions and layouts unless some are named, and with
        `storages` such as `("w:crop", "gamma:expanded")` only where an operand lies in memory in one of these ways.

        A waived case that passes is a failure: the waiver is out of date. It excuses wrong results on `distributions`,
        in behaviour checks too; other failures of behaviour checks only where `distributions` names `behaviour`.
        """
        every_distribution = vocabulary().distributions
        distributions = every_distribution if distributions is None else distributions
        _known("operator", [operator], vocabulary().operators)
        _known("dtypes", dtypes, DECLARABLE)
        _known("distributions", distributions, (*every_distribution, BEHAVIOUR))
        _known("layouts", layouts, self._all_layouts())
        if not reason.strip() or not url.strip():
            raise ImplementationError("waive(...) needs a reason and a url where the failure is tracked")
        for text in storages:
            try:
                storage.parse(text)
            except storage.StorageError as error:
                raise ImplementationError(f"storages: {error}") from None
        scope = tuple(dtypes), tuple(distributions), tuple(storages), tuple(layouts)
        caller = sys._getframe(1)
        place = f"{caller.f_code.co_filename}:{caller.f_lineno}"
        self.waivers.append(Waiver(operator, reason, url, when, *scope, place))

    def require(self) -> None:
        """Raise Unavailable with the reason where the device, or a package that the bridge needs, is not here. A
        bridge may name the command that installs its packages: `install`."""
        if self.device in elsewhere:
            return
        try:
            require(self.device)
        except Unavailable as absence:
            way = self.arrays.install
            raise Unavailable(f"{absence}; where there is one: {way}" if way else str(absence)) from None
        self.arrays.require()

    def find(self, operator: str, geometry: Any, dtype: str, layout: str) -> Kernel:
        """Return the kernel for a case. Raises Unsupported with the reason of the kernel that comes nearest to it."""
        if (rank := memory.rank_of(layout)) != geometry.rank:
            raise Unsupported(f"layout {layout} has {rank} spatial axes, the problem {geometry.rank}")
        if memory.has_groups(layout) and not hasattr(geometry, "groups"):
            raise Unsupported(f"layout {layout} has groups as an axis, the problem has none")
        # asked of the class: in a training, a geometry's own attributes may not be known yet
        if hasattr(type(geometry), "exists_in") and not geometry.exists_in(dtype):
            raise Unsupported(f"{geometry.descriptor!r} does not exist in {dtype}")
        kernels = [kernel for kernel in self.kernels if kernel.operator == operator]
        if not kernels:
            raise NotDeclared(NOT_IMPLEMENTED.format(operator), Undeclared(kind="operator", what=operator))
        kinds: tuple[tuple[Literal["dtype", "layout"], str], ...] = (("dtype", dtype), ("layout", layout))
        for kind, needed in kinds:
            declared = dict.fromkeys(name for kernel in kernels for name in getattr(kernel, f"{kind}s"))
            kernels = [kernel for kernel in kernels if needed in getattr(kernel, f"{kind}s")]
            if not kernels:
                message = f"{kind} {needed} is not declared (declared: {', '.join(declared)})"
                raise NotDeclared(message, Undeclared(kind=kind, what=needed))
        reason = OUTSIDE
        for kernel in kernels:
            try:
                if holds(kernel.when, geometry):
                    return kernel
                reason = OUTSIDE
            except Unsupported as refusal:
                reason = str(refusal)
        raise Unsupported(reason)

    def supports(self, operator: str, geometry: Any, dtype: str, layout: str) -> bool:
        """Return whether there is a kernel for a case."""
        try:
            self.find(operator, geometry, dtype, layout)
        except Unsupported:
            return False
        return True

    def waiver(
        self, operator: str, geometry: Any, dtype: str, distribution: str, storage: str = "", layout: str = ""
    ) -> Waiver | None:
        """Return the first waiver that covers a case, if there is one."""
        for waiver in self.waivers:
            named = (operator, True, True) == (
                waiver.operator,
                dtype in waiver.dtypes,
                distribution in waiver.distributions,
            )
            try:
                if named and waiver.covers(storage, layout) and holds(waiver.when, geometry):
                    return waiver
            except Unsupported as refusal:  # which only a kernel's predicate may raise
                raise ImplementationError(f"when=... of a waiver raised {described(refusal)}") from None
        return None


def variant_name(name: str, label: str) -> str:
    """Return the name of a variant of an implementation."""
    return f"{name}[{label}]"


def holds(when: Predicate | None, geometry: Any) -> bool:
    """Return the answer of a vendor's predicate; errors that it raises become an ImplementationError. A kernel's
    predicate may raise Unsupported with the reason instead of answering no."""
    # a predicate in another process is asked by the geometry; in a training, what it is may not be known yet
    is_described = hasattr(type(geometry), "described") and not hasattr(when, "learn")
    asked = geometry.described if is_described else geometry
    try:
        return when is None or bool(when(asked))
    except (ImplementationError, Unsupported):  # the first one is raised in another process
        raise
    except Exception as problem:
        has = ""
        if isinstance(problem, AttributeError) and id(problem.obj) == id(asked):
            of_fields = (f.letter if f.attribute in ("", "size", "window") else f.attribute for f in geometry.fields)
            names = getattr(asked, "_fields", of_fields)
            has = f"; a problem of this operator has {', '.join(names)}"
        raise ImplementationError(f"when=... raised {described(problem)}{has}") from problem


def _place(function: Callable[..., Any]) -> str:
    """Return the name of a function, with its file and line where it has them."""
    code = getattr(inspect.unwrap(function), "__code__", None)
    name = getattr(function, "__name__", type(function).__name__)  # a functools.partial has none
    return name if code is None else f"{name} ({code.co_filename}:{code.co_firstlineno})"


def _known(field_name: str, values: Sequence[str], choices: Any) -> None:
    if isinstance(values, str):
        raise ImplementationError(f"{field_name}={values!r}: must be a tuple, such as ({values!r},)")
    for value in values:
        if value not in choices:
            raise ImplementationError(
                f"{field_name}: {value!r} is not one of {', '.join(choices)}{hint(value, choices)}"
            )


def _keywords(function: Callable[..., Any], operator: str) -> tuple[str, ...]:
    """Return the parameters to pass by keyword: those after the operator's arguments. Few people write the `*`."""
    signature = inspect.signature(function)
    parameters = list(signature.parameters.values())
    arguments, keywords, capabilities, *_ = vocabulary().operators[operator]
    allowed = (*keywords, *capabilities)
    passed = f"the suite passes ({', '.join((*arguments, '*', *allowed))}), of the keywords those that are named"
    keyword_only = [p.name for p in parameters if p.kind is p.KEYWORD_ONLY]
    beyond = [p.name for p in parameters[len(arguments) :] if p.kind is p.POSITIONAL_OR_KEYWORD and p.name in allowed]
    if any(p.kind is p.VAR_KEYWORD for p in parameters):
        return (*keywords, *(name for name in capabilities if name in (*keyword_only, *beyond)))
    name = getattr(function, "__name__", type(function).__name__)  # a functools.partial has none
    for word in {*keyword_only} - {*allowed}:
        raise ImplementationError(f"{name} has a keyword parameter {word!r}{hint(word, allowed) or ';'} {passed}")
    if not hasattr(function, "__wrapped__"):  # else it is the signature of the function that a decorator wraps
        try:
            signature.bind(*arguments, **dict.fromkeys((*keyword_only, *beyond)))
        except TypeError as problem:
            raise ImplementationError(f"{name} cannot be called, {problem}; {passed}") from None
    return (*keyword_only, *beyond)
