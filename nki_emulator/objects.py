"""Classes that kernels declare. Page: "NKI Language Guide", Neuron SDK 2.32, on class support."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any


class NKIObject:
    """nki.language.NKIObject. Classes get the initialisers that they do not define: `__init__` with their annotated
    attributes in order, None where there is no default, which then calls `__post_init__`."""

    def __init_subclass__(cls, **options: Any) -> None:
        super().__init_subclass__(**options)
        if "__init__" not in cls.__dict__ and "__slots__" not in cls.__dict__:
            names = tuple(name for base in reversed(cls.__mro__) for name in vars(base).get("__annotations__", {}))
            if names:
                cls.__init__ = _initialiser(names)  # type: ignore[method-assign]
        if "__eq__" not in cls.__dict__ and "__slots__" not in cls.__dict__:
            cls.__eq__ = _same  # type: ignore[method-assign, assignment]
            cls.__hash__ = object.__hash__  # type: ignore[method-assign, assignment]

    def __post_init__(self) -> None:
        pass


def _initialiser(names: tuple[str, ...]) -> Callable[..., None]:
    def initialise(self: Any, *values: Any, **named: Any) -> None:
        given = dict(zip(names, values, strict=False)) | named
        if len(values) > len(names) or set(named) & set(names[: len(values)]) or set(named) - set(names):
            raise TypeError(f"{type(self).__name__} takes {', '.join(names)}")
        for name in names:
            setattr(self, name, given.get(name, getattr(type(self), name, None)))
        self.__post_init__()

    return initialise


def _same(self: Any, other: object) -> bool:
    """Equality is structural."""
    return type(self) is type(other) and vars(self) == vars(other)
