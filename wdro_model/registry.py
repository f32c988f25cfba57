"""Registers of extensions by name: built in, added by a user, or offered by another package.

Backends, costs, rules, counterparts and steps have a register each. A package adds to a register by
an entry point in its group, which is loaded when its name is first used:

    [project.entry-points."wdro_model.steps"]
    harmonic = "my_package.steps:Harmonic"
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator
from importlib import metadata
from typing import Any, Generic, TypeVar

from wdro_model.errors import unknown_name

Thing = TypeVar("Thing")


class Register(Generic[Thing]):
    """Extensions of one kind by name, each checked when it is added.

    kind: the word for one of them in messages. group: the group of their entry points.
    check: (name, given) -> the extension to register; raises ValueError if it cannot be one.
    """

    def __init__(self, kind: str, group: str, check: Callable[[str, Any], Thing]) -> None:
        self.kind, self.group, self._check = kind, group, check
        self._things: dict[str, Thing] = {}
        self._entries: dict[str, metadata.EntryPoint] | None = None

    def add(self, name: str, thing: Any, *, replace: bool = False) -> Thing:
        """Register a thing under a name; a name that is taken needs `replace=True`."""
        if not isinstance(name, str) or not name:
            raise ValueError(f"the name of a {self.kind} must be a non-empty string, got {name!r}.")
        checked = self._check(name, thing)
        known = self._things.get(name, checked)
        if known is not checked and not replace:
            which = f", {known.__name__}" if isinstance(known, type) else ""
            raise ValueError(
                f"there is a {self.kind} {name!r} already{which}; choose another name or pass "
                "replace=True."
            )
        self._things[name] = checked
        return checked

    def decorator(self, name: Any, replace: bool) -> Callable[[Any], Any]:
        """The decorator that registers a class or a function under a name and returns it."""
        if not isinstance(name, str):
            raise ValueError(
                f'a {self.kind} is registered under a name: write @register("name") above it, or '
                f'register("name", it); got {name!r}.'
            )

        def register(thing: Any) -> Any:
            self.add(name, thing, replace=replace)
            return thing

        return register

    def __getitem__(self, name: str) -> Thing:
        """The thing with this name; a package that offers it is imported now."""
        if name not in self._things:
            entry = self._packaged().get(name)
            if entry is None:
                raise ValueError(unknown_name(self.kind, name, self.names()))
            thing = loaded(entry, self.kind)
            if name not in self._things:  # the module may have registered it by itself
                self.add(name, thing)
        return self._things[name]

    def __contains__(self, name: object) -> bool:
        return name in self._things or name in self._packaged()

    def __iter__(self) -> Iterator[str]:
        return iter(self.names())

    def names(self) -> tuple[str, ...]:
        """Registered names first, then those of packages; nothing is imported."""
        return tuple(dict.fromkeys((*self._things, *self._packaged())))

    def things(self) -> tuple[Thing, ...]:
        """All things, in the order of `names`; packages are imported."""
        return tuple(self[name] for name in self.names())

    def _packaged(self) -> dict[str, metadata.EntryPoint]:
        """The entry points of the group by name; installed packages are searched once."""
        if self._entries is None:
            self._entries = {e.name: e for e in metadata.entry_points(group=self.group)}
        return self._entries


def loaded(entry: metadata.EntryPoint, kind: str) -> Any:
    """The object of an entry point; ValueError with its name if the import fails."""
    try:
        return entry.load()
    except Exception as error:
        raise ValueError(
            f"the {kind} {entry.name!r} could not be loaded from {entry.value!r}: {error}"
        ) from error


def refuse_signature(what: str, function: Any, *arguments: str) -> None:
    """Raise a ValueError unless the function can be called with these arguments."""
    try:
        inspect.signature(function).bind(*arguments)
    except TypeError as error:
        raise ValueError(f"{what} must take ({', '.join(arguments)}): {error}.") from None
    except ValueError:
        pass  # a compiled function, whose signature is not known
