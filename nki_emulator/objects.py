"""Classes that kernels declare. Page: "NKI Language Guide", Neuron SDK 2.32, on class support."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import MISSING, Field
from inspect import get_annotations
from typing import Any

from .errors import refuse


class Dictionary(dict[str, Any]):
    """A dictionary of a kernel: strings alone are keys."""

    def __init__(self, *arguments: Any, **named: Any) -> None:
        super().__init__()
        self.update(*arguments, **named)

    def __setitem__(self, key: str, value: Any) -> None:
        if type(key) is not str:
            refuse("python-dict-key", f"{key!r}: keys of a dictionary must be strings")
        super().__setitem__(key, value)

    def setdefault(self, key: str, default: Any = None) -> Any:
        if key not in self:
            self[key] = default
        return self[key]

    def update(self, *arguments: Any, **named: Any) -> None:
        for key, value in dict(*arguments, **named).items():
            self[key] = value


class NKIObject:
    """nki.language.NKIObject. Classes get the initialisers that they do not define: `__init__` with their annotated
    attributes in order, None where there is no default, which then calls `__post_init__`. A dataclass keeps it."""

    def __init_subclass__(cls, **options: Any) -> None:
        super().__init_subclass__(**options)
        if "__init__" not in cls.__dict__ and "__slots__" not in cls.__dict__:
            annotated = (name for base in reversed(cls.__mro__) for name in get_annotations(base))
            names = tuple(dict.fromkeys(annotated))
            if names:
                cls.__init__ = _initialiser(names)  # type: ignore[method-assign]
        if "__eq__" not in cls.__dict__ and "__slots__" not in cls.__dict__:
            cls.__eq__ = _same  # type: ignore[method-assign]
            cls.__hash__ = object.__hash__  # type: ignore[method-assign]

    def __post_init__(self) -> None:
        pass


def _initialiser(names: tuple[str, ...]) -> Callable[..., None]:
    def initialise(self: Any, *values: Any, **named: Any) -> None:
        fields = dict(zip(names, values, strict=False)) | named
        if len(values) > len(names) or set(named) & set(names[: len(values)]) or set(named) - set(names):
            raise TypeError(f"{type(self).__name__} takes {', '.join(names)}")
        for name in names:
            # a frozen dataclass refuses setattr
            object.__setattr__(self, name, fields[name] if name in fields else _default(type(self), name))
        self.__post_init__()

    return initialise


def _default(kind: type, name: str) -> Any:
    """Of an attribute; dataclasses keep those that are made anew for each object in their fields."""
    field: Field[Any] | None = getattr(kind, "__dataclass_fields__", {}).get(name)
    if field is not None and field.default_factory is not MISSING:
        return field.default_factory()
    return getattr(kind, name, None)


def _same(self: Any, other: object) -> bool:
    """Equality is structural."""
    return type(self) is type(other) and vars(self) == vars(other)
